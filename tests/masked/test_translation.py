"""The benchmark of masked translation: its pairs, its training, its samplers, its section of the page."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.masked import pairs, records, translation
from benchmarks.masked.fitting import Settings
from benchmarks.masked.pairs import Encoder, Judge, Pairs
from benchmarks.masked.report_translation import translation_section
from benchmarks.masked.translation import DegenerateBlocks, Study
from energyml.backends.mcmc.metropolis import DegenerateGibbs

pytest.importorskip("sacrebleu")
torch.set_num_threads(1)
WORDS = {"ein": "a", "der": "the", "hund": "dog", "mann": "man", "rennt": "runs", "schläft": "sleeps"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences that translate word by word, and some that are too long."""
    made: Path = tmp_path_factory.mktemp("data")
    german = [f"{a} {b} {c}." for a in ("Ein", "Der") for b in ("Hund", "Mann") for c in ("rennt", "schläft")]
    english = [" ".join(WORDS[w] for w in line.lower()[:-1].split()).capitalize() + "." for line in german]
    (made / "multi30k").mkdir()
    for part, (name, _) in translation.SIZES.items():
        for side, lines in (("de", german), ("en", english)):
            text = "".join(f"{line}\n" for line in [*lines, " ".join(["wort"] * 20)] * (4 if part == "train" else 1))
            with gzip.open(made / "multi30k" / f"{name}.{side}.gz", "wt", encoding="utf-8") as stream:
                stream.write(text)
    return made


@pytest.fixture(scope="module")
def study(folder: Path) -> Iterator[Study]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(records, "RESULTS", folder / "results")
        changed.setattr(translation, "RECORDS", records.Records("translation", ("name",)))
        changed.setattr(translation, "TRAINING", Settings(steps=60, batch=16, lr=1e-2, every=20))
        changed.setattr(pairs, "HIDDEN", 16)
        made = Study(folder, folder / "runs")
        made.ready()
        yield made


def test_long_sentences_are_left_out_and_rare_words_are_unknown() -> None:
    some = Pairs([["ein", "hund"], ["ein"]] * 2, [["a", "dog"], ["a"]] * 2)
    encoder = Encoder(some)
    assert encoder.labels["Target"] == ["<unk>", "a"]
    source, target, lengths = encoder(some, [0, 1])
    assert target.tolist() == [[1, 0], [1, -1]] and lengths["T"].tolist() == [2, 1] and source.shape == (2, 2)
    assert encoder.words([1, 0, -1]) == ["a", "<unk>"]


def test_counts_of_sentences_add_up_to_corpus_bleu() -> None:
    judge = Judge()
    answers = ["a dog runs over the green grass .", "two men sleep in the sun ."]
    references = ["a dog runs over green grass .", "two men are sleeping in the sun ."]
    counts = torch.tensor([judge.counts(a.split(), b.split()) for a, b in zip(answers, references, strict=True)])
    whole = judge.bleu.corpus_score(answers, [references]).score
    assert judge.score(counts) == pytest.approx(whole) and 30 < whole < 90


def test_blocks_of_one_are_degenerate_gibbs(study: Study) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "nucleus": 0.9, "order": "random"}
    kernels = (
        DegenerateGibbs(study.target("local"), **options),
        DegenerateBlocks(study.target("local"), 1, 2, **options),
    )
    states = [one.init(torch.Generator().manual_seed(0)) for one in kernels]
    for _ in range(2):
        (states[0], plain), (states[1], blocks) = (k.step(s) for k, s in zip(kernels, states, strict=True))
        assert torch.equal(states[0].labels["y"], states[1].labels["y"])
        assert torch.equal(plain.novel, blocks.novel) and torch.equal(plain.proposed, blocks.proposed)


def test_the_model_learns_settings_run_and_the_section_is_written(study: Study, folder: Path, tmp_path: Path) -> None:
    found = {str(one["name"]): one for one in study.references()}
    assert found["truth"]["bleu"] == pytest.approx(100)
    assert found["mask-predict"]["bleu"] > 80  # type: ignore[operator]
    for record in found.values():
        translation.RECORDS.add(record)
    kinds = {(one.sampler, str(one.block), one.anneal > 0, one.start): one for one in translation.SETTINGS[::-1]}
    for one in kinds.values():
        record = study.run(replace(one, burn_in=1, sweeps=1))
        translation.RECORDS.add({**record, "name": one.name})
    short = replace(translation.BASE[1], burn_in=1, sweeps=1)
    made_of = study.words(short)
    assert made_of["unknown"] == 0 and len(made_of["examples"]) == 5  # type: ignore[arg-type]
    translation.RECORDS.add({**made_of, "name": f"words of {translation.BASE[1].name}"})
    page = "".join(translation_section(list(translation.RECORDS), tmp_path))
    assert "4 to 1, MH, local" in page and "BLEU" in page and (tmp_path / "masked-translation-bleu.svg").exists()
    assert "Not run yet: " in page and "repeats of the word before" in page
    again = Study(folder, folder / "runs")
    again.ready()  # the model is read, not trained again
    assert torch.equal(again.starts["greedy"], study.starts["greedy"])

"""The examples of sequence training from the command line: both stages, predictions, BLEU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from energyml.cards.card import Selection
from energyml.training_state import TrainingState
from tests.train.test_commands import energyml

torch.set_num_threads(1)
EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = {"Anna": "B-PER", "Smith": "I-PER", "lives": "O", "in": "O", "Rome": "B-LOC", "works": "O", "for": "O"}
SENTENCES = ("Anna lives in Rome", "Anna Smith works for Rome", "Smith lives", "Anna Smith lives in Rome")
GERMAN = {"ein": "a", "hund": "dog", "mann": "man", "schläft": "sleeps", "rennt": "runs"}
PAIRS = ("ein hund rennt", "ein mann schläft", "ein hund schläft", "ein mann rennt", "hund rennt")


def log(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_tagger_trains_in_both_stages_and_predicts(tmp_path: Path) -> None:
    (tmp_path / "ner").mkdir()
    blocks = ["".join(f"{word} {WORDS[word]}\n" for word in sentence.split()) for sentence in SENTENCES * 2]
    (tmp_path / "ner" / "eng.train").write_text("\n".join(blocks), encoding="utf-8")
    run = tmp_path / "run"
    done = energyml("train", EXAMPLES / "seq2seq_tagger.energy", "--root", tmp_path, "--out", run, "--epochs", 2)
    assert done.returncode == 0, done.stderr
    records = log(run)
    assert [one["stage"] for one in records] == ["1. teacher_forcing"] * 2 + ["2. direct_loss"] * 2
    assert records[1]["loss"] < records[0]["loss"]
    (tmp_path / "new.txt").write_text("Anna\nlives\n\nRome\n", encoding="utf-8")
    told = energyml("predict", run, tmp_path / "new.txt", "--out", tmp_path / "answers.jsonl")
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [len(one["y"]) for one in answers] == [2, 1]
    taught = energyml(
        "train", EXAMPLES / "seq2seq_tagger.energy", "--root", tmp_path, "--out", tmp_path / "student", "--epochs", 1,
        "--train", f"distill(teacher: '{run}', count: 4)",
    )  # fmt: skip
    assert taught.returncode == 0 and float(str(log(tmp_path / "student")[0]["loss"])) > 0, taught.stderr
    judged = energyml(
        "eval", run, "--root", tmp_path, "--split", "train", "--infer", "relaxed_beam(width: 2)", "--json"
    )
    assert judged.returncode == 0 and 0 <= json.loads(judged.stdout)["metrics"]["accuracy"] <= 1, judged.stderr


def test_the_translator_trains_in_both_stages_and_predicts(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name, pairs in (("train", PAIRS * 2), ("val", PAIRS[:2])):
        (folder / f"{name}.de").write_text("".join(f"{one}\n" for one in pairs), encoding="utf-8")
        english = [" ".join(GERMAN[word] for word in one.split()) for one in pairs]
        (folder / f"{name}.en").write_text("".join(f"{one}\n" for one in english), encoding="utf-8")
    run = tmp_path / "run"
    data = "pairs('multi30k/train.de', 'multi30k/train.en', validation: 'multi30k/val')"
    done = energyml("train", EXAMPLES / "translation.energy", "--root", tmp_path, "--out", run, "--epochs", 1,
                    "--data", data)  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = log(run)
    assert [one["stage"] for one in records] == ["1. self_normalized", "2. direct_loss"]
    assert all(0 <= float(str(one["validation.bleu"])) <= 1 for one in records if "validation.bleu" in one)
    assert "validation.bleu" in records[1]
    told = energyml(
        "eval", run, "--root", tmp_path, "--data", data, "--split", "validation", "--report", "beam", "--json"
    )
    assert told.returncode == 0, told.stderr
    judged = json.loads(told.stdout)
    assert {"precision_1", "length_ratio", "length_1_to_5"} <= set(judged["details"]["bleu"])
    assert judged["beam"]["width"] == 3 and judged["beam"]["examples"] == 2
    (tmp_path / "new.de").write_text("ein hund schläft\nein mann\n", encoding="utf-8")
    told = energyml("predict", run, tmp_path / "new.de", "--out", tmp_path / "answers.jsonl")
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(answers) == 2 and all(isinstance(one["y"], list) for one in answers)


@pytest.mark.parametrize(
    "objective",
    ["scheduled_sampling(relax: annealed, alpha: 1 -> 5)", "beam_nll(width: 2)", "minimum_risk(count: 3)", "distill",
     "beam_hinge(infer: relaxed_beam(width: 2, alpha: 1 -> 3, anneal: exponential))"],
)  # fmt: skip
def test_other_objectives_train_too(tmp_path: Path, objective: str) -> None:
    (tmp_path / "ner").mkdir()
    blocks = ["".join(f"{word} {WORDS[word]}\n" for word in sentence.split()) for sentence in SENTENCES * 2]
    (tmp_path / "ner" / "eng.train").write_text("\n".join(blocks), encoding="utf-8")
    done = energyml("train", EXAMPLES / "seq2seq_tagger.energy", "--root", tmp_path, "--out", tmp_path / "run",
                    "--epochs", 2, "--train", objective, "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(log(tmp_path / "run")) == 2


def test_alpha_moves_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from energyml.backends.beam import relaxed_backend

    seen: list[float] = []
    original = relaxed_backend.peakedness

    def watched(selection: Selection, state: TrainingState) -> float:
        found = original(selection, state)
        if torch.is_grad_enabled():  # evaluation stands at the end of the schedule
            seen.append(found)
        return found

    monkeypatch.setattr(relaxed_backend, "peakedness", watched)
    (tmp_path / "ner").mkdir()
    blocks = ["".join(f"{word} {WORDS[word]}\n" for word in sentence.split()) for sentence in SENTENCES * 2]
    (tmp_path / "ner" / "eng.train").write_text("\n".join(blocks), encoding="utf-8")
    done = energyml(
        "train", EXAMPLES / "seq2seq_tagger.energy", "--root", tmp_path, "--out", tmp_path / "run", "--epochs", 3,
        "--train", "direct_loss(infer: relaxed_beam(width: 2, alpha: 1 -> 3))", "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(dict.fromkeys(seen)) == [1, 2, 3]

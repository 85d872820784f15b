"""The benchmark of masked energies: its languages, its exact sums, its sampler, its page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import energyml as em
from benchmarks.masked import phonemes, records, report, samplers, translation
from benchmarks.masked.fitting import Settings, fitted, fresh, measures
from benchmarks.masked.generators import every_string, languages
from benchmarks.masked.infilling import RESIDUES, Infilling, compiled, encoded, task
from benchmarks.masked.samplers import CellByCell, Setting, Study
from benchmarks.masked.statistics import difference, spread
from energyml.backends.mcmc.metropolis import DegenerateGibbs
from energyml.backends.mcmc.target import ScoreTarget

torch.set_num_threads(1)
CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYC"
    "AKVSYLSTASSLDYWGQGTLVTVSS"
)


class Neighbours(Infilling):
    """Scores a residue by random tables of those around it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tables = nn.Parameter(torch.randn(2, 21, 20, generator=generator))

    def residue_scores(self, chain: Tensor, hidden: Tensor, exists: Tensor, at: Tensor) -> Tensor:
        seen = chain.masked_fill(hidden, 20)
        return self.tables[0, seen.gather(1, at - 1)] + self.tables[1, seen.gather(1, at + 1)]


def test_languages_have_the_published_entropies() -> None:
    found = languages()
    for name, entropy in {"p": 5.964, "h": 4.993, "h+": 6.401}.items():
        assert found[name].entropy == pytest.approx(entropy, abs=1e-3)
        assert float(found[name].log_p.exp().sum()) == pytest.approx(1)
    drawn = found["p"].draw(2000, seed=0)
    assert float((drawn == drawn.flip(1)).all(1).double().mean()) == pytest.approx(0.8, abs=0.04)
    assert torch.equal(drawn, found["p"].draw(2000, seed=0))


def test_measures_are_those_of_the_product_and_training_lowers_them() -> None:
    language, model = languages()["h"], fresh(8, 4, seed=0)
    strings = every_string()
    by_hand = model.loss(objective="nll", using="enumerate", y=strings[:20], reduction="none")
    log_z = model.infer(using="enumerate").log_partition
    torch.testing.assert_close(by_hand, log_z - model.score(y=strings[:20]))
    train, held = language.draw(100, 1), language.draw(50, 2)
    for objective in ("LL", "PLL", "MLM", "KL", "KL+PL"):
        done = fitted(model, objective, train, held, Settings(steps=4, every=4), seed=0)
        assert done.taken == 4
    assert language.entropy < measures(model, language)["LL"] < math.log(len(strings))


def test_shared_states_sum_over_all_strings() -> None:
    model = em.compile(phonemes.SPEC.format(phonemes="A, B, C"), seed=0)
    for length in (1, 2, 4):
        with torch.no_grad():
            plain = model.score(y=every_string(3, length)).double().logsumexp(0)
        assert phonemes.exact_log_z(model, length) == pytest.approx(float(plain), rel=1e-6)


def test_the_third_cdr_is_cut_out(tmp_path: Path) -> None:
    (tmp_path / "heavy.txt").write_text(f"{CHAIN}\nQ{CHAIN}\n{CHAIN.replace('W', 'A')}\n", encoding="utf-8")
    found = task(tmp_path / "heavy.txt", count=3, seed=0, cut=14)
    assert sorted(found.lengths.tolist()) == [len(CHAIN), len(CHAIN) + 1]
    for row in found.truth:
        assert "".join(RESIDUES[one] for one in row) == "AKVSYLSTASSLDY"


def toy(monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study on a network of two tables."""
    monkeypatch.setattr("benchmarks.masked.infilling.Neighbours", Neighbours, raising=False)
    study = Study.__new__(Study)
    study.name, study.chains = "sapiens", 2
    study.task = encoded([CHAIN, CHAIN[2:]], [[97, 98, 99, 100], [95, 96, 97, 98]])
    study.models = {energy: compiled("Neighbours", Path("none"), energy) for energy in ("local", "raw")}
    study.net = study.models["raw"].mlm = study.models["local"].mlm
    study.start = study.net.all_masked(study.task.blank(), study.task.place, study.task.exists).argmax(-1)
    return study


def test_cells_alone_give_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    study = toy(monkeypatch)
    target: ScoreTarget = study.target("local")
    options: dict[str, Any] = {"temperature": 1.5, "nucleus": 0.9, "order": "random"}
    kernels = DegenerateGibbs(target, **options), CellByCell(target, study.net, 1, 3, **options)
    states = [one.init(torch.Generator().manual_seed(0), labels=study.starts()) for one in kernels]
    for _ in range(3):
        (states[0], plain), (states[1], fast) = (k.step(s) for k, s in zip(kernels, states, strict=True))
        assert torch.equal(states[0].labels["y"], states[1].labels["y"])
        torch.testing.assert_close(states[0].score, states[1].score)
        assert torch.equal(plain.novel, fast.novel)


def test_every_setting_runs_and_the_page_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study = toy(monkeypatch)
    found = [*study.references()]
    every = samplers.SETTINGS["sapiens"][::-1]  # of each kind the first, which the main figure needs
    kinds = {(one.sampler, str(one.block), one.anneal > 0, one.forced): one for one in every}
    for one in kinds.values():
        found.append(study.run(Setting(**{**vars(one), "burn_in": 1, "sweeps": 1})))
        found[-1]["name"] = one.name
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    kept = records.Records("samplers", ("model", "name"))
    for record in found:
        kept.add(record)
    assert kept.has(model="sapiens", name="truth")
    monkeypatch.setattr(samplers, "RECORDS", kept)
    monkeypatch.setattr(translation, "RECORDS", records.Records("translation", ("name",)))
    monkeypatch.setattr(report, "PAGE", tmp_path / "masked.md")
    report.main()
    page = (tmp_path / "masked.md").read_text(encoding="utf-8")
    assert "MH, raw" in page and (tmp_path / "masked-sapiens-energy.svg").exists()


def test_spreads_and_intervals() -> None:
    assert spread([1.0, 3.0], 2) == "2.00 ± 1.41"
    assert difference([1.0, 1.0, 4.0], 1) == "+2.0 [-2.3, +6.3]"

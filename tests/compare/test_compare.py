"""Comparisons in Python: what is in a row, what it is measured against, and what may go wrong."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.comparison.likelihood import bigram, lstm, spearman
from energyml.comparison.run import read_backends
from energyml.data.load import load_data
from energyml.driver import SpecFileError
from tests.compare.small import SPEC, write_task

torch.set_num_threads(1)


def compared(folder: Path, infer: str = "exact, mean_field(steps: 1)", **more: object) -> em.Comparison:
    return em.compare(write_task(folder), infer, repeats=1, **more)  # type: ignore[arg-type]


def test_rows_hold_what_their_backends_find(tmp_path: Path) -> None:
    made = compared(tmp_path, "exact, mean_field(steps: 1), dual, ilp", batch=4)
    data = load_data(tmp_path / "task.energy")
    model = em.load(tmp_path / "task.energy", labels=data.labels, seed=0)
    assert data.test is not None
    whole = data.test.batch()
    with torch.no_grad():
        best = model.infer(using="exact", lengths=whole.lengths, **whole.inputs).map()
        gold = model.score(lengths=whole.lengths, **whole.tensors)
        other = model.infer(using="mean_field(steps: 1)", lengths=whole.lengths, **whole.inputs).map()
    row = made["exact"]
    assert row.energies is not None and row.energy is not None and made.gold is not None
    torch.testing.assert_close(row.energies, -best.score.double())
    assert row.energy == pytest.approx(-float(best.score.mean()), abs=1e-5)
    assert made.gold == pytest.approx(-float(gold.mean()), abs=1e-5)
    right = (best["y"] == whole.gold["y"]) & (whole.gold["y"] >= 0)
    assert row.metrics["accuracy"] == pytest.approx(float(right.sum() / (whole.gold["y"] >= 0).sum()))
    assert (row.quality, row.solved, row.missing) == ("exact", 1.0, 0)
    errors = made["mean_field(steps: 1)"].errors
    assert errors is not None
    torch.testing.assert_close(errors, (best.score - other.score).double(), atol=1e-5, rtol=0)
    assert made.reference == "exact" and made["ilp"].quality == "exact" and made["dual"].solved == 1.0
    assert all(one.speed and one.seconds and one.spread is None for one in made.rows)
    assert made.examples == 15 and 0 <= made.overhead <= 1


def test_search_errors_without_exact_in_the_list(tmp_path: Path) -> None:
    made = compared(tmp_path, "mean_field(steps: 1)")
    assert made.reference == "exact" and any("asked once" in note for note in made.notes)
    assert [row.backend for row in made.rows] == ["mean_field(steps: 1)"]
    with_it = compared(tmp_path)
    assert made.rows[0].search_error == pytest.approx(with_it["mean_field(steps: 1)"].search_error)


def test_search_errors_where_nobody_is_exact(tmp_path: Path) -> None:
    """A black box: the best of those that are compared is the best known, and the table says so."""
    spec = SPEC.replace("infer exact", "net g = pooled(hidden: 3)\nscore tail (y) = g(soft(y))\ninfer auto")
    spec = spec.replace("train nll", "train direct_loss").replace("{A, B, C}", "{A, B, C, D, E, F, G, H, I, J}")
    path = write_task(tmp_path, spec)
    made = em.compare(path, "relaxed(steps: 2), relaxed(steps: 20), exact", repeats=1)
    assert made.reference == "best known" and "the best answer known" in made.text()
    errors = [row.errors for row in made.rows[:2]]
    assert all(one is not None for one in errors)
    assert (torch.stack(errors).amin(0) == 0).all()  # type: ignore[arg-type]
    assert made.rows[0].relaxed_energy is not None and "relaxed energy" in made.text()
    assert made["exact"].reason is not None and "none: see below" in made.text()


def test_a_bound_proves_what_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without exact answers: where the dual bound is tight, the best known is the best; without bounds nothing is."""
    monkeypatch.setattr("energyml.comparison.run._Comparing._reference", lambda self: None)
    made = compared(tmp_path, "dual, mean_field(steps: 1)")
    assert made.reference == "proven" and made.proven == 1.0 and made["dual"].solved == 1.0
    assert not made.judges and "against the best answers known, which bounds prove to be the best" in made.text()
    made = compared(tmp_path, "mean_field(steps: 1)")
    assert made.reference == "best known" and made.proven == 0.0 and made.rows[0].search_error == 0.0


def test_the_footer_names_who_is_exact(tmp_path: Path) -> None:
    """`exact` refuses this model; what the others are compared with is not said to be its answers."""
    exact = compared(tmp_path, "exact, mean_field(steps: 1)")
    assert exact.judges == ["exact"] and "against exact answers, by `exact`\n" in exact.text()
    by_ilp = compared(tmp_path, "ilp, exact(memory: 1, engine: torch_struct), mean_field(steps: 1)")
    assert by_ilp.judges[0] == "ilp" and "against exact answers, by `ilp`" in by_ilp.text()
    spec = SPEC.replace("infer exact", "net g = pooled(hidden: 3)\nscore tail (y) = g(soft(y))\ninfer auto")
    path = write_task(tmp_path, spec.replace("train nll", "train direct_loss"))
    refused = em.compare(path, "exact, enumerate, relaxed(steps: 2)", repeats=1)
    assert refused["exact"].reason is not None and refused.judges == ["enumerate"]
    assert "against exact answers, by `enumerate`\n" in refused.text() and refused.plain()["judges"] == ["enumerate"]


def test_backends_that_cannot_take_part_say_why(tmp_path: Path) -> None:
    made = compared(tmp_path, "exact, cg, ilp(limit: 1), infnet")
    assert made["exact"].reason is None
    text = made.text()
    assert "`cg` cannot serve this model" in text and "`limit` is 1" in text
    assert made["infnet"].reason is not None and made["infnet"].speed is None
    assert "cannot serve" in json.dumps(made.plain())


def test_a_crash_of_one_backend_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from energyml.backends.variational.mean_field import MeanField

    def crash(*arguments: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(MeanField, "open", crash)
    made = compared(tmp_path)
    assert made["mean_field(steps: 1)"].reason == "RuntimeError: out of luck" and made["exact"].solved == 1.0


def test_data_without_gold_has_no_metrics(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"word": one["word"]}) + "\n" for one in lines))
    made = em.compare(path, "exact, bp", inputs=[str(tmp_path / "new.jsonl")], repeats=1)
    assert not made["exact"].metrics and made.gold is None and "metrics are left out" in made.text()
    assert made["exact"].energy == pytest.approx(em.compare(path, "exact", repeats=1)["exact"].energy)


def test_models_and_data_sets_of_ones_own(tmp_path: Path) -> None:
    data = load_data(write_task(tmp_path))
    model = em.load(tmp_path / "task.energy", labels=data.labels, seed=3)
    model.train()
    made = em.compare(model, ["exact", "bp"], data=data.test, repeats=1, limit=6, metrics=["word_accuracy"])
    assert made.examples == 6 and {"accuracy", "word_accuracy"} <= set(made["exact"].metrics)
    assert model.training
    again = em.compare(model, "exact", data=data, split="train", repeats=1)
    assert again.examples == 36 and not any("random" in note for note in again.notes)
    assert em.compare(model, "exact", root=tmp_path, repeats=1).examples == 15
    with pytest.raises(em.EnergyError, match="a data set, loaded data or a reader in the spec's words, found list"):
        em.compare(model, "exact", data=[{"y": torch.zeros(1, 2)}])  # type: ignore[arg-type]


def test_fields_are_compared_by_their_modes(tmp_path: Path) -> None:
    spec = """\
labels Seg = {a, b}
dim T
input x : real[T, 2]
field s : real[T, Seg]
output y : Seg[T] = argmax s over Seg
net f = linear(out: Seg)
gaussian s { unary: f(x), ridge: 1.0 }
infer exact
data jsonl('test.jsonl', test: 'test.jsonl')
"""
    lines = [{"x": [[0.5, 1.0], [-1.0, 2.0]], "y": ["a", "b"]}, {"x": [[1.5, 0.0]], "y": ["b"]}]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "field.energy").write_text(spec)
    made = em.compare(tmp_path / "field.energy", "exact, cg", repeats=1)
    assert made["exact"].reason is None and made["cg"].reason is None, made.text()
    assert made["exact"].metrics == made["cg"].metrics


def test_a_decoder_of_ones_choice(tmp_path: Path) -> None:
    made = compared(tmp_path, "exact, mean_field", decode="marginal_argmax")
    assert made["exact"].quality == "lower bound" and made["exact"].energy is not None
    plain = compared(tmp_path)
    assert plain["exact"].energy is not None and made["exact"].energy >= plain["exact"].energy - 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"infer": "exakt"}, "exakt"),
        ({"infer": " ; "}, "no backend is named"),
        ({"split": "tset"}, "unknown split `tset`"),
        ({"data": "jsonl('train.jsonl')"}, "no test split"),
        ({"data": "jsonl('missing.jsonl')"}, "missing.jsonl"),
        ({"data": 3}, "must be a reader"),
        ({"metrics": ["nope"]}, "unknown metric `nope`"),
        ({"likelihood": [1.0, 2.0]}, "2 log-likelihoods for 15 examples"),
        ({"likelihood": "nowhere.txt"}, "nowhere.txt: no such file"),
        ({"decode": "nope"}, "nope"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(em.EnergyError, match=message):
        em.compare(write_task(tmp_path), **{"infer": "exact", "repeats": 1, **arguments})  # type: ignore[arg-type]


def test_a_missing_subject() -> None:
    with pytest.raises(SpecFileError, match=r"nowhere\.energy: no such file"):
        em.compare("nowhere.energy", "exact")


def test_backends_are_separated_outside_of_brackets() -> None:
    found = [str(one) for one in read_backends("exact; mean_field(steps: 3, damping: 0.5), bp;ilp(seconds: 2)")]
    assert found == ["exact", "mean_field(steps: 3, damping: 0.5)", "bp", "ilp(seconds: 2)"]
    assert [str(one) for one in read_backends(["exact, bp", "exact"])] == ["exact", "bp"]


# -------------------------------------------------------------------------------------------------------------- files


def test_files(tmp_path: Path) -> None:
    made = compared(tmp_path, "exact, mean_field(steps: 1), mean_field(steps: 5), cg")
    made.save(tmp_path / "found.csv")
    made.save(tmp_path / "found.json")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text())))
    assert [row["backend"] for row in rows] == [row.backend for row in made.rows]
    assert float(rows[0]["accuracy"]) == made["exact"].metrics["accuracy"] and rows[3]["reason"]
    loaded = json.loads((tmp_path / "found.json").read_text())
    assert loaded["rows"][0]["energy"] == made["exact"].energy and loaded["rows"][3]["energy"] is None
    assert loaded["examples"] == 15 and loaded["gold_energy"] == made.gold
    for wrong, message in (("found.txt", "must end in"), ("no/where.csv", "there is no folder")):
        with pytest.raises(em.EnergyError, match=message):
            made.save(tmp_path / wrong)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SpecFileError, match="is a directory"):
        made.save(tmp_path / "folder.csv")


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = compared(tmp_path, "exact, mean_field(steps: 1), mean_field(steps: 5), cg")
    made.plot(tmp_path / "found.svg")
    drawn = (tmp_path / "found.svg").read_text()
    assert drawn.startswith("<?xml") and len(drawn) > 1000 and "dc:date" not in drawn
    made.plot(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn
    with pytest.raises(em.EnergyError, match="nothing to draw"):
        compared(tmp_path, "cg").plot(tmp_path / "none.svg")


# --------------------------------------------------------------------------------------------------------- likelihood


def test_correlations_with_likelihood(tmp_path: Path) -> None:
    made = compared(tmp_path, "mean_field(steps: 1)", likelihood="bigram")
    assert set(made.rows[0].correlations) == {"word", "y"} and "rho word" in made.text()
    column = torch.arange(15, dtype=torch.float64)
    given = compared(tmp_path, "mean_field(steps: 1)", likelihood=column)
    errors = given.rows[0].errors
    assert errors is not None and float(errors.max()) > 1e-3
    wanted = spearman(torch.where(errors > 1e-4, errors, 0.0), -column)
    assert given.rows[0].correlations["likelihood"] == pytest.approx(wanted)


def reference_bigram(train: list[list[int]], asked: list[int], count: int) -> float:
    """Counted by hand."""
    tokens = [token for one in train for token in one]
    pairs = [(a, b) for one in train for a, b in zip([count, *one], one, strict=False)]
    kinds = len(set(tokens))
    total = 0.0
    for before, after in zip([count, *asked], asked, strict=False):
        p = (tokens.count(after) + kinds / count) / (len(tokens) + kinds)
        follow = {b for a, b in pairs if a == before}
        seen = sum(a == before for a, _ in pairs)
        if seen:
            p = (pairs.count((before, after)) + len(follow) * p) / (seen + len(follow))
        total -= float(torch.tensor(p, dtype=torch.float64).log())
    return total / len(asked)


def test_bigrams_are_counted_right() -> None:
    train, asked = [[0, 1, 0, 2], [1, 0], [0]], [[0, 1], [2, 2, 3], [1]]
    found = bigram([torch.tensor(one).numpy() for one in train], [torch.tensor(one).numpy() for one in asked], 4)
    wanted = [reference_bigram(train, one, 4) for one in asked]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_bigrams_are_distributions() -> None:
    train = [torch.tensor(one).numpy() for one in ([0, 1, 0, 2], [1, 0])]
    for before in range(4):
        asked = [torch.tensor([before, after]).numpy() for after in range(4)]
        first = bigram(train, [torch.tensor([before]).numpy()], 4)
        second = 2 * bigram(train, asked, 4) - first
        assert float((-second).exp().sum()) == pytest.approx(1.0)


def test_an_lstm_likes_what_it_has_seen() -> None:
    train = [torch.tensor([0, 1, 2, 3]).numpy()] * 64
    found = lstm(train, [torch.tensor(one).numpy() for one in ([0, 1, 2, 3], [3, 0, 1], [2, 1])], 4)
    assert found.isfinite().all() and float(found[0]) < float(found[1]) and float(found[0]) < float(found[2])


def test_ranks_with_ties() -> None:
    def rho(one: list[float], other: list[float]) -> float:
        a: Tensor = torch.tensor(one, dtype=torch.float64)
        return spearman(a, torch.tensor(other, dtype=torch.float64))

    assert rho([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rho([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rho([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)
    assert torch.tensor(rho([1, 1, 1], [1, 2, 3])).isnan()

"""Ways to misuse a field: each is answered with the place, the cause and what to do, never with a bare traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.docpages import run_command
from tests.gaussian.cases import CASES, HEAD

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("pair: potts(e)", "`gaussian` needs `unary: ...`"),
        ("unary: e", r"takes `real\[Seg, H, W\]`, found `real\[4, H, W\]`"),
        ("unary: u, pair: potts(e) - smooth(0.1)", r"its sign, stands inside: `smooth\(2 \* w\)`"),
        ("unary: u, pair: 2 * potts(e)", r"stands inside: `smooth\(2 \* w\)`"),
        ("unary: u, pair: e", r"couple by `potts\(e\)`"),
        ("unary: u, pair: smoth(0.1)", "did you mean `smooth`"),
        ("unary: u, pair: laplacian(0.1)", "`dense` or `sparse`, found `laplacian"),
        ("unary: u, pair: potts(0.3)", r"give it a tensor `real\[H, W, 16\]`"),
        ("unary: u, pair: dense(u)", r"`real\[row0: Seg, row1: H, row2: W, column0: Seg, column1: H, column2: W\]`"),
        ("unary: u, pair: smooth(w, diagonals: true)", r"an axis of 4 \(its directions\)"),
        ("unary: u, bounded: maybe", "`true` or `false`, found `maybe`"),
        ("unary: u, rige: 1.0", "did you mean `ridge`"),
    ],
)
def test_specs(options: str, message: str) -> None:
    with pytest.raises(em.SpecError, match=message):
        em.compile(f"{HEAD}\ngaussian s {{ {options} }}\n")


def refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(em.EnergyError, match=message):
        ask()


@pytest.mark.parametrize("using", ["exact", "cg"])
def test_questions_that_a_field_cannot_answer(using: str) -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    gold = torch.zeros(2, 3, 4, dtype=torch.long)
    posterior = case.model().infer(**inputs, using=using)
    refused(lambda: posterior.log_prob(y=gold), "`log_prob` is about s")
    refused(lambda: posterior.conditionals(y=gold), "read out of a field")
    refused(posterior.conditionals, "an answer for every field; `s` is missing")
    refused(lambda: posterior.conditionals(s=torch.full_like(inputs["u"], NAN)), "a value for every cell of `s`")
    refused(lambda: posterior.log_prob(s=torch.full_like(inputs["u"], INF)), "holds infinite numbers; give finite")
    refused(lambda: posterior.n_best(2), f"`{using}` does not answer `n_best`; it answers mode")
    line = CASES["line"]
    refused(line.model().infer(**line.inputs(), using=using).map, "declare one: .* or ask for `mode`")
    refused(lambda: case.model().infer(**{key: one.half() for key, one in inputs.items()}), "float32 or float64")


def test_a_field_is_observed_by_numbers() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    sets = torch.ones_like(inputs["u"], dtype=torch.bool)
    refused(lambda: case.model().infer(**inputs, evidence={"s": sets}), "`s` holds no real numbers")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_start_that_failed_is_as_good_as_none(bad: float) -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    start = {"s": torch.full_like(inputs["u"], bad)}
    found = case.model().infer(**inputs, using="cg", start=start).mode["s"]
    assert torch.equal(found, case.model().infer(**inputs, using="cg").mode["s"])


@pytest.mark.parametrize("using", ["exact", "cg", "exact(engine: torch)"])
@pytest.mark.parametrize("pair", ["potts(e)", "smooth(0.3)", "smooth(0.3) + lowrank(e)"])
def test_an_infinite_ridge_is_not_finite(pair: str, using: str) -> None:
    model = em.compile(f"{HEAD}\ninput r : real\ngaussian s {{ unary: u, pair: {pair}, ridge: r }}\n")
    inputs = {key: one for key, one in CASES["potts"].inputs().items() if key in ("u", "e")}
    posterior = model.infer(**inputs, r=torch.tensor([1.0, INF]), using=using)
    for ask in (lambda: posterior.mode, lambda: posterior.log_partition):
        refused(ask, "the ridge holds numbers that are not finite in example 1")


def test_values_that_are_missing_may_be_anything_where_there_is_no_cell() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs()
    values = torch.randn_like(inputs["u"])
    values[1, :, 2:] = NAN
    posterior = case.model().infer(**inputs, lengths={"H": torch.tensor([3, 2])}, using="exact")
    mean, variance = posterior.conditionals(s=values)["s"]
    assert mean.isfinite().all() and variance.isfinite().all()


def test_too_large_for_determinants_says_how_much_memory_is_missing() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs(batch=1, shape=(64, 64))
    small = case.model().infer(**inputs, using="exact(memory: 1)")
    refused(lambda: small.log_partition, r"and `memory` allows 1.05 MB; raise it, as in `exact\(memory: \d+\)`, or")
    with pytest.raises(em.EnergyError) as caught:
        _ = small.entropy
    enough = str(caught.value).split("as in `")[1].split("`")[0]
    assert case.model().infer(**inputs, using=enough).log_partition.isfinite().all()


@pytest.mark.parametrize("using", ["exact", "cg"])
@pytest.mark.parametrize(
    ("name", "key", "where"),
    [
        ("potts", "e", "its vectors"),
        ("smooth edges", "w", "weights of neighbours"),
        ("sparse", "weight", "weights of edges"),
        ("dense", "p", "a dense matrix"),
    ],
)
def test_numbers_that_are_not_finite_are_found_by_every_query(name: str, key: str, where: str, using: str) -> None:
    case = CASES[name]
    inputs: dict[str, Tensor] = case.inputs(batch=1)
    inputs[key].flatten()[0] = NAN
    posterior = case.model().infer(**inputs, using=using)
    for ask in (lambda: posterior.mode, lambda: posterior.variance, lambda: posterior.entropy, posterior.sample):
        refused(ask, rf"a coupling \({where}\) holds numbers that are not finite")


def test_conditionals_of_a_cell_with_negative_precision_fail() -> None:
    text = CASES["line"].spec(ridge=0.5, bounded=False).replace("smooth(0.8)", "smooth(0 - 0.8)")
    inputs = CASES["line"].inputs()
    posterior = em.compile(text).infer(**inputs, using="exact")
    refused(lambda: posterior.conditionals(s=inputs["u"]), "not positive definite")


def test_the_command_line_tells_in_one_line(tmp_path: Path) -> None:
    spec = tmp_path / "field.energy"
    spec.write_text(CASES["potts"].spec(ridge=0.5, bounded=False), encoding="utf-8")
    for options, message in (
        (["--query", "mode"], "leave out `bounded: false`"),
        (["--infer", "cg", "--query", "log_partition"], "leave out `bounded: false`"),
        (["--query", "n_best"], "answer `n_best`: no backend"),
        (["--infer", "enumerate"], "a field has infinitely many values"),
        (["--infer", "cg(tolerance: 1)"], "has no option `tolerance`"),
        (["--query", "log_prob"], "needs an answer"),
    ):
        code, said = run_command(["energyml", "infer", str(spec), *options])
        assert code == 1 and message in said and "Traceback" not in said

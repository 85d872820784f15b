"""Properties that need no reference: the same question in two ways has one answer, and what is no number is refused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import energyml as em
from energyml.bind.snapshot import PosteriorOutdated
from energyml.diagnostics import EnergyError
from energyml.energy_model import BackendRefused
from tests.contract.cases import Case
from tests.contract.settings import FAMILIES, FUZZ, TABLES
from tests.fuzz.judge import describe
from tests.fuzz.spectra import SPECTRA, respread

torch.set_num_threads(1)

EXACT = ["exact", "exact(engine: torch)", "enumerate"]
# Backends whose answers are functions of the scores, without chance.
CERTAIN = [*EXACT, "mean_field", "bp", "trw", "dual", "beam", "greedy", "ilp", "relaxed(steps: 12)"]
# The queries that need no arguments.
PLAIN = ("log_partition", "marginals", "max_marginals", "entropy", "map", "map_bound")
Answers = Mapping[str, Tensor]


@st.composite
def drawn(draw: st.DrawFn, spectra: tuple[str, ...] = tuple(SPECTRA)) -> Case:
    case = draw(FAMILIES[draw(st.sampled_from(TABLES))])
    return respread(case, draw(st.sampled_from(spectra)), draw(st.integers(0, 2**16)), draw(st.booleans()))


@contextmanager
def told(case: Case) -> Iterator[None]:
    """Failures come with the case; warnings are no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}\n{describe(case)}") from wrong


def answers(posterior: em.Posterior) -> dict[str, Tensor]:
    """The tensors of the plain queries whose answers say that they are fine."""
    found: dict[str, Tensor] = {}
    for kind in PLAIN:
        if kind in posterior.answers:
            found.update(told_answer(posterior, kind))
    return found


def told_answer(posterior: em.Posterior, kind: str) -> dict[str, Tensor]:
    """The tensors of the answer to a query, none where its status is failing."""
    result = posterior.ask(kind)
    if not result.status.ok:
        return {}
    value = result.value
    if isinstance(value, em.Assignment):
        return {kind: value.score.detach()}
    if isinstance(value, Tensor):
        return {kind: value.detach()}
    return {f"{kind} of {name}": one.detach() for name, one in value.items()}


def same(one: Answers, other: Answers, exactly: bool = False) -> None:
    for name in one.keys() & other.keys():
        wide = torch.finfo(one[name].dtype).eps
        near = 0.0 if exactly else max(64 * wide, 1e-5 if "marginals" in name else 0.0)
        close = torch.isclose(one[name], other[name], rtol=near, atol=near, equal_nan=True)
        assert close.all(), f"{name}: {one[name]} and {other[name]}"


def run(property_: Callable[[Case], None], strategy: st.SearchStrategy[Case], share: int = 12) -> None:
    @settings(max_examples=max(8, FUZZ // share))
    @given(case=strategy)
    def one(case: Case) -> None:
        with told(case):
            try:
                property_(case)
            except (BackendRefused, EnergyError):
                return

    one()


@pytest.mark.parametrize("using", CERTAIN)
def test_a_batch_is_a_loop_of_singles(using: str) -> None:
    def check(case: Case) -> None:
        together = answers(case.infer(using))
        for b in range(case.batch):
            alone = answers(case.example(b).infer(using))
            same({name: one[b : b + 1] for name, one in together.items()}, alone)

    run(check, drawn() if using in EXACT else drawn(("ordinary", "masks")))


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers, every other one of a larger tensor with reversed axes."""
    wide = torch.zeros([2 * size for size in reversed(tensor.shape)], dtype=tensor.dtype)
    view = wide.permute(*reversed(range(tensor.dim())))[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


@pytest.mark.parametrize("using", CERTAIN)
def test_views_with_strides_are_their_copies(using: str) -> None:
    def check(case: Case) -> None:
        parts = {
            part: {n: _strided(t) for n, t in getattr(case, part).items()} for part in ("inputs", "masks", "evidence")
        }
        same(answers(case.infer(using)), answers(replace(case, **parts).infer(using)))

    run(check, drawn())


@pytest.mark.parametrize("using", CERTAIN)
def test_expanded_views_are_their_copies(using: str) -> None:
    """One example, repeated without a copy."""

    def check(case: Case) -> None:
        if not case.batch:
            return
        first = case.example(0)
        parts = ("inputs", "lengths", "masks", "evidence")
        many = {p: {n: t.expand(3, *t.shape[1:]) for n, t in getattr(first, p).items()} for p in parts}
        copies = {p: {n: t.contiguous() for n, t in one.items()} for p, one in many.items()}
        same(
            answers(replace(first, batch=3, **many).infer(using)),
            answers(replace(first, batch=3, **copies).infer(using)),
        )

    run(check, drawn())


_AXES = re.compile(r"^(input|param) (\w+) : real\[(.*)\]", re.MULTILINE)


def _flipped(case: Case) -> Case | None:
    """The case with the labels of `Tag` in the opposite order; `None` where a network reads them."""
    if re.search(r"^(net|let|score)\b|from data", case.text, re.MULTILINE):
        return None
    declared = re.search(r"labels Tag = \{(.*)\}", case.text)
    assert declared is not None
    labels = declared.group(1).split(", ")
    text = case.text.replace(declared.group(0), f"labels Tag = {{{', '.join(reversed(labels))}}}")
    inputs, weights = dict(case.inputs), dict(case.weights)
    for kind, name, axes in _AXES.findall(case.text):
        first, tensors = (1, inputs) if kind == "input" else (0, weights)
        over = [first + n for n, axis in enumerate(axes.split(", ")) if axis.split(": ")[-1] == "Tag"]
        tensors[name] = tensors[name].flip(over)
    of_tags = {v.name for v in case.model.graph.discrete if v.type.element == "Tag"}
    evidence = {
        name: one if name not in of_tags
        else one.flip(-1) if one.dtype == torch.bool
        else torch.where(one >= 0, len(labels) - 1 - one, one)
        for name, one in case.evidence.items()
    }  # fmt: skip
    return replace(case, text=text, inputs=inputs, weights=weights, evidence=evidence)


@pytest.mark.parametrize("using", EXACT)
def test_permuted_labels_permute_the_answers(using: str) -> None:
    def check(case: Case) -> None:
        other = _flipped(case)
        if other is None:
            return
        of_tags = {v.name for v in case.model.graph.discrete if v.type.element == "Tag"}
        found = answers(other.infer(using))
        back = {n: one.flip(-1) if n.partition(" of ")[2] in of_tags else one for n, one in found.items()}
        same(answers(case.infer(using)), back)

    run(check, drawn())


@pytest.mark.parametrize("using", EXACT)
def test_second_derivatives_are_those_of_enumeration(using: str) -> None:
    def check(case: Case) -> None:
        case = case.converted(torch.float64)
        case = replace(case, weights={name: one.double() for name, one in case.weights.items()})
        found = []
        for one in (using, "enumerate"):
            asked = case.tracked()
            leaves = [t for n, t in asked.inputs.items() if n.startswith("u") and t.numel()]
            if not leaves:
                return
            total = asked.infer(one).log_partition
            first = torch.autograd.grad(total.sum(), leaves, create_graph=True, materialize_grads=True)
            weighed = sum((slope * (slope.detach() + 1)).sum() for slope in first)
            if not weighed.requires_grad:
                return
            second = torch.autograd.grad(weighed, leaves, materialize_grads=True)
            found.append([slope.detach() for slope in (*first, *second)])
        for ours, truth in zip(*found, strict=True):
            assert torch.isfinite(ours).all(), f"derivatives {ours}"
            assert torch.allclose(ours, truth, atol=1e-6, rtol=1e-6), f"derivatives {ours} and {truth}"

    run(check, drawn(("ordinary", "ties", "1e4", "masks")), 20)


@pytest.mark.parametrize("using", CERTAIN)
def test_a_change_in_place_is_refused_or_not_seen(using: str) -> None:
    """After a weight or an input has changed, a posterior gives the answers of before, or none."""

    def check(case: Case) -> None:
        before = answers(case.infer(using))
        changed = replace(case, inputs={name: one.clone() for name, one in case.inputs.items()})
        tensors = [changed.model.get_parameter(name) for name in case.weights]
        tensors += [one for name, one in changed.inputs.items() if re.fullmatch(r"u\d+", name) and one.numel()]
        if not tensors:
            return
        posterior = changed.infer(using)
        kinds = [kind for kind in PLAIN if kind in posterior.answers]
        for kind in kinds[: len(case.text) % 3]:  # some answers were computed before the change
            posterior.ask(kind)
        with torch.no_grad():
            tensors[len(case.text) % len(tensors)].add_(1)
        for kind in kinds:
            with suppress(PosteriorOutdated):
                same(before, told_answer(posterior, kind), exactly=True)

    run(check, drawn(("ordinary", "masks")), 20)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("using", CERTAIN)
def test_scores_that_are_no_numbers_are_refused(using: str, value: float) -> None:
    def check(case: Case) -> None:
        name = next(iter(case.weights), None)
        if name is None:
            return
        used = torch.autograd.grad(
            case.infer("enumerate").log_partition.sum(), case.model.get_parameter(name), materialize_grads=True
        )
        spots = used[0].nonzero()
        if not len(spots):
            return
        spoilt = case.weights[name].clone()
        spoilt[tuple(spots[0])] = value
        weights = {**case.weights, name: spoilt}
        posterior = replace(case, weights=weights).infer(using)
        for kind in ("log_partition", "marginals", "map", "map_bound"):
            if kind in posterior.answers:
                try:
                    result = posterior.ask(kind)
                except EnergyError:
                    continue
                assert not result.status.ok, f"`{kind}` of scores that hold {value} says ok: {result.value}"

    run(check, drawn(("ordinary",)), 20)


@pytest.mark.parametrize("using", ["exact", "enumerate", "ilp"])
def test_the_best_answer_is_no_worse_than_a_draw(using: str) -> None:
    def check(case: Case) -> None:
        drawer = case.infer("exact")
        if drawer.ask("log_partition").value.isinf().any():
            return
        best = case.infer(using).ask("map")
        draws = drawer.ask("sample", count=5, generator=torch.Generator().manual_seed(0))
        if any(v.kind == "latent" for v in case.model.graph.discrete) or not (best.status.ok and draws.status.ok):
            return
        slack = 8 * torch.finfo(case.dtype).eps * best.value.score.abs()
        assert (draws.value.score <= best.value.score + slack).all(), f"{draws.value.score} above {best.value.score}"

    run(check, drawn())

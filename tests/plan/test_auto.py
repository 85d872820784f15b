"""`auto` knows how many answers an example has, and the advice of a refusal works when it is followed to the letter."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given

import energyml as em
from energyml import cards
from energyml.diagnostics import QueryRefused, Source
from energyml.driver import compile_source, read_choice, read_source
from energyml.ir.ground import Instance
from energyml.plan.elimination import Program, TooWide
from energyml.plan.planner import judge, plan, survey
from energyml.plan.structure import Structure, recognise
from energyml.queries import Quality
from tests.contract.cases import Case
from tests.contract.settings import FAMILIES, some

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.energy"))
BACKENDS = {card.name for card in cards.every("backend")}
BOX = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
net g : (real[T, L]) -> real = python("torch.nn:Identity")
score s (y) = g(soft(y))
"""
GRID = """\
labels L = {a, b, c}
dim H = 13, W = 13
output y : L[H, W]
param p : real
factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(p)
factor right [i in H, j in W-1] (y[i, j], y[i, j+1]) = potts(p)
"""
WIDE = """\
labels L = {a, b}
dim N = 85, E
input link : edge(N, N)[E]
output y : L[N]
param w : real
factor f [e = (i, j) in link] (y[i], y[j]) = potts(w)
"""


def structures(path: Path) -> list[Structure]:
    compiled = compile_source(read_source(path))
    observed = [name for name, dim in compiled.graph.dims.items() if dim.kind == "observed"]
    sized = [recognise(compiled.graph, Instance(dict.fromkeys(observed, size))) for size in (2, 40)]
    return [compiled.structure, *sized]


def assert_sound(structure: Structure) -> None:
    """The choice of `auto` serves, and so does every backend that a refusal names."""
    made = plan(structure, None).verdict
    assert made.serves
    verdicts = {verdict.selection.name: verdict for verdict in survey(structure)}
    for verdict in verdicts.values():
        if verdict.refusal is not None:
            named = BACKENDS.intersection(re.findall(r"`(\w+)`", verdict.refusal.alternative))
            assert all(verdicts[name].refusal is None for name in named), str(verdict.refusal)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_auto_and_every_advice_serve_each_example(path: Path) -> None:
    for structure in structures(path):
        assert_sound(structure)


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_and_every_advice_serve_each_shape(family: str) -> None:
    @some(3)
    @given(FAMILIES[family])
    def run(case: Case) -> None:
        assert_sound(case.model.plan("auto").structure)
        case.infer("auto")

    run()


@pytest.mark.parametrize("labels", ["= {a, b, c}", "from data"])
def test_auto_passes_over_enumeration_at_plan_time(labels: str) -> None:
    compiled = compile_source(Source("box", BOX.replace("= {a, b, c}", labels)))
    small, large = (recognise(compiled.graph, Instance({"T": size})) for size in (3, 10_000_000))
    assert plan(small, None).verdict.selection.name == "enumerate"
    assert plan(large, None).verdict.selection.name == "relaxed"


def test_auto_passes_over_enumeration_where_a_batch_is_too_large() -> None:
    model = em.compile(BOX.replace('python("torch.nn:Identity")', 'python("tests.plan.test_auto:Sum")'), seed=0)
    assert model.infer(u=torch.zeros(1, 5, 3), using="auto").backend == "enumerate"
    assert model.infer(u=torch.zeros(1, 50, 3), using="auto").backend == "relaxed"
    assert model.infer(u=torch.zeros(1, 50, 3)).ask("map").quality is not Quality.EXACT


class Sum(torch.nn.Module):
    """A score of relaxed labels."""

    def forward(self, soft: torch.Tensor) -> torch.Tensor:
        return soft[..., 0].sum(1)


def test_the_limit_that_a_refusal_names_is_enough() -> None:
    model = em.compile(BOX.replace('python("torch.nn:Identity")', 'python("tests.plan.test_auto:Sum")'), seed=0)
    u = torch.zeros(1, 6, 3)
    with pytest.raises(QueryRefused, match=r"`enumerate\(limit: \d+\)`") as refused:
        model.infer(u=u, using="enumerate(limit: 100)").ask("map")
    advised = re.findall(r"`(enumerate\(limit: \d+\))`", str(refused.value))[0]
    assert model.infer(u=u, using=advised).ask("map").value.score.item() == pytest.approx(6)


def test_no_limit_is_named_that_no_machine_could_keep() -> None:
    model = em.compile(BOX.replace('python("torch.nn:Identity")', 'python("tests.plan.test_auto:Sum")'), seed=0)
    with pytest.raises(QueryRefused, match=r"`relaxed`, .* can serve it") as refused:
        model.infer(u=torch.zeros(1, 53, 3), using="enumerate").ask("map")
    assert "raise" not in str(refused.value) and "1.94e+25 answers" in str(refused.value)


def test_the_memory_that_a_refusal_names_is_enough() -> None:
    structure = em.compile(GRID).plan("auto").structure
    assert structure.ground is not None
    refused = structure.ground.program(2.0**20)
    assert isinstance(refused, TooWide) and refused.megabytes is not None
    assert f"`memory` to {refused.megabytes}" in str(
        judge(read_choice("backend", "exact(memory: 1)"), structure).refusal
    )
    assert isinstance(structure.ground.program(refused.megabytes * 2.0**20), Program)


def test_no_memory_is_named_that_no_machine_has() -> None:
    model = em.compile(WIDE, seed=0)
    link = torch.tensor([[(i, j) for i in range(85) for j in range(i)]])
    with pytest.raises(QueryRefused, match="every order has a width above") as refused:
        model.infer(link=link, using="exact").ask("log_partition")
    assert "raise" not in str(refused.value)

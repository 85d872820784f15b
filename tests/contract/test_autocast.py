"""Under autocast networks compute in bfloat16, and everything else as without it: answers differ by that alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.queries import QUERIES
from tests.contract.settings import BACKENDS, ENGINES, SAMPLERS

torch.set_num_threads(1)

CHAIN = """\
labels Tag = {A, B, C}
dim T
input x : real[T, 4]
output y : Tag[T]
net f = linear(out: Tag)
param w : real[from: Tag, to: Tag] = normal(1.0)
chain y { unary: f(x), pair: w }
"""
GRAPH = """\
labels Tag = {A, B, C}
dim T, E
input x : real[T, 4]
input e : edge(T, T)[E]
output y : Tag[T]
net f = linear(out: Tag)
net g = linear(out: [a: Tag, b: Tag])
factor one [t in T] (y[t]) = f(x)[t]
factor two [k = (i, j) in e] (a: y[i], b: y[j]) = g(x[i], x[j])
"""
MODELS = {
    "constraints": CHAIN + "forbid [t in T-1] y[t] = A and y[t+1] = C\n",
    "triples": CHAIN + "net h = linear(out: [a: Tag, b: Tag, c: Tag])\nlabels S = {on, off}\nlatent z : S\n"
    "factor three [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = h(x)[t]\nparam k : real[Tag, S]\n"
    "factor hidden [t in T] (y[t], z) = k\n",
    "edges": GRAPH,
    "whole": CHAIN + "net p = pooled(hidden: 3, activation: tanh)\nscore all (y) = p(soft(y))\n",
}
SIZE = 4
# The networks' scores are about 1, and bfloat16 has 8 bits; an answer adds up some of them.
COARSE = 0.05
# Searches may end elsewhere when scores move, and draws fall elsewhere: their answers are only looked over.
APART = frozenset({"sample", "n_best", "soft_decode", "map"})


def inputs(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {"x": torch.randn(3, SIZE, 4, generator=generator)}
    if name == "edges":
        found["e"] = torch.randint(0, SIZE, (3, 5, 2), generator=generator)
    elif name == "constraints":
        found["lengths"] = torch.tensor([SIZE, 3, 1])
    return found


def arguments(kind: str, other: em.Posterior) -> dict[str, Any]:
    answer, cost = {"y": torch.ones(3, SIZE, dtype=torch.long)}, {"y": torch.rand(3, SIZE, 3).round()}
    return {
        "log_prob": {"answer": answer}, "conditionals": {"answer": answer}, "expectation": {"values": cost},
        "max_with_cost": {"cost": cost}, "log_prob_with_cost": {"answer": answer, "cost": cost},
        "cross_entropy": {"other": other}, "kl": {"other": other}, "n_best": {"count": 2}, "sample": {"count": 2},
    }.get(kind, {})  # fmt: skip


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, em.Assignment):
        return [value.score]
    return [value] if isinstance(value, Tensor) else list(value.values())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("using", [*BACKENDS, *ENGINES, *SAMPLERS.values()])
def test_answers_under_autocast_are_those_without_it(using: str, name: str) -> None:
    model, given = em.compile(MODELS[name], seed=0), inputs(name)
    if not model.plan(using).verdict.serves:
        return
    model.inference_module(using)

    def asked(kind: str, low: bool) -> tuple[list[Tensor], bool]:
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=low), torch.no_grad():
            posterior = model.infer(using=using, **given)
            other = model.infer(using=using, **{**given, "x": given["x"] / 2})
            result = posterior.ask(kind, **arguments(kind, other))
            return tensors(result.value), result.status.ok

    for kind in QUERIES:
        if kind not in model.plan(using).verdict.answers:
            continue
        try:
            plain, settled = asked(kind, False)
        except em.EnergyError:  # what these models have that the query refuses, such as latents
            continue
        for one, reference in zip(asked(kind, True)[0], plain, strict=True):
            assert one.dtype == torch.float32 and not one.isnan().any()
            if settled and using not in SAMPLERS.values() and kind not in APART and "beam" not in using:
                torch.testing.assert_close(one, reference, atol=COARSE, rtol=COARSE)


def test_a_loss_under_autocast_trains_the_network() -> None:
    given, gold = inputs("plain"), torch.ones(3, SIZE, dtype=torch.long)
    for using in ("exact", "bp", "trw", "mean_field"):
        found = []
        for low in (False, True):
            model = em.compile(CHAIN, seed=0)
            with torch.autocast("cpu", torch.bfloat16, enabled=low), warnings.catch_warnings():
                warnings.simplefilter("error")
                model.loss(objective="nll", using=using, y=gold, **given).backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(found[1], found[0], atol=COARSE, rtol=COARSE)

"""Likelihoods of trees that are given at run time: score, log Z and their gradients from one sweep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em

LABELS = 3
# one table for all edges, and one for each edge of each example
SHARED, OWN = "param w : real[p: L, q: L] = zeros", "input w : real[E, p: L, q: L]"
SPEC = """\
labels L = {{a, b, c}}
dim T
dim E
input u : real[T, L]
input link : edge(T, T)[E]
output y : L[T]
{table}
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (p: y[i], q: y[j]) = w{element}
"""
# two trees and a cell alone, a chain with edges that point both ways, a star without its last cells
EDGES = [[[0, 1], [2, 1], [3, 4], [-1, -1]], [[1, 0], [1, 2], [3, 2], [3, 4]], [[0, 1], [2, 0], [-1, -1], [-1, -1]]]
COUNT = [6, 5, 3]


class Trees:
    """A model, scores and answers; `own` tables for each edge, or one for all."""

    def __init__(self, own: bool, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(7)
        table = (3, 4, LABELS, LABELS) if own else (LABELS, LABELS)
        self.own = own
        self.model = em.compile(SPEC.format(table=OWN if own else SHARED, element="[e]" if own else "")).to(dtype)
        self.unary = (scale * torch.randn(3, 6, LABELS, generator=generator)).to(dtype)
        self.pair = (scale * torch.randn(table, generator=generator)).to(dtype)
        self.labels = torch.randint(0, LABELS, (3, 6), generator=generator)

    def log_prob(self, unary: Tensor, pair: Tensor, using: str = "exact") -> Tensor:
        """[3]: of the answers."""
        given = {"w": pair} if self.own else {}
        mask = torch.arange(6) < torch.tensor(COUNT).unsqueeze(1)
        if not self.own:
            self.model.w = pair if isinstance(pair, torch.nn.Parameter) else torch.nn.Parameter(pair)
        posterior = self.model.infer(u=unary, link=torch.tensor(EDGES), mask={"y": mask}, using=using, **given)
        return posterior.log_prob(y=torch.where(mask, self.labels, -1))

    def gradients(self, weights: Tensor, using: str) -> list[Tensor]:
        """Values, and gradients of their weighted sum."""
        unary, pair = self.unary.clone().requires_grad_(), torch.nn.Parameter(self.pair.clone())
        value = self.log_prob(unary, pair, using)
        finite = value.masked_fill(value.isneginf(), 0)
        return [value.detach(), *torch.autograd.grad((finite * weights).sum(), [unary, pair])]


@pytest.mark.parametrize("weights", [[-1.0, -1.0, -1.0], [-0.25, -0.25, -0.25], [1.0, -2.0, 0.5]])
@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_values_and_gradients_are_those_of_enumeration(own, forbidden, weights):
    trees = Trees(own)
    if forbidden:  # an answer, and a label that no answer has
        one, other = trees.labels[1, 1], trees.labels[1, 0]
        trees.pair[(1, 0, one, other) if own else (one, other)] = float("-inf")
        trees.unary[0, 0, (trees.labels[0, 0] + 1) % LABELS] = float("-inf")
    found, right = (trees.gradients(torch.tensor(weights).double(), using) for using in ("exact", "enumerate"))
    assert bool(found[0][1].isneginf()) == forbidden
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("own", [False, True])
def test_second_derivatives(own):
    trees = Trees(own)
    given = (trees.unary.requires_grad_(), torch.nn.Parameter(trees.pair))
    if own:
        assert torch.autograd.gradgradcheck(lambda *scores: trees.log_prob(*scores) ** 2, given)
        return
    unary, pair = given
    slopes = {
        using: torch.autograd.grad((trees.log_prob(unary, pair, using) ** 2).sum(), given, create_graph=True)
        for using in ("exact", "enumerate")
    }
    again = [torch.autograd.grad(sum((one**3).sum() for one in found), given) for found in slopes.values()]
    for mine, theirs in zip(*again, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
def test_single_precision_is_that_of_the_scores(scale):
    """Score and log Z are subtracted in double precision: what is left is as exact as the answer's own digits."""
    narrow, wide = Trees(True, torch.float32, scale), Trees(True, scale=scale)
    wide.unary, wide.pair = narrow.unary.double(), narrow.pair.double()
    right = wide.log_prob(wide.unary, wide.pair, "enumerate")
    torch.testing.assert_close(narrow.log_prob(narrow.unary, narrow.pair).double(), right, rtol=2e-7, atol=1e-6)


def test_an_impossible_example_and_one_without_edges_have_zero_gradients() -> None:
    text = """\
labels L = {a, b}
dim T, E
input link : edge(T, T)[E]
input u : real[T, L]
input w : real[E, p: L, q: L]
output y : L[T]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (p: y[i], q: y[j]) = w[e]
"""
    model = em.compile(text).double()
    allowed = torch.tensor([[[False, False], [False, True]], [[True, True], [True, True]]])
    for edges in ([[[-1, -1]], [[1, 0]]], [[[-1, -1]], [[-1, -1]]]):
        found = []
        for using in ("exact", "exact(engine: torch)", "enumerate"):
            generator = torch.Generator().manual_seed(0)
            u, w = (
                torch.randn(shape, generator=generator).double().requires_grad_() for shape in ((2, 2, 2), (2, 1, 2, 2))
            )
            total = model.infer(u=u, w=w, link=torch.tensor(edges), evidence={"y": allowed}, using=using).log_partition
            found.append(torch.autograd.grad(total.sum(), [u, w]))
        for ours in found[:2]:
            torch.testing.assert_close(ours, found[2])

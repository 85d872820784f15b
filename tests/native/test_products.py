"""Elimination in exp space gives what log space gives: small and large steps, zeros, any magnitude, known labels."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from energyml.native import elimination as graphs
from energyml.native import graph as native
from energyml.native.planning import NativeCompiler, Scopes
from energyml.plan.elimination import cheapest

pytestmark = pytest.mark.skipif(graphs is None, reason="the native kernels are not built")


class Model:
    """A random factor graph with a table for each factor and one for the cells of each size."""

    def __init__(self, seed: int, sizes: list[int], factors: int, arity: int, known: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.sizes = sizes
        cells = len(sizes)
        self.scopes = [tuple(self.generator.choice(cells, min(cells, n), replace=False).tolist())
                       for n in self.generator.integers(1, arity + 1, factors)]  # fmt: skip
        self.scopes += [(cell,) for cell in range(cells)]
        self.known = frozenset(self.generator.choice(cells, known, replace=False).tolist())
        members = np.array([cell for scope in self.scopes for cell in scope], dtype=np.int64)
        starts = np.array([0, *accumulate(map(len, self.scopes))], dtype=np.int64)
        compiler = NativeCompiler(Scopes(members, starts), tuple(sizes), self.known, frozenset())
        self.program = cheapest(compiler, 1 << 30)
        self.shapes = [tuple(sizes[cell] for cell in scope) for scope in self.scopes]
        self.labels = torch.tensor([[int(self.generator.integers(sizes[cell])) for cell in sorted(self.known)]])

    def encoded(self, absent: frozenset[int] = frozenset()) -> native.Encoded:
        count = len(self.shapes)
        shapes = tuple(None if number in absent else shape for number, shape in enumerate(self.shapes))
        arities = tuple(map(len, self.shapes))
        layout = native.Layout(np.arange(count), np.zeros(count, dtype=np.int64), shapes, ((),) * count, arities)
        return native.encoded(self.program, layout)

    def draw(self, scale: float, forbidden: float, offset: float = 0.0) -> list[Tensor | None]:
        tables: list[Tensor | None] = []
        for shape in self.shapes:
            table = self.generator.normal(size=(1, *shape)) * scale + offset * self.generator.normal()
            table[self.generator.random(table.shape) < forbidden] = -np.inf
            tables.append(torch.from_numpy(table))
        return tables


def ask(model: Model, tables: list[Tensor | None], products: bool, examples: int = 1) -> tuple[Tensor, list[Tensor]]:
    absent = frozenset(number for number, table in enumerate(tables) if table is None)
    gradients = [None if table is None else torch.zeros_like(table) for table in tables]
    found = native.run(
        model.encoded(absent), np.arange(examples), tables, model.labels.expand(examples, -1), products=products,
        weights=torch.full((examples,), 0.5, dtype=torch.float64), gradients=gradients,
    )  # fmt: skip
    return found.total, [one for one in gradients if one is not None]


def check(model: Model, tables: list[Tensor | None], near: float = 1e-10) -> None:
    total, gradients = ask(model, tables, products=True)
    expected, slopes = ask(model, tables, products=False)
    assert total.isnan().sum() == 0
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=near)
    for one, other in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=near)


SIZES = {
    "two labels": [2] * 14,
    "three labels": [3] * 9,
    "mixed": [2, 3, 5, 2, 1, 4, 2, 7, 3, 2, 6],
    "many": [2, 40, 3, 17, 2],
}


@pytest.mark.parametrize("forbidden", [0.0, 0.15])
@pytest.mark.parametrize("scale", [1.0, 40.0, 1e3, 1e6])
@pytest.mark.parametrize("kind", SIZES)
def test_products_and_log_space_agree(kind: str, scale: float, forbidden: float) -> None:
    sizes = SIZES[kind]
    for seed in range(6):
        for arity, factors in ((2, 2 * len(sizes)), (3, len(sizes)), (4, len(sizes) // 2)):
            model = Model(seed, sizes, factors, arity, known=seed % 3)
            check(model, model.draw(scale, forbidden), near=1e-10 * max(1.0, scale))


@pytest.mark.parametrize("kind", SIZES)
def test_factors_of_very_different_size_are_taken_relative_to_their_own(kind: str) -> None:
    for seed in range(4):
        model = Model(seed, SIZES[kind], 2 * len(SIZES[kind]), 2, known=1)
        check(model, model.draw(1.0, 0.1, offset=1e4), near=1e-7)
        # One table for all factors: the entries of some are too far below those of others.
        check(model, model.draw(1.0, 0.1, offset=300.0), near=1e-8)


@pytest.mark.parametrize("factors", [3, 30, 60])
def test_messages_that_get_small_are_brought_back_or_left_to_log_space(factors: int) -> None:
    """Many factors that agree on very small entries: products underflow unless messages are normalised."""
    for seed in range(4):
        model = Model(seed, [2] * 10, factors, 3, known=0)
        tables = model.draw(1.0, 0.0)
        for table in tables:
            assert table is not None
            table[0].view(-1)[:-1] -= 290.0
        check(model, tables, near=1e-7)


def test_a_zero_is_told_from_an_underflow() -> None:
    """Two entries of a message: one is ruled out, the other is e^-1100 times the largest and decides all."""
    model = Model(0, [2, 2, 2], 0, 1, known=0)
    model.scopes = [(0, 1), (0, 1), (1, 2), (0,), (1,), (2,)]
    model.shapes = [tuple(2 for _ in scope) for scope in model.scopes]
    members = np.array([cell for scope in model.scopes for cell in scope], dtype=np.int64)
    starts = np.array([0, *accumulate(map(len, model.scopes))], dtype=np.int64)
    model.program = cheapest(NativeCompiler(Scopes(members, starts), (2, 2, 2), frozenset(), frozenset()), 1 << 30)
    far = torch.tensor([[[0.0, -550.0], [0.0, -550.0]]], dtype=torch.float64)
    only = torch.tensor([[[-torch.inf, -torch.inf], [0.0, 1.0]]], dtype=torch.float64)
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    tables: list[Tensor | None] = [far, far.clone(), only, zeros, zeros.clone(), zeros.clone()]
    total, _ = ask(model, tables, products=True)
    torch.testing.assert_close(total.item(), -1100.0 + np.log(2) + np.log(1 + np.e), rtol=1e-12, atol=0)
    check(model, tables)


def test_no_answer_at_all() -> None:
    model = Model(3, [2] * 6, 8, 2, known=1)
    tables = model.draw(1.0, 0.0)
    assert tables[0] is not None
    tables[0].fill_(-torch.inf)
    total, gradients = ask(model, tables, products=True)
    assert total.isneginf().all()
    assert all(not one.any() for one in gradients)


def test_examples_share_what_they_share() -> None:
    """Tables of their own beside shared ones; the example in the middle has to be tried again with care."""
    for seed in range(5):
        model = Model(seed, [2, 3, 2, 2, 4, 2], 9, 2, known=1)
        tables = model.draw(1.0, 0.1)
        own = [model.draw(1.0, 0.1)[1], model.draw(500.0, 0.1)[1], model.draw(1.0, 0.1)[1]]
        tables[1] = torch.cat([one for one in own if one is not None])
        total, gradients = ask(model, tables, products=True, examples=3)
        expected, slopes = ask(model, tables, products=False, examples=3)
        torch.testing.assert_close(total, expected)
        for one, other in zip(gradients, slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_tables_that_are_not_there() -> None:
    for seed in range(5):
        model = Model(seed, [2, 3, 2, 2, 2, 4], 8, 3, known=2)
        tables = model.draw(1.0, 0.1)
        tables[-1] = tables[-4] = tables[0] = None
        check(model, tables)

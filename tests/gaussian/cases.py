"""Small fields of every kind of coupling, with the matrix that each should have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel
from tests.gaussian.reference import Array, Matrix, axes, diagonals

HEAD = """
labels Seg = {a, b, c}
dim H, W, E
input u : real[Seg, H, W]
input e : real[4, H, W]
input f : real[Seg, H, W, 2]
input w : real[2, H, W]
input v : real[4, H, W]
input c : real[H, W]
field s : real[Seg, H, W]
output y : Seg[H, W] = argmax s over Seg
"""
LINE = """
dim T, E
input u : real[T, 2]
input e : real[T, 3]
input p : real[row: T, row_number: 2, column: T, column_number: 2]
input link : edge(T, T)[E]
input weight : real[E]
field s : real[T, 2]
"""


@dataclass(frozen=True)
class Case:
    """A spec and, for one example, the matrix that it should have.

    Attributes:
        head: the declarations.
        pair: the couplings.
        matrix: adds them to a matrix, from the inputs of one example.
        shared_by: how many couplings share the ridge when they are bounded.
    """

    head: str
    pair: str
    matrix: Callable[[Matrix, dict[str, Array]], object]
    shared_by: int = 0

    def spec(self, ridge: float = 1.5, bounded: bool = True) -> str:
        """The spec's text."""
        flag = "" if bounded else ", bounded: false"
        pair = f"pair: {self.pair}, " if self.pair else ""
        return f"{self.head}\ngaussian s {{ unary: u, {pair}ridge: {ridge}{flag} }}\n"

    def model(self, ridge: float = 1.5, bounded: bool = True) -> EnergyModel:
        """The bound model; it has no parameters."""
        return em.compile(self.spec(ridge, bounded))

    @property
    def on_grid(self) -> bool:
        """Whether it is a grid of labels; else a line of pairs of numbers."""
        return self.head is HEAD

    def inputs(
        self, batch: int = 2, shape: tuple[int, int] = (3, 4), seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> dict[str, Tensor]:
        """Random inputs; only those that the couplings read."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(batch, *sizes, generator=generator, dtype=dtype)

        height, width = shape
        if self.on_grid:
            known = {
                "u": normal(3, height, width), "e": normal(4, height, width), "f": normal(3, height, width, 2),
                "w": normal(2, height, width).abs(), "v": normal(4, height, width).abs(),
                "c": normal(height, width).abs(),
            }  # fmt: skip
        else:
            count = height * width
            ends = torch.randint(count, (batch, 2 * count, 2), generator=generator)
            known = {
                "u": normal(count, 2), "e": normal(count, 3), "p": normal(count, 2, count, 2), "link": ends,
                "weight": normal(2 * count),
            }  # fmt: skip
        return {name: one for name, one in known.items() if name == "u" or _reads(self.pair, name)}

    def reference(
        self, inputs: dict[str, Tensor], ridge: float = 1.5, bounded: bool = True
    ) -> tuple[list[Array], list[Array]]:
        """For each example the matrix, and the linear part, over cells (channel, position)."""
        matrices, linear = [], []
        for b in range(inputs["u"].shape[0]):
            one = {name: value[b].double().numpy() for name, value in inputs.items()}
            u = one["u"] if self.on_grid else one["u"].T
            matrix = Matrix(u.shape[0], u.shape[1:], ridge, bounded, self.shared_by)
            self.matrix(matrix, one)
            matrices.append(matrix.q)
            linear.append(u.reshape(-1))
        return matrices, linear

    def to_cells(self, values: Tensor) -> Tensor:
        """Field values [..., *axes] as [..., cells]."""
        return values.flatten(-3) if self.on_grid else values.transpose(-1, -2).flatten(-2)


def _reads(pair: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", pair) is not None


def _over_cells(p: Array) -> Array:
    """[T, 2, T, 2] over cells (number, position)."""
    count = p.shape[0]
    return p.transpose(1, 0, 3, 2).reshape(2 * count, 2 * count)


def _on_edges(m: Matrix, one: dict[str, Array]) -> Matrix:
    weights = one["weight"] if "weight" in one else np.full(len(one["link"]), 0.4)
    return m.sparse([(int(i), int(j)) for i, j in one["link"]], weights)


def _even(m: Matrix, weight: float) -> Matrix:
    return m.smooth(np.full((len(m.shape), *m.shape), weight), axes(len(m.shape)))


def _of_cells(m: Matrix, one: dict[str, Array]) -> Matrix:
    return m.lowrank(np.moveaxis(one["f"], -1, 0))


CASES: dict[str, Case] = {
    "nothing": Case(HEAD, "", lambda m, one: None),
    "potts": Case(HEAD, "potts(e)", lambda m, one: m.potts(one["e"]), 1),
    "lowrank": Case(HEAD, "lowrank(e)", lambda m, one: m.lowrank(one["e"])),
    "lowrank of cells": Case(HEAD, "lowrank(f)", _of_cells),
    "smooth constant": Case(HEAD, "smooth(0.7)", lambda m, one: _even(m, 0.7)),
    "smooth edges": Case(HEAD, "smooth(w)", lambda m, one: m.smooth(one["w"], axes(2))),
    "smooth positions": Case(HEAD, "smooth(c)", lambda m, one: m.smooth(np.stack([one["c"]] * 2), axes(2))),
    "smooth diagonals": Case(HEAD, "smooth(v, diagonals: true)", lambda m, one: m.smooth(one["v"], diagonals(2))),
    "smooth twice": Case(HEAD, "smooth(w) + smooth(0.3)", lambda m, one: _even(m.smooth(one["w"], axes(2)), 0.3)),
    "potts and smooth": Case(HEAD, "potts(e) + smooth(0.4)", lambda m, one: _even(m.potts(one["e"]), 0.4), 1),
    "potts and edges": Case(
        HEAD, "potts(e) + smooth(w)", lambda m, one: m.potts(one["e"]).smooth(one["w"], axes(2)), 1
    ),
    "all on a grid": Case(
        HEAD, "smooth(0.7) + potts(e) + lowrank(e)", lambda m, one: _even(m.potts(one["e"]).lowrank(one["e"]), 0.7), 1
    ),
    "cells and edges": Case(HEAD, "lowrank(f) + smooth(w)", lambda m, one: _of_cells(m.smooth(one["w"], axes(2)), one)),
    "dense": Case(LINE, "dense(p)", lambda m, one: m.dense(_over_cells(one["p"])), 1),
    "dense and more": Case(
        LINE,
        "dense(p) + lowrank(e) + potts(e)",
        lambda m, one: m.dense(_over_cells(one["p"])).lowrank(one["e"].T).potts(one["e"].T),
        2,
    ),
    "sparse": Case(LINE, "sparse(link, weight)", _on_edges),
    "sparse constant": Case(LINE, "sparse(link, 0.4)", _on_edges),
    "sparse and low rank": Case(
        LINE, "sparse(link, weight) + lowrank(e)", lambda m, one: _on_edges(m, one).lowrank(one["e"].T)
    ),
    "sparse and smooth": Case(LINE, "sparse(link, weight) + smooth(0.8)", lambda m, one: _even(_on_edges(m, one), 0.8)),
    "line": Case(LINE, "smooth(0.8)", lambda m, one: _even(m, 0.8)),
}

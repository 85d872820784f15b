"""Random Gaussian fields: every coupling and sum of couplings, magnitude, condition, shape, mask and evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel
from tests.fuzz.dense import Array, matrix_of

NAN = float("nan")
# Where the smallest eigenvalue of a literal matrix is put, as a share of the largest magnitude of its entries.
GAPS = {
    "well": 1.0,
    "fair": 1e-2,
    "stiff": 1e-4,
    "stiffest": 1e-6,
    "singular": 0.0,
    "indefinite": -1e-2,
    "saddle": -1.0,
}


@dataclass(frozen=True)
class FieldCase:
    """A spec with one field `s`, and a batch.

    Attributes:
        text: the spec.
        inputs: tensors [B, ...] by name.
        weights: parameters by name.
        sizes: of the field's axes.
        positions: which of these axes are dims.
        answer: [B, *axes], values of all cells.
        dtype: of the numbers.
        lengths: [B] by dim.
        masks: the field's mask under its name, or nothing.
        evidence: the field's observed values under its name, NaN where free, or nothing.
        kind: the kind of matrix in words.
    """

    text: str
    inputs: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    answer: Tensor
    dtype: torch.dtype
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    evidence: Mapping[str, Tensor] = field(default_factory=dict)
    kind: str = ""

    @property
    def batch(self) -> int:
        """How many examples."""
        return len(self.answer)

    @property
    def bounded(self) -> bool:
        """Whether the matrix is positive definite by its parametrisation."""
        return "bounded: false" not in self.text

    @cached_property
    def model(self) -> EnergyModel:
        """The bound model with its weights."""
        model = _compiled(self.text, self.dtype)
        with torch.no_grad():
            for name, one in self.weights.items():
                parameter = model.get_parameter(name)
                if not torch.equal(parameter, one):
                    parameter.copy_(one)
        return model

    def given(self) -> dict[str, Any]:
        """The arguments of a call beside evidence."""
        more: dict[str, Any] = {"lengths": dict(self.lengths)} if self.lengths else {}
        return {**self.inputs, **more, **({"mask": dict(self.masks)} if self.masks else {})}

    def infer(self, using: str) -> em.Posterior:
        """The posterior of the batch."""
        return self.model.infer(**self.given(), evidence=dict(self.evidence) or None, using=using)

    def example(self, number: int) -> FieldCase:
        """One example as a batch of its own."""
        parts = ("inputs", "lengths", "masks", "evidence")
        alone = {p: {n: t[number : number + 1] for n, t in getattr(self, p).items()} for p in parts}
        return replace(self, answer=self.answer[number : number + 1], **alone)

    def double(self) -> FieldCase:
        """The same numbers in double precision."""

        def doubled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}

        parts = {part: doubled(getattr(self, part)) for part in ("inputs", "weights", "evidence")}
        return replace(self, dtype=torch.float64, answer=self.answer.double(), **parts)

    def present(self) -> Array:
        """[B, cells] bool: which cells of the field exist, in the order of its axes."""
        every = torch.ones(self.batch, *(self.sizes[axis] for axis in self.positions), dtype=torch.bool)
        for number, axis in enumerate(self.positions):
            name = self.dims[number]
            if name in self.lengths:
                inside = torch.arange(self.sizes[axis]) < self.lengths[name].unsqueeze(1)
                every &= inside.reshape(self.batch, *(-1 if n == number else 1 for n in range(len(self.positions))))
        for mask in self.masks.values():
            every &= mask
        shape = [self.sizes[axis] if axis in self.positions else 1 for axis in range(len(self.sizes))]
        return every.reshape(self.batch, *shape).expand(self.batch, *self.sizes).flatten(1).numpy()

    def magnitude(self, number: int) -> float:
        """That of the parts of one literal matrix, which may cancel; those of a bounded one do not."""
        written = re.findall(r"(?:smooth\((?:0 - )?|sparse\(link, )(\d[\d.e+-]*)", self.text)
        total = 0.0 if self.bounded else sum(map(float, written))
        for name, one in {**self.inputs, **self.weights}.items():
            if not self.bounded and (name == "r" or name[0] == "c"):
                largest = float((one[number] if name in self.inputs else one).abs().max()) if one.numel() else 0.0
                total += largest**2 if f"potts({name})" in self.text or f"lowrank({name})" in self.text else largest
        return total

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of its dims."""
        return {1: ("T",), 2: ("H", "W"), 3: ("D", "H", "W")}[len(self.positions)]

    def __str__(self) -> str:
        torch.set_printoptions(precision=12, linewidth=160)
        parts = {name: dict(getattr(self, name)) for name in ("inputs", "weights", "lengths", "masks", "evidence")}
        given = (f"{name}: {one}" for name, one in parts.items() if one)
        return "\n".join(
            [self.text, f"{self.kind}; {self.dtype}; sizes {self.sizes}", *given, f"answer: {self.answer}"]
        )


@lru_cache(maxsize=4)
def _compiled(text: str, dtype: torch.dtype) -> EnergyModel:
    return em.compile(text).to(dtype)


class _Maker:
    """Draws the declarations and the tensors of one case."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        self.bounded = draw(st.sampled_from([True, False, False]))
        self.batch = draw(st.sampled_from([1, 1, 2, 3]))
        count = draw(st.sampled_from([1, 1, 1, 2, 2, 3]))
        most = {1: 7, 2: 3, 3: 2}[count]
        least = draw(st.sampled_from([1, 2, 2, 2]))
        self.dims = {1: ("T",), 2: ("H", "W"), 3: ("D", "H", "W")}[count]
        self.shape = tuple(draw(st.integers(min(least, most), most)) for _ in self.dims)
        channels = draw(st.sampled_from(["", "", "Seg", "Seg", "2", "Seg, 2" if self.count <= 4 else ""]))
        self.channels = [one for one in channels.split(", ") if one]
        self.size = 10.0 ** draw(st.integers(-6, 8))
        self.strength = 10.0 ** draw(st.integers(-2, 6 if self.bounded else 0))
        self.inputs: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}
        self.lines: list[str] = []

    @property
    def count(self) -> int:
        """How many positions."""
        return math.prod(self.shape)

    def normal(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self.generator, dtype=torch.float64)

    def tensor(self, name: str, axes: list[str], sizes: list[int], scale: float) -> str:
        """Declare an input, or now and then a parameter, of random numbers; its name."""
        inside = f"[{', '.join(axes)}]" if axes else ""
        observed = any(one.rpartition(": ")[2] in (*self.dims, "E") for one in axes)
        shared = not observed and self.draw(st.booleans())
        values = scale * (self.normal(*sizes) if shared else self.normal(self.batch, *sizes))
        match self.draw(st.sampled_from(["normal", "normal", "equal", "negative"])):
            case "equal":
                values = values.sign() * scale
            case "negative":
                values = -values.abs()
        self.lines.append(f"{'param' if shared else 'input'} {name} : real{inside}")
        (self.weights if shared else self.inputs)[name] = values
        return name

    def couplings(self) -> str:
        """A sum of couplings."""
        kinds = ["potts", "lowrank", "smooth constant", "smooth one", "smooth directions", "smooth positions",
                 "smooth edges"]  # fmt: skip
        if len(self.dims) > 1:
            kinds.append("smooth diagonals")
        if len(self.dims) == 1:
            kinds += ["sparse", "sparse", "sparse", "sparse constant"]
        if self.channels == ["Seg"]:
            kinds.append("cells")
        if self.count * 6 <= 60:
            kinds.append("dense")
        chosen = self.draw(st.lists(st.sampled_from(kinds), min_size=0, max_size=3))
        return " + ".join(self._coupling(kind, number) for number, kind in enumerate(chosen))

    def _coupling(self, kind: str, number: int) -> str:
        weight, grid, shape = self.size * self.strength, list(self.dims), list(self.shape)
        name, directions = f"c{number}", len(self.dims)
        match kind:
            case "potts" | "lowrank":
                rank = self.draw(st.integers(1, 3))
                axes, sizes = [str(rank), *grid], [rank, *shape]
                if self.draw(st.booleans()):
                    axes, sizes = [*grid, str(rank)], [*shape, rank]
                return f"{kind}({self.tensor(name, axes, sizes, math.sqrt(weight))})"
            case "cells":
                return f"lowrank({self.tensor(name, ['2', 'Seg', *grid], [2, 3, *shape], math.sqrt(weight))})"
            case "smooth constant":
                sign = "" if self.bounded or self.draw(st.booleans()) else "0 - "
                return f"smooth({sign}{weight:.17g})"
            case "smooth one":
                return f"smooth({self.tensor(name, [], [], weight)})"
            case "smooth directions":
                return f"smooth({self.tensor(name, [str(directions)], [directions], weight)})"
            case "smooth positions":
                return f"smooth({self.tensor(name, grid, shape, weight)})"
            case "smooth edges":
                return f"smooth({self.tensor(name, [str(directions), *grid], [directions, *shape], weight)})"
            case "smooth diagonals":
                count = (3**directions - 1) // 2
                given = self.tensor(name, [str(count), *grid], [count, *shape], weight)
                return f"smooth({given}, diagonals: true)"
            case "sparse" | "sparse constant":
                link = self._links()
                if kind == "sparse constant":
                    return f"sparse({link}, {weight:.17g})"
                edges = self.inputs[link].shape[1]
                return f"sparse({link}, {self.tensor(name, ['E'], [edges], weight)})"
        axes = [f"row{i}: {one}" for i, one in enumerate(self.axes)]
        axes += [f"column{i}: {one}" for i, one in enumerate(self.axes)]
        return f"dense({self.tensor(name, axes, [*self.sizes, *self.sizes], weight / math.sqrt(self.cells))})"

    def _links(self) -> str:
        """A star, a ring, or any edges, with loops, repeated ones and gaps."""
        if "link" in self.inputs:
            return "link"
        count, kind = self.count, self.draw(st.sampled_from(["star", "ring", "any", "any"]))
        if kind == "star" and count > 1:
            ends = torch.tensor([[0, i] for i in range(1, count)]).repeat(self.batch, 1, 1)
        elif kind == "ring":
            ends = torch.tensor([[i, (i + 1) % count] for i in range(count)]).repeat(self.batch, 1, 1)
        else:
            edges = self.draw(st.integers(1, 2 * count))
            ends = torch.randint(count, (self.batch, edges, 2), generator=self.generator)
            gaps = torch.rand(self.batch, edges, generator=self.generator) < self.draw(st.sampled_from([0.0, 0.3]))
            ends = ends.masked_fill(gaps.unsqueeze(2), -1)
        self.lines.append("input link : edge(T, T)[E]")
        self.inputs["link"] = ends
        return "link"

    def case(self) -> FieldCase:
        """The spec and its tensors."""
        draw, batch = self.draw, self.batch
        order = [*self.channels, *self.dims]
        self.axes = draw(st.sampled_from([order, [*self.dims, *self.channels], [*order[1:], order[0]]]))
        known = {"Seg": 3, "2": 2, **dict(zip(self.dims, self.shape, strict=True))}
        if [one for one in self.axes if one in self.dims] != list(self.dims):
            self.axes = order
        self.sizes = [known[one] for one in self.axes]
        self.cells = math.prod(self.sizes)
        pair = self.couplings()
        inside = ", ".join(self.axes)
        rough = draw(st.sampled_from(["normal", "normal", "normal", "zero", "ones", "large"]))
        level = self.size * 10.0 ** draw(st.integers(-3, 3))
        flat = {"zero": 0.0, "ones": level}
        values = (1e3 if rough == "large" else 1.0) * level * self.normal(batch, *self.sizes)
        self.inputs["u"] = torch.full_like(values, flat[rough]) if rough in flat else values
        unary = draw(st.sampled_from(["u", "u", "2 * u"]))
        ridge, r = self._ridge()
        options = [f"unary: {unary}", *([f"pair: {pair}"] if pair else []), f"ridge: {ridge}"]
        options += [] if self.bounded else ["bounded: false"]
        declared = [f"dim {', '.join(self.dims)}{', E' if 'link' in self.inputs else ''}", *self.lines]
        declared += ["labels Seg = {a, b, c}"] if "Seg" in self.axes else []
        declared += [f"input u : real[{inside}]", f"field s : real[{inside}]"]
        if "Seg" in self.axes and "2" not in self.axes:
            declared.append(f"output y : Seg[{', '.join(self.dims)}] = argmax s over Seg")
        text = "\n".join([*declared, f"gaussian s {{ {', '.join(options)} }}", ""])
        positions = tuple(i for i, one in enumerate(self.axes) if one in self.dims)
        spread = level / self.size
        case = FieldCase(text, self.inputs | r, self.weights, tuple(self.sizes), positions,
                         spread * self.normal(batch, *self.sizes), torch.float64)  # fmt: skip
        case = self._observed(self._ragged(case), spread)
        kind = "bounded" if self.bounded else draw(st.sampled_from([*GAPS, "well", "well", "fair"]))
        case = replace(case, kind=f"{kind}, {rough} unary, size {self.size:g}")
        return _converted(self._gap(case, kind), draw(st.sampled_from([torch.float32, torch.float64])))

    def _ridge(self) -> tuple[str, dict[str, Tensor]]:
        """Its expression, and the tensors behind it."""
        if not self.bounded or self.draw(st.booleans()):
            self.lines.append("input r : real")
            factors = torch.rand(self.batch, generator=self.generator, dtype=torch.float64) + 0.5
            return "r", {"r": self.size * factors}
        return f"{self.size:.17g}", {}

    def _gap(self, case: FieldCase, kind: str) -> FieldCase:
        """A literal case whose free cells have the smallest eigenvalue that its kind says."""
        if self.bounded:
            return case
        bare = replace(case, inputs={**case.inputs, "r": torch.zeros_like(case.inputs["r"])})
        ridges = []
        for number, (q, free) in enumerate(zip(matrix_of(bare), _free(bare), strict=True)):
            inner = q[np.ix_(free, free)]
            lowest, largest = (np.linalg.eigvalsh(inner)[0], abs(inner).max()) if free.any() else (0.0, 0.0)
            wanted = GAPS[kind] * (largest if largest else self.size)
            ridges.append(wanted - lowest if number == 0 or kind != "saddle" else self.size + largest - lowest)
        return replace(case, inputs={**case.inputs, "r": torch.tensor(ridges, dtype=torch.float64)})

    def _ragged(self, case: FieldCase) -> FieldCase:
        """Lengths, or a mask, or neither."""
        kind = self.draw(st.sampled_from(["", "", "lengths", "mask"]))
        if kind == "lengths":
            lengths = {
                dim: torch.randint(0, size + 1, (self.batch,), generator=self.generator)
                for dim, size in zip(self.dims, self.shape, strict=True)
            }
            return replace(case, lengths=lengths)
        if kind == "mask":
            return replace(case, masks={"s": torch.rand(self.batch, *self.shape, generator=self.generator) < 0.8})
        return case

    def _observed(self, case: FieldCase, spread: float) -> FieldCase:
        """Values of some positions, of some cells, of all, or of none."""
        kind = self.draw(st.sampled_from(["", "", "", "positions", "cells", "all"]))
        if not kind:
            return case
        sizes = [size if kind != "positions" or axis in case.positions else 1 for axis, size in enumerate(case.sizes)]
        free = torch.rand(self.batch, *sizes, generator=self.generator) < (0.0 if kind == "all" else 0.6)
        values = case.answer.masked_fill(free.expand(case.answer.shape), NAN)
        return replace(case, evidence={"s": values})


def _free(case: FieldCase) -> Array:
    """[B, cells] bool: which cells exist and are not observed."""
    present = case.present()
    for one in case.evidence.values():
        present = present & one.isnan().flatten(1).numpy()
    return present


def _converted(case: FieldCase, dtype: torch.dtype) -> FieldCase:
    """The case with numbers of a type; those of the spec's text are read in it too."""

    def all_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}

    parts = {part: all_of(getattr(case, part)) for part in ("inputs", "weights", "evidence")}
    text = case.text
    if dtype == torch.float32:  # constants that both types hold alike
        text = re.sub(
            r"\d[\d.e+-]*\d", lambda m: f"{float(np.float32(m[0])):.17g}" if "." in m[0] or "e" in m[0] else m[0], text
        )
    return replace(case, text=text, dtype=dtype, answer=case.answer.to(dtype), **parts)


@st.composite
def fields(draw: st.DrawFn) -> FieldCase:
    """Any field."""
    return _Maker(draw).case()

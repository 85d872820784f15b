"""One contract case: a spec, a batch of tensors, and what is known about the answers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel
from energyml.ir.ground import Instance
from energyml.model.types import EdgeType

PARAMETER_SEED = 7


@dataclass(frozen=True)
class Case:
    """Arguments of `model.infer` for one spec.

    Attributes:
        text: the spec.
        inputs: [B, ...] by name.
        sizes: the padded size of every dim that is not fixed.
        lengths: by dim: [B], or [B, T] for a nested dim.
        masks: by variable: bool [B, *dims].
        evidence: by variable: labels with -1, or allowed labels.
        batch: B.
        magnitude: how large scores are, for tolerances.
        dtype: of scores.
        weights: parameters that replace the model's own.
    """

    text: str
    inputs: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    evidence: Mapping[str, Tensor] = field(default_factory=dict)
    batch: int = 1
    magnitude: float = 1.0
    dtype: torch.dtype = torch.float64
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def model(self) -> EnergyModel:
        """The bound model; parameters are scaled with the magnitude."""
        made = _bound(self.text, self.dtype, self.magnitude)
        if self.weights:
            made = copy.deepcopy(made)
            with torch.no_grad():
                for name, one in self.weights.items():
                    made.get_parameter(name).copy_(one)
        return made

    def arguments(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments of `infer`, `score` and `loss`."""
        given: dict[str, Any] = dict(self.inputs)
        if self.lengths:
            given["lengths"] = dict(self.lengths)
        if self.masks:
            given["mask"] = dict(self.masks)
        return {**given, **more}

    def infer(self, using: str) -> em.Posterior:
        """The posterior of one backend; what it owns has first weights: its promises do not depend on them."""
        self.model.inference_module(using)
        return self.model.infer(using=using, evidence=dict(self.evidence) or None, **self.arguments())

    def converted(self, dtype: torch.dtype) -> Case:
        """The same case in another floating-point type."""
        inputs = {name: one.to(dtype) if one.is_floating_point() else one for name, one in self.inputs.items()}
        return _replaced(self, inputs=inputs, dtype=dtype)

    def tracked(self) -> Case:
        """The same case with inputs that gradients are wanted for."""
        inputs = {n: one.clone().requires_grad_() if one.is_floating_point() else one for n, one in self.inputs.items()}
        return _replaced(self, inputs=inputs)

    def example(self, b: int) -> Case:
        """The case of one example, with the same padding where an input, a mask or evidence tells it."""
        here = slice(b, b + 1)
        parts = {
            name: {key: one[here] for key, one in getattr(self, name).items()}
            for name in ("inputs", "lengths", "masks", "evidence")
        }
        return _replaced(self, **parts, batch=1)

    # --------------------------------------------------------------------------------------------------------- sizes

    def size(self, dim: str, b: int) -> int:
        """How many positions of a dim exist in one example."""
        declared = self.model.graph.dims[dim]
        if declared.kind == "fixed":
            assert declared.size is not None
            return declared.size
        return int(self.lengths[dim][b]) if dim in self.lengths else self.sizes[dim]

    def seen_size(self, dim: str, b: int) -> int:
        """How many positions of a dim networks see: without lengths, those behind the last cell are padding."""
        graph = self.model.graph
        if dim not in self.lengths and graph.dims[dim].kind == "observed":
            over = [v for v in graph.discrete if dim in v.dims]
            if over and all(v.dims == (dim,) and v.name in self.masks for v in over):
                carried = torch.stack([self.masks[v.name][b] for v in over]).any(0).nonzero()
                return int(carried.max()) + 1 if carried.numel() else 0
        return self.size(dim, b)

    def nested_sizes(self, dim: str, b: int) -> list[int]:
        """How many positions of a nested dim each position has."""
        outer = self.sizes[str(self.model.graph.dims[dim].within)]
        if dim in self.lengths:
            return [int(n) for n in self.lengths[dim][b]]
        return [self.sizes[dim]] * outer

    def instance(self, b: int, free: Mapping[str, int]) -> Instance:
        """The sizes of one example, for grounding; `free` are the lengths under consideration."""
        graph = self.model.graph
        sizes, nested, edges, absent = {}, {}, {}, {}
        for name, dim in graph.dims.items():
            if dim.kind == "nested":
                nested[name] = self.nested_sizes(name, b)
            elif dim.kind == "free":
                sizes[name] = free[name]
            else:
                sizes[name] = self.size(name, b)
        for name, declared in graph.inputs.items():
            if isinstance(declared.type, EdgeType):
                rows = self.inputs[name][b, : sizes[declared.type.over]].tolist()
                edges[name] = [tuple(row) for row in rows]
        for name, mask in self.masks.items():
            gone = (~mask[b]).nonzero().tolist() if mask[b].dim() else ([] if bool(mask[b]) else [[]])
            absent[name] = frozenset(tuple(position) for position in gone)
        return Instance(sizes, nested, edges, absent)


def _replaced(case: Case, **changes: Any) -> Case:
    from dataclasses import replace

    return replace(case, **changes)


@lru_cache(maxsize=512)
def _bound(text: str, dtype: torch.dtype, magnitude: float) -> EnergyModel:
    model = em.compile(text, seed=PARAMETER_SEED)
    with torch.no_grad():
        for parameter in model._parameters.values():
            assert parameter is not None
            parameter.mul_(10 * magnitude)
    return model.to(dtype)

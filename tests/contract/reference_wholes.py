"""The reference for terms over whole variables: their networks run on one example at a time, without padding."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from energyml.ir.graph import BlackBox, MaskedEnergy, Stepwise, Term
from energyml.model.expression import Apply, Combine, Expression, Relaxed

if TYPE_CHECKING:
    from tests.contract.reference import Example

Array = np.ndarray[Any, np.dtype[np.float64]]


class Whole:
    """The scores of terms over whole variables: networks see the positions that carry a cell, and nothing else."""

    def __init__(self, example: Example, lengths: Mapping[str, int]) -> None:
        self.example, self.lengths = example, lengths
        self.graph, self.case, self.b = example.graph, example.case, example.b

    def score(self, term: Term, here: Mapping[str, np.ndarray[Any, Any]]) -> Array:
        body = term.body
        with torch.no_grad():
            if isinstance(body, Stepwise):
                return self._stepwise(body, torch.as_tensor(here[body.variable]))
            if isinstance(body, MaskedEnergy):
                return self._masked(body, torch.as_tensor(here[body.variable]))
            assert isinstance(body, BlackBox)
            rows = len(next(iter(here.values())))
            value = self._value(body.value, {n: torch.as_tensor(here[n]) for n in body.variables}, body.variables, rows)
            return value.expand(rows).numpy()

    def _present(self, variable: str) -> list[int]:
        (dim,) = self.graph.variables[variable].dims
        size = self.lengths[dim] if dim in self.lengths else self.case.size(dim, self.b)
        mask = self.case.masks.get(variable)
        return [i for i in range(size) if mask is None or bool(mask[self.b, i])]

    def _given(self, values: tuple[Expression, ...], variable: str, rows: int) -> tuple[Tensor, ...]:
        return tuple(
            self._restricted(value, (variable,)).expand(rows, *[-1] * len(value.type.axes)) for value in values
        )

    def _restricted(self, value: Expression, variables: tuple[str, ...]) -> Tensor:
        """[1, *axes]: a value that reads no labels, at the positions that carry cells of all variables."""
        array = self.example.cut(self.example.value(value, None), value.type.axes)
        for number, axis in enumerate(value.type.axes):
            for variable in variables:
                if axis.extent.kind == "dim" and self.graph.variables[variable].dims == (axis.extent.name,):
                    array = np.take(array, self._shared(axis.extent.name, variables), axis=number)
                    break
        return torch.as_tensor(np.asarray(array)).unsqueeze(0)

    def _shared(self, dim: str, variables: tuple[str, ...]) -> list[int]:
        over = [set(self._present(v)) for v in variables if self.graph.variables[v].dims == (dim,)]
        return sorted(set.intersection(*over))

    def _stepwise(self, body: Stepwise, labels: Tensor) -> Array:
        net: Any = self.example.model._modules[body.net]
        labels = labels[:, self._present(body.variable)]
        scores = net.forced(labels, self._given(body.given, body.variable, len(labels)), {})
        if body.normalize == "local":
            scores = scores - scores.logsumexp(-1, keepdim=True)
        picked = scores.gather(2, labels.unsqueeze(2)).squeeze(2)
        if body.end is not None:
            names = self.graph.label_sets[self.graph.variables[body.variable].type.element].labels or ()
            ends = labels == names.index(body.end)
            picked = picked * ((ends.cumsum(1) - ends.long()) == 0)
        return picked.sum(1).numpy()

    def _masked(self, body: MaskedEnergy, labels: Tensor) -> Array:
        net: Any = self.example.model._modules[body.net]
        labels = labels[:, self._present(body.variable)]
        scores = net.masked_scores(labels, self._given(body.given, body.variable, len(labels)), {})
        if body.energy == "local":
            scores = scores - scores.logsumexp(-1, keepdim=True)
        return scores.gather(2, labels.unsqueeze(2)).squeeze(2).sum(1).numpy()

    def _value(self, value: Expression, labels: Mapping[str, Tensor], variables: tuple[str, ...], rows: int) -> Tensor:
        """[N or 1, *axes]: an expression that reads the labels [N, *dims] of answers."""
        if not any(isinstance(part, Relaxed) for part in _nodes(value)):
            return self._restricted(value, variables)
        match value:
            case Relaxed(variable=variable, soft=soft):
                own = labels[variable]
                dims = self.graph.variables[variable].dims
                if len(dims) == 1:
                    own = own[:, self._shared(dims[0], variables)]
                else:
                    own = own[(slice(None), *(slice(self.case.size(dim, self.b)) for dim in dims))]
                if not soft:
                    return own
                hot = torch.nn.functional.one_hot(own.clamp(min=0), self.example.counts[variable]).double()
                return hot * (own >= 0).unsqueeze(-1)
            case Combine(operands=operands, operators=operators):
                total = self._value(operands[0], labels, variables, rows)
                for operator, operand in zip(operators, operands[1:], strict=True):
                    other = self._value(operand, labels, variables, rows)
                    if operator in "+-":
                        total = total + other if operator == "+" else total - other
                    else:
                        total = total * other if operator == "*" else total / other
                return total
            case Apply(net=net, arguments=arguments):
                module: Any = self.example.model._modules[net]
                parts = [self._value(a, labels, variables, rows) for a in arguments]
                parts = [one.expand(rows, *one.shape[1:]) for one in parts]
                options = {"masks": {}} if "masks" in inspect.signature(module.forward).parameters else {}
                made: Tensor = module(*parts, **options)
                return made
        raise AssertionError(f"the reference does not know {type(value).__name__} here")


def _nodes(value: Expression) -> Iterator[Expression]:
    yield value
    for part in value.parts:
        yield from _nodes(part)

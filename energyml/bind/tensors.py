"""Typed expressions as functions of an environment: compiled once at binding, called on every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from energyml import errors
from energyml.bind.batch import Batch
from energyml.diagnostics import Source, SpecError
from energyml.ir.graph import Affine, Binding, Edges, Graph, Range
from energyml.model.expression import (
    Apply,
    At,
    Combine,
    Constant,
    Expression,
    Potential,
    Reference,
    Relaxed,
)


class Environment:
    """What one evaluation needs: the module that owns parameters, the batch, relaxed labels, and values computed so far."""

    __slots__ = ("batch", "cache", "gains", "module", "relaxed")

    def __init__(
        self,
        module: nn.Module,
        batch: Batch,
        relaxed: Mapping[tuple[str, bool], Tensor] | None = None,
        gains: Mapping[str, float] | None = None,
    ) -> None:
        self.module, self.batch = module, batch
        self.gains: Mapping[str, float] = gains or {}
        self.relaxed: Mapping[tuple[str, bool], Tensor] = relaxed or {}
        self.cache: dict[Any, Tensor] = {}


Evaluator: TypeAlias = Callable[[Environment], Tensor]


def _contains_at(value: Expression) -> bool:
    return isinstance(value, At) or any(_contains_at(part) for part in value.parts)


class Compiler:
    """Compiles the expressions of one graph."""

    def __init__(self, graph: Graph, source: Source, takes_masks: Mapping[str, bool]) -> None:
        self.graph, self.source, self.takes_masks = graph, source, takes_masks

    def plain(self, value: Expression) -> Evaluator:
        """A function to a tensor [B or 1, *axes]; the expression has no subscripts."""
        match value:
            case Constant(value=number):
                return lambda env: torch.full((1,), number, device=env.batch.device, dtype=env.batch.dtype)
            case Reference(kind="input", name=name):
                return lambda env: env.batch.tensors[name]
            case Reference(kind="param", name=name):
                return lambda env: env.module._parameters[name].unsqueeze(0)  # type: ignore[union-attr]
            case Reference(kind="let", name=name):
                return self._remembered(("let", name), self.plain(self.graph.lets[name].value))
            case Relaxed(variable=variable, soft=soft):
                return lambda env: env.relaxed[variable, soft]
            case Apply(net=net, arguments=arguments):
                return self._remembered(value, self._call(net, [self.plain(argument) for argument in arguments]))
            case Combine():
                return _combined(value, [self.plain(operand) for operand in value.operands])
        raise AssertionError(f"no plain value for {type(value).__name__}")

    def _remembered(self, key: Any, evaluator: Evaluator) -> Evaluator:
        """Compute once for each environment, unless relaxed labels are involved (they vary within one)."""

        def remembered(env: Environment) -> Tensor:
            found = env.cache.get(key)
            if found is None:
                found = env.cache[key] = evaluator(env)
            return found

        return remembered

    def _call(self, net: str, arguments: list[Evaluator]) -> Evaluator:
        masked = self.takes_masks[net]

        def call(env: Environment) -> Tensor:
            values = [argument(env) for argument in arguments]
            batch = env.batch.size
            values = [v.expand(batch, *v.shape[1:]) if v.shape[0] != batch else v for v in values]
            return self.run(net, env, values, masked)

        return call

    def run(self, net: str, env: Environment, values: list[Tensor], masked: bool) -> Tensor:
        """Run a network; what fails inside it is reported with its name."""
        module = env.module._modules[net]
        assert module is not None
        try:
            result: Tensor = module(*values, masks=env.batch.exists) if masked else module(*values)
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            text = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
            diagnostic = errors.diagnostic("E0511", self.graph.nets[net].span, name=net, problem=text)
            raise SpecError(self.source, [diagnostic]) from problem
        return result

    # ----------------------------------------------------------------------------------------------------------- lifted

    def lifted(self, value: Expression, domain: tuple[Binding, ...]) -> Evaluator:
        """A function to a tensor [B or 1, *domain, *axes]: the expression at every element of an index set.

        Domain axes that the expression does not depend on have size 1.
        """
        if not _contains_at(value) and not isinstance(value, Potential):
            plain, rank = self.plain(value), len(domain)
            return lambda env: _insert(plain(env), rank)
        match value:
            case At(base=base, indices=indices):
                return self._at(self.plain(base), value, indices, domain)
            case Potential(arguments=arguments):
                return self.lifted(arguments[0], domain)
            case Combine():
                return _combined(value, [self.lifted(operand, domain) for operand in value.operands])
            case Apply(net=net, arguments=arguments):
                return self._pointwise(net, [self.lifted(a, domain) for a in arguments], len(domain))
        raise AssertionError(f"no lifted value for {type(value).__name__}")

    def _pointwise(self, net: str, arguments: list[Evaluator], rank: int) -> Evaluator:
        """A network at every element of the index set: the elements become part of the batch."""

        def call(env: Environment) -> Tensor:
            values = [argument(env) for argument in arguments]
            lead = torch.broadcast_shapes(*(v.shape[: 1 + rank] for v in values), (env.batch.size, *([1] * rank)))
            flat = [v.expand(*lead, *v.shape[1 + rank :]).flatten(0, rank) for v in values]
            alone = Batch(flat[0].shape[0], {}, {}, {}, device=env.batch.device, dtype=env.batch.dtype)
            result = self.run(net, Environment(env.module, alone), flat, self.takes_masks[net])
            return result.unflatten(0, lead)

        return call

    def _at(self, base: Evaluator, value: At, indices: tuple[Affine, ...], domain: tuple[Binding, ...]) -> Evaluator:
        axes = value.base.type.axes
        index_axes = [i for i, axis in enumerate(axes) if axis.extent.kind == "dim"][: len(indices)]
        dims = [axes[i].extent.name for i in index_axes]
        owners = [_owner(affine, domain) for affine in indices]
        gathered = any(isinstance(domain[o], Edges) for o in owners if o is not None) or any(
            affine.index is None for affine in indices
        )
        distinct = len({o for o in owners if o is not None}) == len([o for o in owners if o is not None])

        def sliced(env: Environment) -> Tensor:
            tensor = base(env)
            for axis, dim, affine, owner in zip(index_axes, dims, indices, owners, strict=True):
                assert owner is not None
                binding = domain[owner]
                assert isinstance(binding, Range)
                along = env.batch.along.get(dim)
                if along is not None:
                    tensor = along.compact(tensor, 1 + axis)
                    length = along.size - binding.shrink
                else:
                    length = tensor.shape[1 + axis] - binding.shrink
                tensor = tensor.narrow(1 + axis, affine.offset, max(0, length))
            return _to_domain(tensor, index_axes, owners, len(domain))

        def picked(env: Environment) -> Tensor:
            tensor = base(env)
            batch = env.batch.size
            tensor = tensor.expand(batch, *tensor.shape[1:]) if tensor.shape[0] != batch else tensor
            order = [0, *(1 + a for a in index_axes), *(1 + i for i in range(len(axes)) if i not in index_axes)]
            front = tensor.permute(order)
            places = [
                positions(env.batch, affine, dim, domain, tensor.shape[1 + axis])
                for affine, dim, axis in zip(indices, dims, index_axes, strict=True)
            ]
            examples = torch.arange(batch, device=front.device).reshape(batch, *([1] * len(domain)))
            return front[(examples, *places)]

        return picked if gathered or not distinct else sliced


def _owner(affine: Affine, domain: tuple[Binding, ...]) -> int | None:
    """Which binding of the domain an index comes from."""
    for number, binding in enumerate(domain):
        if affine.index == binding.index or (isinstance(binding, Edges) and affine.index in binding.ends):
            return number
    return None


def positions(batch: Batch, affine: Affine, dim: str, domain: tuple[Binding, ...], size: int) -> Tensor:
    """[B or 1, *domain]: the position in the caller's tensors that an index stands for, clamped into range.

    `size` is the length of the axis that is read.
    """
    rank = len(domain)
    along = batch.along.get(dim)
    owner = _owner(affine, domain)
    if owner is None:
        count = along.count if along is not None and along.count is not None else None
        last = (count if count is not None else torch.full((1,), along.size if along else size, device=batch.device)) + affine.offset
        cells = last if affine.offset < 0 else torch.full_like(last, affine.offset)
        place = cells.clamp(min=0, max=max(0, size - 1))
        if along is not None and along.order is not None:
            place = along.order.gather(1, place.expand(batch.size).unsqueeze(1)).squeeze(1)
        return place.reshape(-1, *([1] * rank))
    binding = domain[owner]
    shape = [1] * (1 + rank)
    if isinstance(binding, Edges):
        rows = batch.tensors[binding.source]
        if affine.index == binding.index:
            place = torch.arange(rows.shape[1], device=batch.device).unsqueeze(0)
        else:
            place = rows[:, :, binding.ends.index(affine.index or "")].clamp(min=0, max=max(0, size - 1))
        shape[0], shape[1 + owner] = place.shape
        return place.reshape(shape)
    length = max(0, (along.size if along is not None else size) - binding.shrink)
    place = torch.arange(length, device=batch.device) + affine.offset
    if along is not None and along.order is not None:
        cells = along.order[:, affine.offset : affine.offset + length].clamp(max=max(0, size - 1))
        shape[0], shape[1 + owner] = cells.shape
        return cells.reshape(shape)
    shape[1 + owner] = length
    return place.clamp(max=max(0, size - 1)).reshape(shape)


def _insert(tensor: Tensor, rank: int) -> Tensor:
    for _ in range(rank):
        tensor = tensor.unsqueeze(1)
    return tensor


def _to_domain(tensor: Tensor, index_axes: list[int], owners: list[int | None], rank: int) -> Tensor:
    """Move consumed index axes to their places in the domain, with size 1 for the others."""
    rest = [1 + i for i in range(tensor.dim() - 1) if i not in index_axes]
    by_owner = {owner: 1 + axis for axis, owner in zip(index_axes, owners, strict=True)}
    ordered = [by_owner[o] for o in range(rank) if o in by_owner]
    moved = tensor.permute(0, *ordered, *rest)
    for number in range(rank):
        if number not in by_owner:
            moved = moved.unsqueeze(1 + number)
    return moved


def _combined(value: Combine, operands: list[Evaluator]) -> Evaluator:
    operators = value.operators

    def combined(env: Environment) -> Tensor:
        total = operands[0](env)
        for operator, operand in zip(operators, operands[1:], strict=True):
            left, right = _aligned(total, operand(env))
            if operator == "+":
                total = left + right
            elif operator == "-":
                total = left - right
            elif operator == "*":
                total = left * right
            else:
                total = left / right
        return total

    return combined


def _aligned(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give the scalar of two operands trailing axes of size 1."""
    while left.dim() < right.dim():
        left = left.unsqueeze(-1)
    while right.dim() < left.dim():
        right = right.unsqueeze(-1)
    return left, right

"""Typed expressions as functions of an environment: compiled once at binding, called on every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from energyml import errors
from energyml.bind.batch import Batch, Counted
from energyml.bind.gains import Gain
from energyml.bind.inputs import data_error
from energyml.bind.places import constant_exists, owner_of, positions, roomy, value_constants
from energyml.diagnostics import Source, SpecError
from energyml.ir.expressions import parts_of
from energyml.ir.graph import Affine, Binding, Edges, Graph, Range
from energyml.model.declared import NetSignature
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
from energyml.model.types import Extent


class Environment:
    """What one evaluation needs.

    Attributes:
        module: owns the parameters and networks.
        batch: the tensors and sizes.
        relaxed: `soft` and `hard` labels by variable, for black boxes.
        gains: factors by term, where balance has set them.
        base: the environment of the plain batch, where `batch` repeats each of its examples.
        copies: how often.
        examined: the terms whose scores were checked for NaN.
        unseen: such checks that would wait for a device: each gives a problem in words, or `None`.
    """

    __slots__ = ("_cache", "base", "batch", "copies", "examined", "gains", "module", "relaxed", "unseen")

    def __init__(
        self,
        module: nn.Module,
        batch: Batch,
        relaxed: Mapping[tuple[str, bool], Tensor] | None = None,
        gains: Mapping[str, Gain] | None = None,
        base: Environment | None = None,
        copies: int = 1,
    ) -> None:
        self.module, self.batch, self.base, self.copies = module, batch, base, copies
        self.gains: Mapping[str, Gain] = gains or {}
        self.relaxed: Mapping[tuple[str, bool], Tensor] = relaxed or {}
        self._cache: dict[tuple[int, bool], Tensor] = {}
        self.examined: set[str] = set()
        self.unseen: list[Callable[[], str | None]] = base.unseen if base is not None else []

    def afresh(self) -> Environment:
        """The same batch with an empty cache, under the gains of today: for parameters that have changed."""
        gains: Mapping[str, Gain] = dict(getattr(self.module, "gains", self.gains))
        return Environment(self.module, self.batch, self.relaxed, gains, self.base, self.copies)

    def with_gains(self, gains: Mapping[str, Gain]) -> Environment:
        """The same batch under other gains; what networks gave is shared."""
        made = Environment(self.module, self.batch, self.relaxed, gains, self.base, self.copies)
        made._cache, made.unseen = self._cache, self.unseen
        return made

    def cached(self, key: int, evaluator: Evaluator) -> Tensor:
        """The value of an evaluator, computed once; what was computed without gradients serves only without them.

        In training mode gradients are always recorded: a network with dropout draws anew each time that it runs, and
        all answers of a posterior have to be about one draw.
        """
        tracked = torch.is_grad_enabled()
        found = self._cache.get((key, True))
        if found is None and not tracked:
            found = self._cache.get((key, False))
        if found is None and not tracked and self.module.training and not torch.is_inference_mode_enabled():
            with torch.enable_grad():
                return self.cached(key, evaluator)
        if found is None:
            found = self._cache[key, tracked] = evaluator(self)
        return found


Evaluator: TypeAlias = Callable[[Environment], Tensor]
_MANY_LETS = 16


class IndexSet(NamedTuple):
    """The index set of a term.

    Attributes:
        domain: its bindings.
        counted: along which dims indices count cells.
        valid: [B or 1, *domain] which elements exist in a batch; `None` when all do.
    """

    domain: tuple[Binding, ...]
    counted: Counted
    valid: Callable[[Batch], Tensor | None]


def _contains(value: Expression, kind: type[Expression]) -> bool:
    return isinstance(value, kind) or any(_contains(part, kind) for part in value.parts)


class Compiler:
    """Compiles the expressions of one graph."""

    def __init__(self, graph: Graph, source: Source, takes_masks: Mapping[str, bool]) -> None:
        self.graph, self.source, self.takes_masks = graph, source, takes_masks
        self._keys: dict[object, int] = {}
        self._lets: dict[str, Evaluator] = {}
        self._in_lets = False

    def _key(self, of: object) -> int:
        """A small number for what is cached: hashing an expression on every call would cost more."""
        return self._keys.setdefault(of, len(self._keys))

    # ------------------------------------------------------------------------------------------------------------ plain

    def plain(self, value: Expression) -> Evaluator:
        """A function to a tensor [B or 1, *axes]; no index of a term occurs in the expression."""
        match value:
            case Constant(value=number):
                return lambda env: torch.full((1,), number, device=env.batch.device, dtype=env.batch.dtype)
            case Reference(kind="input", name=name):
                return lambda env: env.batch.tensors[name]
            case Reference(kind="param", name=name):
                return lambda env: env.module._parameters[name].unsqueeze(0)  # type: ignore[union-attr]
            case Reference(kind="let", name=name):
                return self._let(name)
            case Relaxed(variable=variable, soft=soft):
                return lambda env: env.relaxed[variable, soft]
            case Apply(net=net, arguments=arguments):
                return self._cached(value, self._call(net, self._parts(value, arguments)))
            case Combine(operands=operands):
                return _combined(value, self._parts(value, operands))
            case At():
                return self._fixed_position(value)
        raise AssertionError(f"no plain value for {type(value).__name__}")

    def _let(self, name: str) -> Evaluator:
        """A named tensor; each evaluator is made once, and shared.

        Named tensors are compiled, and where there are many evaluated, in the order of their declaration: a recursion
        through a long row of them would be too deep.
        """
        if self._in_lets:
            return self._lets[name]
        value = Reference(self.graph.lets[name].value.type, "let", name)
        read = {one.name for one in parts_of([value], self.graph) if isinstance(one, Reference) and one.kind == "let"}
        order = [one for one in self.graph.lets if one in read]
        self._in_lets = True
        for one in order:
            if one not in self._lets:
                self._lets[one] = self._cached(("let", one), self.plain(self.graph.lets[one].value))
        self._in_lets = False
        *before, last = [self._lets[one] for one in order]
        if len(before) < _MANY_LETS:
            return last

        def evaluate(env: Environment) -> Tensor:
            for one in before:
                one(env)
            return last(env)

        return evaluate

    def _parts(self, whole: Expression, parts: Sequence[Expression]) -> list[Evaluator]:
        """Parts of an expression; beside relaxed labels, what does not read them is computed once for all copies."""
        if not _contains(whole, Relaxed):
            return [self.plain(part) for part in parts]
        return [self.plain(part) if _contains(part, Relaxed) else self._shared(part) for part in parts]

    def _shared(self, part: Expression) -> Evaluator:
        evaluate = self.plain(part)

        def shared(env: Environment) -> Tensor:
            if env.base is None:
                return evaluate(env)
            found = evaluate(env.base)
            return found if found.shape[0] == 1 and env.batch.size != 1 else found.repeat_interleave(env.copies, 0)

        return shared

    def _fixed_position(self, value: At) -> Evaluator:
        """A tensor at constant positions; zero where an example has no such position."""
        picked = self._at(self.plain(value.base), value, (), ())
        constants = value_constants(value)

        def evaluate(env: Environment) -> Tensor:
            found = picked(env)
            for affine, extent in constants:
                exists = constant_exists(env.batch.along, affine, extent, env.batch)
                if exists is not None:
                    found = torch.where(exists.reshape(-1, *([1] * (found.dim() - 1))), found, 0)
            return found

        return evaluate

    def _cached(self, of: object, evaluator: Evaluator) -> Evaluator:
        key = self._key(of)
        return lambda env: env.cached(key, evaluator)

    def _call(self, net: str, arguments: list[Evaluator]) -> Evaluator:
        masked = self.takes_masks[net]

        def call(env: Environment) -> Tensor:
            values = [full(argument(env), env.batch.size) for argument in arguments]
            return self.run(net, env.module, values, env.batch.exists if masked else None)

        return call

    def run(self, net: str, owner: nn.Module, values: list[Tensor], masks: Mapping[str, Tensor] | None) -> Tensor:
        """Run a network; what fails inside it is reported with its name."""
        module = owner._modules[net]
        assert module is not None
        try:
            result: Tensor = module(*values) if masks is None else module(*values, masks=masks)
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            text = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
            raise self._failed(net, text) from problem
        self._check_shape(net, result)
        return result

    def _failed(self, net: str, problem: str) -> SpecError:
        return SpecError(
            self.source, [errors.diagnostic("E0511", self.graph.nets[net].span, name=net, problem=problem)]
        )

    def _check_shape(self, net: str, result: object) -> None:
        """A network of the user's own gives what it is declared to give: as many axes, and those of fixed size."""
        declared = self.graph.nets[net].declared
        if not isinstance(declared, NetSignature):
            return
        if not isinstance(result, Tensor):
            raise self._failed(net, f"it gave a {type(result).__name__}, not a tensor")
        wanted: list[int | str] = ["B"]
        for axis in declared.output.axes:
            extent = axis.extent
            labels = self.graph.label_sets[extent.name].labels or () if extent.kind == "labels" else ()
            wanted.append({"labels": len(labels), "number": extent.offset}.get(extent.kind, str(extent)))
        found = list(result.shape)
        same = [isinstance(want, str) or want == size for want, size in zip(wanted, found, strict=False)]
        if len(found) != len(wanted) or not all(same):
            shown = ", ".join(map(str, wanted))
            problem = f"it gave a tensor of shape {found}, and is declared to give [{shown}]"
            raise data_error(self.source, "E0511", self.graph.nets[net].span, name=net, problem=problem)

    # ----------------------------------------------------------------------------------------------------------- lifted

    def lifted(self, value: Expression, over: IndexSet) -> Evaluator:
        """A function to a tensor [B or 1, *domain, *axes]: the expression at every element of an index set.

        Domain axes that the expression does not depend on have size 1.
        """
        if not _contains(value, At) and not isinstance(value, Potential):
            plain, rank = self.plain(value), len(over.domain)
            return lambda env: _insert(plain(env), rank)
        match value:
            case At(base=base):
                return self._at(self.plain(base), value, over.domain, over.counted)
            case Potential(arguments=arguments):
                return self.lifted(arguments[0], over)
            case Combine(operands=operands):
                return _combined(value, [self.lifted(operand, over) for operand in operands])
            case Apply():
                return self._pointwise(value, over)
        raise AssertionError(f"no lifted value for {type(value).__name__}")

    def _pointwise(self, value: Apply, over: IndexSet) -> Evaluator:
        """A network at every element of the index set: the elements become part of the batch, zeros where none is."""
        arguments = [self.lifted(argument, over) for argument in value.arguments]
        masked = self._masks_beside(value, over) if self.takes_masks[value.net] else None
        rank = len(over.domain)

        def call(env: Environment) -> Tensor:
            values = [argument(env) for argument in arguments]
            exists = over.valid(env.batch)
            if exists is not None:
                values = [torch.where(_append(exists, v.dim() - 1 - rank), v, 0) for v in values]
            lead = torch.broadcast_shapes(*(v.shape[: 1 + rank] for v in values), (env.batch.size, *([1] * rank)))
            flat = [v.expand(*lead, *v.shape[1 + rank :]).flatten(0, rank) for v in values]
            masks = None if masked is None else masked(env.batch, lead)
            result: Tensor = self.run(value.net, env.module, flat, masks).unflatten(0, lead)
            return result

        return self._cached(object(), call)  # not shared between terms, whose elements may differ

    def _masks_beside(self, value: Apply, over: IndexSet) -> Callable[[Batch, torch.Size], dict[str, Tensor]]:
        """The masks of the dims that are left in the arguments, for every element of an index set."""
        dims = {axis.extent.name for argument in value.arguments for axis in argument.type.index_axes}
        outer = {dim: _outer_index(value, self.graph.dims[dim].within) for dim in dims}
        rank = len(over.domain)

        def masks(batch: Batch, lead: torch.Size) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for dim in dims & batch.exists.keys():
                mask, index = batch.exists[dim], outer[dim]
                if index is not None:
                    place = positions(batch, batch.frame(over.counted), *index, over.domain)
                    mask = roomy(mask, 1)[(_examples(batch, rank), place)]
                else:
                    mask = mask.reshape(mask.shape[0], *([1] * rank), *mask.shape[1:])
                found[dim] = mask.expand(*lead, *mask.shape[1 + rank :]).flatten(0, rank)
            return found

        return masks

    def _at(self, base: Evaluator, value: At, domain: tuple[Binding, ...], counted: Counted) -> Evaluator:
        """A subscripted tensor: slices where every index runs over its own range or edges, a gather elsewhere."""
        axes, indices = value.base.type.axes, value.indices
        index_axes = [i for i, axis in enumerate(axes) if axis.extent.kind == "dim"][: len(indices)]
        extents = [axes[i].extent for i in index_axes]
        owners = [owner_of(affine, domain) for affine in indices]
        runs = [domain[o] for o in owners if o is not None]
        straight = [
            isinstance(run, Range) or _numbers_edges(run, affine, extent)
            for run, affine, extent in zip(runs, indices, extents, strict=False)
        ]
        rank = len(domain)

        in_place = index_axes == owners == list(range(rank))  # the domain's axes come first, in order
        # Edges have one element for each position of their axis, whether it exists or not.
        ranges = [
            (1 + axis, extent.name, affine.offset, run.shrink)
            for axis, extent, affine, run in zip(index_axes, extents, indices, runs, strict=False)
            if isinstance(run, Range)
        ]

        def sliced(env: Environment) -> Tensor:
            batch, tensor = env.batch, base(env)
            for axis, dim, offset, shrink in ranges:
                frame = batch.frame(counted)
                if dim in frame:
                    tensor = frame[dim].compact(tensor, axis)
                length = max(0, batch.size_of(dim) - shrink)
                if length != tensor.shape[axis]:
                    tensor = tensor.narrow(axis, offset if length else 0, length)
            return tensor if in_place else _to_domain(tensor, index_axes, owners, rank)

        def picked(env: Environment) -> Tensor:
            batch, tensor = env.batch, full(base(env), env.batch.size)
            frame = batch.frame(counted)
            order = [0, *(1 + a for a in index_axes), *(1 + i for i in range(len(axes)) if i not in index_axes)]
            pairs = zip(indices, extents, strict=True)
            places = [positions(batch, frame, affine, extent, domain) for affine, extent in pairs]
            return roomy(tensor.permute(order), len(index_axes))[(_examples(batch, rank), *places)]

        return sliced if all(straight) and len(straight) == len(indices) == len(set(owners)) else picked


def _numbers_edges(run: Binding, affine: Affine, extent: Extent) -> bool:
    """Whether an index is the number of an edge in its list, and the axis has one position for each edge."""
    own = isinstance(run, Edges) and affine == Affine(run.index) and extent.name == run.over
    return own and not extent.offset


def _examples(batch: Batch, rank: int) -> Tensor:
    return torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * rank))


def _outer_index(value: Expression, within: str | None) -> tuple[Affine, Extent] | None:
    """The index that consumes the axis over `within` somewhere in an expression."""
    if isinstance(value, At):
        for affine, axis in zip(value.indices, value.base.type.index_axes, strict=False):
            if axis.extent.name == within:
                return affine, axis.extent
    for part in value.parts:
        found = _outer_index(part, within)
        if found is not None:
            return found
    return None


def full(tensor: Tensor, batch: int) -> Tensor:
    """A tensor that is shared by all examples, for each of them."""
    return tensor.expand(batch, *tensor.shape[1:]) if tensor.shape[0] != batch else tensor


def _append(tensor: Tensor, rank: int) -> Tensor:
    return tensor.reshape(*tensor.shape, *([1] * rank))


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

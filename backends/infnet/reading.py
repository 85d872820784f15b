"""What an inference network reads: the inputs of a sequence, as one feature vector a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from energyml.bind.binder import NetBuilder, used_inputs
from energyml.diagnostics import Source
from energyml.ir.graph import Graph
from energyml.model.declared import Input
from energyml.model.expression import Apply, Expression, Reference
from energyml.model.types import REAL, EdgeType
from energyml.nets.features import LabelEmbedding, Masks, existing

# What stands for an infinite score among features.
LARGEST = 10.0
# The character CNN of Ma & Hovy 2016, as the paper has it (section 2.1).
CHAR_EMBED, CHAR_FILTERS, CHAR_WIDTH = 30, 30, 3
DROPOUT = 0.5


@dataclass(frozen=True)
class Readable:
    """An input that has a row for each position of a dim, or is the same for all of them.

    Attributes:
        name: of the input.
        classes: how many labels its elements may be; `None` for reals.
        tail: how many elements each position has.
        within: the dim of its characters, for an input `Char[T, M]`.
        whole: whether it runs over no dim, and every position reads all of it.
    """

    name: str
    classes: int | None
    tail: int = 1
    within: str | None = None
    whole: bool = False


def positions_of(dim: str) -> str:
    """The name of a tensor of ones [B, T] that is passed with the inputs: it tells how many positions there are."""
    return f"positions of {dim}"


def readable_inputs(graph: Graph, builder: NetBuilder, dim: str) -> list[Readable]:
    """The inputs that the score depends on and that a network over a dim can read, in declared order."""
    used = used_inputs(graph)
    found = [_readable(graph, builder, given, dim) for name, given in graph.inputs.items() if name in used]
    return [one for one in found if one is not None]


def _readable(graph: Graph, builder: NetBuilder, given: Input, dim: str) -> Readable | None:
    if isinstance(given.type, EdgeType):
        return None
    classes = None if given.type.element == REAL else len(graph.label_sets[given.type.element].labels or ())
    whole = all(axis.extent.kind != "dim" for axis in given.type.axes)
    rest = given.type.axes if whole else given.type.axes[1:]
    if not whole:
        first = given.type.axes[0].extent
        if first.kind != "dim" or first.name != dim or first.offset:
            return None
    sizes = [builder.axis_size(axis) for axis in rest]
    if None not in sizes:
        return Readable(given.name, classes, prod(size for size in sizes if size is not None), whole=whole)
    inner = rest[0].extent
    nested = inner.kind == "dim" and not inner.offset and graph.dims[inner.name].within == dim
    return Readable(given.name, classes, 1, inner.name) if nested and classes is not None and len(rest) == 1 else None


class Table(nn.Module):
    """Vectors of labels; they move, or are fixed (a buffer).

    Args:
        weight: [labels, size].
        fixed: whether it stays as it is.
    """

    def __init__(self, weight: Tensor, *, fixed: bool) -> None:
        super().__init__()
        self.weight: Tensor
        if fixed:
            self.register_buffer("weight", weight)
        else:
            self.register_parameter("weight", nn.Parameter(weight))

    def forward(self, labels: Tensor) -> Tensor:
        """Labels ``[...]`` to vectors ``[..., size]``; what stands at padding is clamped into range."""
        return nn.functional.embedding(labels.clamp(0, self.weight.shape[0] - 1), self.weight)


class Reader(nn.Module):
    """Features of each position: embedded labels, reals as they are, and characters through a small CNN.

    Inputs without a dim are read at every position, except those that are fixed for all examples.  Embeddings start
    from the model's own, where one of its networks reads the input, and then stay as they are; with `plus` they move.
    Characters are read with `plus`, or where nothing else has a row for each position.  Where there is nothing to read
    at all, positions look alike, and a network tells them apart by the ends of the sequence only.  Infinite values
    count as 10.  Dropout falls, with `plus`, on the embedded characters and on the features.

    Args:
        graph: the model.
        model: its module, whose embeddings are copied.
        dim: the dim T of the positions.
        embed: the size of an embedding that the model has none for.
        plus: the three improvements of Tu & Gimpel 2019, section 2.1.

    Attributes:
        size: F, the number of features of a position.
        embedded: the inputs whose labels are embedded, in the order of `tables`.
    """

    def __init__(self, graph: Graph, model: nn.Module, dim: str, *, embed: int, plus: bool) -> None:
        super().__init__()
        found = readable_inputs(graph, NetBuilder(graph, Source("<spec>", "")), dim)
        fixed = {name for name, one in model._buffers.items() if one is not None}
        plain = [one for one in found if one.within is None and not (one.whole and one.name in fixed)]
        alone = not any(not one.whole for one in plain)
        spelled = [one for one in found if one.within is not None and (plus or alone)]
        if not plain and not spelled:
            plain = [Readable(positions_of(dim), None)]
        self.dim, self.plain, self.spelled = dim, plain, spelled
        self.tables, self.convolutions = nn.ModuleList(), nn.ModuleList()
        self.size = 0
        for one in plain:
            width = 1
            if one.classes is not None:
                known = model_embedding(graph, model, one.name, one.classes)
                weight = torch.randn(one.classes, embed) if known is None else known.detach().clone()
                self.tables.append(Table(weight, fixed=known is not None and not plus))
                width = weight.shape[1]
            self.size += one.tail * width
        for one in spelled:
            self.tables.append(Table(torch.randn(one.classes or 1, CHAR_EMBED), fixed=False))
            self.convolutions.append(nn.Conv1d(CHAR_EMBED, CHAR_FILTERS, CHAR_WIDTH, padding=CHAR_WIDTH // 2))
            self.size += CHAR_FILTERS
        self.embedded = [one.name for one in (*plain, *spelled) if one.classes is not None]
        self.dropout = nn.Dropout(DROPOUT if plus else 0.0)

    def forward(self, tensors: Mapping[str, Tensor], masks: Masks) -> Tensor:
        """Inputs ``[B, T, ...]`` by name to features ``[B, T, F]``, zero at padding."""
        tables = iter(self.tables)
        shape = tensors[positions_of(self.dim)].shape
        parts = []
        for one in self.plain:
            given = tensors[one.name]
            real = one.classes is None
            vectors = given.nan_to_num(0.0, LARGEST, -LARGEST).unsqueeze(-1) if real else next(tables)(given)
            size = one.tail * vectors.shape[-1]
            wanted = (shape[0], 1, size) if one.whole else (*shape, size)
            parts.append(vectors.reshape(wanted).expand(*shape, size))
        for one, conv in zip(self.spelled, self.convolutions, strict=True):
            parts.append(self._spelling(one, next(tables)(tensors[one.name]), conv, masks))
        features: Tensor = self.dropout(torch.cat(parts, dim=-1))
        mask = existing([self.dim], masks, features.shape[:2])
        return features if mask is None else features.masked_fill(~mask.unsqueeze(-1), 0.0)

    def _spelling(self, one: Readable, vectors: Tensor, conv: nn.Module, masks: Masks) -> Tensor:
        """Characters ``[B, T, M, size]`` to the largest value of each filter, ``[B, T, filters]``; 0 for none."""
        vectors = self.dropout(vectors)
        batch, length, most, size = vectors.shape
        if most == 0 or length == 0:
            return vectors.new_zeros(batch, length, CHAR_FILTERS)
        mask = existing([self.dim, one.within], masks, vectors.shape[:3])
        if mask is not None:
            mask = mask.expand(vectors.shape[:3]).unsqueeze(-1)
            vectors = vectors.masked_fill(~mask, 0.0)
        found: Tensor = conv(vectors.reshape(batch * length, most, size).transpose(1, 2)).relu()
        found = found.transpose(1, 2).reshape(batch, length, most, CHAR_FILTERS)
        # a ReLU is never below the zeros of the padding
        return (found if mask is None else found.masked_fill(~mask, 0.0)).amax(2)


def model_embedding(graph: Graph, model: nn.Module, name: str, classes: int) -> Tensor | None:
    """[labels, size]: the embedding of an input in the first network of the model that reads it; `None` for none.

    Where a network has several tables of that many labels, the one at the place of the input is taken.
    """
    for use in _uses(graph, name):
        module = model._modules.get(use.net)
        if module is None:
            continue
        tables = [one for one in module.modules() if isinstance(one, LabelEmbedding) and one.num_embeddings == classes]
        place = [isinstance(one, Reference) and one.name == name for one in use.arguments].index(True)
        alike = [i for i, one in enumerate(use.arguments) if one.type.element != REAL and _count(graph, one) == classes]
        if len(tables) == len(alike):
            return tables[alike.index(place)].weight
    return None


def _count(graph: Graph, value: Expression) -> int:
    return len(graph.label_sets[value.type.element].labels or ())


def _uses(graph: Graph, name: str) -> list[Apply]:
    """The networks that are applied to an input itself."""
    found: list[Apply] = []

    def visit(value: Expression) -> None:
        for part in value.parts:
            visit(part)
        if isinstance(value, Apply) and any(isinstance(one, Reference) and one.name == name for one in value.arguments):
            found.append(value)

    for value in (*(let.value for let in graph.lets.values()), *(v for t in graph.terms for v in t.expressions())):
        visit(value)
    return found

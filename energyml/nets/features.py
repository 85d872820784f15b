"""What the networks share: masks laid over axes, and any arguments turned into one feature vector a position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from energyml.execution import is_host_readable
from energyml.nets.bound import BoundType

Masks = Mapping[str, Tensor]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
}


def check_choice(option: str, value: str, choices: Sequence[str]) -> str:
    """Return ``value`` when it is one of ``choices``, else raise an error that lists them."""
    if value not in choices:
        raise ValueError(f"{option}: {value!r} is not one of {', '.join(choices)}")
    return value


def check_positive(**sizes: int) -> None:
    """Raise an error that names the first option that is not at least 1."""
    for option, size in sizes.items():
        if size < 1:
            raise ValueError(f"{option}: {size} is not at least 1")


def fixed_size(extents: Sequence[int | None], what: str) -> int:
    """The product of ``extents``, which must all be known before run time."""
    sizes = [extent for extent in extents if extent is not None]
    if len(sizes) < len(extents):
        raise ValueError(f"{what} has an axis whose size is only known at run time; this network needs a fixed size")
    return prod(sizes)


def existing(dims: Sequence[str | None], masks: Masks, shape: Sequence[int]) -> Tensor | None:
    """The positions that are no padding, for axes that run over ``dims``.

    A mask ``[B, T, M]`` of a nested dim covers the axis of M and the axes right before it. Along an axis that is
    shorter than the mask by k (its extent is ``T-k``), position t exists when position t+k of the dim does.

    Args:
        dims: the dim of each axis after the batch axis, ``None`` for an axis without one.
        masks: bool, by dim; a dim that is absent has no padding.
        shape: the sizes of the batch axis and of the axes of ``dims``.

    Returns:
        bool, of rank ``len(shape)``, broadcastable to ``shape``; ``None`` when nothing is masked.
    """
    found: Tensor | None = None
    for axis, dim in enumerate(dims, start=1):
        if dim is None or dim not in masks:
            continue
        mask = masks[dim]
        mask = mask[..., max(0, mask.shape[-1] - shape[axis]) :]
        before = axis - (mask.dim() - 1)
        laid = mask.reshape(mask.shape[0], *[1] * before, *mask.shape[1:], *[1] * (len(dims) - axis))
        found = laid if found is None else found & laid
    return found


def shared_index(inputs: Sequence[BoundType], output: BoundType) -> int:
    """How many leading axes run over the same dims in every input and in the output."""
    count = 0
    for dims in zip(output.dims, *(given.dims for given in inputs), strict=False):
        if dims[0] is None or any(dim != dims[0] for dim in dims):
            break
        count += 1
    return count


def as_output(flat: Tensor, output: BoundType, index: int) -> Tensor:
    """Fold the last axis of ``[B, *index, F]`` into the axes that ``output`` has after its index axes."""
    sizes = [extent for extent in output.shape[index:] if extent is not None]
    return flat.reshape(*flat.shape[: index + 1], *sizes)


def on_existing(function: Callable[[Tensor], Tensor], rows: Tensor, mask: Tensor | None) -> Tensor:
    """Apply ``function`` to the rows that exist; the results of the others mean nothing, but are finite.

    Selecting rows waits for the device, so that it only happens where waiting is free: on the CPU, outside of
    compilation. Elsewhere every row is computed, those that do not exist from zeros.

    Args:
        function: maps ``[n, ...]`` to ``[n, ...]``, row by row.
        rows: ``[N, ...]``.
        mask: bool ``[N]``, or ``None`` when every row exists.
    """
    if mask is None:
        return function(rows)
    if not (is_host_readable(rows) and is_host_readable(mask)):
        return function(rows.masked_fill(~mask.reshape(-1, *[1] * (rows.dim() - 1)), 0))
    chosen = mask.nonzero().squeeze(1)
    result = function(rows.index_select(0, chosen))
    return result.new_zeros(rows.shape[0], *result.shape[1:]).index_copy(0, chosen, result)


class LabelEmbedding(nn.Embedding):
    """An embedding that takes any integer at padding positions: labels are clamped into range."""

    def forward(self, input: Tensor) -> Tensor:
        """Labels ``[...]`` to vectors ``[..., embedding_dim]``."""
        return super().forward(input.clamp(0, self.num_embeddings - 1))


class VectorEmbedding(LabelEmbedding):
    """An embedding that starts from pretrained vectors; labels without one share a single vector, which is learned too.

    It is built without the file: sizes do not depend on it, so that weights can be stored and loaded where it is not.
    ``energyml.data.vectors`` reads it when a model is bound.

    Args:
        classes: the number of labels.
        size: the numbers of a vector.
        path: the file.
        argument: which argument of the network it embeds.
        option: the option that says its size, for messages.

    Attributes:
        known: bool ``[classes]``, which labels have a vector of their own.
    """

    known: Tensor

    def __init__(self, classes: int, size: int, path: str, *, argument: int, option: str) -> None:
        super().__init__(classes, size)
        self.path, self.argument, self.option = path, argument, option
        self.missing = nn.Parameter(torch.zeros(size))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))

    def start_from(self, labels: Tensor, vectors: Tensor) -> None:
        """Give some labels ``[n]`` vectors ``[n, size]`` of their own."""
        with torch.no_grad():
            self.weight[labels] = vectors.to(self.weight)
        self.known[labels] = True

    def forward(self, input: Tensor) -> Tensor:
        """Labels ``[...]`` to vectors ``[..., embedding_dim]``."""
        own = self.known[input.clamp(0, self.num_embeddings - 1)]
        return torch.where(own.unsqueeze(-1), super().forward(input), self.missing)


def label_embedding(classes: int, size: int, vectors: str | None, *, argument: int, option: str) -> LabelEmbedding:
    """An embedding with first values of its own, or from the file ``vectors``."""
    if vectors is None:
        return LabelEmbedding(classes, size)
    return VectorEmbedding(classes, size, vectors, argument=argument, option=option)


class Features(nn.Module):
    """Turns arguments that share their leading axes into one feature vector a position.

    Labels are embedded (each argument has its own table of ``classes`` rows), reals are taken as they are; both are
    flattened over the axes after the shared ones and concatenated. Padding positions are zero.

    Args:
        inputs: the types of the arguments.
        index: how many leading axes they share.
        embed: the size of a label's embedding.
        vectors: a file of pretrained vectors for the first argument of labels.

    Attributes:
        size: F, the number of features of a position.
    """

    def __init__(self, inputs: Sequence[BoundType], index: int, *, embed: int = 50, vectors: str | None = None) -> None:
        super().__init__()
        check_positive(embed=embed)
        self.inputs = tuple(inputs)
        self.index = index
        self.embeddings = nn.ModuleList()
        self.sizes: list[int] = []
        for number, given in enumerate(self.inputs, start=1):
            size = fixed_size(given.shape[index:], f"input {number}")
            if given.classes is None:
                self.embeddings.append(nn.Identity())
            else:
                made = label_embedding(given.classes, embed, vectors, argument=number - 1, option="embed")
                self.embeddings.append(made)
                vectors = None
                size *= embed
            self.sizes.append(size)
        self.size = sum(self.sizes)
        if self.size == 0:
            raise ValueError("the network has no input feature")
        if vectors is not None:
            raise ValueError("vectors: the network has no input of labels that could have vectors")

    def forward(self, args: Sequence[Tensor], masks: Masks) -> Tensor:
        """Arguments ``[B, *index, ...]`` to features ``[B, *index, F]``."""
        parts = [
            embedding(arg).reshape(*arg.shape[: self.index + 1], size)
            for embedding, arg, size in zip(self.embeddings, args, self.sizes, strict=True)
        ]
        features = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        mask = existing(self.inputs[0].dims[: self.index], masks, features.shape[:-1])
        return features if mask is None else features.masked_fill(~mask.unsqueeze(-1), 0.0)

"""The log-partition of first-order chains as a function that every derivative and transform of torch may pass through.

On the CPU it is computed in scaled exp space; elsewhere, where reading a flag back would stall the device, in log
space.  First derivatives are analytic: no tape over time.  Derivatives of derivatives, forward or backward, go through
the recursion that autograd records, and so does compiled code, which fuses its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from energyml.backends.exact.paired import Paired, forward_log_z, paired
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.scaled import Scaled
from energyml.backends.exact.scan import cut
from energyml.backends.exact.threads import for_small_steps
from energyml.backends.exact.unscaled import LogSpace, cleared, taped_log_partition
from energyml.execution import is_recording, under_transform
from energyml.grounded.logspace import softmax, tracked_logsumexp
from energyml.inference.precision import full_precision

Run = Paired | Scaled | LogSpace


def log_partition(potentials: Potentials) -> Tensor:
    """[B]: the log-partition of chains.

    -inf where every answer is forbidden, 0 for a chain without cells.  O(B T C²).  Sums are taken in float32 at least;
    the answer has the type of scores and steps.
    """
    scores, steps = potentials.scores, potentials.steps
    size, dtype = scores.shape[1], torch.promote_types(scores.dtype, steps.dtype)
    if size == 0:
        return scores.sum((1, 2)).to(dtype)
    if size == 1:
        exists = potentials.exists
        only = cleared(scores, exists)[:, 0]  # what padding holds has no gradient
        total = tracked_logsumexp(only.to(torch.promote_types(dtype, torch.float32)), 1)
        return (total if exists is None else torch.where(exists[:, 0], total, 0)).to(dtype)
    if is_recording():
        return taped_log_partition(scores, steps, potentials.exists).to(dtype)
    if not _is_differentiated(scores, steps):
        return _log_z(potentials).to(dtype)
    value: Tensor = LogPartition.apply(scores, steps, potentials.exists, Saved())  # type: ignore[no-untyped-call]
    return value


def marginals(scores: Tensor, steps: Tensor, exists: Tensor | None, pairs: bool) -> tuple[Tensor, Tensor | None]:
    """The marginals of cells [B, T, C] and, when asked for, of steps [B, T-1, C, C], without gradients.

    Zero where there is no cell, and where every answer is forbidden.  O(B T C²).
    """
    batch, size, labels = scores.shape
    scores, steps = scores.detach(), steps.detach()
    if size < 2 or batch == 0:
        cells = softmax(cleared(scores, exists).to(torch.promote_types(scores.dtype, torch.float32)), -1)
        cells = cells if exists is None else cells.masked_fill(~exists.unsqueeze(-1), 0)
        joint = scores.new_zeros(batch, max(0, size - 1), labels, labels) if pairs else None
        return cells.to(scores.dtype), joint
    if under_transform():
        apart = steps.expand(batch, size - 1, labels, labels)
        found = Moments.apply(torch.ones_like(scores[:, 0, 0]), scores, apart, exists, pairs, Saved())  # type: ignore[no-untyped-call]
        return found[0], found[1] if pairs else None
    with full_precision(scores.device), for_small_steps(scores):
        run = _run(scores, steps, exists)
        by_cell, by_pair = run.moments(run.log_z.new_ones(batch), pairs, each=True)
    return by_cell.to(scores.dtype), None if by_pair is None else by_pair.to(scores.dtype)


def beginnings(scores: Tensor, steps: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """The forward vectors, without gradients: what comes before each label of each cell [B, T, C], and log Z [B].

    Logarithms up to a constant for each cell; anything where there is no cell, and where every answer is forbidden.
    """
    scores, steps = scores.detach(), steps.detach()
    if scores.shape[1] < 2:
        count = None if exists is None else exists.sum(1)
        return scores, log_partition(Potentials(scores, steps, count))
    with full_precision(scores.device), for_small_steps(scores):
        run = LogSpace(scores, steps, exists) if under_transform() else _run(scores, steps, exists)
        return run.beginnings(), run.log_z


def log_likelihood(scores: Tensor, steps: Tensor, exists: Tensor | None, labels: Tensor) -> Tensor:
    """[B]: the log-probability of labels [B, T], each of which is one, where there is no cell any; T > 1.

    -inf, with zero gradients, where they are forbidden.  Differentiable as the log-partition is, but not by transforms.
    """
    value: Tensor = Likelihood.apply(scores, steps, exists, labels)  # type: ignore[no-untyped-call]
    return value


def _is_differentiated(*tensors: Tensor) -> bool:
    """Whether autograd, forward or backward, or a transform follows what is computed from these."""
    return (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)) or under_transform()


class Saved:
    """What a forward pass leaves for the backward pass, which uses it up."""

    def __init__(self) -> None:
        self.run: Run | None = None


def _run(scores: Tensor, steps: Tensor, exists: Tensor | None, keep: bool = True) -> Run:
    if scores.device.type != "cpu" or scores.shape[0] == 0 or is_recording():
        return LogSpace(scores, steps, exists)
    dtype = torch.promote_types(torch.promote_types(scores.dtype, steps.dtype), torch.float32)
    scores, steps = scores.to(dtype), steps.to(dtype)
    if keep and _whole(scores):
        fit = paired(scores, steps, exists)
        if fit is not None:
            return fit
    return Scaled(scores, steps, exists, keep)


def _whole(scores: Tensor) -> bool:
    """Whether chains that share a table are not worth being cut."""
    batch, size, labels = scores.shape
    return cut(batch, size - 1, labels, True).number == 1


def _log_z(potentials: Potentials) -> Tensor:
    """[B]: the log-partitions of at least two cells in float64, without gradients; nobody follows."""
    scores, steps = potentials.scores, potentials.steps
    with full_precision(scores.device), for_small_steps(scores):
        if scores.device.type == "cpu" and scores.shape[0] and _whole(scores):
            dtype = torch.promote_types(torch.promote_types(scores.dtype, steps.dtype), torch.float32)
            found = forward_log_z(scores.to(dtype), steps.to(dtype), potentials.count)
            if found is not None:
                return found
        return _run(scores, steps, potentials.exists, keep=False).log_z


class LogPartition(torch.autograd.Function):
    """[B]: the log-partitions."""

    @staticmethod
    def forward(scores: Tensor, steps: Tensor, exists: Tensor | None, kept: Saved) -> Tensor:
        """Compute, and keep what the backward pass needs."""
        with full_precision(scores.device), for_small_steps(scores):
            kept.run = _run(scores, steps, exists)
        return kept.run.log_z.to(torch.promote_types(scores.dtype, steps.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Remember the inputs."""
        *tensors, ctx.kept = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Marginals times the gradient; themselves differentiable."""
        given = (gradients[0], *ctx.saved_tensors, ctx.needs_input_grad[1], ctx.kept)
        moments = Moments.apply(*given) if _is_differentiated(*given[:3]) else Moments.forward(*given)  # type: ignore[no-untyped-call]
        return moments[0], moments[1] if len(moments) > 1 else None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """The derivative in a direction: the moments of each example along it."""
        scores, steps, exists = ctx.saved_tensors
        cells, pairs = _directions((scores, steps), tangents)
        apart = steps.expand(scores.shape[0], -1, -1, -1)
        by_cell, by_pair = Moments.apply(torch.ones_like(scores[:, 0, 0]), scores, apart, exists, True, Saved())  # type: ignore[no-untyped-call]
        derivative: Tensor = (by_cell * cells).sum((1, 2)) + (by_pair * pairs).sum((1, 2, 3))
        return derivative

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """A batch of batches is a larger batch."""
        tensors = _folded(info.batch_size, in_dims, inputs[:3])
        return LogPartition.apply(*tensors, Saved()).unflatten(0, (info.batch_size, -1)), 0  # type: ignore[no-untyped-call]


class Moments(torch.autograd.Function):
    """The gradients of the weighted sum of log-partitions by the scores and, if asked for, by the steps."""

    @staticmethod
    def forward(
        weight: Tensor, scores: Tensor, steps: Tensor, exists: Tensor | None, pairs: bool, kept: Saved
    ) -> tuple[Tensor, ...]:
        """Go on from the forward pass, or repeat it when it was used before."""
        run, kept.run = kept.run, None
        with full_precision(scores.device), for_small_steps(scores):
            by_cell, by_pair = (run or _run(scores, steps, exists)).moments(weight, pairs)
        by_cell = by_cell.to(scores.dtype)
        return (by_cell,) if by_pair is None else (by_cell, by_pair.to(steps.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Remember the inputs."""
        *tensors, ctx.pairs, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivatives times the gradients."""
        weight, scores, steps, exists = ctx.saved_tensors
        pull = torch.func.vjp(_taped_moments(exists, ctx.pairs), weight, scores, steps)[1]
        return (*pull(tuple(gradients)), None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """The derivatives in a direction: second derivatives are symmetric, so those times it."""
        weight, scores, steps, exists = ctx.saved_tensors
        by_weight, *along = _directions((weight, scores, steps), tangents)
        first = Moments.apply(by_weight, scores, steps, exists, ctx.pairs, Saved())  # type: ignore[no-untyped-call]
        _, *second = torch.func.vjp(_taped_moments(exists, True), weight, scores, steps)[1](tuple(along))
        return tuple(one + other for one, other in zip(first, second, strict=False))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """A batch of batches is a larger batch, in which each example has its own steps."""
        weight, scores, steps, exists, pairs, _ = inputs
        count = info.batch_size
        single = _first(steps, in_dims[2], count).shape[1] == 1
        tensors = _folded(count, in_dims[1:4], (scores, steps, exists), apart=True)
        moments = Moments.apply(_first(weight, in_dims[0], count).flatten(0, 1), *tensors, pairs, Saved())  # type: ignore[no-untyped-call]
        found = [one.unflatten(0, (count, -1)) for one in moments]
        if pairs and single:
            found[1] = found[1].sum(1, keepdim=True)
        return tuple(found), (0,) * len(found)


class Likelihood(torch.autograd.Function):
    """[B]: the scores of labels less the log-partitions, in one."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, steps: Tensor, exists: Tensor | None, labels: Tensor) -> Tensor:
        """Both sums in float64: their difference may be small."""
        ctx.kept = Saved()
        if any(ctx.needs_input_grad):
            with full_precision(scores.device), for_small_steps(scores):
                ctx.kept.run = _run(scores, steps, exists)
            log_z: Tensor = ctx.kept.run.log_z
        else:
            log_z = _log_z(Potentials(scores, steps, None if exists is None else exists.sum(1)))
        here, place = labels.unsqueeze(-1), gold_steps(labels, steps.shape)
        parts = torch.cat([scores.gather(2, here).squeeze(-1), steps.take(place)], 1)
        if exists is not None:
            parts = torch.where(torch.cat([exists, exists[:, 1:]], 1), parts, 0)
        gold = parts.sum(1, dtype=torch.float64)
        ctx.gone = gold.isneginf() if bool(gold.amin() == float("-inf")) else None
        ctx.save_for_backward(scores, steps, exists, here, place)
        value = gold - log_z
        value = value if ctx.gone is None else value.masked_fill(ctx.gone, float("-inf"))
        return value.to(torch.promote_types(scores.dtype, steps.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """What the labels have, less the marginals; differentiable by the gradient, and through the marginals."""
        scores, steps, exists, here, place = ctx.saved_tensors
        weight = gradients[0] if ctx.gone is None else gradients[0].masked_fill(ctx.gone, 0)
        given = (-weight, scores, steps, exists, ctx.needs_input_grad[1], ctx.kept)
        cells, *pairs = Moments.apply(*given) if _is_differentiated(*given[:3]) else Moments.forward(*given)  # type: ignore[no-untyped-call]
        each = weight.unsqueeze(1).expand(here.shape[:2]) if exists is None else weight.unsqueeze(1) * exists
        cells = cells.scatter_add(2, here, each.unsqueeze(-1).to(cells.dtype))
        if not pairs:
            return cells, None, None, None
        gold = each[:, 1:].flatten().to(pairs[0].dtype)
        return cells, pairs[0].flatten().index_add(0, place.flatten(), gold).view(steps.shape), None, None


def gold_steps(labels: Tensor, shape: torch.Size) -> Tensor:
    """[B, ..., T-1]: where the pairs of labels [B, ..., T] stand in steps of this shape, as they are, shared or not."""
    place = torch.add(labels[..., 1:], labels[..., :-1], alpha=shape[3])
    if shape[:2] != (1, 1):
        examples, positions = (torch.arange(n, device=labels.device) * (n > 1) for n in shape[:2])
        beyond = [1] * (labels.dim() - 1)
        place = place + (examples.view(-1, *beyond) * shape[1] + positions) * shape[2] * shape[3]
    return place


def _taped_moments(exists: Tensor | None, pairs: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The moments as a function of weight, scores and steps that autograd can record."""

    def moments(weight: Tensor, scores: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        if pairs:
            pull = torch.func.vjp(lambda one, other: taped_log_partition(one, other, exists), scores, steps)[1]
        else:
            pull = torch.func.vjp(lambda one: taped_log_partition(one, steps, exists), scores)[1]
        found: tuple[Tensor, ...] = pull(weight)
        return found

    return moments


def _directions(points: tuple[Tensor, ...], tangents: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Tangents of all points, zero for those that have none."""
    return tuple(
        torch.zeros_like(point) if tangent is None else tangent
        for point, tangent in zip(points, tangents, strict=False)
    )


def _first(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """A tensor with the mapped dim, or as many repetitions, in front."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded(
    count: int, in_dims: tuple[int | None, ...], tensors: tuple[Any, ...], apart: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores, steps and cells with the mapped dim folded into the batch.

    Steps that all share stay one table, unless each example is to have its own (`apart`).
    """
    scores, steps, exists = tensors
    scores = _first(scores, in_dims[0], count)
    batch = scores.shape[1]
    if apart or in_dims[1] is not None or steps.shape[0] > 1:
        steps = _first(steps, in_dims[1], count)
        steps = steps.expand(-1, batch, -1, -1, -1).flatten(0, 1)
    if exists is not None:
        exists = _first(exists, in_dims[2], count).flatten(0, 1)
    return scores.flatten(0, 1), steps, exists

"""First-order chains with shared pair scores on the CPU: torch tensors around the native kernels.

The kernels work in scaled exp space and flag every example whose scores spread too far for it.  Flagged examples are
repeated in float64, and those that are flagged again in log space by the torch recursion: the answer is right at any
magnitude.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_log_partition
from energyml.backends.native import kernels

# Multiply-adds below which a second thread costs more than it brings (measured by benchmarks/exact).
WORTH_A_THREAD = 2_000_000


def serves(unary: Tensor, pair: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return (
        kernels is not None
        and unary.device.type == "cpu"
        and unary.dtype in (torch.float32, torch.float64)
        and pair.dtype == unary.dtype
        and not torch._C._functorch.is_functorch_wrapped_tensor(unary)
        and not torch.compiler.is_compiling()
    )


def _threads(batch: int, size: int, labels: int) -> int:
    work = batch * size * labels * labels
    return max(1, min(torch.get_num_threads(), batch, work // WORTH_A_THREAD))


def _lengths(count: Tensor | None) -> Tensor | None:
    return None if count is None else count.to(torch.int64).contiguous()


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _chain(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> tuple[int, ...]:
    """What every kernel is told first: the dtype, the scores and their sizes."""
    wide = int(unary.dtype == torch.float64)
    return (wide, unary.data_ptr(), pair.data_ptr(), _pointer(lengths), *unary.shape)


class _Forward:
    """One run of the forward kernel, with what the backward kernel needs."""

    def __init__(self, unary: Tensor, pair: Tensor, lengths: Tensor | None, keep: bool) -> None:
        assert kernels is not None
        self.unary, self.pair, self.lengths = unary.contiguous(), pair.contiguous(), lengths
        batch, size, labels = unary.shape
        lanes = 8 if unary.dtype == torch.float32 else 4
        padded = -(-labels // lanes) * lanes
        self.table = unary.new_empty(2, labels, padded) if keep else None
        self.alpha = unary.new_zeros(batch, size, padded) if keep else None
        self.emission = unary.new_zeros(batch, size, padded) if keep else None
        self.log_z = torch.empty(batch, dtype=torch.float64)
        self.flags = torch.zeros(batch, dtype=torch.uint8)
        self.flagged: int = kernels.chain_forward(
            *_chain(self.unary, self.pair, lengths), _pointer(self.table), _pointer(self.alpha),
            _pointer(self.emission), self.log_z.data_ptr(), self.flags.data_ptr(), _threads(batch, size, labels),
        )  # fmt: skip

    def backward(self, weight: Tensor, pairs: bool) -> tuple[Tensor, Tensor | None] | None:
        """Gradients of the weighted sum of log-partitions: [B, T, C], and [C, C] when asked; uses the buffers up.

        `None` when the scores turn out to spread too far on the way back.
        """
        assert kernels is not None and self.alpha is not None and self.emission is not None and self.table is not None
        batch, size, labels = self.unary.shape
        gradient = torch.zeros_like(self.unary)
        flagged = kernels.chain_backward(
            *_chain(self.unary, self.pair, self.lengths), self.table.data_ptr(), self.alpha.data_ptr(),
            self.emission.data_ptr(), weight.data_ptr(), gradient.data_ptr(), self.flags.data_ptr(),
            _threads(batch, size, labels),
        )  # fmt: skip
        if flagged:
            return None
        if not pairs:
            return gradient, None
        left, right = self.alpha.flatten(0, 1)[:-1], self.emission.flatten(0, 1)[1:]
        return gradient, (left.t() @ right)[:labels, :labels] * self.table[0, :, :labels]


class _LogPartition(torch.autograd.Function):
    """log Z of examples that the kernels can hold; the backward pass is analytic."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, lengths: Tensor | None, run: _Forward) -> Tensor:
        ctx.save_for_backward(unary, pair)
        ctx.lengths, ctx.run = lengths, run
        return run.log_z.to(unary.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair = ctx.saved_tensors
        (weight,) = gradients
        if torch.is_grad_enabled():
            return (*_differentiable(unary, pair, ctx.lengths, weight), None, None)
        run = ctx.run if ctx.run is not None else _Forward(unary, pair, ctx.lengths, keep=True)
        ctx.run = None
        found = run.backward(weight.to(torch.float64).contiguous(), ctx.needs_input_grad[1])
        if found is None:
            with torch.enable_grad():
                wide = unary.detach().double().requires_grad_(), pair.detach().double().requires_grad_()
                exact = _differentiable(*wide, ctx.lengths, weight.double())
            return (*(None if one is None else one.detach().to(unary.dtype) for one in exact), None, None)
        return (*found, None, None)


def _apply(unary: Tensor, pair: Tensor, lengths: Tensor | None, run: _Forward) -> Tensor:
    value: Tensor = _LogPartition.apply(unary, pair, lengths, run)  # type: ignore[no-untyped-call]
    return value


def _differentiable(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, weight: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients as functions that can be differentiated again, by the torch recursion."""
    total = chain_log_partition(_potentials(unary, pair, lengths))
    weighted = (total.masked_fill(total.isneginf(), 0) * weight).sum()
    wanted = [one for one in (unary, pair) if one.requires_grad]
    found = iter(torch.autograd.grad(weighted, wanted, create_graph=True, materialize_grads=True))
    first = next(found) if unary.requires_grad else None
    return first, next(found) if pair.requires_grad else None


def _potentials(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> Potentials:
    return Potentials(unary, pair[None, None], lengths)


def log_partition(unary: Tensor, pair: Tensor, count: Tensor | None) -> Tensor:
    """[B]: the log-partition of chains with unaries [B, T, C] and one shared pair table [C, C]; O(B T C²).

    Differentiable; the second derivative goes through the torch recursion.
    """
    lengths = _lengths(count)
    keep = torch.is_grad_enabled() and (unary.requires_grad or pair.requires_grad)
    run = _Forward(unary.detach(), pair.detach(), lengths, keep)
    if not run.flagged:
        return _apply(unary, pair, lengths, run) if keep else run.log_z.to(unary.dtype)
    return _safe_log_partition(unary, pair, lengths, run.flags.bool())


def _safe_log_partition(unary: Tensor, pair: Tensor, lengths: Tensor | None, flagged: Tensor) -> Tensor:
    """Repeat flagged examples in float64, then in log space; the others go on as they were."""
    if unary.dtype == torch.float64:
        wide = chain_log_partition(_potentials(unary[flagged], pair, None if lengths is None else lengths[flagged]))
    else:
        some = None if lengths is None else lengths[flagged]
        wide = log_partition(unary[flagged].double(), pair.double(), some).to(unary.dtype)
    if bool(flagged.all()):
        return wide
    fine = ~flagged
    narrow = log_partition(unary[fine], pair, None if lengths is None else lengths[fine])
    result = unary.new_zeros(unary.shape[0])
    return result.index_put((flagged,), wide).index_put((fine,), narrow)


def viterbi(unary: Tensor, pair: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Best labels [B, T] (-1 where there is no cell or no answer) and their scores [B]; O(B T C²)."""
    assert kernels is not None
    unary, pair, lengths = unary.detach().contiguous(), pair.detach().contiguous(), _lengths(count)
    batch, size, labels = unary.shape
    best = torch.empty(batch, size, dtype=torch.int64)
    score = torch.empty(batch, dtype=torch.float64)
    kernels.chain_viterbi(
        *_chain(unary, pair, lengths), best.data_ptr(), score.data_ptr(), _threads(batch, size, labels)
    )
    return best, score.to(unary.dtype)

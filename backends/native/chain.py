"""First-order chains on the CPU: torch tensors around the native kernels.

The kernels work in scaled exp space, in the scores' own type.  Chains whose scores spread too far for it are repeated
in float64, and those that spread too far even then with an exponent for every number: the answer is right at any
magnitude.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recording import entered
from energyml.backends.exact.recursion import chain_log_partition, chain_score
from energyml.backends.native import kernels

# Work for each thread below which a second one costs more than it brings, in multiply-adds; what is done for each label
# of a cell counts as forty (measured by benchmarks/exact).
WORTH_A_THREAD = 1_000_000

# Marginals of steps that are kept for a gradient: 256 MB in float32.
LARGEST = 2**26

_FORWARD, _BACKWARD, _BOTH = range(3)

# By their names: a call on a small batch is short enough for every look-up to count.
is_compiling, transforms_active = torch.compiler.is_compiling, torch._C._are_functorch_transforms_active
_LANES = {torch.float32: 8, torch.float64: 4}


def serves(unary: Tensor, pair: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return (
        kernels is not None
        and unary.is_cpu
        and unary.dtype in _LANES
        and pair.dtype is unary.dtype
        and not is_compiling()
        and not transforms_active()
    )


def no_such_label(count: int) -> ValueError:
    """The error about a label that is none of so many."""
    return ValueError(f"labels must lie between 0 and {count - 1}, or be -1 where they are not known")


def log_partition(unary: Tensor, pair: Tensor, count: Tensor | None) -> Tensor:
    """[B]: the log-partition of chains; O(B T C²).

    Differentiable; the second derivative goes through the torch recursion.

    Args:
        unary: [B, T, C] scores of the labels of each cell.
        pair: [C, C] scores of neighbouring labels (earlier, later), or [B or 1, T-1 or 1, C, C].
        count: [B] how many cells each chain has, or `None` when all have T.
    """
    run = _Run(unary, pair, count)
    if torch.is_grad_enabled() and (unary.requires_grad or pair.requires_grad):
        value: Tensor = entered(_LogPartition, unary, pair, run)
        return value
    return run.forward(None, None)


def log_likelihood(unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor) -> Tensor | None:
    """[B]: the log-probability of labels [B, T] of all cells that exist; one tape entry for score and log-partition.

    -inf, with zero gradients, where the labels are forbidden.  Arguments, cost and derivatives as for `log_partition`.
    `None` when a cell that exists has no label between 0 and C - 1.
    """
    run = _Run(unary, pair, count)
    by_pair = torch.is_grad_enabled() and pair.requires_grad
    taped = by_pair or (torch.is_grad_enabled() and unary.requires_grad)
    found = run.likelihood(labels, taped, by_pair)
    if found is None or not taped:
        return found and found[0]
    value: Tensor = entered(_LogLikelihood, unary, pair, run, found)
    return value


def nll_and_slopes(
    unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Negative log-likelihoods [B] and the gradients of their sum by unary and pair scores, without a tape.

    inf, with zero gradients, where the labels are forbidden.  Otherwise as `log_likelihood`.
    """
    run = _Run(unary, pair, count)
    found = run.likelihood(labels, True, True)
    if found is None:
        return None
    value, gold = found
    by_unary, by_pair = gold.slopes or run.slopes(gold, gold.possible(-torch.ones_like(value)), True)
    assert by_pair is not None
    return value.neg_(), by_unary, by_pair


def marginals(unary: Tensor, pair: Tensor, count: Tensor | None, pairs: bool = False) -> tuple[Tensor, Tensor | None]:
    """Marginals of cells [B, T, C] and, when asked, of steps [B, T-1, C, C], without gradients.

    All zeros where nothing exists and where a chain has no answer.  Arguments and cost as for `log_partition`.
    """
    return _Run(unary, pair, count).both(pairs)


def tracked_marginals(unary: Tensor, pair: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """As `marginals` of cells and steps, differentiable twice; the second derivative goes through the torch recursion.

    `None` where the gradient would need more than `LARGEST` marginals of steps at once.
    """
    batch, size, labels = unary.shape
    if batch * size * labels**2 > LARGEST:
        return None
    run = _Run(unary, pair, count)
    moments: tuple[Tensor, Tensor] = entered(_Moments, unary, pair, run)
    return moments


def viterbi(unary: Tensor, pair: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Best labels [B, T] (-1 where there is no cell or no answer) and their scores [B]; O(B T C²).

    Arguments as for `log_partition`.
    """
    return _Run(unary, pair, count).best()


class _Gold(NamedTuple):
    """Labels [B, T], which examples [B] have a likelihood of 0 (or `None`), and the gradients of minus likelihoods.

    There are no gradients where some labels are forbidden.
    """

    labels: Tensor
    impossible: Tensor | None
    slopes: tuple[Tensor, Tensor | None] | None

    def possible(self, weight: Tensor) -> Tensor:
        """Weights [B], 0 for examples whose labels are forbidden."""
        return weight if self.impossible is None else weight.masked_fill(self.impossible, 0)


def _whole(numbers: Tensor) -> Tensor:
    """Counts or labels as the kernels read them."""
    if numbers.dtype is torch.int64 and numbers.is_contiguous():
        return numbers
    return numbers.to(torch.int64).contiguous()


class _Run:
    """One problem as the kernels see it."""

    def __init__(self, unary: Tensor, pair: Tensor, count: Tensor | None) -> None:
        batch, size, labels = unary.shape
        if not unary.is_contiguous():
            unary = unary.detach().contiguous()
        if not pair.is_contiguous():
            pair = pair.detach().contiguous()
        cells = labels * labels
        self.each: tuple[int, int] = (0, 0)  # strides of the pair scores over examples and steps
        if pair.dim() > 2 and pair.numel() != cells:
            steps = pair.shape[1]
            self.each = (steps * cells if pair.shape[0] != 1 else 0, cells if steps != 1 else 0)
        lengths = None if count is None else _whole(count)
        self.batch, self.unary, self.pair, self.lengths = batch, unary, pair, lengths
        self.chain = (
            unary.dtype is torch.float64, unary.data_ptr(), pair.data_ptr(),
            0 if lengths is None else lengths.data_ptr(), batch, size, labels, *self.each,
        )  # fmt: skip
        self.threads = _threads(batch, size, labels)

    def forward(self, kept: Tensor | None, state: Tensor | None) -> Tensor:
        """[B]: log-partitions; `kept` and `state` are filled for the backward pass."""
        assert kernels is not None
        value = self.unary.new_empty(self.batch)
        kernels.chain_run(
            *self.chain, value.data_ptr(), _pointer(state), 0, 0, 0, 0, 0, 0, *_halves(kept), _FORWARD, self.threads
        )
        return value

    def backward(self, kept: Tensor, state: Tensor, weight: Tensor, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Gradients of the weighted sum of log-partitions by unary and pair scores; uses `kept` up."""
        assert kernels is not None
        by_unary = torch.empty_like(self.unary)
        by_pair = torch.empty_like(self.pair) if pairs else None
        kernels.chain_run(
            *self.chain, 0, state.data_ptr(), weight.data_ptr(), weight.stride(0), by_unary.data_ptr(),
            _pointer(by_pair), *self.each, *_halves(kept), _BACKWARD, self.threads,
        )  # fmt: skip
        return by_unary, by_pair

    def both(self, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Marginals of cells and of steps."""
        assert kernels is not None
        batch, size, labels = self.unary.shape
        by_unary = torch.empty_like(self.unary)
        by_pair = self.unary.new_empty(batch, max(0, size - 1), labels, labels) if pairs else None
        cells = labels * labels
        kernels.chain_run(
            *self.chain, 0, 0, 0, 0, by_unary.data_ptr(), _pointer(by_pair), (size - 1) * cells, cells, 0, 0, _BOTH,
            self.threads,
        )  # fmt: skip
        return by_unary, by_pair

    def slopes(self, gold: _Gold, weight: Tensor, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Gradients of the sum of log-likelihoods with weights [B]."""
        assert kernels is not None
        by_unary = torch.empty_like(self.unary)
        by_pair = torch.empty_like(self.pair) if pairs else None
        opposite, stride = -weight, weight.stride(0)
        first, second = by_unary.data_ptr(), _pointer(by_pair)
        kernels.chain_run(
            *self.chain, 0, 0, opposite.data_ptr(), opposite.stride(0), first, second, *self.each,
            0, 0, _BOTH, self.threads,
        )  # fmt: skip
        kernels.chain_counts(*self.chain, gold.labels.data_ptr(), weight.data_ptr(), stride, first, second)
        return by_unary, by_pair

    def covariances(
        self, cells: Tensor, steps: Tensor, by_cells: Tensor | None, by_steps: Tensor | None, pairs: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients by unary and pair scores of a function of the marginals, given its gradients by these."""
        assert kernels is not None
        by_unary = torch.empty_like(self.unary)
        by_pair = torch.empty_like(self.pair) if pairs else None
        given = [None if one is None else one.contiguous() for one in (by_cells, by_steps)]
        kernels.chain_covariances(
            *self.chain, *(_pointer(one) for one in (cells, steps, *given, by_unary, by_pair)),
            self.threads,
        )  # fmt: skip
        return by_unary, by_pair

    def best(self) -> tuple[Tensor, Tensor]:
        """Best labels and their scores."""
        assert kernels is not None
        unary = self.unary
        labels = unary.new_empty(self.batch, unary.shape[1], dtype=torch.int64)
        score = unary.new_empty(self.batch)
        kernels.chain_best(*self.chain, labels.data_ptr(), score.data_ptr(), self.threads)
        return labels, score

    def likelihood(self, labels: Tensor, slopes: bool, pairs: bool) -> tuple[Tensor, _Gold] | None:
        """Log-likelihoods [B] of labels [B, T] and, if asked, gradients, in one call; `None`: a cell has no label."""
        assert kernels is not None
        labels = _whole(labels)
        value = self.unary.new_empty(self.batch)
        by_unary = torch.empty_like(self.unary) if slopes else None
        by_pair = torch.empty_like(self.pair) if pairs else None
        impossible = kernels.chain_likelihood(
            *self.chain, labels.data_ptr(), value.data_ptr(), _pointer(by_unary), _pointer(by_pair), self.threads
        )
        if impossible == -2:
            raise no_such_label(self.unary.shape[2])
        if impossible < 0:
            return None
        if impossible:
            return value, _Gold(labels, value.isneginf(), None)
        return value, _Gold(labels, None, None if by_unary is None else (by_unary, by_pair))

    def common(self, weight: Tensor) -> float | None:
        """The weight [B] that all examples have, or `None`."""
        assert kernels is not None
        shared: float | None = kernels.common_weight(
            weight.dtype is torch.float64, weight.data_ptr(), weight.stride(0), self.batch
        )
        return shared

    def room(self) -> Tensor:
        """What the forward pass keeps for the backward pass: two rows of padded labels for each cell."""
        batch, size, labels = self.unary.shape
        lanes = _LANES[self.unary.dtype]
        return self.unary.new_empty(2, batch, size, -(-labels // lanes) * lanes)

    def state(self) -> Tensor:
        """Log-partitions, and a byte each for how they were found: what else the backward pass needs."""
        return torch.empty(self.batch + -(-self.batch // 8), dtype=torch.float64, device="cpu")


class _LogPartition(torch.autograd.Function):
    """log Z; the backward pass is analytic."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, run: _Run) -> Tensor:
        ctx.save_for_backward(unary, pair)
        ctx.run, ctx.kept, ctx.state = run, run.room(), run.state()
        return run.forward(ctx.kept, ctx.state)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair = ctx.saved_tensors
        run, kept = ctx.run, ctx.kept
        if torch.is_grad_enabled():
            return *_differentiable(unary, pair, run.lengths, None, gradients[0]), None
        if kept is None:  # a second time through the same graph
            kept = run.room()
            run.forward(kept, ctx.state)
        ctx.kept = None
        by_unary, by_pair = run.backward(kept, ctx.state, gradients[0], ctx.needs_input_grad[1])
        return by_unary if ctx.needs_input_grad[0] else None, by_pair, None


class _Moments(torch.autograd.Function):
    """Marginals of cells and of steps; their derivatives are covariances, which two recursions give."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, run: _Run) -> tuple[Tensor, Tensor]:
        cells, steps = run.both(pairs=True)
        assert steps is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unary, pair, cells, steps)
        ctx.run = run
        return cells, steps

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        unary, pair, cells, steps = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable_covariances(unary, pair, ctx.run.lengths, gradients), None
        by_unary, by_pair = ctx.run.covariances(cells, steps, *gradients, ctx.needs_input_grad[1])
        return by_unary if ctx.needs_input_grad[0] else None, by_pair, None


class _LogLikelihood(torch.autograd.Function):
    """The score of labels less log Z.

    Losses are negative sums or means: all examples have the same weight, often -1.  So the gradients for this weight
    are computed with the value, in one call, and scaled when the weight is another one; where it differs from example
    to example, they are computed again.
    """

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, run: _Run, found: tuple[Tensor, _Gold]) -> Tensor:
        ctx.save_for_backward(unary, pair)
        value, gold = found
        ctx.run, ctx.gold, ctx.slopes = run, gold, gold.slopes
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        run, gold = ctx.run, ctx.gold
        weight = gold.possible(gradients[0])
        if torch.is_grad_enabled():
            unary, pair = ctx.saved_tensors
            return *_differentiable(unary, pair, run.lengths, gold, weight), None, None
        slopes, ctx.slopes = ctx.slopes, None  # the caller may write into them
        common = None if slopes is None else run.common(weight)
        needed = ctx.needs_input_grad
        if slopes is None or common is None:
            slopes = run.slopes(gold, weight, needed[1])
        elif common != -1:
            for one in slopes:
                if one is not None:
                    one.mul_(-common)
        return slopes[0] if needed[0] else None, slopes[1], None, None


def _differentiable(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, gold: _Gold | None, weight: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients as functions that can be differentiated again, by the torch recursion."""
    cells, table = _aliases(unary, pair)
    potentials = Potentials(cells, table if table.dim() > 2 else table[None, None], lengths)
    total = chain_log_partition(potentials)
    total = total.masked_fill(total.isneginf(), 0)
    if gold is not None:
        score = chain_score(potentials, gold.labels.unsqueeze(1)).squeeze(1)
        total = score.masked_fill(score.isneginf(), 0) - total
    return _slopes((total * weight).sum(), cells, table)


def _aliases(unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """The scores under other names: the gradient by these leaves out that incoming gradients depend on them too."""
    return unary.view_as(unary), pair.view_as(pair)


def _slopes(value: Tensor, cells: Tensor, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a value by the scores that have one, to be differentiated again."""
    wanted = [one for one in (cells, table) if one.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, create_graph=True, materialize_grads=True))
    first = next(found) if cells.requires_grad else None
    return first, next(found) if table.requires_grad else None


def _differentiable_covariances(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a function of the marginals, as functions that can be differentiated again."""
    batch, size, labels = unary.shape
    cells, table = _aliases(unary, pair)
    own = cells if cells.requires_grad else cells.detach().requires_grad_()
    steps = (table if table.dim() > 2 else table[None, None]).expand(batch, max(0, size - 1), labels, labels)
    steps = steps if steps.requires_grad else steps.detach().requires_grad_()
    total = chain_log_partition(Potentials(own, steps, lengths))
    total = total.masked_fill(total.isneginf(), 0).sum()
    moments = torch.autograd.grad(total, (own, steps), create_graph=True, materialize_grads=True)
    value = torch.stack([(one * by).sum() for one, by in zip(moments, gradients, strict=True) if by is not None]).sum()
    return _slopes(value, cells, table)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _halves(kept: Tensor | None) -> tuple[int, int]:
    if kept is None:
        return 0, 0
    start = kept.data_ptr()
    return start, start + kept.numel() // 2 * kept.element_size()


def _threads(batch: int, size: int, labels: int) -> int:
    work = batch * size * labels * (labels + 40)
    if work < 2 * WORTH_A_THREAD:
        return 1
    return max(1, min(torch.get_num_threads(), batch, work // WORTH_A_THREAD))

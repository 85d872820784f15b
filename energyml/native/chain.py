"""First-order chains on the CPU: torch tensors around the native kernels.

The kernels work in scaled exp space, in the scores' own type.  Chains whose scores spread too far for it are repeated
in float64, and those that spread too far even then in log space: the answer is right at any magnitude.  Large negative
scores of answers that do not matter, as masks are written, do not slow anything down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from energyml.execution import is_addressable, is_eager
from energyml.native import chains as kernels

# Work for each thread below which a second one costs more than it brings, in multiply-adds (by benchmarks/exact).
WORTH_A_THREAD = 1_000_000

# Marginals of steps that are kept for a gradient: 256 MB in float32.
LARGEST = 2**26

# A batch of chains as the kernels take it: unaries, pair scores, lengths.
Chains = tuple[Tensor, Tensor, Tensor | None]

# log Z [B] by torch operations, of unaries [B, T, C], pair scores [B or 1, T-1 or 1, C, C] and lengths: for derivatives
# of gradients, which native code does not give.
Twin = Callable[[Tensor, Tensor, Tensor | None], Tensor]

if kernels is not None:
    kernels.introduce(
        Tensor, torch.nn.Parameter, torch.empty_like, torch.get_num_threads, torch.float32, torch.float64, torch.int64,
        getattr(Tensor, "__dlpack_c_exchange_api__", None),
    )  # fmt: skip


def serves(unary: Tensor, pair: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return (
        kernels is not None
        and unary.dtype in (torch.float32, torch.float64)
        and pair.dtype is unary.dtype
        and is_addressable(unary, pair)
    )


def no_such_label(count: int) -> ValueError:
    """The error about a label that is none of so many."""
    return ValueError(f"labels must lie between 0 and {count - 1}, or be -1 where they are not known")


def log_partition(unary: Tensor, pair: Tensor, count: Tensor | None, twin: Twin | None = None) -> Tensor | None:
    """[B]: the log-partition of chains; O(B T C²).  `None` where the kernels do not serve, here and below.

    Differentiable, and twice where there is a twin.

    Args:
        unary: [B, T, C] scores of the labels of each cell.
        pair: [C, C] scores of neighbouring labels (earlier, later), [T-1, C, C] or [B or 1, T-1 or 1, C, C].
        count: [B] how many cells each chain has, or `None` when all have T.
        twin: the same by torch operations.
    """
    value: Tensor | None
    if torch.is_grad_enabled() and (unary.requires_grad or pair.requires_grad):
        chains = _plain(unary, pair, count)
        value = None if chains is None else _taped(_LogPartition, unary, pair, chains, twin)
    else:
        value = _asked("chain_log_partition", unary, pair, count)
    return value


def log_likelihood(
    unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor, twin: Twin | None = None
) -> Tensor | None:
    """[B]: the log-probability of labels [B, T] of all cells that exist; one tape entry for score and log-partition.

    -inf, with zero gradients, where the labels are forbidden.  Arguments, cost and derivatives as for `log_partition`.
    `None` also when a cell that exists has no label between 0 and C - 1.
    """
    recorded = torch.is_grad_enabled()
    by_pair = recorded and pair.requires_grad
    taped = by_pair or (recorded and unary.requires_grad)
    found = _likelihood(unary, pair, count, labels, False, taped, by_pair)
    if found is None or not taped:
        return found and found[0]
    value: Tensor = _taped(_LogLikelihood, unary, pair, (count, labels), found, twin)
    return value


def nll_and_slopes(
    unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Negative log-likelihoods [B] and the gradients of their sum by unary and pair scores, without a tape.

    inf, with zero gradients, where the labels are forbidden.  Otherwise as `log_likelihood`.
    """
    found = _asked("chain_likelihood", unary, pair, count, labels, True, True, True)
    if found.__class__ is not tuple:
        _look_at_labels(found, unary)
        return None
    value, _, slopes = found
    if slopes is None:
        weight = value.new_full(value.shape, -1.0).masked_fill(value.isposinf(), 0)
        slopes = _slopes_of(unary, pair, count, labels, weight, True)
    by_unary, by_pair = slopes
    assert by_pair is not None
    return value, by_unary, by_pair


def marginals(
    unary: Tensor, pair: Tensor, count: Tensor | None, pairs: bool = False
) -> tuple[Tensor, Tensor | None] | None:
    """Marginals of cells [B, T, C] and, when asked, of steps [B, T-1, C, C], without gradients.

    All zeros where nothing exists and where a chain has no answer.  Arguments and cost as for `log_partition`.
    """
    found: tuple[Tensor, Tensor | None] | None = _asked("chain_marginals", unary, pair, count, pairs)
    return found


def tracked_marginals(
    unary: Tensor, pair: Tensor, count: Tensor | None, twin: Twin | None = None
) -> tuple[Tensor, Tensor] | None:
    """As `marginals` of cells and steps, differentiable, and twice where there is a twin.

    `None` also where the gradient would need more than `LARGEST` marginals of steps at once.
    """
    batch, size, labels = unary.shape
    chains = None if batch * size * labels**2 > LARGEST else _plain(unary, pair, count)
    moments: tuple[Tensor, Tensor] | None = None if chains is None else _taped(_Moments, unary, pair, chains, twin)
    return moments


def viterbi(unary: Tensor, pair: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Best labels [B, T] (-1 where there is no cell or no answer) and their scores [B]; O(B T C²).

    Arguments as for `log_partition`.
    """
    found: tuple[Tensor, Tensor] | None = _asked("chain_best", unary, pair, count)
    return found


def _asked(question: str, unary: Tensor, pair: Tensor, count: Tensor | None, *more: Any) -> Any:
    """What a kernel answers about tensors as they are or, where it wants others, about copies; `None`: it cannot."""
    if kernels is None or not is_eager() or unary.is_neg() or pair.is_neg():  # native code looks at classes itself
        return None
    kernel = getattr(kernels, question)
    found = kernel(unary, pair, count, *more, WORTH_A_THREAD)
    if found is None and (chains := _plain(unary, pair, count)) is not None:
        more = tuple(_whole(one) if isinstance(one, Tensor) else one for one in more)
        found = kernel(*chains, *more, WORTH_A_THREAD)
    return found


def _plain(unary: Tensor, pair: Tensor, count: Tensor | None) -> Chains | None:
    """Chains whose numbers lie in order, as the kernels read them; `None` where the kernels do not serve."""
    if not serves(unary, pair):
        return None
    unary, pair = (one if one.is_contiguous() else one.detach().contiguous() for one in (unary, pair))
    return unary, pair, None if count is None else _whole(count)


def _whole(numbers: Tensor) -> Tensor:
    """Counts or labels as the kernels read them."""
    if numbers.dtype is torch.int64 and numbers.is_contiguous():
        return numbers
    return numbers.to(torch.int64).contiguous()


# Log-likelihoods [B], how many are infinite, and the gradients of minus their sum where none is.
_Found = tuple[Tensor, int, tuple[Tensor, Tensor | None] | None]


def _likelihood(unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor, *asked: bool) -> _Found | None:
    """Log-likelihoods of labels [B, T]; `None`: not served, or a cell has no label.

    Asked for are the negative ones, gradients of minus their sum by unary scores, and these by pair scores too.
    """
    found: _Found | int | None = _asked("chain_likelihood", unary, pair, count, labels, *asked)
    if isinstance(found, tuple):
        return found
    _look_at_labels(found, unary)
    return None


def _look_at_labels(found: int | None, unary: Tensor) -> None:
    """Refuse labels that do not exist, which the kernel says by -2 in place of likelihoods."""
    if found == -2:
        raise no_such_label(unary.shape[2])


def _slopes_of(
    unary: Tensor, pair: Tensor, count: Tensor | None, labels: Tensor, weight: Tensor, pairs: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the sum of log-likelihoods with weights [B]."""
    chains = _plain(unary, pair, count)
    assert kernels is not None and chains is not None
    found: tuple[Tensor, Tensor | None] = kernels.chain_slopes(*chains, _whole(labels), weight, pairs, WORTH_A_THREAD)
    return found


class _LogPartition(torch.autograd.Function):
    """log Z; the backward pass is analytic."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, chains: Chains, twin: Twin | None) -> Tensor:
        assert kernels is not None
        ctx.twin = twin
        ctx.save_for_backward(unary, pair)
        batch = unary.shape[0]
        # log-partitions, and a byte each for how they were found
        state = torch.empty(batch + -(-batch // 8), dtype=torch.float64, device="cpu")
        ctx.chains, ctx.kept, ctx.state = chains, _room(unary), state
        value: Tensor = kernels.chain_forward(*chains, ctx.kept, state, WORTH_A_THREAD)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        assert kernels is not None
        unary, pair = ctx.saved_tensors
        chains, kept, state = ctx.chains, ctx.kept, ctx.state
        if torch.is_grad_enabled() or not is_addressable(gradients[0]):
            return *_differentiable(ctx.twin, unary, pair, chains[2], None, gradients[0]), None, None
        if kept is None:  # a second time through the same graph
            kept = _room(unary)
            kernels.chain_forward(*chains, kept, state, WORTH_A_THREAD)
        ctx.kept = None  # it is used up
        needed = ctx.needs_input_grad
        by_unary, by_pair = kernels.chain_backward(*chains, kept, state, gradients[0], needed[1], WORTH_A_THREAD)
        return by_unary if needed[0] else None, by_pair, None, None


def _room(unary: Tensor) -> Tensor:
    """What the forward pass keeps for the backward pass: two rows of padded labels for each cell."""
    batch, size, labels = unary.shape
    assert kernels is not None
    lanes = kernels.LANES * 4 // unary.element_size()
    return unary.new_empty(2, batch, size, -(-labels // lanes) * lanes)


class _Moments(torch.autograd.Function):
    """Marginals of cells and of steps; their derivatives are covariances, which two recursions give."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, chains: Chains, twin: Twin | None) -> tuple[Tensor, Tensor]:
        assert kernels is not None
        ctx.twin = twin
        cells, steps = kernels.chain_marginals(*chains, True, WORTH_A_THREAD)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unary, pair, cells, steps)
        ctx.chains = chains
        return cells, steps

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        assert kernels is not None
        unary, pair, cells, steps = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_addressable(*[one for one in gradients if one is not None]):
            return *_differentiable_covariances(ctx.twin, unary, pair, ctx.chains[2], gradients), None, None
        given = [None if one is None else one.contiguous() for one in gradients]
        needed = ctx.needs_input_grad
        by_unary, by_pair = kernels.chain_covariances(*ctx.chains, cells, steps, *given, needed[1], WORTH_A_THREAD)
        return by_unary if needed[0] else None, by_pair, None, None


class _LogLikelihood(torch.autograd.Function):
    """The score of labels less log Z.

    Losses are negative sums or means: all examples have the same weight, often -1.  So the gradients for this weight
    are computed with the value, in one call, and scaled when the weight is another one; where it differs from example
    to example, they are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, pair: Tensor, counted: tuple[Tensor | None, Tensor], found: _Found, twin: Twin | None
    ) -> Tensor:
        ctx.twin = twin
        ctx.save_for_backward(unary, pair)
        ctx.counted = counted
        value, impossible, ctx.slopes = found
        ctx.impossible = value.isneginf() if impossible else None
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        assert kernels is not None
        count, labels = ctx.counted
        weight = gradients[0] if ctx.impossible is None else gradients[0].masked_fill(ctx.impossible, 0)
        if torch.is_grad_enabled() or not is_addressable(weight):
            unary, pair = ctx.saved_tensors
            return *_differentiable(ctx.twin, unary, pair, count, labels, weight), None, None, None
        slopes, ctx.slopes = ctx.slopes, None  # the caller may write into them
        common = None if slopes is None else kernels.common_weight(weight)
        needed = ctx.needs_input_grad
        if slopes is None or common is None:
            unary, pair = ctx.saved_tensors
            slopes = _slopes_of(unary, pair, count, labels, weight, needed[1])
        elif common != -1:
            for one in slopes:
                if one is not None:
                    one.mul_(-common)
        return slopes[0] if needed[0] else None, slopes[1], None, None, None


def _taped(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """The result of a function of the tape, which is called eagerly."""
    # What `apply` itself goes on with; before that it reads the signature of `forward`, which takes as long as a chain.
    return super(torch.autograd.Function, function).apply(*inputs)  # type: ignore[misc]


def _demanded(twin: Twin | None) -> Twin:
    if twin is None:
        raise NotImplementedError("gradients by native code are differentiated again through a twin, and none is given")
    return twin


@torch.enable_grad()
def _differentiable(
    twin: Twin | None, unary: Tensor, pair: Tensor, lengths: Tensor | None, labels: Tensor | None, weight: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients as functions that can be differentiated again, by the twin."""
    cells, table = _aliases(unary, pair)
    total = _demanded(twin)(cells, _by_step(table), lengths)
    total = total.masked_fill(total.isneginf(), 0)
    if labels is not None:
        score = _score(cells, _by_step(table), lengths, _whole(labels))
        total = score.masked_fill(score.isneginf(), 0) - total
    return _slopes((total * weight).sum(), cells, table)


def _score(unary: Tensor, pair: Tensor, lengths: Tensor | None, labels: Tensor) -> Tensor:
    """[B]: the scores of labels [B, T] of all cells that exist."""
    batch, size, count = unary.shape
    steps = max(0, size - 1)
    here = labels.clamp(min=0)
    cells = unary.gather(2, here.unsqueeze(2)).squeeze(2)
    place = (here[:, :-1] * count + here[:, 1:]).unsqueeze(2)
    pairs = pair.flatten(2).expand(batch, steps, count * count).gather(2, place).squeeze(2)
    if lengths is not None:
        exists = torch.arange(size, device="cpu") < lengths.unsqueeze(1)
        cells, pairs = torch.where(exists, cells, 0), torch.where(exists[:, 1:], pairs, 0)
    return cells.sum(1) + pairs.sum(1)


def _by_step(pair: Tensor) -> Tensor:
    """Pair scores as [B or 1, T-1 or 1, C, C]."""
    return pair[(None,) * (4 - pair.dim())]


def _aliases(unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """The scores under other names: the gradient by these leaves out that incoming gradients depend on them too."""
    return unary.view_as(unary), pair.view_as(pair)


def _slopes(value: Tensor, cells: Tensor, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a value by the scores that have one, to be differentiated again."""
    wanted = [one for one in (cells, table) if one.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, create_graph=True, materialize_grads=True))
    first = next(found) if cells.requires_grad else None
    return first, next(found) if table.requires_grad else None


@torch.enable_grad()
def _differentiable_covariances(
    twin: Twin | None, unary: Tensor, pair: Tensor, lengths: Tensor | None, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a function of the marginals, as functions that can be differentiated again."""
    batch, size, labels = unary.shape
    cells, table = _aliases(unary, pair)
    own = cells if cells.requires_grad else cells.detach().requires_grad_()
    steps = _by_step(table).expand(batch, max(0, size - 1), labels, labels)
    steps = steps if steps.requires_grad else steps.detach().requires_grad_()
    total = _demanded(twin)(own, steps, lengths)
    total = total.masked_fill(total.isneginf(), 0).sum()
    moments = torch.autograd.grad(total, (own, steps), create_graph=True, materialize_grads=True)
    value = torch.stack([(one * by).sum() for one, by in zip(moments, gradients, strict=True) if by is not None]).sum()
    return _slopes(value, cells, table)

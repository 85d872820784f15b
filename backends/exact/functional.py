"""First-order chains as functions of their scores, for those who have scores and need no spec: `em.functional`.

Every function takes

- `unary`: [B, T, C], the scores of the labels of each cell, -inf where a label is not allowed;
- `pair`: the scores of neighbouring labels (earlier, later): [C, C], or [T-1, C, C] where they differ by position, or
  [B, 1 or T-1, C, C] where they differ by example;
- `lengths`: [B] int64, how many cells each chain has; all have T when left out.

On the CPU they run the native kernels, elsewhere and under `torch.func` and `torch.compile` the torch recursion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.exact import recursion
from energyml.backends.exact.potentials import Potentials
from energyml.bind.batch import wide
from energyml.diagnostics import ShapeError
from energyml.execution import is_host_readable, refuse_single_call_tracers, under_transform
from energyml.grounded.logspace import difference
from energyml.native import chain as native
from energyml.result import ABSENT

__all__ = ["chain_best", "chain_log_partition", "chain_log_prob", "chain_marginals", "chain_nll_and_grad"]


def _potentials(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> Potentials:
    """The scores for the torch recursion, or what is wrong with their sizes."""
    refuse_single_call_tracers()
    form, shape = unary.shape, pair.shape
    if lengths is not None and (lengths.ndim != 1 or len(lengths) != form[0]):
        raise ShapeError(f"expected lengths {list(form[:1])}, one for each chain, found {list(lengths.shape)}")
    if len(form) == 3 and 2 <= len(shape) <= 4 and shape[-1] == shape[-2] == form[2]:
        lead = (1, 1, *shape[:-2])[-2:]
        if lead[0] in (1, form[0]) and lead[1] in (1, max(0, form[1] - 1)):
            return Potentials(unary, pair.reshape(*lead, *shape[-2:]), lengths)
    raise ShapeError(
        f"expected unary [B, T, C] and pair [C, C], [T-1, C, C] or [B, 1 or T-1, C, C]; "
        f"found {list(unary.shape)} and {list(pair.shape)}"
    )


def _refuse_others(**given: object) -> None:
    """Refuse what is no tensor.  Called where something failed: looking beforehand takes longer than a short chain."""
    for name, one in given.items():
        if one is not None and not isinstance(one, Tensor):
            found = f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.")
            remedy = f"pass `torch.as_tensor({name})`"
            raise TypeError(f"expected a torch.Tensor for `{name}`, found {found}; {remedy}") from None


def chain_log_partition(unary: Tensor, pair: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B]: log Z of each chain, -inf where nothing is allowed; differentiable twice.  Cost: O(B T C²)."""
    try:
        found = native.log_partition(unary, pair, lengths, recursion.log_partition_of)
        return recursion.chain_log_partition(_potentials(unary, pair, lengths)) if found is None else found
    except (AttributeError, TypeError):
        _refuse_others(unary=unary, pair=pair, lengths=lengths)
        raise


def chain_log_prob(unary: Tensor, pair: Tensor, labels: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B]: the log-probability of labels [B, T]; minus its sum is the usual training loss.  Cost: O(B T C²).

    Differentiable twice; the native kernels compute score, log Z and gradients in one entry of the tape.  A label of
    -1 where a cell exists leaves that cell open.
    """
    try:
        found = native.log_likelihood(unary, pair, lengths, labels, recursion.log_partition_of)
        return _likelihood(unary, pair, labels, lengths) if found is None else found
    except (AttributeError, TypeError):
        _refuse_others(unary=unary, pair=pair, labels=labels, lengths=lengths)
        raise


def _likelihood(unary: Tensor, pair: Tensor, labels: Tensor, lengths: Tensor | None) -> Tensor:
    """The same where the native kernels do not answer, or not in one."""
    potentials = _potentials(unary, pair, lengths)
    if labels.shape != unary.shape[:2]:
        raise ShapeError(f"expected labels {list(unary.shape[:2])}, found {list(labels.shape)}")
    if not native.serves(unary, pair):
        found = recursion.chain_likelihood(potentials, labels)
        if found is not None:
            return found
    if is_host_readable(labels) and not under_transform():
        strange = (labels < -1) | (labels >= unary.shape[2])
        if lengths is not None:
            strange &= torch.arange(unary.shape[1]) < lengths.unsqueeze(1)
        if bool(strange.any()):
            raise native.no_such_label(unary.shape[2])
    known = labels.unsqueeze(-1) == torch.arange(unary.shape[2], device=unary.device)
    clamped = unary.masked_fill(~(known | (labels < 0).unsqueeze(-1)), float("-inf"))
    steps, dtype = pair.to(wide(pair.device)), torch.promote_types(unary.dtype, pair.dtype)
    share, total = (chain_log_partition(one.to(steps.dtype), steps, lengths) for one in (clamped, unary))
    return difference(share, total).to(dtype)  # two large numbers may be close to each other


def chain_nll_and_grad(
    unary: Tensor, pair: Tensor, labels: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihoods [B] of labels [B, T], and the gradients of their sum by `unary` and by `pair`.

    What `chain_log_prob` and `torch.autograd.grad` give, in one call and without a tape: for small batches, where
    the tape takes longer than the chains.  A network goes on from there with `scores.backward(by_unary)`.
    inf, with zero gradients, where labels are forbidden.  Cost: O(B T C²).
    """
    try:
        found = native.nll_and_slopes(unary, pair, lengths, labels)
        if found is not None:
            return found
        with torch.enable_grad():
            cells, table = unary.detach().requires_grad_(), pair.detach().requires_grad_()
            loss = -chain_log_prob(cells, table, labels, lengths)
            by_unary, by_pair = torch.autograd.grad(loss.sum(), (cells, table))
        return loss.detach(), by_unary, by_pair
    except (AttributeError, TypeError):
        _refuse_others(unary=unary, pair=pair, labels=labels, lengths=lengths)
        raise


def chain_marginals(unary: Tensor, pair: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B, T, C]: the probability of each label of each cell, 0 beyond a chain's length; without gradients.

    The gradient of `chain_log_partition` by `unary` is the same, differentiable.  Cost: O(B T C²).
    """
    try:
        found = native.marginals(unary, pair, lengths)
        if found is not None:
            return found[0]
        potentials = _potentials(unary.detach(), pair.detach(), lengths)
        cells = recursion.chain_marginals(potentials, False)[0]
        return cells if potentials.exists is None else cells.masked_fill(~potentials.exists.unsqueeze(-1), 0)
    except (AttributeError, TypeError):
        _refuse_others(unary=unary, pair=pair, lengths=lengths)
        raise


def chain_best(unary: Tensor, pair: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The best labels [B, T] and their scores [B]; -1 where there is no cell or no answer.  Cost: O(B T C²)."""
    try:
        found = native.viterbi(unary, pair, lengths)
        if found is not None:
            return found
        with torch.no_grad():
            labels, scores = recursion.chain_best(_potentials(unary, pair, lengths), 1)
        return labels[:, 0].masked_fill(scores.isneginf(), ABSENT), scores[:, 0]
    except (AttributeError, TypeError):
        _refuse_others(unary=unary, pair=pair, lengths=lengths)
        raise

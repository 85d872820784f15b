"""Ways to sum up alternatives: what a recursion takes as its argument.

One recursion answers many queries.  With `log_sum` its result is log Z, and the gradient by the scores are marginals;
with `maximum` the best score, and the gradient is one best answer; with `drawing` log Z, and the gradient is one draw
(Li & Eisner 2009; Rush 2020, section 4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from energyml.grounded.logspace import tracked_logsumexp

Reduce = Callable[[Tensor, int], Tensor]  # (values, dim) -> values without dim


def log_sum(values: Tensor, dim: int) -> Tensor:
    """The log of the sum of exp along a dim; -inf, with zero gradients of any order, where every value is -inf."""
    return tracked_logsumexp(values, dim)


def maximum(values: Tensor, dim: int) -> Tensor:
    """The largest value along a dim, with its gradient at one place also where several tie (`amax` splits it)."""
    return values.gather(dim, values.detach().argmax(dim, keepdim=True)).squeeze(dim)


def drawing(generator: torch.Generator | None) -> Reduce:
    """A reduction with the value of `log_sum`, and the gradient 1 at one alternative that is drawn."""

    def reduce(values: Tensor, dim: int) -> Tensor:
        known = values.detach()
        total = log_sum(known, dim)
        uniform = torch.rand(values.shape, dtype=values.dtype, device=values.device, generator=generator)
        gumbel = -(-uniform.clamp(min=torch.finfo(values.dtype).tiny).log()).log()
        chosen = values.gather(dim, (known + gumbel).argmax(dim, keepdim=True)).squeeze(dim)
        gone = total.isneginf()
        chosen = chosen.masked_fill(gone, 0)
        return (total.masked_fill(gone, 0) + (chosen - chosen.detach())).masked_fill(gone, float("-inf"))

    return reduce

"""The plainest log-partition of chains there is, to hold the kernels against: one step after another, in log space."""

import torch
from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.grounded.logspace import logsumexp


def chain_log_partition(potentials: Potentials) -> Tensor:
    """[B]: the log-partition, differentiable twice by autograd."""
    unary, pair, exists = potentials.unary, potentials.pair, potentials.exists
    if unary.shape[1] == 0:
        return unary.sum((1, 2))
    ahead = unary[:, 0]
    for t in range(1, unary.shape[1]):
        step = logsumexp(ahead.unsqueeze(2) + pair[:, t - 1], 1) + unary[:, t]
        ahead = step if exists is None else torch.where(exists[:, t : t + 1], step, ahead)
    total = logsumexp(ahead, 1)
    return total if exists is None else torch.where(exists[:, 0], total, 0)

"""torch-struct and Pyro: log-depth scans over positions under autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact.contestants import AUTOGRAD, Prepared, Refused
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, VITERBI, Case

LogPartition = Callable[[Tensor, Tensor], Tensor]

# Bytes of one intermediate result beyond which a peer is not asked: under autograd it keeps about ten of them.
MOST_BYTES = 1e9


def gold_score(case: Case, unary: Tensor, trans: Tensor) -> Tensor:
    """[B]: the score of the gold labels, which the scans leave to their users."""
    cells = unary.gather(2, case.known.unsqueeze(-1)).squeeze(-1)
    steps = trans[case.known[:, :-1], case.known[:, 1:]]
    return (cells * case.mask).sum(1) + (steps * case.mask[:, 1:]).sum(1)


def by_autograd(case: Case, task: str, log_partition: LogPartition) -> Prepared:
    """Tasks of a library that gives a differentiable log-partition [B] of unaries and transitions."""
    if task == LOG_PARTITION:
        run = torch.no_grad()(lambda: log_partition(case.unary, case.trans))
        return Prepared(run, lambda found: (found,))
    unary, trans = case.unary.clone().requires_grad_(), case.trans.clone().requires_grad_(task == NLL)
    if task == NLL:

        def train() -> tuple[Tensor, ...]:
            unary.grad = trans.grad = None
            loss = (log_partition(unary, trans) - gold_score(case, unary, trans)).sum()
            loss.backward()
            return loss, unary.grad, trans.grad

        return Prepared(train, lambda found: tuple(one.detach() for one in found))
    assert task == MARGINALS
    return Prepared(
        lambda: torch.autograd.grad(log_partition(unary, trans).sum(), unary)[0], lambda found: (found.detach(),)
    )


class TorchStruct:
    """torch-struct's `LinearChainCRF`.  Without its CUDA extension a step of its scan holds B T/2 C³ numbers."""

    name, kind, whole = "torch-struct", AUTOGRAD, True

    def prepare(self, case: Case, task: str) -> Prepared:
        from torch_struct import LinearChainCRF

        batch, length, labels = case.size
        wanted = case.unary.element_size() * batch * 2 ** math.ceil(math.log2(length - 1)) / 2 * labels**3
        if wanted > MOST_BYTES:
            raise Refused(f"a step of its scan needs {wanted / 1e9:.3g} GB")

        def chain(unary: Tensor, trans: Tensor) -> Any:
            # edges [B, T-1, later, earlier]; the first cell's scores ride on the first edge
            edges = trans.t() + unary[:, 1:, :, None]
            edges = torch.cat([edges[:, :1] + unary[:, :1, None, :], edges[:, 1:]], 1)
            return LinearChainCRF(edges, lengths=case.ends)

        if task != VITERBI:
            return by_autograd(case, task, lambda unary, trans: chain(unary, trans).partition)

        def best() -> Tensor:
            edges = chain(case.unary, case.trans).argmax
            later = edges.sum(3).argmax(2)
            return torch.cat([edges[:, 0].sum(1).argmax(1, keepdim=True), later], 1)

        return Prepared(best, lambda found: (found.masked_fill(~case.mask, -1),))


class Pyro:
    """Pyro's `DiscreteHMM`: its parallel scan, with the scores of a chain.

    The class normalises its transitions; `log_partition` below is the body of its `log_prob` without that, so that the
    scores of a chain go in as they are, and nothing that the class would need to undo it is timed.  Cells behind the
    end of a chain get the identity as their transition.
    """

    name, kind, whole = "Pyro", AUTOGRAD, True

    def prepare(self, case: Case, task: str) -> Prepared:
        from pyro.distributions.hmm import _sequential_logmatmulexp

        if task == VITERBI:
            raise Refused("DiscreteHMM has no Viterbi")
        labels = case.size[2]
        identity = torch.full((labels, labels), float("-inf"), dtype=case.unary.dtype).fill_diagonal_(0)
        real = case.mask[:, 1:, None, None]

        def log_partition(unary: Tensor, trans: Tensor) -> Tensor:
            steps = trans + unary[:, 1:].unsqueeze(-2)
            if case.ragged:
                steps = torch.where(real, steps, identity)
            whole = _sequential_logmatmulexp(steps)
            return (unary[:, 0] + whole.logsumexp(-1)).logsumexp(-1)

        return by_autograd(case, task, log_partition)

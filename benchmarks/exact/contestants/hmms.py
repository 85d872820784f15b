"""pomegranate and hmmlearn: hidden Markov models whose training step is analytic.

Neither checks that probabilities sum to one below its public classes, so the scores of a chain go in unnormalised:
exp(scores) where probabilities are expected.  What they call the statistics of an E-step are the gradients of the
log-partition; the gold labels are subtracted from them as a user would.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.exact.contestants import ANALYTIC, NATIVE, Prepared, Refused, gold_statistics
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, VITERBI, Case


class Pomegranate:
    """pomegranate's `DenseHMM`.  It has no mask: chains of equal length go together, as its own `fit` groups them."""

    name, kind, whole = "pomegranate", ANALYTIC, True

    def prepare(self, case: Case, task: str) -> Prepared:
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        labels = case.size[2]
        even = [1 / labels] * labels
        states = [Categorical([[1.0]]) for _ in range(labels)]
        model = DenseHMM(states, edges=[even] * labels, starts=even, ends=even).to(case.unary.dtype)
        with torch.no_grad():
            for name, value in (("edges", case.trans), ("starts", 0.0), ("ends", 0.0)):
                getattr(model, name).requires_grad_(False).copy_(torch.as_tensor(value))
        groups = [(case.ends == end).nonzero()[:, 0] for end in case.ends.unique()]
        parts = [(rows, case.unary[rows, : int(case.ends[rows[0]])].contiguous()) for rows in groups]
        shape = case.unary.shape
        cells, counts = gold_statistics(case)
        gold = case.score(case.gold).sum().to(case.unary.dtype)

        def log_partition() -> Tensor:
            found = torch.empty(shape[0], dtype=case.unary.dtype)
            for rows, part in parts:
                found[rows] = torch.logsumexp(model.forward(emissions=part)[:, -1] + model.ends, dim=1)
            return found

        def best() -> Tensor:
            found = torch.full(shape[:2], -1)
            for rows, part in parts:
                found[rows, : part.shape[1]] = model.viterbi(emissions=part).long()
            return found

        def marginals() -> Tensor:
            found = torch.zeros(shape, dtype=case.unary.dtype)
            for rows, part in parts:
                forward, backward = model.forward(emissions=part), model.backward(emissions=part)
                found[rows, : part.shape[1]] = torch.softmax(forward + backward, 2)
            return found

        def train() -> tuple[Tensor, ...]:
            total, unary, trans = -gold, torch.zeros(shape, dtype=case.unary.dtype), -counts
            for rows, part in parts:
                pairs, cell, _, _, log_z = model.forward_backward(emissions=part)
                total, trans = total + log_z.sum(), trans + pairs.sum(0)
                unary[rows, : part.shape[1]] = cell.exp()
            return total, unary - cells, trans

        run = {LOG_PARTITION: log_partition, VITERBI: best, MARGINALS: marginals, NLL: train}[task]
        return Prepared(
            torch.no_grad()(run), lambda found: found if isinstance(found, tuple) else (torch.as_tensor(found),)
        )


class _Hmmlearn(ABC):
    """hmmlearn's C extension, one chain after another, in float64: it has nothing else."""

    kind, whole = NATIVE, True

    @abstractmethod
    def forward(self, ones: Any, step: Any, scores: Any) -> tuple[float, Any]:
        """The log-partition of one chain, and what the other passes need."""

    @abstractmethod
    def posterior(self, ones: Any, step: Any, state: Any) -> tuple[Any, Any]:
        """Marginals [T, C] of one chain, and what the pair statistics need."""

    @abstractmethod
    def pair_sum(self, step: Any, state: Any) -> Any:
        """[C, C]: expected counts of pairs."""

    def prepare(self, case: Case, task: str) -> Prepared:
        from hmmlearn import _hmmc

        labels = case.size[2]
        ones, step = np.ones(labels), np.exp(case.trans.double().numpy())
        ends = case.ends.tolist()
        chains = [np.ascontiguousarray(one[:end].double().numpy()) for one, end in zip(case.unary, ends, strict=True)]
        cells, counts = (one.double().numpy() for one in gold_statistics(case))
        gold = float(case.score(case.gold).sum())
        shape = tuple(case.unary.shape)

        def log_partition() -> Any:
            return np.array([self.forward(ones, step, scores)[0] for scores in chains])

        def best() -> Any:
            found = np.full(shape[:2], -1)
            for row, scores in enumerate(chains):
                found[row, : ends[row]] = _hmmc.viterbi(ones, step, scores)[1]
            return found

        def marginals() -> Any:
            found = np.zeros(shape)
            for row, scores in enumerate(chains):
                _, state = self.forward(ones, step, scores)
                found[row, : ends[row]] = self.posterior(ones, step, state)[0]
            return found

        def train() -> tuple[Any, ...]:
            total, unary, trans = -gold, -cells, -counts
            for row, scores in enumerate(chains):
                log_z, state = self.forward(ones, step, scores)
                posterior, state = self.posterior(ones, step, state)
                total += log_z
                unary[row, : ends[row]] += posterior
                trans = trans + self.pair_sum(step, state)
            return np.array(total), unary, trans

        run: Callable[[], Any] = {LOG_PARTITION: log_partition, VITERBI: best, MARGINALS: marginals, NLL: train}[task]
        return Prepared(run, lambda found: tuple(map(torch.as_tensor, found if isinstance(found, tuple) else (found,))))


class HmmlearnLog(_Hmmlearn):
    """`implementation="log"`, its default."""

    name = "hmmlearn"

    def forward(self, ones: Any, step: Any, scores: Any) -> tuple[float, Any]:
        from hmmlearn import _hmmc

        log_z, lattice = _hmmc.forward_log(ones, step, scores)
        return log_z, (lattice, scores)

    def posterior(self, ones: Any, step: Any, state: Any) -> tuple[Any, Any]:
        from hmmlearn import _hmmc

        lattice, scores = state
        back = _hmmc.backward_log(ones, step, scores)
        both = lattice + back
        found = np.exp(both - both.max(1, keepdims=True))
        found /= found.sum(1, keepdims=True)
        return found, (lattice, back, scores)

    def pair_sum(self, step: Any, state: Any) -> Any:
        from hmmlearn import _hmmc

        lattice, back, scores = state
        return np.exp(_hmmc.compute_log_xi_sum(lattice, step, back, scores))


class HmmlearnScaling(_Hmmlearn):
    """`implementation="scaling"`: exponentials of the scores, less the best of each position, are part of the call."""

    name = "hmmlearn scaling"

    def forward(self, ones: Any, step: Any, scores: Any) -> tuple[float, Any]:
        from hmmlearn import _hmmc

        best = scores.max(1, keepdims=True)
        likelihood = np.exp(scores - best)
        log_z, lattice, scale = _hmmc.forward_scaling(ones, step, likelihood)
        return log_z + best.sum(), (lattice, scale, likelihood)

    def posterior(self, ones: Any, step: Any, state: Any) -> tuple[Any, Any]:
        from hmmlearn import _hmmc

        lattice, scale, likelihood = state
        back = _hmmc.backward_scaling(ones, step, likelihood, scale)
        found = lattice * back
        found /= found.sum(1, keepdims=True)
        return found, (lattice, back, likelihood)

    def prepare(self, case: Case, task: str) -> Prepared:
        if task == VITERBI:
            raise Refused("the same as hmmlearn")
        return super().prepare(case, task)

    def pair_sum(self, step: Any, state: Any) -> Any:
        from hmmlearn import _hmmc

        lattice, back, likelihood = state
        return _hmmc.compute_scaling_xi_sum(lattice, step, back, likelihood)

"""pytorch-crf and TorchCRF: a Python loop over positions under autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.exact.contestants import AUTOGRAD, Prepared
from benchmarks.exact.sizes import LOG_PARTITION, NLL, VITERBI, Case


def padded(paths: list[list[int]], length: int) -> Tensor:
    """Lists of labels as [B, T], -1 behind the end."""
    found = pad_sequence([torch.tensor(path) for path in paths], batch_first=True, padding_value=-1)
    return torch.nn.functional.pad(found, (0, length - found.shape[1]), value=-1)


class _Crf(ABC):
    """What the two have in common: a module with transitions, and marginals as the gradient of the log-partition."""

    kind, whole = AUTOGRAD, True
    transitions: str
    starts: tuple[str, str]

    @abstractmethod
    def module(self, labels: int) -> Any:
        """See the class."""

    @abstractmethod
    def log_partition(self, crf: Any, unary: Tensor, mask: Tensor) -> Tensor:
        """See the class."""

    @abstractmethod
    def likelihood(self, crf: Any, unary: Tensor, case: Case) -> Tensor:
        """See the class."""

    @abstractmethod
    def best(self, crf: Any, case: Case) -> list[list[int]]:
        """See the class."""

    def prepare(self, case: Case, task: str) -> Prepared:
        crf = self.module(case.size[2]).to(case.unary.dtype)
        weights = getattr(crf, self.transitions)
        with torch.no_grad():
            weights.copy_(case.trans)
            for name in self.starts:  # scores of the first and the last label, which our chains do not have
                getattr(crf, name).zero_()
        for name in self.starts:
            getattr(crf, name).requires_grad_(False)
        if task == LOG_PARTITION:
            run = torch.no_grad()(lambda: self.log_partition(crf, case.unary, case.mask))
            return Prepared(run, lambda found: (found,))
        if task == VITERBI:
            run = torch.no_grad()(lambda: self.best(crf, case))
            return Prepared(run, lambda found: (padded(found, case.size[1]),))
        scores = case.unary.clone().requires_grad_()
        if task == NLL:

            def train() -> tuple[Tensor, ...]:
                scores.grad = weights.grad = None
                loss = -self.likelihood(crf, scores, case)
                loss.backward()
                return loss, scores.grad, weights.grad

            return Prepared(train, lambda found: tuple(one.detach() for one in found))
        weights.requires_grad_(False)

        def marginals() -> Tensor:
            return torch.autograd.grad(self.log_partition(crf, scores, case.mask).sum(), scores)[0]

        return Prepared(marginals, lambda found: (found,))


class PytorchCrf(_Crf):
    """pytorch-crf."""

    name, transitions, starts = "pytorch-crf", "transitions", ("start_transitions", "end_transitions")

    def module(self, labels: int) -> Any:
        from torchcrf import CRF

        return CRF(labels, batch_first=True)

    def log_partition(self, crf: Any, unary: Tensor, mask: Tensor) -> Tensor:
        return crf._compute_normalizer(unary.transpose(0, 1), mask.transpose(0, 1))

    def likelihood(self, crf: Any, unary: Tensor, case: Case) -> Tensor:
        return crf(unary, case.known, mask=case.mask, reduction="sum")

    def best(self, crf: Any, case: Case) -> list[list[int]]:
        return crf.decode(case.unary, mask=case.mask)


class TorchCrf(_Crf):
    """TorchCRF."""

    name, transitions, starts = "TorchCRF", "trans_matrix", ("start_trans", "end_trans")

    def module(self, labels: int) -> Any:
        from TorchCRF import CRF

        return CRF(labels, use_gpu=False)

    def log_partition(self, crf: Any, unary: Tensor, mask: Tensor) -> Tensor:
        return crf._compute_denominator_log_likelihood(unary, mask)

    def likelihood(self, crf: Any, unary: Tensor, case: Case) -> Tensor:
        return crf(unary, case.known, case.mask).sum()

    def best(self, crf: Any, case: Case) -> list[list[int]]:
        return crf.viterbi_decode(case.unary, case.mask)

"""energyml as its users call it: from bare scores, and through a compiled spec."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.exact.contestants import Prepared
from benchmarks.exact.sizes import DIRECT, LOG_PARTITION, MARGINALS, NLL, VITERBI, Case
from energyml.backends.exact import recursion
from energyml.backends.exact.potentials import Potentials

SPEC = """\
labels Tag = {{{labels}}}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y {{ unary: u, pair: W }}
infer {backend}
train nll {{ reduction: sum }}
"""


def chain_model(labels: int, backend: str, trans: Tensor) -> em.EnergyModel:
    """A compiled chain whose unaries are an input and whose transitions are a parameter."""
    names = ", ".join(f"L{index}" for index in range(labels))
    model = em.compile(SPEC.format(labels=names, backend=backend), seed=0).to(trans.dtype)
    with torch.no_grad():
        model.W.copy_(trans)
    return model


class Ours:
    """Scores in, answers out, as the peers have it: `em.functional`, or the torch recursion behind it alone."""

    kind, whole = "ours", True

    def __init__(self, engine: str = "auto") -> None:
        self.name = "energyml" if engine == "auto" else f"energyml ({engine})"
        self.native = engine == "auto"

    def prepare(self, case: Case, task: str) -> Prepared:
        trans, lengths, unary = case.trans.clone(), case.lengths, case.unary
        calls = em.functional if self.native else TorchPath
        if task == NLL:
            scores = unary.clone().requires_grad_()
            trans.requires_grad_()

            def train() -> tuple[Tensor, ...]:
                loss = -calls.chain_log_prob(scores, trans, case.gold, lengths).sum()
                return loss, *torch.autograd.grad(loss, (scores, trans))

            return Prepared(train, lambda found: tuple(one.detach() for one in found))
        if task == DIRECT:

            def direct() -> tuple[Tensor, ...]:
                loss, *slopes = em.functional.chain_nll_and_grad(unary, trans, case.gold, lengths)
                return loss.sum(), *slopes

            return Prepared(direct, lambda found: found)
        call = {LOG_PARTITION: calls.chain_log_partition, VITERBI: calls.chain_best, MARGINALS: calls.chain_marginals}[
            task
        ]

        def run() -> Any:  # the scores want no gradients, so that there is no tape
            return call(unary, trans, lengths)

        return Prepared(run, lambda found: (found[0],) if task == VITERBI else (found,))


class TorchPath:
    """The torch recursion under the names of `em.functional`."""

    @staticmethod
    def chain_log_partition(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> Tensor:
        return recursion.chain_log_partition(Potentials(unary, pair[None, None], lengths))

    @staticmethod
    def chain_log_prob(unary: Tensor, pair: Tensor, labels: Tensor, lengths: Tensor | None) -> Tensor:
        found = recursion.chain_likelihood(Potentials(unary, pair[None, None], lengths), labels)
        assert found is not None  # every cell has a label
        return found

    @staticmethod
    def chain_marginals(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> Tensor:
        return recursion.chain_marginals(Potentials(unary, pair[None, None], lengths), False)[0]

    @staticmethod
    def chain_best(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        labels, score = recursion.chain_best(Potentials(unary, pair[None, None], lengths), 1)
        return labels[:, 0], score[:, 0]


class Compiled:
    """A compiled spec: `model.infer(...)` and `model.loss(...)`, which check their arguments and add up the terms."""

    kind, whole = "ours", True

    def __init__(self, engine: str = "auto") -> None:
        self.name = "compiled spec" if engine == "auto" else f"compiled spec ({engine})"
        self.backend = "exact" if engine == "auto" else f"exact(engine: {engine})"

    def prepare(self, case: Case, task: str) -> Prepared:
        model = chain_model(case.size[2], self.backend, case.trans)
        given: dict[str, Any] = {} if case.lengths is None else {"lengths": case.lengths}
        unary = case.unary
        if task == NLL:
            scores = unary.clone().requires_grad_()

            def train() -> tuple[Tensor, ...]:
                scores.grad = model.W.grad = None
                loss = model.loss(u=scores, y=case.gold, **given)
                loss.backward()
                return loss, scores.grad, model.W.grad

            return Prepared(train, lambda found: tuple(one.detach() for one in found))

        @torch.no_grad()
        def log_partition() -> Tensor:
            return model.infer(u=unary, **given).log_partition

        @torch.no_grad()
        def best() -> Tensor:
            return model.infer(u=unary, **given).map().labels["y"]

        @torch.no_grad()
        def marginals() -> Tensor:
            return model.infer(u=unary, **given).marginals["y"]

        run = {LOG_PARTITION: log_partition, VITERBI: best, MARGINALS: marginals}[task]
        return Prepared(run, lambda found: (found,))

"""energyml as its users call it, and its engine called directly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.exact.contestants import Prepared, Refused
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, VITERBI, Case
from energyml.backends.exact.engines import ENGINES
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
    """The public interface: `model.infer(...)` and `model.loss(...)` of a compiled spec."""

    kind, whole = "ours", True

    def __init__(self, engine: str = "auto") -> None:
        self.name = "energyml" if engine == "auto" else f"energyml ({engine})"
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


class Direct:
    """The engine on potentials that are ready: what the public interface adds is the difference."""

    kind, whole = "ours", True

    def __init__(self, engine: str = "native") -> None:
        self.name, self.engine = f"engine {engine}", ENGINES[engine]

    def prepare(self, case: Case, task: str) -> Prepared:
        trans = case.trans.clone()
        if task in (NLL, MARGINALS):
            # the gradients of the log-partition: for the likelihood the gold labels' share is left out
            scores = case.unary.clone().requires_grad_()
            trans.requires_grad_(task == NLL)
            wanted = (scores, trans) if task == NLL else (scores,)

            def gradients() -> tuple[Tensor, ...]:
                total = self.engine.log_partition(Potentials(scores, trans[None, None], case.lengths)).sum()
                return total, *torch.autograd.grad(total, wanted)

            return Prepared(gradients, lambda found: tuple(one.detach() for one in found))
        potentials = Potentials(case.unary, trans[None, None], case.lengths)
        calls = {LOG_PARTITION: self.engine.log_partition, VITERBI: self.engine.best}
        if task not in calls:
            raise Refused(f"no direct call for {task}")
        call = calls[task]

        @torch.no_grad()
        def run() -> Any:
            return call(potentials)

        return Prepared(run, lambda found: (found,) if task == LOG_PARTITION else (found[0][:, 0],))

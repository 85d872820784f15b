"""Contestants, one file for each family of libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, TASKS, VITERBI, Case

AUTOGRAD, ANALYTIC, JAX, NATIVE = "PyTorch autograd", "PyTorch", "JAX", "C"


class Refused(Exception):
    """Why a contestant does not run a case."""


@dataclass(frozen=True)
class Prepared:
    """A task on a case, ready to be timed.

    Attributes:
        run: what is timed.
        read: turns what `run` returns into tensors that `check` can compare: log-partitions [B]; the loss, its
            gradients by the unaries [B, T, C] and by the transitions [C, C]; labels [B, T]; marginals [B, T, C].
    """

    run: Callable[[], Any]
    read: Callable[[Any], tuple[Tensor, ...]]


class Contestant(Protocol):
    """A library, seen through one interface.

    Attributes:
        name: as its users call it.
        kind: what it is made of.
        whole: whether the call does the whole task, from scores to answers; one that does less is shown beside the
            others and kept out of the comparison with the bars.
    """

    name: str
    kind: str
    whole: bool

    def prepare(self, case: Case, task: str) -> Prepared:
        """Make a task ready; raises `Refused` with the reason when the library cannot do it."""
        ...


# module -> classes; a module that cannot be imported is reported, and its classes are left out
PEERS = {
    "torch_crfs": ("PytorchCrf", "TorchCrf"),
    "torch_scans": ("TorchStruct", "Pyro"),
    "hmms": ("Pomegranate", "HmmlearnLog", "HmmlearnScaling"),
    "jax_peers": ("Dynamax", "DynamaxTwoFilter", "Synjax"),
    "crfsuite": ("CrfsuiteTag", "CrfsuiteViterbi"),
}


def peers(only: tuple[str, ...] = ()) -> tuple[list[Contestant], dict[str, str]]:
    """The peers that can be imported, and the reasons why others cannot."""
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for module, names in PEERS.items():
        try:
            loaded = importlib.import_module(f"benchmarks.exact.contestants.{module}")
        except ImportError as error:
            missing[module] = str(error)
            continue
        for name in names:
            try:
                made = getattr(loaded, name)()
            except ImportError as error:
                missing[name] = str(error)
                continue
            if not only or made.name in only:
                found.append(made)
    return found, missing


def check(case: Case, task: str, ours: tuple[Tensor, ...], peer: tuple[Tensor, ...], name: str) -> None:
    """Refuse a peer whose answer is not ours: it would not be the same task.

    Labels may differ where answers tie, so their scores are compared.
    """
    if task == VITERBI:
        ours, peer = (case.score(ours[0]),), (case.score(peer[0]),)
    # log-space peers lose digits with each position
    scale = max(1.0, case.unary.abs().max().item()) * max(1.0, case.size[1] / 100)
    tolerance = {LOG_PARTITION: 1e-4, NLL: 2e-3, VITERBI: 1e-4, MARGINALS: 1e-3}[task] * scale
    for mine, theirs in zip(ours, peer, strict=True):
        mine, theirs = mine.double(), theirs.double()
        allowed = tolerance + 1e-4 * mine.abs()
        if mine.shape != theirs.shape or not bool(((mine - theirs).abs() <= allowed).all()):
            worst = (mine - theirs).abs().max().item() if mine.shape == theirs.shape else float("nan")
            raise Refused(f"{name} disagrees by {worst:.3g} on {task}")


def gold_statistics(case: Case) -> tuple[Tensor, Tensor]:
    """What the gold labels subtract from expectations: indicators [B, T, C] and counts of pairs [C, C]."""
    cells = torch.nn.functional.one_hot(case.known, case.size[2]).to(case.unary.dtype) * case.mask[..., None]
    counts = torch.zeros_like(case.trans)
    both = case.mask[:, 1:]
    pairs = case.known[:, :-1][both], case.known[:, 1:][both]
    return cells, counts.index_put(pairs, torch.ones((), dtype=counts.dtype), accumulate=True)


__all__ = [
    "ANALYTIC", "AUTOGRAD", "JAX", "NATIVE", "TASKS", "Contestant", "Prepared", "Refused", "check", "gold_statistics",
    "peers",
]  # fmt: skip

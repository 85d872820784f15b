"""Engines for first-order chains: the native kernels, the torch recursion, and torch-struct.

All of them give the same answers; `auto` takes the native kernels where they apply and the torch recursion elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import (
    chain_answers,
    chain_best,
    chain_likelihood,
    chain_log_partition,
    chain_marginals,
    log_partition_of,
)
from energyml.backends.exact.struct_engine import struct_log_partition
from energyml.diagnostics import EnergyError
from energyml.native import available
from energyml.native import chain as native


@dataclass(frozen=True)
class Engine:
    """What an engine computes.

    Attributes:
        log_partition: [B], differentiable twice.
        best: the best answer as labels [B, 1, T] and its score [B, 1], -1 and -inf where there is none.
        marginals: those of cells [B, T, C] and, when asked for, of steps [B, T-1, C, C], differentiable twice; `None`
            where the log-partition has to be differentiated for them.
        likelihood: [B] the log-probability of labels [B, T] of all cells, differentiable twice; `None` where it takes
            two log-partitions, as for labels of only some cells.
        doubled: whether it is handed scores in double precision, whatever they are: one that takes its answers from
            differences of large sums keeps the digits of single precision then.
    """

    log_partition: Callable[[Potentials], Tensor]
    best: Callable[[Potentials], tuple[Tensor, Tensor]]
    marginals: Callable[[Potentials, bool], tuple[Tensor, Tensor | None] | None] = lambda potentials, pairs: None
    likelihood: Callable[[Potentials, Tensor], Tensor | None] = lambda potentials, labels: None
    doubled: bool = False


def _applies(potentials: Potentials) -> bool:
    return native.serves(potentials.scores, potentials.steps)


def _demanded(potentials: Potentials) -> Potentials:
    """Potentials that the kernels serve; says why they cannot, where they cannot."""
    if not available:
        raise EnergyError("the native kernels are not built; `exact(engine: torch)` gives the same answers")
    if not _applies(potentials):
        raise EnergyError(
            "the native kernels serve chains on the CPU, in float32 or float64, outside of transforms and recorded "
            "programs; `exact(engine: auto)` takes the torch recursion where they do not"
        )
    return potentials


def _native_log_partition(potentials: Potentials) -> Tensor:
    found = native.log_partition(potentials.scores, potentials.steps, potentials.count, log_partition_of)
    assert found is not None
    return found


def _native_marginals(potentials: Potentials, pairs: bool) -> tuple[Tensor, Tensor | None] | None:
    if potentials.tracked:
        return native.tracked_marginals(potentials.scores, potentials.steps, potentials.count, log_partition_of)
    return native.marginals(potentials.scores, potentials.steps, potentials.count, pairs)


def _torch_marginals(potentials: Potentials, pairs: bool) -> tuple[Tensor, Tensor | None] | None:
    return None if potentials.tracked else chain_marginals(potentials, pairs)


def _native_likelihood(potentials: Potentials, labels: Tensor) -> Tensor | None:
    return native.log_likelihood(potentials.scores, potentials.steps, potentials.count, labels, log_partition_of)


def _native_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    found = native.viterbi(potentials.scores, potentials.steps, potentials.count)
    assert found is not None
    labels, score = found
    if potentials.tracked:
        return chain_answers(potentials, labels.unsqueeze(1), score.unsqueeze(1))
    return labels.unsqueeze(1), score.unsqueeze(1)


def _torch_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    return chain_best(potentials, 1)


def _auto_log_partition(potentials: Potentials) -> Tensor:
    found = native.log_partition(potentials.scores, potentials.steps, potentials.count, log_partition_of)
    return chain_log_partition(potentials) if found is None else found


def _auto_marginals(potentials: Potentials, pairs: bool) -> tuple[Tensor, Tensor | None] | None:
    return _native_marginals(potentials, pairs) if _applies(potentials) else _torch_marginals(potentials, pairs)


def _auto_likelihood(potentials: Potentials, labels: Tensor) -> Tensor | None:
    return _native_likelihood(potentials, labels) if _applies(potentials) else chain_likelihood(potentials, labels)


def _auto_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    return _native_best(potentials) if _applies(potentials) else _torch_best(potentials)


ENGINES: dict[str, Engine] = {
    "auto": Engine(_auto_log_partition, _auto_best, _auto_marginals, _auto_likelihood),
    "native": Engine(
        lambda potentials: _native_log_partition(_demanded(potentials)),
        lambda potentials: _native_best(_demanded(potentials)),
        lambda potentials, pairs: _native_marginals(_demanded(potentials), pairs),
        lambda potentials, labels: _native_likelihood(_demanded(potentials), labels),
    ),
    "torch": Engine(chain_log_partition, _torch_best, _torch_marginals, chain_likelihood),
    "torch_struct": Engine(struct_log_partition, _torch_best, doubled=True),
}

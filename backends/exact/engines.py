"""Engines for first-order chains: the native kernels, the torch recursion, and torch-struct.

All of them give the same answers; `auto` takes the native kernels where they apply and the torch recursion elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_answers, chain_best, chain_log_partition
from energyml.backends.exact.struct_engine import struct_log_partition
from energyml.backends.native import available
from energyml.backends.native import chain as native
from energyml.diagnostics import EnergyError


@dataclass(frozen=True)
class Engine:
    """What an engine computes.

    Attributes:
        log_partition: [B], differentiable twice.
        best: the best answer as labels [B, 1, T] and its score [B, 1], -1 and -inf where there is none.
    """

    log_partition: Callable[[Potentials], Tensor]
    best: Callable[[Potentials], tuple[Tensor, Tensor]]


def _applies(potentials: Potentials) -> bool:
    return potentials.steps.shape[:2] == (1, 1) and native.serves(potentials.scores, potentials.steps)


def _demanded(potentials: Potentials) -> Tensor:
    """The shared pair scores that the kernels need, or the reason why they cannot serve."""
    if not available:
        raise EnergyError("the native kernels are not built; `exact(engine: torch)` gives the same answers")
    if not _applies(potentials):
        raise EnergyError(
            "the native kernels serve chains on the CPU, in float32 or float64, whose pair scores are the same at each "
            "step; `exact(engine: auto)` takes the torch recursion where they do not"
        )
    assert potentials.shared is not None
    return potentials.shared


def _native_log_partition(potentials: Potentials) -> Tensor:
    return native.log_partition(potentials.scores, _demanded(potentials), potentials.count)


def _native_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    labels, score = native.viterbi(potentials.scores, _demanded(potentials), potentials.count)
    return chain_answers(potentials, labels.unsqueeze(1), score.unsqueeze(1))


def _torch_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    return chain_best(potentials, 1)


def _auto_log_partition(potentials: Potentials) -> Tensor:
    if not _applies(potentials):
        return chain_log_partition(potentials)
    return native.log_partition(potentials.scores, potentials.steps.flatten(0, 2), potentials.count)


def _auto_best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    return _native_best(potentials) if _applies(potentials) else _torch_best(potentials)


ENGINES: dict[str, Engine] = {
    "auto": Engine(_auto_log_partition, _auto_best),
    "native": Engine(_native_log_partition, _native_best),
    "torch": Engine(chain_log_partition, _torch_best),
    "torch_struct": Engine(struct_log_partition, _torch_best),
}

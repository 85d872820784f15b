"""Contestants, one file for each library, all behind one interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from benchmarks.mcmc.cases import Case


class Refused(Exception):
    """Why a contestant does not run a case."""


@dataclass(frozen=True)
class Prepared:
    """A sampler on a case, compiled and burnt in.

    Attributes:
        chains: how many chains run.
        sweep: makes a number of sweeps of all chains, and keeps nothing.
        draw: makes a number of sweeps, and returns [chains, sweeps, 2] the score and the mean label after each.
        labels: [chains, cells] where the chains stand.
        cells: how many cells a chain has here; less than the case where a library does not get that far.
    """

    chains: int
    sweep: Callable[[int], object]
    draw: Callable[[int], np.ndarray]
    labels: Callable[[], Tensor]
    cells: int


class Contestant(Protocol):
    """A library.

    Attributes:
        name: as its users call it.
        chains: by case: the numbers of chains that are tried; the fastest one counts.
        sweeps: by case: sweeps of one call when it is timed.
    """

    name: str
    chains: dict[str, tuple[int, ...]]
    sweeps: dict[str, int]

    def prepare(self, case: Case, chains: int) -> Prepared:
        """Make a case ready; raises `Refused` with the reason when the library cannot do it."""
        ...


# module -> classes; a module that cannot be imported is reported, and its classes are left out
PEERS = {"thrml_peer": ("Thrml",), "numpyro_peer": ("Numpyro",), "pgmpy_peer": ("Pgmpy",), "pgmax_peer": ("Pgmax",)}


def peers(only: tuple[str, ...] = ()) -> tuple[list[Contestant], dict[str, str]]:
    """The peers that can be imported, and the reasons why others cannot."""
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for module, names in PEERS.items():
        try:
            loaded = importlib.import_module(f"benchmarks.mcmc.contestants.{module}")
        except ImportError as error:
            missing[module.removesuffix("_peer")] = str(error)
            continue
        found += [made for made in (getattr(loaded, name)() for name in names) if not only or made.name in only]
    return found, missing


__all__ = ["Contestant", "Prepared", "Refused", "peers"]

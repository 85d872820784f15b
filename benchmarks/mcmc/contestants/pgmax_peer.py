"""PGMax: belief propagation and dual decomposition in JAX; it has no sampler of answers."""

from __future__ import annotations

import pgmax.infer

from benchmarks.mcmc.cases import Case
from benchmarks.mcmc.contestants import Prepared, Refused


class Pgmax:
    """Refuses, and says why."""

    name = "PGMax"

    def __init__(self) -> None:
        self.chains: dict[str, tuple[int, ...]] = {"ising": (1,), "chain": (1,)}
        self.sweeps = {"ising": 1, "chain": 1}

    def prepare(self, case: Case, chains: int) -> Prepared:
        """There is nothing to prepare."""
        offers = ", ".join(sorted(name for name in ("bp", "dual_lp") if hasattr(pgmax.infer, name)))
        raise Refused(f"it has no sampler: `pgmax.infer` offers {offers or 'inference'} only")

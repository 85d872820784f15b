"""The backends of Gaussian fields: conjugate gradients (`cg`), and the direct methods behind `exact`."""

from __future__ import annotations

from collections.abc import Sequence

from energyml.backend import Backend, Session
from energyml.backends.gaussian.iterative import Settings
from energyml.backends.gaussian.methods import Policy
from energyml.backends.gaussian.session import FieldSession
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.diagnostics import EnergyError
from energyml.ir.graph import Graph
from energyml.native import fields as kernels
from energyml.plan.structure import Structure


class ConjugateGradients(Backend):
    """Solves by conjugate gradients; determinants and variances are estimates with their errors."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Read the options."""
        chosen = self.selection
        settings = Settings(
            tol=float(chosen["tol"]),
            gradient_tol=None if chosen["gradient_tol"] is None else float(chosen["gradient_tol"]),
            iterations=int(chosen["iterations"]),
            preconditioner=str(chosen["preconditioner"]),
            probes=int(chosen["probes"]),
            seed=int(chosen["seed"]),
            native=chosen["engine"] != "torch",
        )
        self.policy = Policy(iterative=True, budget=0.0, settings=settings)

    def open(self, problem: Problem) -> Session:
        """Nothing is computed before a query asks."""
        return FieldSession(problem, self.policy)


class DirectMethods(Backend):
    """Exact answers for models of fields; what no direct method can hold is solved by conjugate gradients."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Read the options of `exact`."""
        if self.selection["engine"] == "native" and kernels is None:
            raise EnergyError("the native kernels are not built; `exact(engine: torch)` gives the same answers")
        budget = float(self.selection["memory"]) * (1 << 20)
        settings = Settings(native=self.selection["engine"] != "torch")
        self.policy = Policy(iterative=False, budget=budget, settings=settings)

    def open(self, problem: Problem) -> Session:
        """Nothing is computed before a query asks."""
        return FieldSession(problem, self.policy)


__all__ = ["ConjugateGradients", "DirectMethods"]

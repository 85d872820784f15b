"""The base of bound terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.finite import Finite
from energyml.bind.gains import Normalised
from energyml.bind.tensors import Environment
from energyml.diagnostics import EnergyError
from energyml.ir.graph import Graph, Term
from energyml.queries import View

Labels: TypeAlias = Mapping[str, Tensor]
# The score [B * copies] of relaxed answers, with all that does not depend on them computed.
Softened: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass
class BoundTerm(ABC):
    """A term, and the score of full answers.

    Attributes:
        term: the term of the graph.
        graph: the model.
        finite: refuses scores that are NaN or +inf; set where terms are bound.
    """

    term: Term
    graph: Graph
    finite: Finite = field(init=False, repr=False, compare=False)

    @property
    def views(self) -> frozenset[View]:
        """The views that it offers."""
        return self.term.views

    def valid(self, batch: Batch) -> Tensor | None:
        """[B or 1, *domain]: which elements of its index set exist in a batch; `None` when all do."""
        return None

    @property
    def end(self) -> tuple[str, int] | None:
        """The variable whose length it decides and the label that ends it, for a sequence with an end label."""
        return None

    @abstractmethod
    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: the term's score of full answers.

        Args:
            env: the batch of B examples.
            answer: labels [B * copies, *dims] by variable, in the caller's positions, -1 where there is no cell; the
                copies of an example stand together.
            copies: how many answers each example has.
            dtype: a wider type to add up in, and of the scores.

        Returns:
            Scores [B * copies].
        """

    def soft(
        self, env: Environment, answer: Mapping[str, Tensor], copies: int = 1, *, penalty: float | None = None
    ) -> Tensor:
        """SOFT: the term's score of relaxed answers, which equals `score` where every vector is one-hot.

        Args:
            env: the batch of B examples.
            answer: by variable: probability vectors [B * copies, *dims, labels] in the caller's positions, zero vectors
                where there is no cell; the copies of an example stand together.  Fields are taken as they are.
            copies: how many answers each example has.
            penalty: what the probability of forbidden joint labels costs; -inf as soon as there is any when `None`.

        Returns:
            Scores [B * copies], differentiable in the vectors and the parameters.
        """
        return self.softened(env, copies, penalty)(answer)

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT as a function of the answer alone, for iterations: tables are made once.  Arguments as in `soft`."""
        raise EnergyError(f"the term `{self.term.name}` ({self.term.kind}) has no score of relaxed labels")

    def scaled(self, env: Environment, value: Tensor) -> Tensor:
        """A value [B or 1, ...] times the term's gain, where balance has set one; what is forbidden stays forbidden."""
        gain = env.gains.get(self.term.gain)
        if gain is None or self.term.is_hard:
            return value
        factor = gain.of(env).reshape(-1, *([1] * (value.dim() - 1))) if isinstance(gain, Normalised) else gain
        return torch.where(value.isneginf(), value, value * factor)

    def weight(self, env: Environment) -> tuple[Tensor, Tensor]:
        """[B], [B]: the sum of the magnitudes of its potentials before any gain, and how many there are."""
        raise EnergyError(f"balance weighs potentials, and the term `{self.term.name}` ({self.term.kind}) has none")

    def label_count(self, variable: str) -> int:
        """How many labels a variable's cells may take."""
        return len(self.graph.label_sets[self.graph.variables[variable].type.element].labels or ())

"""Sessions of variational backends: probabilities of the cells and factors of one batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.problem import Evidence
from energyml.bind.views import TableView
from energyml.execution import is_host_readable
from energyml.grounded.ascent import Product
from energyml.grounded.factors import embedded
from energyml.grounded.logspace import difference
from energyml.grounded.schedule import take
from energyml.inference.expectations import factored_expectation
from energyml.inference.grounded import GroundedSession
from energyml.queries import Query

# A difference of two scores of this share of their size is no rounding.
VISIBLE = 1e-4


class VariationalSession(GroundedSession):
    """One batch with probabilities of its cells and factors; arguments as in `GroundedSession`."""

    @abstractmethod
    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: the log-partition, or what stands for it, under some evidence."""

    @abstractmethod
    def cell_probabilities(self) -> Product:
        """By variable: [R, N, labels]."""

    @abstractmethod
    def factor_probabilities(self, number: int) -> Tensor:
        """[R, E, *labels]: of the factors of a block."""

    def improbable(self, value: Tensor) -> tuple[bool, str] | None:
        """A status where log-probabilities [B] are above 0; `None` also where nothing can be looked at."""
        if not is_host_readable(value):
            return None
        size = self._log_partition(Query("log_partition")).detach().abs()
        if not bool((value.detach() > VISIBLE * (1 + size)).any()):
            return None
        # Without numbers that differ from call to call, so that it warns once.
        return False, (
            f"`{self.name}` gives an answer a probability above 1, and so a negative loss: its log Z is below that "
            "answer's score, which means that sweeps ended far from the optimum; raise `steps`, write -inf for what "
            "is forbidden, or ask another backend, such as `exact` or `trw`"
        )

    def _log_partition(self, query: Query) -> Tensor:
        value: Tensor = self.once("log_z", lambda: self.log_z(self.problem.evidence))
        return value

    def _log_prob(self, query: Query) -> Tensor:
        """What stands for the log-partition of the answers that agree, less that of all.

        A full answer's is its score: less a lower bound of log Z this is an upper bound of log p, less an upper bound
        a lower one.  For a partial answer both are approximations, and the difference is an estimate.
        """
        total = self._log_partition(query)
        if self._whole(query.answer):
            score = self.problem.score(query.answer)
            return difference(score.masked_fill(self._contradicts(query.answer), float("-inf")), total)
        agreeing = self.log_z(self.problem.known(query.answer))
        return difference(agreeing, total.masked_fill(total.isneginf(), 0))

    def _whole(self, answer: Mapping[str, Tensor]) -> bool:
        """Whether an answer has a label for every cell; on an accelerator it is not looked at."""
        if self.graph.device.type != "cpu" or set(answer) != set(self.graph.variables):
            return False
        if not all(map(is_host_readable, answer.values())):
            return False
        for name, labels in answer.items():
            cells = self.graph.batch.cells(name, self.graph.dims[name])
            if not bool(((labels >= 0) if cells is None else (labels >= 0) | ~cells).all()):
                return False
        return True

    def _contradicts(self, answer: Mapping[str, Tensor]) -> Tensor:
        """[B]: whether an answer with a label for every cell has one that the evidence rules out."""
        broken = torch.zeros(self.graph.batch.size, dtype=torch.bool, device=self.graph.device)
        for name, allowed in self.problem.evidence.allowed.items():
            labels, cells = answer[name], self.graph.batch.cells(name, self.graph.dims[name])
            out = ~allowed.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            out = out if cells is None else out & cells
            broken = broken | out.reshape(len(broken), -1).any(1)
        return broken

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels]; zero where there is no cell, and for examples without any answer."""
        found = {}
        for name, p in self.cell_probabilities().items():
            found[name] = self._possible(self.graph.outward(name, p, 0.0))
        return found

    def _possible(self, values: Tensor) -> Tensor:
        """Probabilities [B, ...], zero for examples in which some cell has no label left."""
        impossible = self.potentials.impossible
        return values.masked_fill(impossible.reshape(-1, *([1] * (values.dim() - 1))), 0.0)

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each term; zero where an element of its index set does not exist."""
        return {
            term.term.name: self._possible(self._term_marginals(term))
            for term in self.terms
            if query.target in (None, term.term.name)
        }

    def _term_marginals(self, term: TableView) -> Tensor:
        graph, domain = self.graph, term.domain_sizes(self.graph.batch)
        cells = self.cell_probabilities()
        if len(term.term.scope) == 1:
            index, valid = graph.cells_of(term)
            p = cells[term.term.scope[0].variable]
            p = p.reshape(graph.batch.size, p.numel() // max(1, graph.batch.size * p.shape[-1]), p.shape[-1])
            if not p.shape[1]:
                return p.new_zeros(p.shape[0], *domain, p.shape[2])
            found = p.gather(1, index.unsqueeze(-1).expand(p.shape[0], -1, p.shape[2]))
            if valid is not None:
                found = torch.where(valid.unsqueeze(-1), found, 0)
            return found.reshape(p.shape[0], *domain, p.shape[2])
        parts = {}
        for number, (block, part) in enumerate(graph.parts(term)):
            if len(block.variables) == 1:
                joint = take(cells[block.variables[0]], graph.placed(block.scope).squeeze(1))
            else:
                joint = self.factor_probabilities(graph.skeleton.blocks.index(block))
            parts[number] = embedded(part, joint)
        return graph.spread_factors(term, parts)

    def _expectation(self, query: Query) -> Tensor:
        factors = self._factor_marginals(Query("factor_marginals"))
        return factored_expectation(query.values, self._marginals(Query("marginals")), factors)

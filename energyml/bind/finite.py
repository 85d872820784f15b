"""Refuses potentials that are NaN or +inf, before a backend reads them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from energyml.bind.batch import accumulated
from energyml.bind.inputs import data_error
from energyml.bind.tensors import Environment
from energyml.diagnostics import Source
from energyml.ir.expressions import parts_of
from energyml.ir.graph import Graph, Term
from energyml.model.expression import Apply, At, Potential, Reference
from energyml.transforms import recorded, seen

Exists: TypeAlias = Callable[[], "Tensor | None"]


def _all() -> None:
    """Every element exists."""


@dataclass
class Origin:
    """The origin of a term's scores.

    Attributes:
        nets: the networks that they are computed by.
        params: the parameters that they read.
        computed: whether there is a network or arithmetic on the way; entries of one tensor are not computed.
    """

    nets: list[str] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    computed: bool = False

    @staticmethod
    def of(term: Term, graph: Graph) -> Origin:
        """That of all expressions of a term, its named tensors included."""
        found, net = Origin(), getattr(term.body, "net", None)
        for part in parts_of(term.expressions(), graph):
            if isinstance(part, Reference) and part.kind == "param":
                found.params.append(part.name)
            if isinstance(part, Apply):
                found.nets.append(part.net)
            if not isinstance(part, Reference | At | Potential):
                found.computed = True
        if net is not None:
            found.nets.append(net)
        found.nets, found.params = list(dict.fromkeys(found.nets)), list(dict.fromkeys(found.params))
        found.computed = found.computed or bool(found.nets)
        return found

    def __str__(self) -> str:
        names = [*(f"the network `{one}`" for one in self.nets), *(f"the parameter `{one}`" for one in self.params)]
        return " and ".join(names) or "the inputs"


class Finite:
    """Checks the scores of one term; -inf is a legal score.

    Inputs are checked when a batch is made, parameters once for each of their versions, computed scores once for each
    batch.  On an accelerator the host would have to wait: there the check is noted with the batch, and the status of
    an answer makes it when it is read.

    Args:
        term: whose scores they are.
        graph: the model.
        source: the spec, for messages.

    Cost: a sum over the scores.
    """

    def __init__(self, term: Term, graph: Graph, source: Source) -> None:
        self.term, self.source, self.origin = term, source, Origin.of(term, graph)
        self._fine: dict[str, tuple[weakref.ref[Tensor], int, int]] = {}

    def check(self, env: Environment, scores: Tensor, exists: Exists = _all) -> None:
        """Refuse the scores of a batch.

        Args:
            env: the batch.
            scores: [B or 1, ...].
            exists: gives a bool tensor over the leading axes of the scores, or `None` for all: elements that do not
                exist may hold anything.
        """
        if self.origin.computed:
            if self.term.name not in env.examined:
                self.check_now(env, scores, exists)
                env.examined.add(self.term.name)
        else:
            self._check_parameters(env)

    def check_now(self, env: Environment, scores: Tensor, exists: Exists = _all) -> None:
        """As `check`, however often the term has been looked at: for scores that depend on an answer."""
        if seen(scores):
            self._refuse(self._problem(env.batch.size, scores, exists))
        elif not recorded() and not scores.is_meta:
            size = env.batch.size
            env.unseen.append(lambda: self._told(size, scores, exists))

    def _check_parameters(self, env: Environment) -> None:
        """Refuse parameters whose entries are the scores."""
        for name in () if self.origin.computed else self.origin.params:
            parameter = env.module._parameters[name]
            assert parameter is not None
            if not seen(parameter):
                if self.term.name not in env.examined:
                    env.examined.add(self.term.name)
                    self.check_now(env, parameter.unsqueeze(0))
                continue
            known = None if parameter.is_inference() else self._fine.get(name)
            version = () if known is None else (parameter._version, parameter.data_ptr())
            if known is not None and known[0]() is parameter and known[1:] == version:
                continue
            self._refuse(self._problem(env.batch.size, parameter.unsqueeze(0), _all))
            if not parameter.is_inference():
                self._fine[name] = weakref.ref(parameter), parameter._version, parameter.data_ptr()

    def _refuse(self, problem: dict[str, str] | None) -> None:
        if problem is not None:
            raise data_error(self.source, "E0515", self.term.span, **problem)

    def _problem(self, size: int, scores: Tensor, exists: Exists) -> dict[str, str] | None:
        """The facts about a number that is no score, in a batch of some size; `None` where all are scores."""
        total = scores.detach().sum(dtype=accumulated(scores.dtype))
        if float(total) < math.inf:  # -inf takes part; NaN, +inf and a sum that overflows do not pass
            return None
        bad = scores.isnan() | scores.isposinf()
        real = exists()
        if real is not None:
            bad = bad & real.reshape(*real.shape, *([1] * (bad.dim() - real.dim())))
        if not bool(bad.any()):
            return None
        spot = bad.nonzero()[0].tolist()
        shared = "every example" if size > 1 else "the example"
        value = scores.detach().expand(bad.shape)[tuple(spot)]
        return {
            "term": self.term.name,
            "value": "NaN" if math.isnan(float(value)) else "inf",
            "where": shared if bad.shape[0] == 1 else f"example {spot[0]}",
            "place": str(spot[1:]),
            "origin": str(self.origin),
        }

    def _told(self, size: int, scores: Tensor, exists: Exists) -> str | None:
        problem = self._problem(size, scores, exists)
        if problem is None:
            return None
        return (
            f"the scores of `{problem['term']}` hold {problem['value']} in {problem['where']}, at {problem['place']}; "
            f"they come from {problem['origin']}"
        )


__all__ = ["Finite", "Origin"]

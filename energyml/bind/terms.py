"""Bound terms: each term of the graph with tensors behind its views.

Backends ask a bound term for a view and never for the kind of its body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from energyml.bind.bound import BoundTerm, Labels
from energyml.bind.fields import LinearTerm, QuadraticTerm
from energyml.bind.finite import Finite
from energyml.bind.tables import TableTerm, factor_table, forbidden_table, scheme_table
from energyml.bind.tensors import Compiler
from energyml.bind.whole import BlackBoxTerm, MaskedTerm, StepwiseTerm
from energyml.ir.graph import (
    BlackBox,
    Forbidden,
    Graph,
    Linear,
    MaskedEnergy,
    Quadratic,
    SchemeRule,
    Stepwise,
    Table,
    Term,
)


def bind_term(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    """The bound term of a term; the one place that knows which tensors stand behind which kind of body."""
    made = _BINDERS[term.kind](term, graph, compiler)
    made.finite = Finite(term, graph, compiler.source)
    return made


def _table(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("Table", term.body)
    return TableTerm(term, graph, lambda over: factor_table(term, body, graph, compiler, over))


def _forbid(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return TableTerm(term, graph, lambda _: forbidden_table(term, cast("Forbidden", term.body), graph))


def _scheme(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return TableTerm(term, graph, lambda _: scheme_table(term, cast("SchemeRule", term.body), graph))


def _stepwise(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return StepwiseTerm(term, graph, cast("Stepwise", term.body), [compiler.plain(one) for one in term.expressions()])


def _masked(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return MaskedTerm(term, graph, cast("MaskedEnergy", term.body), [compiler.plain(one) for one in term.expressions()])


def _black_box(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("BlackBox", term.body)
    return BlackBoxTerm(term, graph, body, compiler.plain(body.value))


def _linear(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("Linear", term.body)
    return LinearTerm(term, graph, body.field, compiler.plain(body.value))


def _quadratic(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return QuadraticTerm(term, graph, cast("Quadratic", term.body), compiler)


_BINDERS: dict[str, Callable[[Term, Graph, Compiler], BoundTerm]] = {
    "table": _table,
    "forbid": _forbid,
    "scheme": _scheme,
    "stepwise": _stepwise,
    "masked": _masked,
    "black box": _black_box,
    "linear": _linear,
    "quadratic": _quadratic,
}

__all__ = ["BoundTerm", "Labels", "TableTerm", "bind_term"]

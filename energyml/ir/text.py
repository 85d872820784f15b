"""The text form of a graph: the language's own declarations, then one line a term.

    graph 1
    labels Tag = {O, B, I}
    dim T
    output y : Tag[T]
    param W : real[from: Tag, to: Tag]
    term y.pair : table [t in T-1] (from: y[t], to: y[t+1]) = W

Printing and parsing are inverse: `parse_graph(print_graph(graph)) == graph`.  Label sets that come from data or from a
network are written as such, whether or not binding has filled them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from energyml.cards.options import show_free
from energyml.ir.graph import (
    BlackBox,
    Body,
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
from energyml.ir.reader import VERSION, parse_graph
from energyml.model.declared import Dim, LabelSet, Net, Param, Variable
from energyml.model.expression import Expression
from energyml.syntax import spelling

SHORTEST_RANGE = 3


def print_graph(graph: Graph) -> str:
    """The graph as text; linear in its size."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {VERSION}"
    yield from map(print_labels, graph.label_sets.values())
    yield from map(print_dim, graph.dims.values())
    for given in graph.inputs.values():
        yield f"input {given.name} : {given.type}"
    yield from map(print_variable, graph.variables.values())
    yield from map(print_net, graph.nets.values())
    yield from map(print_param, graph.params.values())
    for let in graph.lets.values():
        yield f"let {let.name} = {let.value}"
    yield from map(print_term, graph.terms)


# --------------------------------------------------------------------------------------------------------- declarations


def print_labels(labels: LabelSet) -> str:
    """`labels Tag = {O, B}`, `labels Letter = 'a'..'z'` or `labels Word from data(min: 2)`."""
    if labels.source != "given" or labels.labels is None:
        given = ", ".join(f"{key}: {show_free(value)}" for key, value in labels.options.items())
        return f"labels {labels.name} from {labels.source}{f'({given})' if given else ''}"
    if _is_range(labels.labels):
        first, last = labels.labels[0], labels.labels[-1]
        return f"labels {labels.name} = {spelling.quoted(first)}..{spelling.quoted(last)}"
    return f"labels {labels.name} = {{{', '.join(map(spelling.label, labels.labels))}}}"


def _is_range(labels: tuple[str, ...]) -> bool:
    """Whether the labels are single characters without a gap, and the ends can be written."""
    if len(labels) < SHORTEST_RANGE or any(len(label) != 1 for label in labels):
        return False
    first = ord(labels[0])
    in_order = all(ord(label) == first + place for place, label in enumerate(labels))
    return in_order and spelling.has_spelling(labels[0]) and spelling.has_spelling(labels[-1])


def print_dim(dim: Dim) -> str:
    """`dim T`, `dim K = 32`, `dim T free <= 60` or `dim M[T]`."""
    forms = {"observed": "", "fixed": f" = {dim.size}", "free": f" free <= {dim.size}", "nested": f"[{dim.within}]"}
    return f"dim {dim.name}{forms[dim.kind]}"


def print_variable(variable: Variable) -> str:
    """`output y : Tag[T]`, with its read-out."""
    text = f"{variable.kind} {variable.name} : {variable.type}"
    readout = variable.readout
    return text if readout is None else f"{text} = argmax {readout.field} over {readout.over}"


def print_net(net: Net) -> str:
    """`net cnn = lenet5(out: Letter)`, with its declared type."""
    declared = f" : {net.declared}" if net.declared is not None else ""
    chosen = str(net.selection)
    return f"net {net.name}{declared} = {chosen if net.selection.options else chosen + '()'}"


def print_param(param: Param) -> str:
    """`param W : real[Tag] = normal(std: 0.1)`."""
    initial = f" = {param.initial}" if param.initial is not None else ""
    return f"param {param.name} : {param.type}{initial}"


# ---------------------------------------------------------------------------------------------------------------- terms


def print_term(term: Term) -> str:
    """`term NAME : KIND ...`, with its gain where that is not its name."""
    gain = f" gain {term.gain}" if term.gain != term.name else ""
    return f"term {term.name} : {_body(term, term.body)}{gain}"


def _body(term: Term, body: Body) -> str:
    match body:
        case Table(value=value):
            return f"table {_domain(term)}({', '.join(map(str, term.scope))}) = {value}"
        case BlackBox(variables=variables, value=value):
            return f"black_box ({', '.join(variables)}) = {value}"
        case Forbidden(conditions=conditions):
            return f"forbid {_domain(term)}{' and '.join(map(str, conditions))}"
        case SchemeRule(scheme=scheme, part=part):
            return f"scheme {term.scope[0].variable} {scheme} {part}"
        case Linear(field=field, value=value):
            return f"linear {field} = {value}"
        case Quadratic():
            pair = {"pair": " + ".join(map(str, body.couplings))} if body.couplings else {}
            bounded = "true" if body.bounded else "false"
            return f"quadratic {body.field} {_block(pair | {'ridge': str(body.ridge), 'bounded': bounded})}"
        case Stepwise():
            end = {"end": spelling.quoted(body.end)} if body.end is not None else {}
            options = {"step": body.net} | _given(body.given) | {"normalize": body.normalize} | end
            return f"stepwise {body.variable} {_block(options)}"
        case MaskedEnergy():
            options = {"conditionals": body.net} | _given(body.given) | {"energy": body.energy}
            return f"masked {body.variable} {_block(options)}"


def _domain(term: Term) -> str:
    return f"[{', '.join(map(str, term.domain))}] " if term.domain else ""


def _given(given: tuple[Expression, ...]) -> dict[str, str]:
    if len(given) < 2:
        return {"given": str(given[0])} if given else {}
    return {"given": _block({f"part{number}": str(one) for number, one in enumerate(given, start=1)})}


def _block(options: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key}: {value}" for key, value in options.items()) + " }"


__all__ = [
    "VERSION",
    "parse_graph",
    "print_dim",
    "print_graph",
    "print_labels",
    "print_net",
    "print_param",
    "print_term",
    "print_variable",
]

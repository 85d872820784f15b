"""The checked model as text: every declaration with its type; terms after desugaring are left to the IR's printer."""

from __future__ import annotations

from collections.abc import Iterator

from energyml.model.declared import (
    Chain,
    CheckedModel,
    CheckedTerm,
    Dim,
    Factor,
    Forbid,
    Gaussian,
    LabelSet,
    Masked,
    Scheme,
    Score,
    Sequence,
)

_MOST_LABELS = 12


def show_model(model: CheckedModel) -> str:
    """One line a declaration, term or choice (`energyml explain --stage model`)."""
    return "\n".join(_lines(model))


def _lines(model: CheckedModel) -> Iterator[str]:
    for labels in model.label_sets.values():
        yield f"labels {labels.name} = {show_labels(labels)}"
    for dim in model.dims.values():
        yield f"dim {show_dim(dim)}"
    for given in model.inputs.values():
        yield f"input {given.name} : {given.type}"
    for variable in model.variables.values():
        readout = f" = argmax {variable.readout.field} over {variable.readout.over}" if variable.readout else ""
        yield f"{variable.kind} {variable.name} : {variable.type}{readout}"
    for net in model.nets.values():
        declared = f" : {net.declared}" if net.declared else ""
        yield f"net {net.name}{declared} = {net.selection}  ({net.role})"
    for param in model.params.values():
        yield f"param {param.name} : {param.type}" + (f" = {param.initial}" if param.initial else "")
    for let in model.lets.values():
        yield f"let {let.name} = {let.value} : {let.value.type}"
    for term in model.terms:
        yield show_term(term)
    yield from _choices(model)


def show_labels(labels: LabelSet) -> str:
    """The labels of a set, shortened when there are many."""
    if labels.labels is None:
        return f"from {labels.source}"
    if len(labels.labels) <= _MOST_LABELS:
        return "{" + ", ".join(repr(label) for label in labels.labels) + "}"
    head = ", ".join(repr(label) for label in labels.labels[:3])
    return f"{{{head}, ... {labels.labels[-1]!r}}} ({len(labels.labels)} labels)"


def show_dim(dim: Dim) -> str:
    """A dim with its kind."""
    match dim.kind:
        case "fixed":
            return f"{dim.name} = {dim.size}"
        case "free":
            return f"{dim.name} free <= {dim.size}"
        case "nested":
            return f"{dim.name}[{dim.within}]"
    return f"{dim.name}  (observed)"


def show_term(term: CheckedTerm) -> str:
    """A term with the types of its values."""
    match term:
        case Factor():
            domain = f"[{', '.join(map(str, term.domain))}] " if term.domain else ""
            return f"factor {term.name} {domain}({', '.join(map(str, term.scope))}) = {term.value} : {term.value.type}"
        case Chain():
            parts = {"unary": term.unary, "pair": term.pair, "start": term.start, "end": term.end}
            shown = ", ".join(f"{key}: {value} : {value.type}" for key, value in parts.items() if value is not None)
            return f"chain {term.variable} {{ {shown} }}"
        case Gaussian():
            pair = " + ".join(map(str, term.couplings)) or "none"
            bounded = "true" if term.bounded else "false"
            shown = f"unary: {term.unary}, pair: {pair}, ridge: {term.ridge}, bounded: {bounded}"
            return f"gaussian {term.field} {{ {shown} }}"
        case Sequence():
            given = f", given: {', '.join(map(str, term.given))}" if term.given else ""
            return f"sequence {term.variable} {{ step: {term.step}{given}, normalize: {term.normalize} }}"
        case Masked():
            return f"masked {term.variable} {{ conditionals: {term.net}, energy: {term.energy} }}"
        case Score():
            return f"score {term.name} ({', '.join(term.variables)}) = {term.value} : {term.value.type}"
        case Forbid():
            domain = f"[{', '.join(map(str, term.domain))}] " if term.domain else ""
            return f"forbid {domain}{' and '.join(map(str, term.conditions))}"
        case Scheme():
            return f"scheme {term.variable} {term.scheme}"


def _choices(model: CheckedModel) -> Iterator[str]:
    choices = model.choices
    for kind, chosen in (("infer", choices.infer), ("decode", choices.decode)):
        if chosen is not None:
            yield f"{kind} {chosen}"
    if choices.train:
        yield f"train {' then '.join(map(str, choices.train))}"
    if choices.data is not None:
        yield f"data {choices.data}"

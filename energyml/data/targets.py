"""Which field of a reader goes to which declaration of a spec."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from energyml.data.problems import BadData
from energyml.data.readers.reader import Field, Reader
from energyml.diagnostics import Span, did_you_mean, join_names
from energyml.driver import Compiled
from energyml.ir.graph import Stepwise
from energyml.model.declared import Input, Variable
from energyml.model.types import EdgeType, TensorType


@dataclass(frozen=True)
class Target:
    """A declaration and the field that fills it.

    Attributes:
        name: the declared name.
        type: the declared type.
        field: the reader's field.
        is_output: whether it is an output, whose values are gold labels.
        scale: what its numbers are multiplied with.
        end: the label that is put behind a sequence whose length is part of the answer.
        span: where it is declared.
    """

    name: str
    type: TensorType | EdgeType
    field: str
    is_output: bool
    scale: float | None
    end: str | None
    span: Span


def find_targets(compiled: Compiled, reader: Reader, card: str, fixed: Collection[str] = ()) -> list[Target]:
    """Fill every declared input and output from a field of the same name, else by the role of the fields left.

    An input over a nested dim that no field is called after gets the characters of the reader's words. Of the other
    declarations, the only input that is left gets the field with the role of an input, the only output that of an
    output.

    Args:
        compiled: the spec.
        reader: what gives the fields.
        card: the reader's name, for messages.
        fixed: inputs that the reader need not give, since they hold for every example.
    """
    graph = compiled.graph
    inputs = [one for one in graph.inputs.values() if one.name not in fixed]
    outputs = [one for one in graph.variables.values() if one.kind == "output"]
    declared: list[Input | Variable] = [*inputs, *outputs]
    names = [one.name for one in declared]
    fields = reader.fields
    if fields is None:
        fields = tuple(Field(name) for name in names)
    chosen = {field.name: field.name for field in fields if field.name in names}
    for one in inputs:
        if one.name not in chosen and _is_nested(compiled, one.type) and reader.words is not None:
            chosen[one.name] = reader.words
    roles: tuple[tuple[Literal["output", "input"], list[str]], ...] = (
        ("output", [one.name for one in outputs]),
        ("input", [one.name for one in inputs]),
    )
    for role, candidates in roles:
        left = [name for name in candidates if name not in chosen]
        free = [one.name for one in fields if one.role in (role, "either") and one.name not in chosen.values()]
        if len(left) == 1 and len(free) == 1:
            chosen[left[0]] = free[0]
    _check_given(reader, card, names, chosen, fields)
    ends = {term.body.variable: term.body.end for term in graph.terms if isinstance(term.body, Stepwise)}
    scales = {field.name: field.scale for field in fields}
    given = [
        Target(one.name, one.type, chosen[one.name], False, scales.get(chosen[one.name]), None, one.span)
        for one in inputs
    ]
    gold = [Target(one.name, one.type, chosen[one.name], True, None, ends.get(one.name), one.span) for one in outputs]
    return [*given, *gold]


def _check_given(
    reader: Reader, card: str, names: list[str], chosen: dict[str, str], fields: tuple[Field, ...]
) -> None:
    named = {field.name for field in fields}
    if reader.names_declarations:
        for field in fields:
            if field.name not in names:
                guess = did_you_mean(field.name, names)
                remedy = f"did you mean `{guess}`?" if guess else "write `_` for a column that nothing reads"
                raise BadData("E0815", name=field.name, help=remedy)
    for name in names:
        if name not in chosen:
            raise BadData("E0808", field=name, name=name, reader=card, fields=join_names(sorted(named), "and"))


def _is_nested(compiled: Compiled, declared: TensorType | EdgeType) -> bool:
    if isinstance(declared, EdgeType):
        return False
    dims = compiled.graph.dims
    return any(dims[axis.extent.name].kind == "nested" for axis in declared.index_axes)

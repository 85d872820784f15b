"""The families with a block of options: chain, gaussian, sequence, masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from energyml.cards import registry
from energyml.cards.options import found
from energyml.diagnostics import Note, Span, join_names
from energyml.model import couplings
from energyml.model.context import Context
from energyml.model.declared import Chain, CheckedTerm, Gaussian, Masked, Sequence, Variable
from energyml.model.expression import Expression, scalar
from energyml.model.names import one_of, with_article
from energyml.model.scopes import scorable
from energyml.model.terms import name_term, unknown_label
from energyml.model.types import REAL, Axis, Extent, MaskedType, StepType, TensorType, labels_axis
from energyml.model.typing import Place, expression, origin
from energyml.nets.cards import NetRole
from energyml.syntax import tree as t


@dataclass(frozen=True)
class _Family:
    """What a family takes; `linear` and `quadratic` are the halves of `gaussian` that the text of a graph writes.

    Attributes:
        options: their keys.
        required: the one it cannot do without.
        variables: the kinds of variables that it scores.
        tensors: the options whose values are tensors.
        terms: the names of its terms, after the variable and a dot.
    """

    options: tuple[str, ...]
    required: str | None
    variables: tuple[str, ...]
    tensors: tuple[str, ...]
    terms: tuple[str, ...] = ()


_LABELS = ("output", "latent")
_CHAIN = ("unary", "pair", "start", "end")
_FAMILIES: dict[str, _Family] = {
    "chain": _Family(_CHAIN, "pair", _LABELS, _CHAIN, _CHAIN),
    "gaussian": _Family(
        ("unary", "pair", "ridge", "bounded"), "unary", ("field",), ("unary", "ridge"), ("unary", "pair")
    ),
    "linear": _Family(("unary",), "unary", ("field",), ("unary",)),
    "quadratic": _Family(("pair", "ridge", "bounded"), None, ("field",), ("ridge",)),
    "sequence": _Family(("step", "given", "normalize", "end"), "step", _LABELS, ("given",), ("sequence",)),
    "masked": _Family(("conditionals", "energy", "given"), "conditionals", _LABELS, ("given",), ("masked",)),
}


@dataclass(frozen=True)
class _Block:
    """A family statement with its options by key; knows how to complain about them."""

    context: Context
    node: t.FamilyStmt
    values: Mapping[str, t.Value]

    def reject(
        self,
        option: str,
        expected: str,
        given: str,
        *,
        span: Span | None = None,
        remedy: str = "",
        notes: Iterable[Note] = (),
    ) -> None:
        """Report a value that an option does not take."""
        self.context.complain(
            "E0325",
            span or self.values[option].span,
            help=remedy,
            notes=notes,
            option=option,
            family=self.node.kind,
            expected=expected,
            found=given,
        )

    def tensor(self, option: str, fits: Callable[[TensorType], bool], *allowed: TensorType) -> Expression | None:
        """The tensor of an option; its type must fit, and `allowed` says in a message what would."""
        made = expression(self.context, self.values[option], Place())
        if made is None or fits(made.type):
            return made
        expected = " or ".join(f"`{one}`" for one in allowed)
        self.reject(option, expected, f"`{made.type}`", notes=origin(self.context, made))
        return None

    def word(self, option: str, *words: str) -> str | None:
        """One of a few words; the first is the default."""
        value = self.values.get(option)
        if value is None:
            return words[0]
        if isinstance(value, t.Name) and value.text in words:
            return value.text
        guess = self.context.names.guess(value.text, words) if isinstance(value, t.Name) else None
        self.reject(option, join_names(words), found(value), remedy=f"did you mean `{guess}`?" if guess else "")
        return None


def family(context: Context, node: t.FamilyStmt) -> CheckedTerm | None:
    """Check a family statement: its variable, its options, then what they mean."""
    values = _options(context, node)
    named = _name_terms(context, node)
    variable = _variable(context, node)
    if variable is None or values is None:
        _look_over(context, node)
        return None
    check: dict[str, Callable[[_Block, Variable], CheckedTerm | None]] = {
        "chain": _chain,
        "gaussian": _gaussian,
        "linear": _linear,
        "quadratic": _quadratic,
        "sequence": _sequence,
        "masked": _masked,
    }
    made = check[node.kind](_Block(context, node, values), variable)
    return made if named else None


def _options(context: Context, node: t.FamilyStmt) -> dict[str, t.Value] | None:
    known = _FAMILIES[node.kind]
    values: dict[str, t.Value] = {}
    sound = True
    for option in node.block.options:
        key = option.key.text
        if key in known.options and key not in values:
            values[key] = option.value
            continue
        sound = False
        if key in values:
            context.complain("E0406", option.key.span, option=key)
            continue
        guess = context.names.guess(key, known.options)
        remedy = f"did you mean `{guess}`?" if guess else f"its options are {join_names(known.options, 'and')}"
        context.complain("E0307", option.key.span, family=node.kind, option=key, help=remedy)
    if known.required is not None and known.required not in values and sound:
        at = Span(node.span.start, node.variable.span.end)
        context.complain("E0308", at, family=node.kind, option=known.required)
        sound = False
    return values if sound else None


def _name_terms(context: Context, node: t.FamilyStmt) -> bool:
    """Enter the names of the family's terms; whether none was taken."""
    given = [option.key.text for option in node.block.options]
    parts = _FAMILIES[node.kind].terms
    present = parts if len(parts) == 1 else [part for part in parts if part in given]
    return all(name_term(context, f"{node.variable.text}.{part}", node.variable.span) for part in present)


def _look_over(context: Context, node: t.FamilyStmt) -> None:
    """Check the tensors of a statement that is at fault elsewhere, for mistakes of their own."""
    for option in node.block.options:
        if option.key.text in _FAMILIES[node.kind].tensors:
            several = option.key.text == "given"
            for value in _tensors(option.value) if several else [option.value]:
                expression(context, value, Place())


def _variable(context: Context, node: t.FamilyStmt) -> Variable | None:
    wanted, name = _FAMILIES[node.kind].variables, node.variable.text
    if context.names.find(node.variable, "output", "latent", "field") is None or name not in context.variables:
        return None
    variable = context.variables[name]
    notes = context.declared_here(name)
    if variable.kind not in wanted:
        context.complain(
            "E0309",
            node.variable.span,
            notes=notes,
            family=node.kind,
            expected=one_of(wanted),
            name=name,
            found=with_article(variable.kind),
        )
        return None
    if not scorable(context, node.variable.span, variable):
        return None
    if variable.kind != "field" and len(variable.dims) != 1:
        context.complain("E0306", node.variable.span, family=node.kind, name=name, type=variable.type, notes=notes)
        return None
    return variable


# --------------------------------------------------------------------------------------------------------------- chains


def _chain(block: _Block, variable: Variable) -> Chain | None:
    labels, index = labels_axis(variable.type.element), Axis(variable.type.axes[0].extent)
    cell = TensorType(REAL, (labels,))
    cells = TensorType(REAL, (index, labels))
    values = block.values
    unary = (
        block.tensor("unary", lambda made: made.without_roles() in (cell, cells), cells) if "unary" in values else None
    )
    pair = _pair(block, variable)
    start, end = (
        block.tensor(key, lambda made: made.without_roles() == cell, cell) if key in values else None
        for key in ("start", "end")
    )
    parts = {"unary": unary, "pair": pair, "start": start, "end": end}
    if pair is None or any(parts[key] is None for key in values):
        return None
    return Chain(variable.name, unary, pair, start, end, block.node.span)


def _pair(block: _Block, variable: Variable) -> Expression | None:
    """The transitions: `real[from: Tag, to: Tag]`, shared over positions or with one table for each gap."""
    labels = variable.type.element
    gaps = Axis(Extent("dim", variable.dims[0], -1))
    ends = (labels_axis(labels, "from"), labels_axis(labels, "to"))
    shared, each = TensorType(REAL, ends), TensorType(REAL, (gaps, *ends))

    def fits(made: TensorType) -> bool:
        lead, tables = made.axes[:-2], made.axes[-2:]
        return tuple(Axis(axis.extent) for axis in lead) in ((), (gaps,)) and tables in (ends, ends[::-1])

    return block.tensor("pair", fits, shared, each)


# --------------------------------------------------------------------------------------------------------------- fields


def _gaussian(block: _Block, variable: Variable) -> Gaussian | None:
    linear, quadratic = _linear(block, variable), _quadratic(block, variable)
    return None if linear is None or quadratic is None else replace(quadratic, unary=linear.unary)


def _linear(block: _Block, variable: Variable) -> Gaussian | None:
    wanted = variable.type.without_roles()
    unary = block.tensor("unary", lambda made: made.without_roles() == wanted, variable.type)
    return None if unary is None else Gaussian(variable.name, unary, (), scalar(1.0), True, block.node.span)


def _quadratic(block: _Block, variable: Variable) -> Gaussian | None:
    number = TensorType(REAL)
    pair = couplings.read(block.context, block.values["pair"], variable) if "pair" in block.values else ()
    ridge = block.tensor("ridge", lambda made: made == number, number) if "ridge" in block.values else scalar(1.0)
    bounded = block.word("bounded", "true", "false")
    if pair is None or ridge is None or bounded is None:
        return None
    return Gaussian(variable.name, scalar(0.0), pair, ridge, bounded == "true", block.node.span)


# ------------------------------------------------------------------------------------------------- sequences and masked


def _sequence(block: _Block, variable: Variable) -> Sequence | None:
    step = _network(block, "step", variable, "step")
    sound, given = _given(block)
    normalize = block.word("normalize", "local", "global")
    ended, end = _end_label(block, variable)
    if step is None or normalize is None or not sound or not ended or not _attends(block, step, given, variable):
        return None
    if not _one_memory(block, step, given, None):
        return None
    mode = cast("Literal['local', 'global']", normalize)
    return Sequence(variable.name, step, given, mode, end, block.node.span)


def _end_label(block: _Block, variable: Variable) -> tuple[bool, str | None]:
    """Whether the end label is sound, and the label; there may be none where the length is given."""
    context = block.context
    value = block.values.get("end")
    dim = context.dims.get(variable.dims[0])
    if value is None:
        if dim is None or dim.kind != "free":
            return True, None
        at = Span(block.node.span.start, block.node.variable.span.end)
        remedy = f"add `end: ...`, the label that ends it, or declare `dim {dim.name}` without `free`"
        notes = context.declared_here(dim.name)
        context.complain("E0312", at, dim=dim.name, name=variable.name, notes=notes, help=remedy)
        return False, None
    label = value.value if isinstance(value, t.String) else value.text if isinstance(value, t.Name) else None
    if label is None:
        block.reject("end", "a label", found(value))
        return False, None
    label_set = context.label_sets.get(variable.type.element)
    if label_set is not None and label_set.labels is not None and label not in label_set.labels:
        unknown_label(context, value.span, label, label_set.name)
        return False, None
    return True, label


def _attends(block: _Block, step: str, given: tuple[Expression, ...], variable: Variable) -> bool:
    """Whether what a decoder attends to is there, and runs along the answer where it is aligned with it."""
    net = block.context.nets[step]
    attention = net.selection["attention"] or "none"
    if attention == "none":
        return True
    axes = given[0].type.axes if given else ()
    over = axes[0].extent if axes and axes[0].extent.kind == "dim" else None
    notes = block.context.declared_here(step)
    if over is None:
        at = block.values.get("given", block.values["step"]).span
        expected = "a tensor whose first axis is a dim"
        present = f"`{given[0].type}`" if given else "nothing"
        block.reject("given", f"{expected}, as `{step}` attends to it", present, span=at, notes=notes)
        return False
    if attention == "aligned" and over.name != variable.dims[0]:
        expected = f"a tensor over `{variable.dims[0]}`, as `{step}` attends to the position that it labels"
        remedy = "`attention: bahdanau` and `dot` attend to any sequence"
        block.reject("given", expected, f"`{given[0].type}`", notes=notes, remedy=remedy)
        return False
    return True


def _masked(block: _Block, variable: Variable) -> Masked | None:
    net = _network(block, "conditionals", variable, "masked")
    sound, given = _given(block)
    energy = block.word("energy", "raw", "local")
    if net is None or energy is None or not sound or not _one_memory(block, net, given, variable.dims[0]):
        return None
    return Masked(variable.name, net, cast("Literal['raw', 'local']", energy), given, block.node.span)


def _network(block: _Block, option: str, variable: Variable, role: NetRole) -> str | None:
    value, context = block.values[option], block.context
    called = value.function.text if isinstance(value, t.Call) else ""
    kind = called or (value.text if isinstance(value, t.Name) else "")
    if kind and kind not in context.names.table and registry.find("net", kind) is not None:
        remedy = f"declare it first: `net NAME = {kind}(...)`, and write `{option}: NAME`"
        block.reject(option, "the name of a network", f"`{kind}`, a kind of network", remedy=remedy)
        return None
    if not isinstance(value, t.Name):
        remedy = f"write `{option}: {called}`; what it looks at goes into `given:`" if called in context.nets else ""
        block.reject(option, "the name of a network", found(value), remedy=remedy)
        return None
    if context.names.find(value, "net") is None or value.text not in context.nets:
        return None
    net = context.nets[value.text]
    notes = context.declared_here(net.name)
    if net.role != role:
        context.complain("E0310", value.span, notes=notes, option=option, expected=role, name=net.name, found=net.role)
        return None
    if isinstance(net.declared, StepType | MaskedType) and net.declared.labels != variable.type.element:
        block.reject(option, f"a network over `{variable.type.element}`", f"`{net.declared}`", notes=notes)
        return None
    return net.name


def _given(block: _Block) -> tuple[bool, tuple[Expression, ...]]:
    """Whether what a network is given is sound, and the tensors: one, or a block with a name for each."""
    value = block.values.get("given")
    if value is None:
        return True, ()
    if isinstance(value, t.Block):
        keys = [option.key.text for option in value.options]
        for number, option in enumerate(value.options):
            if option.key.text in keys[:number]:
                block.context.complain("E0406", option.key.span, option=option.key.text)
                return False, ()
        if not keys:
            block.reject("given", "a tensor, or several by name", "an empty block")
            return False, ()
    made = [expression(block.context, one, Place()) for one in _tensors(value)]
    known = tuple(one for one in made if one is not None)
    return len(known) == len(made), known


def _one_memory(block: _Block, net: str, given: tuple[Expression, ...], aligned: str | None) -> bool:
    """Whether the given tensors over dims other than the aligned one share theirs: a network attends to one memory."""
    if block.context.nets[net].selection.name == "python":
        return True
    extents = [one.type.axes[0].extent for one in given if one.type.axes]
    dims = list(dict.fromkeys(one.name for one in extents if one.kind == "dim" and one.name != aligned))
    if len(dims) < 2:
        return True
    beside = "" if aligned is None else f" beside `{aligned}`"
    block.reject("given", f"tensors over one dim{beside}, as `{net}` attends to it", join_names(dims, "and"))
    return False


def _tensors(value: t.Value) -> list[t.Value]:
    """The tensors of an option: the value, or those of a block."""
    return [option.value for option in value.options] if isinstance(value, t.Block) else [value]

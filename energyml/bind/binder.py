"""Binding: label sets become known, networks are built, parameters get their first values."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from energyml import cards, errors
from energyml.bind.rules import broken_rules
from energyml.cards.card import Selection
from energyml.diagnostics import Source, SpecError
from energyml.ir.expressions import parts_of
from energyml.ir.graph import Graph
from energyml.model.declared import LabelSet, Net, Param
from energyml.model.expression import Apply, Expression, Reference
from energyml.model.types import REAL, Axis, TensorType
from energyml.nets.bound import BoundType

STEP_METHODS = ("start", "embed", "embed_soft", "step")  # of a step network, see energyml/nets/step.py


def bind_labels(graph: Graph, source: Source, labels: Mapping[str, Sequence[str]] | None) -> Graph:
    """Fill in the label sets that come from data; all are known afterwards, or the missing ones are named.

    Rules that name labels (schemes, end labels) are checked against those that the spec does not list.
    """
    given = dict(labels or {})
    bound: dict[str, LabelSet] = {}
    missing = []
    for name, label_set in graph.label_sets.items():
        known = given.pop(name, None)
        if known is not None:
            problem = _unfit_labels(label_set, known)
            if problem is not None:
                missing.append(errors.diagnostic("E0517", label_set.span, name=name, problem=problem))
            bound[name] = replace(label_set, labels=tuple(known))
        elif label_set.labels is None and (brought := network_labels(graph, label_set)) is not None:
            bound[name] = replace(label_set, labels=brought)
        elif label_set.labels is None:
            where = "the data" if label_set.source == "data" else f"the network `{label_set.source}`"
            missing.append(errors.diagnostic("E0506", label_set.span, name=name, source=where))
        else:
            bound[name] = label_set
    if missing:
        raise SpecError(source, missing)
    if given:
        raise SpecError(source, [errors.diagnostic("E0502", None, name=next(iter(given)), help="it is no label set")])
    found = replace(graph, label_sets=bound)
    broken = broken_rules(found, [name for name, one in graph.label_sets.items() if one.labels is None])
    if broken:
        raise SpecError(source, broken)
    return found


def _unfit_labels(declared: LabelSet, labels: Sequence[str]) -> str | None:
    """Why labels cannot be those of a set; `None` when they can."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        return f"labels are given as a list of texts, found {labels!r}"
    if not labels:
        return "there are none"
    twice = next((label for label, count in Counter(labels).items() if count > 1), None)
    if twice is not None:
        return f"`{twice}` occurs twice"
    if declared.labels is not None and tuple(labels) != declared.labels:
        return "the spec lists others, or the same in another order"
    return None


def network_labels(graph: Graph, label_set: LabelSet) -> tuple[str, ...] | None:
    """The labels that a pretrained network brings; `None` for a set that comes from elsewhere."""
    net = graph.nets.get(label_set.source)
    if net is None or net.selection.name != "transformers":
        return None
    from energyml.nets.masked_pretrained import real_labels

    return real_labels(str(net.selection["path"]), bool(net.selection["online"]))


class NetBuilder:
    """Builds the modules of a graph whose label sets are known."""

    def __init__(self, graph: Graph, source: Source) -> None:
        self.graph, self.source = graph, source
        self.uses = first_uses(graph)

    def build(self, net: Net) -> tuple[nn.Module, bool] | None:
        """A module, and whether its forward takes `masks`; `None` for a network that nothing uses."""
        if net.selection.name == "python":
            return self._python(net)
        implementation = cards.implementation(net.selection.card)
        options = {**net.selection.card.defaults(), **net.selection.options}
        options.pop("out", None)
        if net.role == "function":
            return self._function(net, implementation, options)
        if net.name not in self.uses.roles:
            return None
        variable, given = self.uses.roles[net.name]
        names = self.graph.label_sets[variable.type.element].labels or ()
        # a pretrained network has scores of its own tokens, and has to know which of them the labels are
        labels = names if net.selection.name == "transformers" else len(names)
        bound = tuple(self.bound_type(one.type) for one in given)
        return implementation(labels, bound, dim=variable.dims[0], **options), True

    def _function(self, net: Net, implementation: Any, options: dict[str, Any]) -> tuple[nn.Module, bool] | None:
        use = self.uses.functions.get(net.name)
        if use is None:
            return None
        if net.selection["out"] is None and "project" in inspect.signature(implementation).parameters:
            options["project"] = False
        inputs = tuple(self.bound_type(argument.type) for argument in use.arguments)
        return implementation(inputs, self.bound_type(use.type), **options), True

    def _python(self, net: Net) -> tuple[nn.Module, bool]:
        """Import and build a network that the spec names; the only place where user code is imported."""
        target = str(net.selection["target"])
        module_name, _, attribute = target.partition(":")
        try:
            found: Any = import_module(module_name)
            for part in attribute.split("."):
                found = getattr(found, part)
            options = {key: self._option(value) for key, value in net.selection.options.items() if key != "target"}
            module = found(**options)
        except Exception as problem:
            raise SpecError(
                self.source, [errors.diagnostic("E0507", net.span, target=target, problem=problem)]
            ) from problem
        if not isinstance(module, nn.Module):
            raise SpecError(
                self.source,
                [
                    errors.diagnostic(
                        "E0507",
                        net.span,
                        target=target,
                        problem=f"it makes a {type(module).__name__}, not a torch.nn.Module",
                    )
                ],
            )
        if net.role == "step":
            lacking = [one for one in STEP_METHODS if not callable(getattr(module, one, None))]
            if lacking:
                kind = type(module).__name__
                why = f"a step network needs {', '.join(STEP_METHODS)}, and `{kind}` has no `{lacking[0]}`"
                raise SpecError(self.source, [errors.diagnostic("E0507", net.span, target=target, problem=why)])
        return module, "masks" in inspect.signature(module.forward).parameters

    def _option(self, value: Any) -> Any:
        """A label set's name is passed as its size."""
        label_set = self.graph.label_sets.get(value) if isinstance(value, str) else None
        return len(label_set.labels or ()) if label_set else value

    def bound_type(self, declared: TensorType) -> BoundType:
        """A type with sizes."""
        classes = None if declared.element == REAL else self._count(declared.element)
        shape = tuple(self.axis_size(axis) for axis in declared.axes)
        dims = tuple(
            axis.extent.name if axis.extent.kind == "dim" and size is None else None
            for axis, size in zip(declared.axes, shape, strict=True)
        )
        return BoundType(classes, shape, dims)

    def axis_size(self, axis: Axis) -> int | None:
        """The size of an axis, or `None` when only the batch tells it."""
        extent = axis.extent
        if extent.kind == "number":
            return extent.offset
        if extent.kind == "labels":
            return self._count(extent.name)
        dim = self.graph.dims[extent.name]
        return dim.size + extent.offset if dim.kind == "fixed" and dim.size is not None else None

    def _count(self, labels: str) -> int:
        return len(self.graph.label_sets[labels].labels or ())


class _Uses:
    def __init__(self) -> None:
        self.functions: dict[str, Apply] = {}
        self.roles: dict[str, Any] = {}


def first_uses(graph: Graph) -> _Uses:
    """How each network is first used: the arguments of a function, the variable of a step or masked network."""
    uses = _Uses()

    def visit(value: Expression) -> None:
        for part in value.parts:
            visit(part)
        if isinstance(value, Apply):
            uses.functions.setdefault(value.net, value)

    for let in graph.lets.values():
        visit(let.value)
    for term in graph.terms:
        for value in term.expressions():
            visit(value)
        net = getattr(term.body, "net", None)
        if net is not None:
            uses.roles.setdefault(net, (graph.variables[term.scope[0].variable], term.expressions()))
    return uses


def used_inputs(graph: Graph) -> frozenset[str]:
    """The inputs that the score depends on."""
    values = [value for term in graph.terms for value in term.expressions()]
    read = (one for one in parts_of(values, graph) if isinstance(one, Reference))
    found = {one.name for one in read if one.kind == "input"}
    for term in graph.terms:
        found.update(binding.source for binding in term.domain if hasattr(binding, "source"))
    return frozenset(found)


def initial_value(param: Param, builder: NetBuilder, generator: torch.Generator | None) -> torch.Tensor:
    """The first value of a parameter: Gaussian noise of 0.1 unless the spec says otherwise."""
    shape = [builder.axis_size(axis) or 0 for axis in param.type.axes]
    selection: Selection | None = param.initial
    name = selection.name if selection else "normal"
    if name == "zeros":
        return torch.zeros(shape)
    if name == "constant":
        assert selection is not None
        return torch.full(shape, float(selection["value"]))
    if name == "uniform":
        assert selection is not None
        bound = float(selection["bound"])
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    std = float(selection["std"]) if selection else 0.1
    return torch.empty(shape).normal_(0.0, std, generator=generator)


__all__ = ["NetBuilder", "bind_labels", "initial_value", "network_labels", "used_inputs"]

"""Inference networks: from the inputs of a model to scores of the labels of all its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from energyml import cards
from energyml.backends.infnet.reading import DROPOUT, Reader, readable_inputs
from energyml.bind.binder import NetBuilder
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError, Source, join_names
from energyml.ir.graph import Graph
from energyml.model.declared import Net, Variable
from energyml.model.expression import Apply, Reference
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, existing
from energyml.nets.order import Order

Scores = dict[str, Tensor]


class SequenceNetwork(nn.Module):
    """An architecture over one dim: reads the dim's inputs, gives the scores of all variables over it.

    Args:
        reader: makes features.
        body: the architecture.
    """

    def __init__(self, reader: Reader, body: nn.Module) -> None:
        super().__init__()
        self.reader, self.body = reader, body

    def forward(self, tensors: Mapping[str, Tensor], masks: Masks) -> Scores:
        """Inputs ``[B, T, ...]`` by name to scores ``[B, T, labels]`` by variable."""
        x = self.reader(tensors, masks)
        found: Scores = self.body(x, Order(existing([self.reader.dim], masks, x.shape[:2])))
        return found


class NamedNetwork(nn.Module):
    """A network of the spec, with weights of its own, for one variable.

    Args:
        module: the network.
        variable: whose scores it gives.
        inputs: the names of its arguments.
        masked: whether it takes masks.
    """

    def __init__(self, module: nn.Module, variable: str, inputs: Sequence[str], *, masked: bool) -> None:
        super().__init__()
        self.module = module
        self.variable, self.inputs, self.masked = variable, tuple(inputs), masked

    def forward(self, tensors: Mapping[str, Tensor], masks: Masks) -> Scores:
        """Inputs by name to scores ``[B, *dims, labels]`` by variable."""
        values = [tensors[name] for name in self.inputs]
        scores: Tensor = self.module(*values, masks=masks) if self.masked else self.module(*values)
        return {self.variable: scores}


class InferenceNetwork(nn.Module):
    """What an inference network is made of: one part for each dim, or for each variable.

    Args:
        parts: each gives the scores of some variables.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, tensors: Mapping[str, Tensor], masks: Masks) -> Scores:
        """Scores ``[B, *dims, labels]`` of the labels of every cell, by variable; anything where there is no cell."""
        return {name: scores for part in self.parts for name, scores in part(tensors, masks).items()}


def make_network(selection: Selection, graph: Graph, model: nn.Module) -> InferenceNetwork:
    """The network that a choice of `infnet` describes, with first weights.

    Args:
        selection: the choice.
        graph: the model.
        model: its module, whose embeddings an architecture starts from.
    """
    if selection["net"] is not None:
        pairs = zip(graph.discrete, selection["net"].names, strict=True)
        return InferenceNetwork([_named(graph, variable, graph.nets[net]) for variable, net in pairs])
    chosen = architecture_of(selection)
    options = {**chosen.card.defaults(), **chosen.options}
    embed, plus = options["embed"], bool(selection["plus"])
    if chosen.name != "seq2seq":  # whose labels are embedded as well
        options.pop("embed")
    by_dim: dict[str, dict[str, int]] = {}
    for variable in graph.discrete:
        (dim,) = variable.dims
        by_dim.setdefault(dim, {})[variable.name] = _count(graph, variable)
    parts = []
    for dim, labels in by_dim.items():
        reader = Reader(graph, model, dim, embed=embed, plus=plus)
        try:
            body = cards.implementation(chosen.card)(reader.size, labels, dropout=DROPOUT if plus else 0.0, **options)
        except ValueError as problem:
            raise EnergyError(f"`infnet({chosen})`: {problem}") from problem
        parts.append(SequenceNetwork(reader, body))
    return InferenceNetwork(parts)


def architecture_of(selection: Selection) -> Selection:
    """The architecture of a choice of `infnet`; `blstm` when it names none."""
    chosen: Selection | None = selection["architecture"]
    if chosen is not None:
        return chosen
    card = cards.find("architecture", "blstm")
    assert card is not None
    return Selection(card)


def _count(graph: Graph, variable: Variable) -> int:
    return len(graph.label_sets[variable.type.element].labels or ())


def _named(graph: Graph, variable: Variable, net: Net) -> NamedNetwork:
    """A network of the spec, built once more: for the arguments that the score gives it, or for all inputs that fit."""
    builder = NetBuilder(graph, Source("<spec>", ""))
    if net.role != "function":
        raise EnergyError(f"`infnet(net: {net.name})`: it scores answers, and an inference network reads inputs")
    use = builder.uses.functions.get(net.name)
    names = _arguments(graph, builder, variable, use)
    if net.selection.name == "python":
        built = builder.build(net)
        assert built is not None
        return NamedNetwork(built[0], variable.name, names, masked=built[1])
    out = net.selection["out"]
    if out is None or [axis.extent.name for axis in out] != [variable.type.element]:
        found = "the states of its last layer" if out is None else f"[{', '.join(str(axis) for axis in out)}]"
        raise EnergyError(
            f"`infnet(net: {net.name})`: `{variable.name}` needs a score for each label of `{variable.type.element}`, "
            f"and `{net.name}` gives {found}; write `{net.selection.name}(out: {variable.type.element}, ...)`"
        )
    declared = [graph.inputs[name].type for name in names]
    inputs = tuple(builder.bound_type(one) for one in declared)  # type: ignore[arg-type]
    over = builder.bound_type(variable.type)
    output = BoundType(None, (*over.shape, _count(graph, variable)), (*over.dims, None))
    options: dict[str, Any] = {**net.selection.card.defaults(), **net.selection.options}
    options.pop("out", None)
    try:
        module = cards.implementation(net.selection.card)(inputs, output, **options)
    except ValueError as problem:
        given = join_names(names, "and")
        raise EnergyError(f"`infnet(net: {net.name})`: it cannot read {given}: {problem}") from problem
    return NamedNetwork(module, variable.name, names, masked=True)


def _arguments(graph: Graph, builder: NetBuilder, variable: Variable, use: Apply | None) -> list[str]:
    """The inputs that a network of the spec reads."""
    if use is not None:
        given = [one.name for one in use.arguments if isinstance(one, Reference) and one.kind == "input"]
        if len(given) == len(use.arguments):
            return given
    readable = readable_inputs(graph, builder, variable.dims[0]) if variable.dims else []
    found = [one.name for one in readable if not one.whole]
    if not found:
        raise EnergyError(
            f"`infnet` finds no input for the scores of `{variable.name}`; apply the network in the score, as in "
            "`net(input)`, and it reads the same"
        )
    return found


__all__ = ["InferenceNetwork", "NamedNetwork", "SequenceNetwork", "architecture_of", "make_network"]

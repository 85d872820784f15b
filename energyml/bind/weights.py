"""The labels, dims and roles that weights run along: stored beside the weights, compared when they are loaded.

The order of labels may come from frequencies in data, so two trainings of one spec can differ in it.  A parameter has
named axes: its rows and columns are brought into the order of the model that loads it.  The axes inside a network are
not known, so a network is loaded only where its labels have the same order.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import torch
from torch import Tensor

from energyml.bind.binder import first_uses
from energyml.bind.inputs import data_error
from energyml.diagnostics import EnergyError, Source, Span
from energyml.ir.graph import Graph
from energyml.model.declared import Net
from energyml.model.types import EdgeType, TensorType

KEY = "_extra_state"  # torch's key for what `get_extra_state` gives
FORMAT = "energyml names 1"
OWNED = "infer"
MOST_LISTED = 20

# An axis as it is stored: its role, and its label set, its dim or its number.
StoredAxis: TypeAlias = tuple[str | None, str, str]


class WeightNames:
    """The names of one model's weights.

    Args:
        graph: the model, whose label sets are known.
        source: the spec, for messages.
    """

    def __init__(self, graph: Graph, source: Source) -> None:
        self.graph, self.source = graph, source
        self._uses = first_uses(graph)
        self._made: Tensor | None = None

    def state(self) -> Tensor:
        """Uint8 [n]: the names as JSON in UTF-8.  A tensor needs no pickled code, and fits into any tensor format."""
        if self._made is None:
            text = json.dumps(self._described(), separators=(",", ":"))
            self._made = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        return self._made

    def _described(self) -> dict[str, Any]:
        """The names as plain data."""
        tensors = {name: one.type for name, one in self.graph.params.items()}
        tensors |= {name: one.type for name, one in self.graph.inputs.items() if isinstance(one.type, TensorType)}
        return {
            "format": FORMAT,
            "labels": {name: list(one.labels or ()) for name, one in self.graph.label_sets.items()},
            "tensors": {name: [one.element, _axes(one)] for name, one in tensors.items()},
            "networks": {name: self._network(net) for name, net in self.graph.nets.items()},
            "variables": {one.name: one.type.element for one in self.graph.discrete},
        }

    def _network(self, net: Net) -> list[list[str | None]]:
        """The label sets that a network reads and gives, in order, each with the role of its axis."""
        uses = self._uses
        found: list[list[str | None]] = []
        if net.name in uses.functions:
            use = uses.functions[net.name]
            types = [*(one.type for one in use.arguments), use.type]
        elif net.name in uses.roles:
            variable, given = uses.roles[net.name]
            types = [*(one.type for one in given), variable.type]
        else:
            types = []
        sets = self.graph.label_sets
        for one in types:
            found += [[None, one.element]] if one.element in sets else []
            found += [[axis.role, axis.extent.name] for axis in one.label_axes]
        found += [[key, one] for key, one in net.selection.options.items() if isinstance(one, str) and one in sets]
        return found

    # --------------------------------------------------------------------------------------------------------- loading

    def check_given(self, weights: Mapping[str, object], prefix: str = "") -> None:
        """Refuse weights that run along labels and come without names."""
        unchecked = self.unchecked(weights, prefix)
        if unchecked:
            names = "`, `".join(unchecked)
            raise data_error(self.source, "E0516", None, name=names, problem=_UNNAMED, help=_WITHOUT_NAMES)

    def fit(self, weights: MutableMapping[str, Any], prefix: str) -> None:
        """Bring the weights below a prefix into the order of the model's labels, or refuse them.

        Args:
            weights: by name; tensors are replaced where their order changes.
            prefix: of the model's names in `weights`.
        """
        if f"{prefix}{KEY}" not in weights:
            unchecked = self.unchecked(weights, prefix)
            if unchecked:
                shown = ", ".join(f"`{name}`" for name in unchecked)
                warnings.warn(f"{shown}: {_UNNAMED}; the weights are loaded as they are", stacklevel=6)
            return
        stored = _Stored(**{key: one for key, one in stored_names(weights, prefix).items() if key != "format"})
        for name in _first_parts(weights, prefix):
            if name in stored.tensors:
                tensor = weights.get(f"{prefix}{name}")
                if isinstance(tensor, Tensor):
                    weights[f"{prefix}{name}"] = self._matched(name, tensor, stored)
            elif name in stored.networks and name in self.graph.nets:
                self._same_network(name, stored)
            elif name == OWNED:
                self._same_variables(stored)

    def unchecked(self, weights: Mapping[str, object], prefix: str) -> list[str]:
        """Parameters, fixed inputs and networks that depend on the order of labels, in weights without names."""
        if f"{prefix}{KEY}" in weights:
            return []
        found = []
        for name in _first_parts(weights, prefix):
            declared = self.graph.params.get(name) or self.graph.inputs.get(name)
            if declared is not None and isinstance(declared.type, TensorType):
                labelled = bool(declared.type.label_axes) or declared.type.element in self.graph.label_sets
            else:
                net = self.graph.nets.get(name)
                labelled = name == OWNED or (net is not None and bool(self._network(net)))
            if labelled:
                found.append(name)
        return found

    def _matched(self, name: str, tensor: Tensor, stored: _Stored) -> Tensor:
        """A parameter, or a fixed input [1, *axes], whose axes and labels stand in the order of the model's own."""
        declared = self.graph.params.get(name) or self.graph.inputs.get(name)
        if declared is None or not isinstance(declared.type, TensorType):
            return tensor
        lead = int(name in self.graph.inputs)
        element, before = stored.tensors[name]
        now = _axes(declared.type)
        if len(before) != len(now) or tensor.dim() != len(now) + lead:
            return tensor  # torch says that the shapes differ
        order = self._order(before, now, stored)
        if order is None:
            problem = f"its weights were stored with the axes [{_shown(before)}], and it is declared `{declared.type}`"
            raise self._refusal(name, problem, declared.span, "give its axes the roles and label sets that they had")
        if order != sorted(order):
            tensor = tensor.permute(*range(lead), *(lead + one for one in order)).contiguous()
        for axis, (_, kind, labels) in enumerate(now):
            if kind == "labels":
                places = self._places(name, labels, stored.labels[before[order[axis]][2]])
                if places is not None and len(places) == tensor.shape[lead + axis]:
                    tensor = tensor.index_select(lead + axis, torch.tensor(places, device=tensor.device))
        if declared.type.element in self.graph.label_sets and element in stored.labels:
            places = self._places(name, declared.type.element, stored.labels[element])
            if places is not None:  # the values are labels themselves; -1 is no label
                renamed = torch.tensor([*sorted(range(len(places)), key=places.__getitem__), -1], device=tensor.device)
                tensor = renamed[tensor]
        return tensor

    def _order(self, before: Sequence[StoredAxis], now: Sequence[StoredAxis], stored: _Stored) -> list[int] | None:
        """For each own axis the stored one: by role or name, else by label set; `None` where neither tells it."""
        sets = {name: frozenset(one.labels or ()) for name, one in self.graph.label_sets.items()}
        kept = {name: frozenset(one) for name, one in stored.labels.items()}

        def keys(axes: Sequence[StoredAxis]) -> list[object]:
            return [role or (name if kind != "number" else (name,)) for role, kind, name in axes]

        def extents(axes: Sequence[StoredAxis], known: Mapping[str, frozenset[str]]) -> list[object]:
            return [known[name] if kind == "labels" else (kind, name) for _, kind, name in axes]

        if keys(before) == keys(now):
            kinds = [[kind for _, kind, _ in axes] for axes in (before, now)]
            return list(range(len(now))) if kinds[0] == kinds[1] else None
        for old, new in ((keys(before), keys(now)), (extents(before, kept), extents(now, sets))):
            if len(set(old)) == len(old) and set(old) == set(new):
                order = [old.index(one) for one in new]
                kinds_fit = all(before[place][1] == own[1] for place, own in zip(order, now, strict=True))
                return order if kinds_fit else None
        return None

    def _places(self, name: str, labels: str, before: Sequence[str]) -> list[int] | None:
        """For each label the place that it had; `None` where no label has moved; refuses other labels."""
        now = self.graph.label_sets[labels].labels or ()
        if tuple(before) == now:
            return None
        if set(before) != set(now):
            raise self._other_labels(name, labels, before)
        places = {label: place for place, label in enumerate(before)}
        return [places[label] for label in now]

    def _same_network(self, name: str, stored: _Stored) -> None:
        """Refuse a network whose labels, or whose axes over labels, stood in another order."""
        before, net = stored.networks[name], self.graph.nets[name]
        now = self._network(net)
        if [role for role, _ in before] != [role for role, _ in now]:
            shown = [", ".join(f"{role}: {one}" if role else str(one) for role, one in axes) for axes in (before, now)]
            problem = f"its weights were stored for the labels and roles [{shown[0]}], and it is used for [{shown[1]}]"
            raise self._refusal(name, problem, net.span, "a network's axes cannot be matched by name; use it as it was")
        for (_, old), (_, new) in zip(before, now, strict=True):
            self._same_labels(name, str(new), stored.labels[str(old)])

    def _same_variables(self, stored: _Stored) -> None:
        """Refuse networks of backends where the labels of any variable stood in another order."""
        for one in self.graph.discrete:
            if one.name in stored.variables:
                self._same_labels(OWNED, one.type.element, stored.labels[stored.variables[one.name]])

    def _same_labels(self, name: str, labels: str, before: Sequence[str]) -> None:
        if tuple(before) != (self.graph.label_sets[labels].labels or ()):
            raise self._other_labels(name, labels, before)

    # -------------------------------------------------------------------------------------------------------- messages

    def _other_labels(self, name: str, labels: str, before: Sequence[str]) -> EnergyError:
        """The refusal of weights for other labels, or for the same in another order."""
        declared = self.graph.label_sets[labels]
        now = declared.labels or ()
        lacking = [label for label in before if label not in set(now)]
        new = [label for label in now if label not in set(before)]
        if lacking or new:
            parts = [f"they have {_some(lacking)}, which `{labels}` lacks"] if lacking else []
            parts += [f"they lack {_some(new)}"] if new else []
            problem = f"its weights were stored for other labels: {'; '.join(parts)}"
        elif len(before) != len(now):
            problem = f"its weights were stored for {len(before)} labels of `{labels}`, which has {len(now)}"
        else:
            place = next(n for n, (old, own) in enumerate(zip(before, now, strict=True)) if old != own)
            problem = (
                f"its weights were stored for another order of the labels of `{labels}`: label {place} was "
                f"`{before[place]}`, and is `{now[place]}`; inside a network they cannot be put in order by name"
            )
        names = f"{list(before)}" if len(before) <= MOST_LISTED else "[...]"
        remedy = f"bind the model with the labels of the weights: labels={{'{labels}': {names}}}"
        if declared.source == "given":
            remedy = f"declare the labels of the weights in their order: {names}"
        if len(before) > MOST_LISTED:
            remedy += "; `energyml.bind.weights.stored_names(weights)['labels']` has them"
        return self._refusal(name, problem, declared.span, remedy)

    def _refusal(self, name: str, problem: str, span: Span | None, remedy: str) -> EnergyError:
        return data_error(self.source, "E0516", span, name=name, problem=problem, help=remedy)


@dataclass(frozen=True)
class _Stored:
    """Names as they were stored: labels by label set, then what tensors, networks and variables run along."""

    labels: Mapping[str, list[str]]
    tensors: Mapping[str, tuple[str, list[StoredAxis]]]
    networks: Mapping[str, list[list[str | None]]]
    variables: Mapping[str, str]


_UNNAMED = "the names of labels do not come with the weights, so the order of their labels cannot be checked"
_WITHOUT_NAMES = (
    "`weights['_extra_state'] = model.get_extra_state()` says that they have the names of this model; with "
    "`strict=False` they are taken as they are, with a warning"
)


def stored_names(weights: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The names that a `state_dict` carries, as plain data: its `labels` are label names by label set."""
    try:
        found = json.loads(weights[f"{prefix}{KEY}"].to("cpu", torch.uint8).numpy().tobytes())
        if found["format"] != FORMAT or found.keys() != {"format", *(one.name for one in fields(_Stored))}:
            raise ValueError(f"the format is {found['format']!r}, not {FORMAT!r}")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as problem:
        raise EnergyError(
            f"`{prefix}{KEY}` does not hold the names of labels that `state_dict` stores ({problem}); take it from the "
            "`state_dict` that the weights come from"
        ) from problem
    return dict(found)


def _axes(declared: TensorType | EdgeType) -> list[StoredAxis]:
    assert isinstance(declared, TensorType)
    return [(axis.role, axis.extent.kind, str(axis.extent)) for axis in declared.axes]


def _first_parts(weights: Mapping[str, object], prefix: str) -> Iterator[str]:
    """The names right below a prefix, of parameters and of networks."""
    lead = len(prefix)
    yield from dict.fromkeys(key[lead:].partition(".")[0] for key in weights if key.startswith(prefix))


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(f"`{label}`" for label in labels[:5])
    return shown if len(labels) <= 5 else f"{shown} and {len(labels) - 5} more"


def _shown(axes: Sequence[StoredAxis]) -> str:
    return ", ".join(f"{role}: {name}" if role else name for role, _, name in axes)


__all__ = ["KEY", "WeightNames", "stored_names"]

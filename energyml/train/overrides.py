"""Changes to a spec's choices from outside: `optimizer.lr=0.01`, `balance=none`, `epochs=5`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from energyml.cards import registry
from energyml.cards.card import CardKind, Selection
from energyml.cards.options import CardOf
from energyml.diagnostics import EnergyError, did_you_mean
from energyml.model.declared import CheckedModel


def overridden(stages: Sequence[Selection], changes: Sequence[str], model: CheckedModel) -> list[Selection]:
    """Stages with options changed; `2.epochs=5` changes the second stage alone, `epochs=5` all of them."""
    made = list(stages)
    for change in changes:
        path, equal, value = change.partition("=")
        if not equal or not path or not value:
            raise EnergyError(f"expected OPTION=VALUE, as in `optimizer.lr=0.01`, found `{change}`")
        head, _, rest = path.partition(".")
        numbers = range(len(made))
        if head.isdecimal():
            if not 0 < int(head) <= len(made):
                raise EnergyError(f"`{change}` names stage {head}, and there are {len(made)}")
            numbers, path = range(int(head) - 1, int(head)), rest
        for number in numbers:
            made[number] = _with(made[number], path.split("."), value, change, model)
    return made


def _with(selection: Selection, path: list[str], value: str, change: str, model: CheckedModel) -> Selection:
    from energyml.driver import read_choice

    key = path[0]
    option = selection.card.option(key)
    if option is None:
        known = [one.name for one in selection.card.options]
        guess = did_you_mean(key, known)
        hint = f"did you mean `{guess}`?" if guess else f"its options are {', '.join(known)}"
        raise EnergyError(f"`{change}`: `{selection.name}` has no option `{key}`; {hint}")
    if len(path) == 1:
        # the grammar's own rules read the value
        read = read_choice(selection.card.kind, f"{selection.name}({key}: {value})", model)
        return Selection(selection.card, {**selection.options, key: read.options[key]})
    if not isinstance(option.type, CardOf):
        raise EnergyError(f"`{change}`: `{key}` has no options of its own")
    inner = selection[key]
    if inner is None:
        kind = cast("CardKind", option.type.kind)
        inner = Selection(next(iter(registry.every(kind))))
    return Selection(selection.card, {**selection.options, key: _with(inner, path[1:], value, change, model)})


__all__ = ["overridden"]

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
        if not all(path.split(".")):
            stage = f"{head}." if head.isdecimal() else ""
            raise EnergyError(
                f"`{change}` names no option; expected OPTION=VALUE, as in `{stage}epochs=5` or "
                f"`{stage}optimizer.lr=0.01`"
            )
        for number in numbers:
            made[number] = _with(made[number], path.split("."), value, change, model)
    return made


def _with(selection: Selection, path: list[str], value: str, change: str, model: CheckedModel) -> Selection:
    from energyml.driver import read_choice

    key = path[0]
    option = selection.card.option(key)
    if option is None:
        raise EnergyError(f"`{change}`: {_lacking(selection, path, value, change)}")
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


def _lacking(selection: Selection, path: list[str], value: str, change: str) -> str:
    """What a choice has in place of an option that it lacks, and which other choice of its kind has it."""
    key, known = path[0], [one.name for one in selection.card.options]
    guess = did_you_mean(key, known)
    if guess:
        return f"`{selection.name}` has no option `{key}`; did you mean `{guess}`?"
    if known:
        found = f"`{selection.name}` has no option `{key}`; its options are {', '.join(known)}"
    else:
        found = f"`{selection.name}` has no options"
    others = [card.name for card in registry.every(selection.card.kind) if card.option(key) is not None]
    if selection.card.kind == "objective" or not others:  # objectives are chosen by `--train`
        return found
    outer = change.partition("=")[0].removesuffix(f".{'.'.join(path)}")  # the option whose value lacks the key
    written = f"{others[0]}({key}: {value})" if len(path) == 1 else others[0]
    verb = "has" if len(others) == 1 else "have"
    return f"{found}; {', '.join(f'`{one}`' for one in others)} {verb} `{key}`: write `{outer}={written}`"


__all__ = ["overridden"]

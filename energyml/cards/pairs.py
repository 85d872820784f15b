"""Numbers by pairs of labels: `{O: {B: 2, I: 1}, B: {O: 3}}`."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.cards.options import BadOption, OptionType, Surroundings, Weights, by_label, found
from energyml.syntax import tree as t


@dataclass(frozen=True)
class LabelPairs(OptionType):
    """`{gold: {predicted: number, ...}, ...}`, each pair of different labels."""

    def describe(self) -> str:
        """What the option takes."""
        return "a block `{gold: {predicted: number, ...}, ...}`"

    def read(self, value: t.Value, around: Surroundings) -> dict[str, dict[str, float]]:
        """The numbers by gold label and predicted label."""
        if not isinstance(value, t.Block):
            raise BadOption(value.span, self.describe(), found(value))
        rows: dict[str, dict[str, float]] = {}
        for gold, option in by_label(value, around):
            rows[gold] = Weights().read(option.value, around)
            if gold in rows[gold]:
                raise BadOption(option.value.span, "pairs of different labels", f"`{gold}` for `{gold}`")
        return rows

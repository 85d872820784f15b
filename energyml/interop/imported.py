"""A model that came from a file: an ordinary model that knows the file's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.diagnostics import EnergyError, ShapeError
from energyml.energy_model import EnergyModel
from energyml.result import Assignment

if TYPE_CHECKING:
    from energyml.driver import Compiled


class ImportedModel(EnergyModel):
    """A model whose cells are the variables of a file.

    The k-th variable with c values is the cell `x<c>[k]`; its factors are parameters (log values), and the scopes of
    factors over several variables are fixed inputs. The methods translate between cells and the file's variables.

    Attributes:
        numbers: what the file calls its variables, in order.
        cards: how many values each has.
        cells: the output and the position in it of each.
    """

    def __init__(self, compiled: Compiled, numbers: tuple[int, ...], cards: tuple[int, ...]) -> None:
        """Bind the spec of a file."""
        super().__init__(compiled)
        self.numbers, self.cards = numbers, cards
        counts: dict[int, int] = {}
        cells: list[tuple[str, int]] = []
        for card in cards:
            cells.append((f"x{card}", counts.get(card, 0)))
            counts[card] = counts.get(card, 0) + 1
        self.cells = tuple(cells)

    def evidence(self, values: Mapping[int, int] | Sequence[Mapping[int, int]]) -> dict[str, Tensor]:
        """What `infer(evidence=...)` takes, from values by the file's variable numbers.

        Args:
            values: for one example, or a list with one mapping for each example of a batch.

        Returns:
            Labels [B, cells] by output, -1 where a variable is free; outputs that nothing is known about are left out.
        """
        examples = [values] if isinstance(values, Mapping) else list(values)
        known: dict[int, int] = dict(zip(self.numbers, range(len(self.numbers)), strict=True))
        found: dict[str, Tensor] = {}
        for row, example in enumerate(examples):
            for number, value in example.items():
                place = known.get(number)
                if place is None:
                    raise EnergyError(f"the file has no variable {number}; {self._variables()}")
                if not 0 <= value < self.cards[place]:
                    raise EnergyError(
                        f"variable {number} cannot be {value}: it has {self.cards[place]} values, counted from 0"
                    )
                name, position = self.cells[place]
                if name not in found:
                    found[name] = self._free(name, len(examples))
                found[name][row, position] = value
        if not found and len(examples) != 1:
            name = self.cells[0][0]
            found[name] = self._free(name, len(examples))  # it tells how many examples there are
        return found

    def _free(self, name: str, batch: int) -> Tensor:
        return torch.full((batch, sum(one == name for one, _ in self.cells)), -1)

    def _variables(self) -> str:
        several = f"its variables are {self.numbers[0]} to {self.numbers[-1]}"
        gaps = self.numbers[-1] - self.numbers[0] >= len(self.numbers)
        return f"{several}, with gaps" if gaps else several

    def answer(self, values: Tensor) -> dict[str, Tensor]:
        """Values [B, n] of the file's variables as what `score` and `log_prob` take: labels [B, cells] by output."""
        if values.dim() != 2 or values.shape[1] != len(self.cells):
            raise ShapeError(f"expected values [B, {len(self.cells)}], found {list(values.shape)}")
        return {name: values[:, places] for name, places in self._places(values.device).items()}

    def values(self, answer: Assignment | Mapping[str, Tensor]) -> Tensor:
        """Labels [..., cells] by output, as `map`, `n_best` and `sample` give them, in the file's order.

        Returns:
            [..., variables].
        """
        labels = answer.labels if isinstance(answer, Assignment) else answer
        first = next(iter(labels.values()))
        found = first.new_empty((*first.shape[:-1], len(self.cells)))
        for name, places in self._places(first.device).items():
            found[..., places] = labels[name]
        return found

    def probabilities(self, marginals: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Marginals [B, cells, values] by output, for each variable of the file: [B, values]."""
        by_output = {name: one.unbind(1) for name, one in marginals.items()}
        return tuple(by_output[name][position] for name, position in self.cells)

    def _places(self, device: torch.device) -> dict[str, Tensor]:
        """For each output the places of its cells in the file's order."""
        found: dict[str, list[int]] = {}
        for place, (name, _) in enumerate(self.cells):
            found.setdefault(name, []).append(place)
        return {name: torch.tensor(places, device=device) for name, places in found.items()}

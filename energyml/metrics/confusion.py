"""Which label is taken for which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from energyml.metrics.tally import Judged, MetricError, Tally

MOST_LABELS = 5000
NEVER_SEEN = "(not in training)"


class Mistake(NamedTuple):
    """A gold label, what was predicted in its place, and how often."""

    gold: str
    predicted: str
    cells: int


class Confusion(Tally):
    """Counts [gold, predicted] of cells; gold labels that a model cannot give share the last row.

    Gold cells behind the end of a shorter answer have no prediction, and are not counted.
    """

    def __init__(self, judged: Judged) -> None:
        if judged.known > MOST_LABELS:
            raise MetricError("confusion", f"{judged.known:,} labels are too many for a table; {MOST_LABELS:,} fit")
        super().__init__(judged)

    @property
    def shape(self) -> tuple[int, ...]:
        """Gold labels by predicted ones."""
        return (self.judged.known + 1, self.judged.known)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        known = self.judged.known
        exists = (gold >= 0) & (predicted >= 0)
        pairs = gold[exists].clamp(max=known) * known + predicted[exists]
        return torch.bincount(pairs, minlength=(known + 1) * known).reshape(known + 1, known)

    def counts(self) -> Tensor:
        """[labels + 1, labels]: cells by gold and predicted label."""
        return self.sums.to(torch.int64)

    def worst(self, most: int = 10) -> list[Mistake]:
        """The most frequent mistakes."""
        counts = self.counts().cpu().clone()
        counts[:-1].fill_diagonal_(0)
        flat = counts.flatten()
        best = torch.argsort(flat, descending=True, stable=True)[:most]
        rows = self._rows()
        pairs = ((int(place), int(flat[place])) for place in best)
        known = self.judged.known
        return [Mistake(rows[one // known], rows[one % known], count) for one, count in pairs if count]

    def table(self, most: int = 20) -> str:
        """The counts of the most frequent gold labels as text; `.` for none."""
        counts = self.counts().cpu()
        rows = self._rows()
        frequent = torch.argsort(counts.sum(1), descending=True, stable=True)[:most].tolist()
        shown = sorted(row for row in frequent if int(counts[row].sum()))
        columns = [row for row in shown if row < self.judged.known]
        others = counts.sum(1) - counts[:, columns].sum(1)
        cells = [["gold \\ predicted", *(rows[column] for column in columns), "other"]]
        for row in shown:
            numbers = [*counts[row, columns].tolist(), int(others[row])]
            cells.append([rows[row], *(f"{number:,}" if number else "." for number in numbers)])
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = []
        for line in cells:
            first, *rest = (text.ljust(width) if not place else text.rjust(width) for place, (text, width) in
                            enumerate(zip(line, widths, strict=True)))  # fmt: skip
            lines.append("  ".join([first, *rest]).rstrip())
        return "\n".join(lines)

    def _rows(self) -> tuple[str, ...]:
        return (*self.judged.labels[: self.judged.known], NEVER_SEEN)

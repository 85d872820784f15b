"""F1 of whole spans, by the rules of conlleval."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from energyml.diagnostics import ShapeError
from energyml.metrics.tally import Judged, Metric, MetricError

OUTSIDE = "O"
UNTYPED = ""
# The letters of BILOU are those of IOBES under other names.
PREFIXES = {"O": 0, "B": 1, "I": 2, "E": 3, "S": 4, "L": 3, "U": 4}
_O, _B, _I, _E, _S = range(5)
COLUMNS = 3  # spans that are right, predicted, and in the gold


class SpanScore(NamedTuple):
    """Precision, recall and F1 of one type of spans, and how many the gold has."""

    precision: float
    recall: float
    f1: float
    support: int


class SpanF1(Metric):
    """Micro-averaged F1: a span is right when its first cell, its last cell and its type are.

    The rules are those of the shared tasks' script conlleval, as seqeval extends them to S and to E before B: a span
    starts at B and S, at I and E that follow nothing open, and wherever the type changes; it ends after E and S, before
    B, S and O, and wherever the type changes. Sequences that break their scheme are therefore read, never refused:
    `O I-NP I-NP` holds a span, as in IOB1. Without any span F1 is 0, as conlleval has it.

    Computed by table look-ups over [B, T], without a loop over sentences.
    """

    name = "f1"

    def __init__(self, judged: Judged) -> None:
        parts = [_parted(label) for label in judged.labels]
        self.types = tuple(sorted({kind for prefix, kind in parts if prefix != _O}))
        numbers = {kind: number for number, kind in enumerate(self.types)}
        # The last row stands for cells that do not exist.
        self._prefixes = torch.tensor([*(prefix for prefix, _ in parts), _O])
        self._types = torch.tensor([*(numbers[kind] if prefix != _O else -1 for prefix, kind in parts), -1])
        if not self.types:
            raise MetricError(self.name, "none of them marks a span, as `B-NP` does")
        super().__init__(judged)

    @property
    def shape(self) -> tuple[int, ...]:
        """For each type: spans that are right, predicted, and in the gold."""
        return (len(self.types), COLUMNS)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        if gold.dim() != 2:
            raise ShapeError(f"`f1` judges sequences [B, T], found labels of shape {list(gold.shape)}")
        exists = gold >= 0
        # Cells that exist come first, so that spans run over gaps.
        order = torch.argsort((~exists).to(torch.uint8), dim=1, stable=True)
        outside = len(self.judged.labels)
        found, wanted = (torch.where(exists, one, outside).gather(1, order) for one in (predicted, gold))
        starts, types, ends = self._spans(found)
        gold_starts, gold_types, gold_ends = self._spans(wanted)
        right = starts & gold_starts & (types == gold_types) & (ends == gold_ends)
        return torch.stack(
            [self._by_type(gold_types, right), self._by_type(types, starts), self._by_type(gold_types, gold_starts)], 1
        )

    def _by_type(self, types: Tensor, chosen: Tensor) -> Tensor:
        return torch.bincount(types[chosen], minlength=len(self.types))

    def _spans(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T]: where spans start, the type of each cell, and the end of the span that each cell is in."""
        prefixes, types = self._prefixes.to(labels.device)[labels], self._types.to(labels.device)[labels]
        before, after = _shifted(prefixes, 1, _O), _shifted(prefixes, -1, _O)
        changes = types != _shifted(types, 1, -1)
        goes_on = (prefixes == _I) | (prefixes == _E)
        open_before = (before == _B) | (before == _I)
        opens = (prefixes == _B) | (prefixes == _S) | (goes_on & (~open_before | changes))
        closed_by = (after == _B) | (after == _S) | (after == _O) | (types != _shifted(types, -1, -1))
        closes = (prefixes == _E) | (prefixes == _S) | ((prefixes != _O) & closed_by)
        places = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
        beyond = torch.where(closes, places, labels.shape[1])
        return opens, types, beyond.flip(1).cummin(1).values.flip(1)

    def _value(self, sums: list[list[float]]) -> float:
        return _score(sums).f1

    @property
    def precision(self) -> float:
        """Right spans / predicted spans."""
        return _score(self.sums.tolist()).precision

    @property
    def recall(self) -> float:
        """Right spans / spans of the gold."""
        return _score(self.sums.tolist()).recall

    def by_type(self) -> dict[str, SpanScore]:
        """The scores of each type of spans."""
        return {kind: _score([row]) for kind, row in zip(self.types, self.sums.tolist(), strict=True)}


def _score(rows: list[list[float]]) -> SpanScore:
    right, predicted, gold = (sum(row[column] for row in rows) for column in range(COLUMNS))
    precision = right / predicted if predicted else 0.0
    recall = right / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return SpanScore(precision, recall, f1, int(gold))


def _parted(label: str) -> tuple[int, str]:
    """The number of a label's prefix, and its type."""
    prefix, _, kind = label.partition("-")
    if prefix not in PREFIXES or (label != OUTSIDE and prefix == OUTSIDE):
        raise MetricError("f1", f"`{label}` does not start with one of {', '.join(PREFIXES)}, as in `B-NP`")
    return PREFIXES[prefix], kind or UNTYPED


def _shifted(tensor: Tensor, by: int, fill: int) -> Tensor:
    """[B, T] moved right (1) or left (-1) along T, with `fill` at the border."""
    border = torch.full_like(tensor[:, :1], fill)
    parts = [border, tensor[:, :-1]] if by > 0 else [tensor[:, 1:], border]
    return torch.cat(parts, 1) if tensor.shape[1] else tensor

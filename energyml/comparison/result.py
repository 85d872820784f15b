"""The outcome of a comparison: rows of numbers, as a table, CSV, JSON or a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from energyml.diagnostics import EnergyError, join_names
from energyml.written import check_writable, write_lines

if TYPE_CHECKING:
    from rich.table import Table

FORMATS, PICTURES = (".csv", ".json"), (".svg", ".png", ".pdf")
NOTHING = "-"


@dataclass
class Row:
    """One backend.

    Attributes:
        backend: as it was written.
        reason: why it has no numbers; `None` where it has.
        quality: what its answers promise.
        metrics: of the task, by name.
        energy: the mean energy of its answers, over the examples for which it found one.
        relaxed_energy: the mean energy of its relaxed answers, where it reports them.
        search_error: the mean of its energy less the least known one, over the examples for which it found an answer.
        solved: the share of examples whose energy is the least known one, but for rounding.
        missing: examples without an answer.
        speed: examples a second, the mean over timed passes.
        spread: the standard deviation of that over passes.
        seconds: of one pass over the data.
        memory: the largest memory in MB.
        correlations: Spearman's rho of search errors and perplexities, by column.
        energies: [N] of its answers, in the order of the data; inf where there is none.
        errors: [N] search errors.
    """

    backend: str
    reason: str | None = None
    quality: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    energy: float | None = None
    relaxed_energy: float | None = None
    search_error: float | None = None
    solved: float | None = None
    missing: int = 0
    speed: float | None = None
    spread: float | None = None
    seconds: float | None = None
    memory: float | None = None
    correlations: dict[str, float] = field(default_factory=dict)
    energies: Tensor | None = None
    errors: Tensor | None = None

    def plain(self) -> dict[str, Any]:
        """As data, with one level of names."""
        return {
            "backend": self.backend,
            "quality": self.quality or None,
            **{name: _number(value) for name, value in self.metrics.items()},
            "energy": _number(self.energy),
            "relaxed_energy": _number(self.relaxed_energy),
            "search_error": _number(self.search_error),
            "solved": _number(self.solved),
            "missing": self.missing,
            "examples_per_second": _number(self.speed),
            "spread": _number(self.spread),
            "seconds": _number(self.seconds),
            "memory_mb": _number(self.memory),
            **{f"rho.{name}": _number(value) for name, value in self.correlations.items()},
            "reason": self.reason,
        }


@dataclass
class Comparison:
    """The same energy under several backends.

    Attributes:
        name: of the model.
        split: the data.
        examples: how many there are.
        batch: how many are asked at a time.
        repeats: timed passes.
        rows: one for each backend, in the order that they were named.
        gold: the mean energy of the gold labels; `None` without them.
        reference: what search errors are against: `exact` answers; the least energies known, which bounds have `proven`
            to be the least; or the `best known` ones.
        proven: the share of examples whose least known energy is proven to be the least.
        seconds: `loading` (model, data, language models), `inference` and `other`: where the time went.
        notes: what was decided on the way, for people.
        judges: the backends whose answers are exact.
    """

    name: str
    split: str
    examples: int
    batch: int
    repeats: int
    rows: list[Row]
    gold: float | None
    reference: str
    proven: float
    seconds: dict[str, float]
    notes: list[str]
    judges: list[str] = field(default_factory=list)

    def __getitem__(self, backend: str) -> Row:
        """The row of a backend, as it was written."""
        for row in self.rows:
            if row.backend == backend:
                return row
        raise KeyError(f"no row `{backend}`; there are {', '.join(row.backend for row in self.rows)}")

    @property
    def overhead(self) -> float:
        """The share of the time, loading left out, that was not spent inside of inference."""
        spent = self.seconds["inference"] + self.seconds["other"]
        return self.seconds["other"] / spent if spent else 0.0

    # ---------------------------------------------------------------------------------------------------------- tables

    def table(self) -> Table:
        """For a terminal."""
        from rich.table import Table

        made = Table(box=None, pad_edge=False, header_style="bold")
        columns = self._shown()
        for number, name in enumerate(columns):
            made.add_column(name, justify="left" if number == 0 or name == "answer" else "right", no_wrap=True)
        if self.gold is not None:
            made.add_row(*("gold labels" if n == 0 else _figure(self.gold, 3) if name == "energy" else ""
                           for n, name in enumerate(columns)))  # fmt: skip
        for row in self.rows:
            made.add_row(*self._cells(row, columns))
        return made

    def _shown(self) -> list[str]:
        """The columns that have something to show."""
        metrics = dict.fromkeys(name for row in self.rows for name in row.metrics)
        rhos = dict.fromkeys(f"rho {name}" for row in self.rows for name in row.correlations)
        relaxed = ["relaxed energy"] if any(row.relaxed_energy is not None for row in self.rows) else []
        memory = ["memory MB"] if any(row.memory is not None for row in self.rows) else []
        middle = ["energy", *relaxed, "search error", "solved", "examples/s", *memory]
        return ["backend", *metrics, *middle, *rhos, "answer"]

    def _cells(self, row: Row, columns: Sequence[str]) -> list[str]:
        if row.reason is not None:
            return [row.backend, *([NOTHING] * (len(columns) - 2)), "none: see below"]
        speed = f"{_figure(row.speed, 0)}" + (f" ± {_figure(row.spread, 0)}" if row.spread is not None else "")
        known: dict[str, str] = {
            "backend": row.backend,
            **{name: _figure(value, 4) for name, value in row.metrics.items()},
            "energy": _figure(row.energy, 3),
            "relaxed energy": _figure(row.relaxed_energy, 3),
            "search error": _figure(row.search_error, 4),
            "solved": _percent(row.solved),
            "examples/s": speed,
            "memory MB": _figure(row.memory, 1),
            **{f"rho {name}": _figure(value, 3) for name, value in row.correlations.items()},
            "answer": row.quality,
        }
        return [known.get(name, NOTHING) for name in columns]

    def footer(self) -> list[str]:
        """What stands below the table."""
        head = f"{self.name}: {self.examples} examples ({self.split}), batches of {self.batch}, {self.repeats} timed "
        lines = [head + ("pass" if self.repeats == 1 else "passes")]
        against = {
            "exact": f"exact answers, by {join_names(self.judges, 'and')}",
            "proven": "the best answers known, which bounds prove to be the best; no backend gave exact answers to all",
        }.get(
            self.reference,
            f"the best answer known, which is proven to be the best for {_percent(self.proven)} of the examples",
        )
        lines.append(f"search error and solved: against {against}")
        spent = self.seconds
        lines.append(
            f"time: {spent['loading']:.1f} s loading, {spent['inference']:.1f} s inference, "
            f"{spent['other']:.1f} s for all else ({100 * self.overhead:.1f}% of the time after loading)"
        )
        for row in self.rows:
            if row.reason is not None:
                own = row.reason.startswith(f"`{row.backend.partition('(')[0]}`")
                lines.append(row.reason if own else f"`{row.backend}`: {row.reason}")
        lines += [f"`{row.backend}` found no answer for {row.missing} examples; its means are over the others"
                  for row in self.rows if row.missing]  # fmt: skip
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def text(self, width: int = 200) -> str:
        """The table and what stands below it, for files and pipes."""
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(self.table())
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join([*lines, "", *self.footer()])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Comparison({self.name}: {', '.join(row.backend for row in self.rows)}; {self.examples} examples)"

    # ----------------------------------------------------------------------------------------------------------- files

    def plain(self) -> dict[str, Any]:
        """As data."""
        return {
            "model": self.name,
            "split": self.split,
            "examples": self.examples,
            "batch": self.batch,
            "repeats": self.repeats,
            "reference": self.reference,
            "judges": list(self.judges),
            "proven": self.proven,
            "gold_energy": _number(self.gold),
            "rows": [row.plain() for row in self.rows],
            "seconds": {**self.seconds, "outside_inference": self.overhead},
            "notes": list(self.notes),
        }

    def csv(self) -> str:
        """One line for each backend."""
        rows = [row.plain() for row in self.rows]
        names = list(dict.fromkeys(name for row in rows for name in row if name != "reason"))
        out = io.StringIO()
        writer = csv.DictWriter(out, [*names, "reason"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def save(self, path: str | Path) -> None:
        """Write a `.csv` or a `.json` file."""
        place = checked_path(Path(path), FORMATS)
        text = self.csv() if place.suffix == ".csv" else json.dumps(self.plain(), indent=2) + "\n"
        write_lines(place, [text.removesuffix("\n")])

    def plot(self, path: str | Path) -> None:
        """Draw speed against accuracy, as in Figure 2 of Tu & Gimpel 2019."""
        from energyml.comparison.picture import draw

        draw(self, checked_path(Path(path), PICTURES))


def checked_path(path: Path, endings: Sequence[str]) -> Path:
    """A path that can be written, or the reason why not; before a long computation, too."""
    if path.suffix not in endings:
        raise EnergyError(f"{path}: the name must end in {' or '.join(endings)}")
    check_writable(path)
    return path


def _number(value: float | None) -> float | None:
    """A number that JSON has."""
    return None if value is None or not math.isfinite(value) else float(value)


def _figure(value: float | None, digits: int) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}%"


def best_metric(rows: Sequence[Row]) -> str | None:
    """The metric that a picture shows: the first one that a row has."""
    return next((name for row in rows for name in row.metrics), None)


def by_name(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Rows of one backend under different options together."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.backend.partition("(")[0], []).append(row)
    return found


__all__ = ["FORMATS", "PICTURES", "Comparison", "Row", "best_metric", "by_name", "checked_path"]

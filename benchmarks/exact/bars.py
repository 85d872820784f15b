"""The bars, and how far each is kept: read from the stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.exact import results
from benchmarks.exact.contestants import AUTOGRAD
from benchmarks.exact.sizes import DIRECT, LOG_PARTITION, MARGINALS, NLL, VITERBI

Row = dict[str, Any]
Wanted = Callable[[str, bool], bool]  # of a contestant's kind, and of whether it does the whole task

AGAINST_AUTOGRAD = {LOG_PARTITION: 10.0, NLL: 20.0, DIRECT: 20.0, VITERBI: 10.0, MARGINALS: 10.0}
AGAINST_ALL = {LOG_PARTITION: 1.5, NLL: 1.5, DIRECT: 1.5, VITERBI: 3.0, MARGINALS: 1.2}
MEMORY = {(16, 500, 200): 30.0, (1, 20000, 50): 20.0}
LONG = [1, 2000, 23]


@dataclass(frozen=True)
class Reading:
    """A figure in one cell beside its bar.

    Attributes:
        where: the cell in words.
        value: the figure; `None` where there is none, which does not keep the bar.
        bar: the bar.
        least: whether the bar is a least value, as for speedups, or a largest one.
        note: the peer, or why there is no figure.
        valid: whether the figure can be believed; one that beats the processor's peak cannot.
        best: the figure that the machine would give at best, where that is known.
    """

    where: str
    value: float | None
    bar: float
    least: bool
    note: str = ""
    valid: bool = True
    best: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bar is kept."""
        return self.valid and self.value is not None and self._enough(self.value)

    @property
    def out_of_reach(self) -> bool:
        """Whether the bar asks for more than the machine can give; it is missed all the same."""
        return not self.met and self.best is not None and not self._enough(self.best)

    def _enough(self, value: float) -> bool:
        return value >= self.bar if self.least else value <= self.bar

    @property
    def share(self) -> float:
        """How far beyond its bar the figure is: 1 on it, more when kept."""
        if self.value is None or not self.valid:
            return 0.0
        return self.value / self.bar if self.least else self.bar / max(self.value, 1e-12)


@dataclass(frozen=True)
class Bar:
    """A promise over many cells.

    Attributes:
        name: the promise in words.
        command: the subcommand that measures it.
        readings: the cells.
    """

    name: str
    command: str
    readings: tuple[Reading, ...]

    @property
    def worst(self) -> Reading | None:
        """The cell that is furthest from its bar."""
        return min(self.readings, key=lambda one: one.share, default=None)

    @property
    def kept(self) -> int:
        """In how many cells it is kept."""
        return sum(one.met for one in self.readings)

    @property
    def verdict(self) -> str:
        """In how many cells it is kept, of how many, and how many of the others are out of reach."""
        beyond = sum(one.out_of_reach for one in self.readings)
        reach = f", {beyond} out of reach by `limit`" if beyond else ""
        return f"{self.kept} of {len(self.readings)}{reach}"


def where(row: Row) -> str:
    """A cell in words."""
    size = ",".join(map(str, row["size"]))
    threads = f", {row['threads']} thread{'s' if row['threads'] > 1 else ''}" if "threads" in row else ""
    return f"({size}) {'ragged' if row['ragged'] else 'full'} {row['task']}{threads}"


def nearest(row: Row, kinds: dict[str, list[Any]], wanted: Wanted) -> tuple[str, list[float]] | None:
    """The peer that comes closest among those whose kind is wanted."""
    rated = {name: one for name, one in row["peers"].items() if wanted(*kinds[name])}
    name = min(rated, key=lambda one: rated[one][1], default=None)
    return None if name is None else (name, rated[name])


def autograd(kind: str, whole: bool) -> bool:
    """Peers that differentiate by PyTorch's autograd."""
    return kind == AUTOGRAD


def anything(kind: str, whole: bool) -> bool:
    """Peers of any kind that do the whole task."""
    return whole


def _chains(bars: dict[str, float], wanted: Wanted) -> Iterator[tuple[str, Reading]]:
    stored = results.load("chains")
    peaks = {_problem(row): row.get("peak") for row in results.load("limit")["rows"]}
    for row in stored["rows"]:
        found = nearest(row, stored["kinds"], wanted)
        note, value = (found[0], found[1][1]) if found else ("no peer", None)
        peak = peaks.get(_problem(row)) if row["threads"] == 1 else None  # that of two threads is not measured
        best = found[1][4] / peak if found and peak else None
        yield row["task"], Reading(where(row), value, bars[row["task"]], True, note, best=best)


def _problem(row: Row) -> tuple[Any, ...]:
    return *row["size"], row["ragged"], row["task"]


def _by_task(name: str, bars: dict[str, float], wanted: Wanted) -> list[Bar]:
    readings = list(_chains(bars, wanted))
    return [
        Bar(
            f"{task}, {name}: at least {bar:g} times faster", "chains", tuple(one for at, one in readings if at == task)
        )
        for task, bar in bars.items()
    ]


def _torch() -> list[Bar]:
    rows = results.load("torch")["rows"]

    def against(peer: str, row: Row, bar: float) -> Reading:
        found = row["peers"].get(peer)
        return Reading(where(row), found and found[1], bar, True, row["refused"].get(peer, peer))

    crf = tuple(against("pytorch-crf", row, 4.0) for row in rows)
    scans = tuple(against("Pyro", row, 1.0) for row in rows if row["size"] == LONG and "Pyro" in row["peers"])
    return [
        Bar("the torch path against pytorch-crf: at least 4 times faster", "torch", crf),
        Bar("the torch path against Pyro's scan at (1,2000,23): not slower", "torch", scans),
    ]


def _accuracy() -> list[Bar]:
    rows = results.load("accuracy")["rows"]

    def place(row: Row) -> str:
        return f"{where(row)} x{row['scale']:g}"

    def wrong(row: Row) -> float | None:
        found = row["errors"]["energyml"]
        return found if isinstance(found, float) and found == found else None

    errors = tuple(Reading(place(row), wrong(row), 1e-5, False) for row in rows)
    times = tuple(Reading(place(row), row["slower"][1], 4.0, False) for row in rows if row["scale"] > 1)
    return [
        Bar("error against float64 at every magnitude: at most 1e-5", "accuracy", errors),
        Bar("the safe path at most 4 times slower", "accuracy", times),
    ]


def _limit() -> list[Bar]:
    rows = results.load("limit")["rows"]

    def readings(large: bool, bar: float, *tasks: str) -> tuple[Reading, ...]:
        made = []
        for row in (row for row in rows if (row["size"][2] >= 100) == large and row["task"] in tasks):
            valid = row["ours"] >= row["peak"]
            notes = [f"through a spec {row['spec'] / row['limit']:.2f}"] if "spec" in row else []
            notes += [] if valid else ["faster than the processor, so the peak is wrong"]
            best = row["tape"] / row["limit"] if "tape" in row else None
            made.append(Reading(where(row), row["times"], bar, False, "; ".join(notes), valid, best))
        return tuple(made)

    made = []
    for large, words, bar in ((True, "100 labels and more", 2.5), (False, "fewer labels", 6.0)):
        name = f"distance from the machine's limit, {words}"
        made.append(Bar(f"{name}: at most {bar:g} times", "limit", readings(large, bar, LOG_PARTITION, NLL)))
        alone = readings(large, bar, LOG_PARTITION, DIRECT)
        made.append(Bar(f"{name}, without a tape: at most {bar:g} times", "limit", alone))
    return made


def _memory() -> list[Bar]:
    rows = results.load("memory")["rows"]
    found = {(tuple(row["size"]), row["name"]): row for row in rows}
    made = []
    for size, bar in MEMORY.items():
        row = found.get((size, "energyml"), {})
        name = ",".join(map(str, size))
        reading = Reading(f"({name})", row.get("megabytes"), bar, False, row.get("refused", ""))
        made.append(Bar(f"memory of likelihood and gradients at ({name}): at most {bar:g} MB", "memory", (reading,)))
    return made


def _growth() -> list[Bar]:
    rows = [row for row in results.load("growth")["rows"] if row["name"] == "energyml"]
    readings = tuple(Reading(f"{row['task']} against {row['axis']}", row["slope"], 1.1, False) for row in rows)
    return [Bar("growth with length and batch: exponent at most 1.1", "growth", readings)]


def _threads() -> list[Bar]:
    rows = results.load("threads")["rows"]
    readings = tuple(Reading(where(row), row["gain"][1], 0.9, True) for row in rows)
    return [Bar("two threads never more than a tenth slower than one", "threads", readings)]


def _trees() -> list[Bar]:
    rows = [row for row in results.load("trees")["rows"] if row["name"] == "trees"]
    readings = tuple(
        Reading(row["task"], row["slower"][1] if "slower" in row else None, 3.0, False, row.get("refused", ""))
        for row in rows
    )
    return [Bar("64 trees of 100 nodes, 20 labels: within 3 times of chains", "trees", readings)]


def _uai() -> list[Bar]:
    rows = results.load("uai")["rows"]

    def place(row: Row) -> str:
        return f"{row['model']} {row['task']}"

    def over(row: Row, field: str) -> float | None:
        return row[field] / row["implied"] if field in row else None

    def faster(row: Row, field: str) -> float | None:
        return row["pgmpy"]["ms"] / row[field] if field in row else None

    done = [row for row in rows if "ms" in (row.get("pgmpy") or {})]
    made = []
    limits = tuple(Reading(place(row), over(row, "later"), 10.0, False, row.get("refused", "")) for row in rows)
    made.append(Bar("UAI: within 10 times of the operation count at memory speed", "uai", limits))
    for field, words in (("later", "plan known"), ("first", "planning included")):
        readings = tuple(Reading(place(row), faster(row, field), 20.0, True, row.get("refused", "")) for row in done)
        made.append(Bar(f"UAI: at least 20 times faster than pgmpy, {words}", "uai", readings))
    return made


def all_bars() -> list[Bar]:
    """Every bar; one without results has no readings."""
    return [
        *_by_task("against the best PyTorch autograd peer", AGAINST_AUTOGRAD, autograd),
        *_by_task("against the best peer of any kind", AGAINST_ALL, anything),
        *_torch(), *_accuracy(), *_limit(), *_memory(), *_growth(), *_threads(), *_trees(), *_uai(),
    ]  # fmt: skip

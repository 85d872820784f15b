"""Many runs of one spec: a grid over choices times seeds, in processes of their own, resumable."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from energyml.bind.binder import network_labels
from energyml.data.load import load_data
from energyml.data.problems import DataError
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, compile_source, read_source
from energyml.train.checkpoint import CheckpointError, read_checkpoint, write_whole
from energyml.train.engines import make_engine
from energyml.train.folder import LAST, imported_packages
from energyml.train.report import SPLITS, evaluation

ARGUMENTS = "arguments.json"
# File systems take names of 255 bytes; a longer one is cut here, and a hash of the whole tells it from others.
LONGEST_NAME, KEPT_OF_LONG = 200, 160
# Axes of the grid with a command-line option of their own; all others are options of training.
_OWN = {"train": "--train", "infer": "--infer", "data": "--data"}


@dataclass(frozen=True)
class Point:
    """One run of a sweep: a value for each axis, and a seed."""

    values: tuple[tuple[str, str], ...]
    seed: int

    @property
    def title(self) -> str:
        """The values, without the seed."""
        return ", ".join(f"{key}={value}" for key, value in self.values) or "as it is"

    @property
    def folder(self) -> str:
        """A name for its folder: the values, cut short where no file system would take them."""
        parts = [f"{key}={value}" for key, value in self.values]
        kept = "".join(one if one.isalnum() or one in "=.-_+" else "_" for one in ",".join(parts))
        if len(kept.encode()) > LONGEST_NAME:
            start = kept.encode()[:KEPT_OF_LONG].decode(errors="ignore")
            kept = f"{start}-{sha256(','.join(parts).encode()).hexdigest()[:16]}"
        return f"{kept or 'plain'}/seed{self.seed}"

    def arguments(self) -> list[str]:
        """Arguments of `energyml train`."""
        found = []
        for key, value in self.values:
            found += [_OWN[key], value] if key in _OWN else ["--set", f"{key}={value}"]
        return [*found, "--seed", str(self.seed)]


def read_grid(axes: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Axes such as `balance=none,online(subset: 100)`: a key, and values that commas separate outside of brackets.

    A value or an axis that is there twice is refused: its runs would share a folder, or one would hide the other.
    """
    found: list[tuple[str, list[str]]] = []
    for axis in axes:
        key, equal, text = axis.partition("=")
        values = _split(text)
        if not equal or not key or not values:
            raise EnergyError(f"expected KEY=VALUE,VALUE,..., as in `train=nll,ssvm`, found `{axis}`")
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise EnergyError(f"`{axis}` has `{twice[0]}` twice; runs that differ in nothing but chance are `--seeds`")
        if key.strip() in dict(found):
            raise EnergyError(
                f"there are two axes `{key.strip()}`; join their values: `{key.strip()}=VALUE,VALUE`, or combinations "
                "that you mean in sweeps of their own"
            )
        found.append((key.strip(), values))
    return found


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [one.strip() for one in (*parts, text[start:]) if one.strip()]


def points(axes: Sequence[tuple[str, list[str]]], seeds: int) -> Iterator[Point]:
    """Every combination of values, with every seed."""
    for values in product(*(options for _, options in axes)):
        pairs = tuple(zip((key for key, _ in axes), values, strict=True))
        for seed in range(seeds):
            yield Point(pairs, seed)


def _check_request(
    compiled: Compiled,
    axes: Sequence[tuple[str, list[str]]],
    every: Sequence[Point],
    more: Sequence[str],
    root: Path | None,
    split: str,
    metrics: Sequence[str],
) -> None:
    """Refuse what could not be evaluated, before anything is trained.

    Data that cannot be read is left to the runs that read it: others of the grid may have data of their own.
    """
    if split not in SPLITS:
        raise EnergyError(f"unknown split `{split}`; there are {', '.join(SPLITS)}")
    options = {change.partition("=")[0] for change in more}
    for key, _ in axes:
        if key in options:
            raise EnergyError(
                f"`{key}` is an axis of the grid and an option of all runs (`--set`); leave one of them out"
            )
    folders: dict[str, Point] = {}
    for point in every:
        other = folders.setdefault(point.folder, point)
        if other is not point:
            raise EnergyError(
                f"`{other.title}` and `{point.title}` would share the folder {point.folder}; spell one otherwise, or "
                "give it a sweep of its own"
            )
    brought = {name: network_labels(compiled.graph, one) for name, one in compiled.graph.label_sets.items()}
    known = {name: labels for name, labels in brought.items() if labels is not None}
    for data in dict(axes).get("data", [None]):
        try:
            loaded = load_data(compiled, root=root, using=data, vocabularies=known, splits=[split])  # type: ignore[list-item]
        except DataError:
            continue
        dataset = getattr(loaded, split)
        if dataset is None or not len(dataset):
            where = "the `data` line" if data is None else f"`{data}`"
            raise EnergyError(f"{where} has no {split} split to evaluate on; choose another `--split`, or give it one")
        for name in metrics:
            for output in dataset.batch([0]).gold:
                dataset.metric(name, output)


def sweep(
    spec: Path,
    axes: Sequence[tuple[str, list[str]]],
    seeds: int,
    out: Path,
    *,
    more: Sequence[str] = (),
    root: Path | None = None,
    jobs: int = 2,
    engine: str = "processes",
    split: str = "test",
    metrics: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Run what is not done yet and evaluate it here; a record for each run, also in `out/runs.jsonl`.

    Args:
        spec: the spec file.
        axes: the grid.
        seeds: seeds of each combination.
        out: a folder for all runs.
        more: further arguments of `energyml train`.
        root: where the data's paths start.
        jobs: runs at a time on this machine, one thread each.
        engine: what carries runs out: `processes`, or `ray` for an existing cluster.
        split: what is evaluated.
        metrics: what is evaluated beside the spec's own metrics.
        tell: is told how it goes.
    """
    if str(spec) == "-":
        raise EnergyError("a sweep needs the spec as a file, which all of its runs read; standard input is read once")
    every = list(points(axes, seeds))
    compiled = compile_source(read_source(spec))
    _check_request(compiled, axes, every, more, root, split, metrics)
    trusted = imported_packages(compiled.graph)
    rooted = [] if root is None else ["--root", str(root.resolve())]
    chosen, judging = make_engine(engine, jobs), BoundedSemaphore(jobs)

    def one(point: Point) -> dict[str, Any]:
        folder = out / point.folder
        arguments = [*point.arguments(), *more]
        try:
            if not is_finished(folder, arguments, compiled.source.text):
                code, said = chosen.run(
                    ["train", str(spec.resolve()), "--out", str(folder.resolve()), "--resume", "--quiet",
                     "--threads", "1", *rooted, *arguments]
                )  # fmt: skip
                if code:
                    raise EnergyError(said.strip() or f"training ended with code {code}")
                write_whole(folder / ARGUMENTS, json.dumps(arguments).encode())
            state = read_checkpoint(folder / LAST).state
            with judging:
                found = evaluation(folder, root=root, split=split, metrics=metrics, allow=tuple(trusted))
        except EnergyError as problem:
            return {"values": dict(point.values), "seed": point.seed, "error": str(problem)}
        return {
            "values": dict(point.values), "seed": point.seed, "epochs": len(state["history"]),
            "minutes": round(state["elapsed"] / 60, 3), "metrics": found.values,
        }  # fmt: skip

    records: list[dict[str, Any]] = []
    with ThreadPoolExecutor(max_workers=chosen.at_once or max(1, len(every))) as pool:
        for point, record in zip(every, pool.map(one, every), strict=True):
            records.append(record)
            what = record["error"].splitlines()[0] if "error" in record else _shown(record["metrics"])
            tell(f"[{len(records)}/{len(every)}] {point.title}, seed {point.seed}: {what}")
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / "runs.jsonl", "".join(f"{json.dumps(one)}\n" for one in records).encode())
    return records


def is_finished(folder: Path, arguments: Sequence[str], spec: str) -> bool:
    """Whether a run in a folder came to its end; one of another spec or other arguments is refused, not shown."""
    try:
        state = read_checkpoint(folder / LAST).state
    except CheckpointError:
        return False
    if not state["finished"]:
        return False
    try:
        made = json.loads((folder / ARGUMENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # killed after its last checkpoint: training looks at its choices itself
        return False
    if made != list(arguments) or state["request"]["spec"]["text"] != spec:
        what = f"arguments `{' '.join(made)}`" if made != list(arguments) else "another spec"
        raise EnergyError(f"{folder} holds a run made with {what}; choose another `--out`, or remove it")
    return True


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± standard deviation over seeds for each combination, as a table; of one seed there is no deviation."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        title = ", ".join(f"{key}={value}" for key, value in record["values"].items()) or "as it is"
        grouped.setdefault(title, []).append(record)
    names = list(dict.fromkeys(name for record in records for name in record.get("metrics", {})))
    rows = [["run", "seeds", *names, "minutes"]]
    for title, ones in grouped.items():
        sound = [one for one in ones if "error" not in one]
        failed = f" ({len(ones) - len(sound)} failed)" if len(sound) < len(ones) else ""
        cells = [_spread([one["metrics"][name] for one in sound]) for name in names]
        rows.append([title, f"{len(sound)}{failed}", *cells, _spread([one["minutes"] for one in sound])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


__all__ = ["Point", "is_finished", "points", "read_grid", "sweep", "table"]

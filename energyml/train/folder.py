"""The folder of a run: checkpoints, a log for people and one for programs, and what the run was asked to do."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from energyml.diagnostics import EnergyError, Source
from energyml.driver import SpecFileError
from energyml.train.checkpoint import Checkpoint, gains_from, read_checkpoint, write_checkpoint, write_whole

try:
    import fcntl
except ImportError:  # not on this platform
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel
    from energyml.ir.graph import Graph

LAST, BEST = "last.safetensors", "best.safetensors"


class Folder:
    """One run on disk.

    Args:
        path: the folder; made when it does not exist.
        request: spec, choices, label sets, versions: what each checkpoint carries beside weights.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path, self.request = path, dict(request)
        self._lock: BinaryIO | None = None

    @staticmethod
    def create(path: Path, request: Mapping[str, Any], *, resume: bool) -> Folder:
        """A new run's folder, or with `resume` that of a run with the same request."""
        known = path / LAST
        if known.exists() and not resume:
            raise EnergyError(f"{path} holds a run already; go on with `--resume`, or choose another `--out`")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise SpecFileError(f"{path}: {(problem.strerror or str(problem)).lower()}") from problem
        made = Folder(path, request)
        made._take()
        try:
            if known.exists():
                made.check_same(read_checkpoint(known))
            write_whole(path / "spec.energy", str(request["spec"]["text"]).encode())
        except BaseException:
            made.release()
            raise
        return made

    def _take(self) -> None:
        """Keep other processes out: two that write the same files would spoil them.  A killed one holds nothing."""
        if fcntl is None:
            return
        try:
            self._lock = (self.path / ".lock").open("wb")
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self.release()
            raise EnergyError(
                f"{self.path}: another process trains here now; wait for it, or choose another `--out`"
            ) from problem
        except OSError:  # a file system without locks; what cannot be written is told where it is written
            self.release()

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def check_same(self, checkpoint: Checkpoint) -> None:
        """Refuse to go on with another spec or other choices than the run began with."""
        before = checkpoint.state["request"]
        titles = {"spec": "another spec", "choices": "other choices", "labels": "other labels", "seed": "another seed"}
        for key, title in titles.items():
            then, now = before[key], json.loads(json.dumps(self.request[key]))
            if key == "spec":  # the same file may go by another path
                then, now = then["text"], now["text"]
            if key == "choices":  # runs of earlier versions do not say what was left out
                then = {**dict.fromkeys(now), **then}
            if then != now:
                raise EnergyError(
                    f"{self.path} was begun with {title}{_difference(then, now)}; "
                    "resume it as it was, or choose another `--out`"
                )

    def save(self, checkpoint: Checkpoint, best: bool) -> None:
        """Write a checkpoint, and the logs that belong to it.

        The best one comes first: a run that is killed between the two does its last epoch again and writes both.
        """
        checkpoint.state["request"] = self.request
        if best:
            light = {name: one for name, one in checkpoint.tensors.items() if name.startswith("model.")}
            write_checkpoint(self.path / BEST, Checkpoint(light, checkpoint.state))
        write_checkpoint(self.path / LAST, checkpoint)
        history: Sequence[Mapping[str, Any]] = checkpoint.state["history"]
        write_whole(self.path / "log.jsonl", "".join(f"{json_text(one)}\n" for one in history).encode())
        write_whole(self.path / "log.txt", log_text(history).encode())


def _difference(before: Any, now: Any) -> str:
    """The first thing that differs, in brackets."""
    if isinstance(before, dict):
        for key in before:
            if before[key] != now.get(key):
                return f" (`{key}` was `{before[key]}`, is `{now.get(key)}`)"
        return ""
    if isinstance(before, str):
        pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="")
        for number, (old, new) in enumerate(pairs, start=1):
            if old != new:
                return f" (line {number} was `{old.strip()}`, is `{new.strip()}`)"
    return f" (it was {before}, is {now})" if isinstance(before, int) else ""


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that any program reads: what is not a number, as the accuracy of no cells, is null."""
    return json.dumps(_finite(value), indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def log_text(history: Sequence[Mapping[str, Any]]) -> str:
    """The records of epochs as lines for people."""
    lines, stage = [], None
    for record in history:
        if record["stage"] != stage:
            stage = record["stage"]
            lines.append(f"stage {stage}")
        lines.append(f"  {record_line(record)}")
    return "\n".join(lines) + "\n" if lines else ""


def record_line(record: Mapping[str, Any]) -> str:
    """One epoch in a line."""
    parts = [f"epoch {record['epoch']:>3}", f"loss {record['loss']:.4f}"]
    for key, value in record.items():
        if key.startswith(("validation.", "train.")):
            parts.append(f"{key.replace('.', ' ')} {value:.4f}")
    if "alpha" in record:
        parts.append(f"alpha {record['alpha']:g}")
    if "ratio" in record:
        parts.append(f"ratio {record['ratio']:.3g}")
    parts.append(f"lr {record['lr']:g}")
    parts.append(f"{record['seconds'] + record['seconds_between']:.1f} s")
    return ", ".join(parts)


def make_request(
    model: EnergyModel,
    choices: Mapping[str, Any],
    vocabularies: Mapping[str, Any],
    seed: int | None,
    root: str | None = None,
) -> dict[str, Any]:
    """What a checkpoint carries beside weights: enough to make the model again from the file alone.

    Args:
        model: the bound model.
        choices: objectives, backend, decoder and reader in the spec's words.
        vocabularies: by label set.
        seed: of the run.
        root: where the data lay, for evaluating on the same machine.
    """
    source = model.compiled.source
    return {
        "spec": {"name": source.name, "text": source.text},
        "choices": dict(choices),
        "labels": {name: list(one.labels or ()) for name, one in model.graph.label_sets.items()},
        "vocabularies": {name: one.as_json() for name, one in vocabularies.items()},
        "seed": seed,
        "root": root,
        "versions": {"python": platform.python_version(), "torch": _version("torch"), "energyml": _version("energyml")},
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def checkpoint_path(path: str | Path) -> Path:
    """The checkpoint of a run's folder (its best one), or the file itself."""
    place = Path(path)
    if place.suffix == ".energy" and place.is_file():
        raise EnergyError(
            f"{place} is a spec, which has no weights; train it with `energyml train {place} --out RUN`, and give RUN"
        )
    if not place.is_dir():
        return place
    for name in (BEST, LAST):
        if (place / name).exists():
            return place / name
    raise EnergyError(f"{place}: no run: there is neither {BEST} nor {LAST} in it")


def imported_packages(graph: Graph) -> dict[str, str]:
    """The packages that a spec's Python networks come from, each with one of these networks."""
    targets = [str(net.selection["target"]) for net in graph.nets.values() if net.selection.name == "python"]
    return {target.partition(":")[0].partition(".")[0]: target for target in targets}


def load_run(path: str | Path, *, allow_import: Sequence[str] = ()) -> tuple[EnergyModel, Checkpoint]:
    """The model of a run, from its checkpoint alone, and the checkpoint.

    Args:
        path: a run's folder, or a checkpoint.
        allow_import: the packages whose networks the spec inside may import; none unless named here.
    """
    from energyml.driver import compile_source
    from energyml.loading import bind

    place = checkpoint_path(path)
    checkpoint = read_checkpoint(place)
    request = checkpoint.state["request"]
    compiled = compile_source(Source(f"{place}:{request['spec']['name']}", request["spec"]["text"]))
    for package, target in imported_packages(compiled.graph).items():
        if package not in allow_import:
            raise EnergyError(
                f"{place}: its spec names the Python network `{target}`; a checkpoint imports nothing unless it is "
                f"allowed: pass `--allow-import {package}`"
            )
    model = bind(compiled, labels=request["labels"], pretrained=False)
    weights = checkpoint.part("model")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise EnergyError(
                f"{place}: the weights `{name}` hold NaN, with which no answer has a score; take another checkpoint, "
                "or train again"
            )
    try:
        model.load_state_dict(weights)
    except RuntimeError as problem:
        detail = str(problem).splitlines()[-1].strip()
        raise EnergyError(f"{place}: its weights do not fit its spec: {detail}") from problem
    model.gains.update(gains_from(checkpoint.state["gains"]))
    model.eval()
    return model, checkpoint


__all__ = [
    "BEST",
    "LAST",
    "Folder",
    "checkpoint_path",
    "imported_packages",
    "json_text",
    "load_run",
    "log_text",
    "make_request",
    "record_line",
]

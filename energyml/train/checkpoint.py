"""Checkpoints: one safetensors file with weights, optimiser state and random state, and JSON for the rest.

A file is written beside its place and then renamed, so that there is always a whole one.  Nothing in it is code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from energyml.bind.gains import Gain, Normalised
from energyml.driver import SpecFileError
from energyml.objectives.kept import Stored

FORMAT = "energyml checkpoint 1"


class CheckpointError(SpecFileError):
    """A checkpoint that cannot be read or written."""


@dataclass
class Checkpoint:
    """What a run needs to go on, or a model to predict.

    Attributes:
        tensors: by name: `model.*` weights, `optimizer.*`, `random.*`, and `kept.*` of objectives.
        state: plain data: spec, vocabularies, choices, versions, where training stands.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        lead = f"{prefix}."
        return {name.removeprefix(lead): one for name, one in self.tensors.items() if name.startswith(lead)}


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole or not at all; the one before stays until then."""
    metadata = {"format": FORMAT, "state": json.dumps(checkpoint.state, sort_keys=True)}
    tensors = {name: one.detach().cpu().contiguous() for name, one in checkpoint.tensors.items()}
    write_whole(path, save(_apart(tensors), metadata))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory are copied: the format stores each on its own."""
    seen: set[int] = set()
    found = {}
    for name, one in tensors.items():
        place = one.untyped_storage().data_ptr()
        found[name] = one.clone() if place in seen else one
        seen.add(place)
    return found


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to the disk, then rename it."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        reason = (problem.strerror or str(problem)).lower()
        raise CheckpointError(f"{path}: {reason}; what was there before is untouched") from problem


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint as data; nothing in it is run."""
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(
                    f"{path}: no checkpoint of this version ({FORMAT}), found `{metadata.get('format')}`"
                )
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            return Checkpoint(tensors, json.loads(metadata["state"]))
    except FileNotFoundError as problem:
        raise CheckpointError(f"{path}: no such file") from problem
    except (SafetensorError, OSError, ValueError, KeyError) as problem:
        raise CheckpointError(f"{path}: not a whole checkpoint: {problem}") from problem


# ----------------------------------------------------------------------------------------------------------- optimisers


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser: tensors by `parameter.entry`, and plain numbers likewise; `names` by tensor id."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {"lr": [group["lr"] for group in optimizer.param_groups]}
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            place = f"{names[id(parameter)]}.{key}"
            if isinstance(value, Tensor):
                tensors[place] = value
            elif value is not None:
                numbers[place] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Put an optimiser's state back."""
    for group, lr in zip(optimizer.param_groups, numbers["lr"], strict=True):
        group["lr"] = lr
    values: dict[str, Any] = {**tensors, **{key: value for key, value in numbers.items() if key != "lr"}}
    for place, value in values.items():
        name, _, key = place.rpartition(".")
        parameter = parameters[name]
        if isinstance(value, Tensor) and key != "step":
            value = value.to(parameter.device)
        optimizer.state[parameter][key] = value


# ----------------------------------------------------------------------------------------------------------- objectives


def kept_tensors(each: Sequence[Mapping[str, Stored]]) -> tuple[dict[str, Tensor], list[list[dict[str, Any]]]]:
    """What objectives keep in every process: tensors by `process.objective.entry`, and plain data beside them."""
    tensors: dict[str, Tensor] = {}
    plain: list[list[dict[str, Any]]] = []
    for rank, of_process in enumerate(each):
        plain.append([])
        for number, (key, one) in enumerate(of_process.items()):
            tensors |= {f"{rank}.{number}.{name}": tensor for name, tensor in one.tensors.items()}
            plain[rank].append({"objective": key, "plain": one.plain})
    return tensors, plain


def kept_from(
    tensors: Mapping[str, Tensor], plain: Sequence[Sequence[Mapping[str, Any]]], rank: int
) -> dict[str, Stored]:
    """What objectives kept in a process; nothing for a process that the run did not have before."""
    found = {}
    for number, one in enumerate(plain[rank] if rank < len(plain) else ()):
        lead = f"{rank}.{number}."
        own = {name.removeprefix(lead): tensor for name, tensor in tensors.items() if name.startswith(lead)}
        found[str(one["objective"])] = Stored(own, one["plain"])
    return found


# ---------------------------------------------------------------------------------------------------------------- gains


def plain_gains(gains: Mapping[str, Gain]) -> dict[str, Any]:
    """Gains of terms as plain data."""
    return {
        name: {"alpha": gain.alpha, "group": list(gain.group)} if isinstance(gain, Normalised) else gain
        for name, gain in gains.items()
    }


def gains_from(plain: Mapping[str, Any]) -> dict[str, Gain]:
    """The gains of a checkpoint."""
    return {
        name: Normalised(one["alpha"], tuple(one["group"])) if isinstance(one, dict) else float(one)
        for name, one in plain.items()
    }


__all__ = [
    "Checkpoint",
    "CheckpointError",
    "gains_from",
    "kept_from",
    "kept_tensors",
    "optimizer_tensors",
    "plain_gains",
    "read_checkpoint",
    "restore_optimizer",
    "write_checkpoint",
    "write_whole",
]

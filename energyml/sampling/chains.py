"""Where chains stand, in a file: `energyml sample --state` goes on from it, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from energyml.diagnostics import EnergyError
from energyml.train.checkpoint import write_whole

FORMAT = "energyml chains 1"


def write_chains(path: Path, tensors: Mapping[str, Tensor], sampler: str) -> None:
    """Write the tensors of a state, whole or not at all."""
    plain = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
    write_whole(path, save(plain, {"format": FORMAT, "about": json.dumps({"sampler": sampler})}))


def read_chains(path: Path, sampler: str) -> dict[str, Tensor]:
    """The tensors of a state; refused where another kind of sampler wrote it."""
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise EnergyError(f"{path}: holds no chains; give `--state` another name")
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        raise EnergyError(f"{path}: not a whole file of chains: {problem}; remove it to begin anew") from problem
    before = str(json.loads(metadata["about"])["sampler"])
    if before != sampler:
        raise EnergyError(f"{path}: holds chains of `{before}`, not of `{sampler}`; give `--state` another name")
    return tensors


__all__ = ["read_chains", "write_chains"]

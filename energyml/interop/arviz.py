"""Draws as ArviZ's `InferenceData`: for its diagnostics, tables and plots.  An optional extra: `arviz`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

from energyml.diagnostics import EnergyError
from energyml.inference.trace import Trace


def to_arviz(trace: Trace) -> Any:
    """An `arviz.InferenceData` with dims named by the model's own axes.

    `posterior` holds each variable as (chain, draw, example, *dims), label numbers with -1 where there is no cell, and
    the coordinate `<variable>_label` their names as an attribute; fields hold their values.  `sample_stats` holds `lp`,
    the score, and `energy`.  Latents are variables like others here.
    """
    arviz = need_arviz()
    posterior: dict[str, np.ndarray] = {}
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {"example": np.arange(trace.score.shape[2])}
    for name, values in (*trace.labels.items(), *trace.fields.items()):
        array = _chain_first(values)
        posterior[name] = array.astype(np.int64) if name in trace.labels else array
        dims[name] = ["example", *_distinct(trace.dims[name])]
        for dim, size in zip(dims[name][1:], array.shape[3:], strict=True):
            coords.setdefault(dim, np.arange(size))
    statistics = {"lp": _chain_first(trace.score), "energy": _chain_first(trace.energy)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains fewer than draws, and the like, are as they were asked for
        made = arviz.from_dict(
            posterior=posterior,
            sample_stats=statistics,
            coords=coords,
            dims={**dims, "lp": ["example"], "energy": ["example"]},
            attrs={"sampler": trace.sampler, "burn_in": trace.burn_in, "valid": int(trace.valid)},
        )
    for name in trace.labels:
        made.posterior[name].attrs["labels"] = list(trace.names[name])
    return made


def _chain_first(values: Tensor) -> np.ndarray:
    """[C, S, ...] of values [S, C, ...]."""
    array: np.ndarray = values.detach().cpu().movedim(0, 1).numpy()
    return array


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of axes, a second one of the same name numbered."""
    made: list[str] = []
    for name in names:
        made.append(name if name not in made else f"{name}_{sum(one.split('_')[0] == name for one in made) + 1}")
    return made


def need_arviz() -> Any:
    """The package, or how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module("arviz")
    except ImportError as problem:
        raise EnergyError("`to_arviz` needs ArviZ: pip install 'energyml[sampling]'") from problem


__all__ = ["need_arviz", "to_arviz"]

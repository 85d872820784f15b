"""From a spec to a torch module: label sets are fixed, networks and parameters are built.

Importing it is free of torch, which the first model imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from energyml.diagnostics import Source
from energyml.driver import Compiled, compile_source, read_source

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel


def load(
    path: str | Path, *, labels: Mapping[str, Sequence[str]] | None = None, seed: int | None = None
) -> EnergyModel:
    """Load a spec file as a torch module.

    Args:
        path: an `.energy` file.
        labels: the labels of each set that the spec takes from data, in order.
        seed: seed of the first values of all parameters.
    """
    return bind(compile_source(read_source(path)), labels=labels, seed=seed)


def compile(
    text: str, *, labels: Mapping[str, Sequence[str]] | None = None, seed: int | None = None, name: str = "<text>"
) -> EnergyModel:
    """Compile a spec text to a torch module; arguments as in `load`."""
    return bind(compile_source(Source(name, text)), labels=labels, seed=seed)


def bind(
    compiled: Compiled,
    *,
    labels: Mapping[str, Sequence[str]] | None = None,
    seed: int | None = None,
    pretrained: bool = True,
) -> EnergyModel:
    """Fix label sets, build networks and parameters: from here on there are weights.

    Args:
        compiled: the spec.
        labels: the labels of each set that the spec takes from data, in order.
        seed: seed of the first values of all parameters.
        pretrained: whether files of vectors that networks name are read; a checkpoint brings its own weights.
    """
    from energyml.energy_model import EnergyModel

    model = EnergyModel(compiled, labels=labels, seed=seed)
    if pretrained and names_vectors(compiled):
        from energyml.data.vectors import give_vectors

        give_vectors(model)
    return model


def names_vectors(compiled: Compiled) -> bool:
    """Whether a network of the catalogue starts from a file of vectors."""
    chosen = (net.selection for net in compiled.graph.nets.values())
    return any(one.card.option("vectors") is not None and one["vectors"] is not None for one in chosen)

"""The option `--size` of commands: how long dims are."""

from __future__ import annotations

import typer

from energyml.diagnostics import did_you_mean
from energyml.driver import Compiled


def _sizes(given: list[str] | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for item in given or []:
        name, equal, value = item.partition("=")
        if not equal or not value.isdecimal() or len(value) > 9:
            raise typer.BadParameter(f"expected NAME=NUMBER, found `{item}`", param_hint="--size")
        sizes[name] = int(value)
    return sizes


def checked_sizes(compiled: Compiled, given: list[str] | None) -> dict[str, int]:
    """The sizes that a command gives, by dim; refused where the spec has no such dim."""
    sizes = _sizes(given)
    for name in sizes:
        if name not in compiled.graph.dims:
            guess = did_you_mean(name, compiled.graph.dims)
            hint = f"; did you mean `{guess}`?" if guess else f"; it has: {', '.join(compiled.graph.dims)}"
            raise typer.BadParameter(f"the spec has no dim `{name}`{hint}", param_hint="--size")
    return sizes

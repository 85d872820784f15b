"""The command that samples."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energyml.cli_sizes import checked_sizes
from energyml.driver import compile_source, read_source, source_from
from energyml.written import check_writable, write_lines

if TYPE_CHECKING:
    from energyml.inference.trace import Progress


def sample(
    subject: Annotated[str, typer.Argument(help="A spec, a run's folder or a checkpoint.", show_default=False)],
    count: Annotated[int, typer.Option("-n", "--count", help="Draws of each example.", min=1)] = 1000,
    chains: Annotated[int, typer.Option("--chains", help="Chains that draw them.", min=1)] = 4,
    burn_in: Annotated[int | None, typer.Option("--burn-in", help="Sweeps that are thrown away.", min=0)] = None,
    infer: Annotated[
        str | None,
        typer.Option("--infer", help="The sampler, as in 'metropolis(block: 3)'; one that suits if left out."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where draws go, a JSON object each; .nc for ArviZ's own format.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", help="JSON file: tensors by declared name; random when left out.")
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence", help="JSON file: known cells by variable, null or '?' where unknown; draws fill in the rest."
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="JSON file: the labels of each set that comes from data.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", help="The size of a dim, as in `--size T=50`; repeatable.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="How many random examples.", min=1)] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, random inputs and draws.", min=0)] = 0,
    allow: Annotated[
        list[str] | None, typer.Option("--allow-import", help="A package whose networks a checkpoint may import.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Where the chains stand: they go on from this file, and are kept in it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Draw answers from a spec or a run, and say plainly when the chains have not mixed.

    Ctrl-C ends it after the sweep, and keeps the draws so far.
    """
    from energyml.sampling.run import Request, draw, model_of, untrained
    from energyml.train.run import interruptible

    if out is not None:  # before the draws, which would be lost
        check_writable(out)
        if out.suffix == ".nc":
            from energyml.interop.arviz import need_arviz

            need_arviz()
    if state is not None:
        check_writable(state)

    def request_for(compiled: Any) -> Request:
        sizes = checked_sizes(compiled, size)
        return Request(count, chains, burn_in, infer, inputs, evidence, labels, sizes, batch, seed, state)

    if subject == "-" or Path(subject).suffix == ".energy":
        source = source_from("<stdin>", sys.stdin.buffer.read()) if subject == "-" else read_source(subject)
        compiled = compile_source(source)
        request = request_for(compiled)
        model = model_of(compiled, request)
        notes = untrained(model, seed)
    else:
        from energyml.train.folder import load_run

        model, _ = load_run(subject, allow_import=allow or ())
        notes = []
        request = request_for(model.compiled)
    if inputs is None and model.graph.inputs:
        notes.append(f"the inputs are random (seed {seed}): `--inputs FILE` gives others")
    if state is not None and state.exists():
        notes.append(f"the chains went on from {state}, without burn-in")
    with _shown() as progress:
        drawn = draw(model, request, progress, interruptible)
    if drawn.stopped and drawn.trace is not None:
        notes.append(f"stopped before the end: {drawn.trace.score.shape[0]} sweeps of each chain were made")
    if out is not None and out.suffix == ".nc":
        drawn.posterior.to_arviz().to_netcdf(str(out))
    elif out is not None:
        write_lines(out, drawn.lines)
    if as_json:
        typer.echo(json.dumps({**_facts(drawn), "notes": notes}, indent=2))
    else:
        typer.echo("\n".join([drawn.summary, *(f"note: {note}" for note in notes)]))
        if out is not None:
            typer.echo(f"wrote {out}")
    if drawn.stopped:
        raise typer.Exit(130)


def _facts(drawn: Any) -> dict[str, Any]:
    trace = drawn.trace
    found: dict[str, Any] = {"sampler": str(drawn.posterior.selection)}
    if trace is None:
        return {**found, "independent": True}
    return {
        **found,
        "independent": False,
        "chains": trace.score.shape[1],
        "sweeps": trace.score.shape[0],
        "burn_in": trace.burn_in,
        "acceptance": float(trace.acceptance.mean()),
        "novel": float(trace.novel.mean()),
        "energy": _number(float(trace.energy.mean())),
        "rhat": {"energy": _number(float(trace.rhat_energy.max())), "cells": _number(trace.rhat_cells)},
        "ess": _worth(trace),
        "mixed": trace.mixed,
        "moved": trace.moved,
        "valid": trace.valid,
        "warning": trace.warning,
    }


def _worth(trace: Any) -> dict[str, float | None]:
    """Effective numbers of draws, where they can be told."""
    if trace.untold is not None:
        return {"energy": None, "cells": None}
    return {"energy": _number(float(trace.ess_energy.min())), "cells": _number(trace.ess_cells)}


def _number(value: float) -> float | None:
    """A number that JSON has; nothing for those that are infinite or none."""
    return value if math.isfinite(value) else None


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Progress on standard error: a bar with the time left on a terminal, a line for each tenth elsewhere."""
    if not sys.stderr.isatty():
        told = -1

        def line(progress: Progress) -> None:
            nonlocal told
            tenth = 10 * progress.done // progress.total
            if tenth > told:
                told = tenth
                typer.echo(f"  {_words(progress)}", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sampling", total=None)
        yield lambda progress: bar.update(
            task, total=progress.total, completed=progress.done, description=_words(progress)
        )


def _words(progress: Progress) -> str:
    phase = "burn-in" if progress.burning else "sampling"
    return (
        f"{phase} {progress.done}/{progress.total}  energy {progress.energy:.4g}  acceptance {progress.acceptance:.2f}"
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(sample)


__all__ = ["register"]

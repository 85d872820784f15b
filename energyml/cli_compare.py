"""The command that compares backends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def compare(
    subject: Annotated[str, typer.Argument(help="A run's folder, a checkpoint, or a spec.", show_default=False)],
    infer: Annotated[
        str, typer.Option("--infer", help="Backends, as in 'exact, mean_field(steps: 20)'.", show_default=False)
    ],
    data: Annotated[str | None, typer.Option("--data", help="A reader in place of the spec's `data` line.")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Where the paths of the data start.")] = None,
    split: Annotated[str, typer.Option("--split", help="train, validation or test.")] = "test",
    inputs: Annotated[
        list[str] | None, typer.Option("--inputs", help="A file without gold labels in place of a split; repeatable.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", help="One more metric; repeatable.")] = None,
    batch: Annotated[int, typer.Option("--batch", help="Examples at a time.", min=1)] = 10,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed passes over the data.", min=1)] = 3,
    limit: Annotated[int | None, typer.Option("--limit", help="Only so many examples, at random.", min=1)] = None,
    likelihood: Annotated[
        str | None,
        typer.Option("--likelihood", help="bigram, lstm, or a file of log-likelihoods: rho with search error."),
    ] = None,
    decode: Annotated[str, typer.Option("--decode", help="How labels are read off.")] = "map",
    out: Annotated[Path | None, typer.Option("--out", help="Also as a file: .csv or .json.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Speed against accuracy: .svg, .png or .pdf.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of a spec's weights and of random numbers.", min=0)] = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, ...")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of torch.", min=1)] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow-import", help="A package whose networks a checkpoint may import.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Compare backends on one energy: metrics, energy, search error, speed, memory."""
    import torch

    from energyml.comparison.result import FORMATS, PICTURES, checked_path
    from energyml.comparison.run import compare as run
    from energyml.train.run import check_device

    if out is not None:
        checked_path(out, FORMATS)
    if plot is not None:
        checked_path(plot, PICTURES)
    if device is not None:
        check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    made = run(
        subject, infer, data=data, root=root, split=split, inputs=inputs or (), metrics=metric or (), batch=batch,
        repeats=repeats, limit=limit, likelihood=likelihood, decode=decode, seed=seed, device=device,
        allow=allow or (), tell=_say,
    )  # fmt: skip
    _say("")
    if out is not None:
        made.save(out)
    if plot is not None:
        made.plot(plot)
    if as_json:
        typer.echo(json.dumps(made.plain(), indent=2))
        return
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(made.table())
        typer.echo("\n" + "\n".join(made.footer()))
    else:
        typer.echo(made.text())
    for path in (out, plot):
        if path is not None:
            typer.echo(f"wrote {path}")


def _say(text: str) -> None:
    """Tell on a terminal which backend is at work, in one line that is written over."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(compare)


__all__ = ["register"]

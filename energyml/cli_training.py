"""The commands that train, evaluate and predict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from energyml.driver import compile_source, read_source, source_from
from energyml.written import write_lines

Spec = Annotated[str, typer.Argument(help="A spec file.", show_default=False)]
RunPath = Annotated[str, typer.Argument(help="A run's folder, or a checkpoint.", show_default=False)]
Root = Annotated[Path | None, typer.Option("--root", help="Where the paths of the data start.")]
Data = Annotated[str | None, typer.Option("--data", help="A reader in place of the spec's `data` line.")]
Infer = Annotated[str | None, typer.Option("--infer", help="A backend in place of the spec's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow-import", help="A package whose networks a checkpoint may import.")
]


def train(
    file: Annotated[str, typer.Argument(help="A spec file; `-` reads standard input.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.", show_default=False)],
    infer: Infer = None,
    objective: Annotated[
        str | None, typer.Option("--train", help="Objectives in place of the spec's, joined by `then`.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="An option of training, as in `optimizer.lr=0.01`; repeatable.")
    ] = None,
    root: Root = None,
    data: Data = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in `--out`.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and batches.")] = 0,
    device: Device = "cpu",
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of torch.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Most epochs of a stage.", min=1)] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", help="One more metric; repeatable.")] = None,
    train_metrics: Annotated[bool, typer.Option("--train-metrics", help="Evaluate on training data too.")] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Only reproducible operations.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No output but mistakes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train the model of a spec; keeps checkpoints and logs in a folder, and goes on after any stop."""
    from energyml.train.display import display
    from energyml.train.run import Request
    from energyml.train.run import train as run

    source = source_from("<stdin>", sys.stdin.buffer.read()) if file == "-" else read_source(file)
    compiled = compile_source(source)
    request = Request(
        out=out, root=root, data=data, infer=infer, train=objective, changes=tuple(changes or ()), seed=seed,
        resume=resume, device=device, threads=threads, deterministic=deterministic, train_metrics=train_metrics,
        limit=epochs, metrics=tuple(metric or ()),
    )  # fmt: skip
    done = run(compiled, request, display(quiet=quiet, as_json=as_json))
    if done.interrupted and done.rank:
        raise typer.Exit(130)
    if done.interrupted:
        typer.echo(f"energyml: interrupted; everything is saved: go on with `--out {out} --resume`", err=True)
        raise typer.Exit(130)
    if not quiet and not as_json and done.rank == 0:
        typer.echo(f"{out}: best.safetensors, last.safetensors, log.txt, log.jsonl")


def evaluate(
    run: RunPath,
    root: Root = None,
    data: Data = None,
    infer: Infer = None,
    split: Annotated[str, typer.Option("--split", help="train, validation or test.")] = "test",
    metric: Annotated[list[str] | None, typer.Option("--metric", help="One more metric; repeatable.")] = None,
    confusion: Annotated[int, typer.Option("--confusion", help="Rows of the confusion table.", min=0)] = 10,
    report: Annotated[
        str | None,
        typer.Option("--report", help="`beam` or 'beam(width: 5)': where it loses the gold, normalisers, lengths."),
    ] = None,
    device: Device = "cpu",
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model: metrics, and the labels that it confuses most."""
    from energyml.train.folder import json_text
    from energyml.train.report import evaluation

    found = evaluation(
        run, root=root, data=data, infer=infer, split=split, metrics=metric or (), report=report, allow=allow or (),
        device=device,
    )  # fmt: skip
    if as_json:
        typer.echo(json_text(found.plain(), indent=2))
        return
    typer.echo(found.text(confusion))


def predict(
    run: RunPath,
    files: Annotated[
        list[str], typer.Argument(help="Files in the format of the spec's `data` line; `-` is standard input.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Where predictions go; standard output otherwise.")] = None,
    data: Data = None,
    infer: Infer = None,
    batch: Annotated[int, typer.Option("--batch", help="Examples at a time.", min=1)] = 32,
    device: Device = "cpu",
    allow: Allow = None,
) -> None:
    """Predict: one JSON object a line with labels and their probabilities, as the input is read."""
    from energyml.train.report import predicted_lines

    lines = predicted_lines(run, files, data=data, infer=infer, size=batch, allow=allow or (), device=device)
    if out is None:
        for line in lines:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return
    count = write_lines(out, lines)
    typer.echo(f"{out}: {count} examples")


def sweep(
    file: Spec,
    out: Annotated[Path, typer.Option("--out", help="A folder for all runs.", show_default=False)],
    grid: Annotated[
        list[str] | None, typer.Option("--grid", help="An axis, as in `train=nll,ssvm` or `optimizer.lr=1e-3,1e-2`.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of each combination.", min=1)] = 1,
    changes: Annotated[list[str] | None, typer.Option("--set", help="An option of all runs; repeatable.")] = None,
    root: Root = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Most epochs of a stage.", min=1)] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Runs at a time, one thread each.", min=1)] = 2,
    engine: Annotated[
        str, typer.Option("--engine", help="What carries runs out: processes, or ray for an existing cluster.")
    ] = "processes",
    split: Annotated[str, typer.Option("--split", help="What is evaluated: train, validation or test.")] = "test",
    metric: Annotated[list[str] | None, typer.Option("--metric", help="One more metric; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a grid of choices times seeds, and show a table; runs that are done are not run again."""
    from energyml.train.sweep import read_grid, table
    from energyml.train.sweep import sweep as run

    more = [part for change in changes or () for part in ("--set", change)]
    more += [] if epochs is None else ["--epochs", str(epochs)]
    records = run(
        Path(file), read_grid(grid or ()), seeds, out, more=more, root=root, jobs=jobs, engine=engine, split=split,
        metrics=metric or (), tell=(lambda text: None) if as_json else typer.echo,
    )  # fmt: skip
    typer.echo(json.dumps(records, indent=2) if as_json else f"\n{table(records)}")
    raise typer.Exit(int(any("error" in record for record in records)))


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The picture: .png, .svg or .pdf.")] = Path("curves.png"),
) -> None:
    """Draw the curves of one run or several: loss, metrics, the ratio of potentials, the scale."""
    from energyml.train.plots import plot as draw

    draw(runs, out)
    typer.echo(f"{out}: {len(runs)} run{'s' if len(runs) > 1 else ''}")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(train)
    app.command("eval")(evaluate)
    app.command()(predict)
    app.command()(sweep)
    app.command()(plot)


__all__ = ["register"]

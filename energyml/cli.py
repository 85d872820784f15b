"""The command line: thin commands over the public API.

Exit codes: 0 fine; 1 the spec, the data or the request has a mistake, which is shown; 2 a file cannot be read or
written, or the command line itself is wrong; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from energyml.cli_sizes import checked_sizes
from energyml.diagnostics import EnergyError, Report, Source, SpecError, did_you_mean, render_all, render_json
from energyml.driver import Compiled, SpecFileError, analyse, compile_source, read_source, source_from
from energyml.written import write_text

app = typer.Typer(
    name="energyml",
    help="A small language for energy-based structured prediction: check, explain and run spec files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Specs = Annotated[list[str], typer.Argument(help="Spec files; `-` reads standard input.", show_default=False)]
Spec = Annotated[str, typer.Argument(help="A spec file; `-` reads standard input.", show_default=False)]
Model = Annotated[
    str,
    typer.Argument(help="A spec, or a .uai or .fg model; `-` reads a spec.", show_default=False),
]
Sizes = Annotated[list[str] | None, typer.Option("--size", help="The size of a dim, as in `--size T=50`; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _source(name: str) -> Source:
    return source_from("<stdin>", _standard_input()) if name == "-" else read_source(name)


def _compiled(name: str) -> Compiled:
    """A spec, or the model of a UAI or libDAI file as one."""
    if Path(name).suffix.lower() not in (".uai", ".fg"):
        return compile_source(_source(name))
    from energyml.interop.competition import compiled_model

    return compiled_model(name)


def _standard_input() -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    return stream.read() if stream is not None else sys.stdin.read().encode()


@app.command()
def check(files: Specs, as_json: AsJson = False) -> None:
    """Check spec files and show every mistake with its place and its likely fix."""
    failed, unreadable, reports = False, False, []
    for name in files:
        try:
            source = _source(name)
        except SpecFileError as problem:
            typer.echo(f"energyml: {problem}", err=True)
            unreadable = True
            continue
        report = analyse(source)[1]
        failed = failed or bool(report.errors)
        reports.append(report)
    _show_reports(reports, as_json)
    raise typer.Exit(2 if unreadable else int(failed))


def _show_reports(reports: list[Report], as_json: bool) -> None:
    if as_json:
        data = [json.loads(render_json(report.source, report.ordered())) for report in reports]
        typer.echo(json.dumps(data, indent=2))
        return
    for report in reports:
        _show(render_all(report.source, report.ordered()), err=bool(report.errors))


_STYLES = (("error[", "bold red"), ("warning[", "bold yellow"), ("note:", "blue"), ("help:", "cyan"))


def _show(text: str, err: bool) -> None:
    """Print diagnostics, in colour on a terminal."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        typer.echo(text, err=err)
        return
    from rich.console import Console
    from rich.text import Text

    drawn = Text(text)
    for prefix, style in _STYLES:
        drawn.highlight_regex(rf"(?m)^{re.escape(prefix)}[^\n]*", style)
    drawn.highlight_regex(r"(?m)^ *\| *\^+[^\n]*", "red")
    drawn.highlight_regex(r"(?m)^ *(--> [^\n]*|\d+ \||\|)", "dim")
    Console(file=stream, highlight=False, soft_wrap=True).print(drawn)


@app.command()
def fmt(
    files: Specs,
    only_check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a file would change.")] = False,
) -> None:
    """Format spec files in place (standard input to standard output)."""
    from energyml.syntax.formatter import format_text

    changed = 0
    for name in files:
        source = _source(name)
        formatted = format_text(source.text, source.name)
        if name == "-":
            if not only_check:
                typer.echo(formatted, nl=False)
            changed += formatted != source.text
        elif formatted.encode() != Path(name).read_bytes():
            changed += 1
            typer.echo(f"{'would change' if only_check else 'formatted'} {name}")
            if not only_check:
                write_text(Path(name), formatted)
    raise typer.Exit(int(only_check and changed > 0))


def _stage(value: str | None) -> str | None:
    from energyml.explain import STAGES

    if value is not None and value not in STAGES:
        raise typer.BadParameter(f"expected one of {', '.join(STAGES)}, found `{value}`")
    return value


@app.command()
def explain(
    file: Model,
    stage: Annotated[
        str | None, typer.Option(help="Only one stop of the road: tree, model, ir or plan.", callback=_stage)
    ] = None,
    size: Sizes = None,
    infer: Annotated[str | None, typer.Option(help="Explain another backend than the file's own.")] = None,
) -> None:
    """Show the model after checking, its structure, the plan with its cost, and a verdict on every backend."""
    from energyml.explain import explain as explained

    compiled = _with_infer(_compiled(file), infer)
    typer.echo(explained(compiled, stage, checked_sizes(compiled, size)))  # type: ignore[arg-type]


def _with_infer(compiled: Compiled, infer: str | None) -> Compiled:
    if infer is None:
        return compiled
    from dataclasses import replace

    from energyml.driver import read_choice

    choices = replace(compiled.model.choices, infer=read_choice("backend", infer, compiled.model))
    return replace(compiled, model=replace(compiled.model, choices=choices))


@app.command()
def graph(
    file: Spec,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write: .svg or .dot.")],
    size: Sizes = None,
) -> None:
    """Draw the factor graph: plates for the lifted graph, or every cell when sizes are given."""
    from energyml.ir import draw
    from energyml.ir.ground import Instance, extent_of, ground
    from energyml.ir.ground_layout import check_extent

    if output.suffix not in (".svg", ".dot"):
        raise typer.BadParameter(f"the name must end in .svg or .dot, found `{output}`", param_hint="-o")
    compiled = compile_source(_source(file))
    sizes = checked_sizes(compiled, size)
    if sizes:
        check_extent(*extent_of(compiled.graph, Instance(sizes)))
        cells = ground(compiled.graph, Instance(sizes))
        text = draw.grounded_svg(cells) if output.suffix == ".svg" else draw.grounded_dot(cells)
    else:
        text = draw.lifted_svg(compiled.graph) if output.suffix == ".svg" else draw.lifted_dot(compiled.graph)
    write_text(output, text)
    typer.echo(f"wrote {output}")


@app.command()
def info(file: Model, size: Sizes = None) -> None:
    """Print the model as JSON: declarations, terms, structure, choices, backends."""
    from energyml.explain import info as described

    compiled = _compiled(file)
    typer.echo(json.dumps(described(compiled, checked_sizes(compiled, size)), indent=2))


@app.command()
def new(
    family: Annotated[str, typer.Argument(help="chain, grid, tree, field, sequence, masked or global.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; standard output when left out.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented starter spec for a family of scores."""
    from energyml.starters import STARTERS

    text = STARTERS.get(family)
    if text is None:
        guess = did_you_mean(family, STARTERS)
        hint = f"did you mean `{guess}`?" if guess else f"known: {', '.join(STARTERS)}"
        raise typer.BadParameter(f"unknown family `{family}`; {hint}")
    if output is None:
        typer.echo(text, nl=False)
        return
    if output.exists() and not force:
        raise SpecFileError(f"{output}: exists already; give another name, or --force")
    write_text(output, text)
    typer.echo(f"wrote {output}; next: energyml explain {output}")


@app.command("explain-error")
def explain_error(
    code: Annotated[str | None, typer.Argument(help="A code such as E0201; all codes when left out.")] = None,
) -> None:
    """Show the page of an error code: what it means, an example and its fix."""
    from energyml.errors import CATALOGUE
    from energyml.errors.page import page

    if code is None:
        typer.echo("\n".join(f"{kind.code}  {kind.title}" for kind in sorted(CATALOGUE.values(), key=lambda k: k.code)))
        return
    kind = CATALOGUE.get(code.upper())
    if kind is None:
        guess = did_you_mean(code.upper(), CATALOGUE)
        hint = f"; did you mean {guess}?" if guess else ""
        raise typer.BadParameter(f"unknown error code `{code}`{hint} (`energyml explain-error` lists all)")
    typer.echo(page(kind))


@app.command()
def infer(
    file: Spec,
    backends: Annotated[
        str | None, typer.Option("--infer", help="One backend or several, as in 'exact, enumerate'.")
    ] = None,
    query: Annotated[str, typer.Option("--query", help="Queries, separated by commas.")] = "log_partition,map",
    inputs: Annotated[
        Path | None, typer.Option("--inputs", help="JSON file: tensors by declared name; random when left out.")
    ] = None,
    size: Sizes = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="JSON file: the labels of each set that comes from data.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="How many random examples.")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and random inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Answer queries about a spec with fresh weights, under one backend or several side by side."""
    from energyml.run import Request, answer_queries, show_answers

    compiled = compile_source(_source(file))
    asked = tuple(one.strip() for one in query.split(",") if one.strip())
    sizes = checked_sizes(compiled, size)
    request = Request(backends, asked, inputs, labels, sizes, batch, seed)
    answers = answer_queries(compiled, request, lambda line: typer.echo(f"energyml: {line}", err=True))
    typer.echo(json.dumps(answers, indent=2) if as_json else show_answers(answers))


@app.command()
def uai(
    file: Annotated[str, typer.Argument(help="A model: a .uai file, or a libDAI .fg file.", show_default=False)],
    evid: Annotated[str | None, typer.Option("--evid", help="A file of evidence, in either dialect.")] = None,
    query: Annotated[str, typer.Option("--query", help="PR, MAR, MAP or MPE.")] = "PR",
    backend: Annotated[str, typer.Option("--infer", help="The backend that answers.")] = "exact",
) -> None:
    """Solve a UAI model and print the answer in the format of the UAI competitions."""
    from energyml.interop.competition import TASKS, solve

    if query.upper() not in TASKS:
        raise typer.BadParameter(f"expected one of {', '.join(TASKS)}, found `{query}`", param_hint="--query")
    solution = solve(file, evid, query.upper(), backend)
    for remark in solution.remarks:
        typer.echo(f"energyml: {remark}", err=True)
    typer.echo(solution.text)


@app.command()
def doctor() -> None:
    """Show versions, devices and optional extras, and whether anything is missing."""
    from energyml.doctor import examine

    text, healthy = examine()
    typer.echo(text)
    raise typer.Exit(0 if healthy else 1)


@app.command()
def demo() -> None:
    """Train a chain on handwritten words, and read with it under three backends."""
    from energyml.demo import run

    run(typer.echo)


def _version(asked: bool) -> None:
    if asked:
        from energyml import __version__

        typer.echo(f"energyml {__version__}")
        raise typer.Exit(0)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A small language for energy-based structured prediction."""


def _out_of_memory(problem: Exception) -> bool:
    """Whether Python, torch on the CPU (a plain `RuntimeError`) or torch on another device had no memory left."""
    return (
        isinstance(problem, MemoryError)
        or type(problem).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in str(problem)
    )


def _guarded(command: Callable[[], Any]) -> int:
    """Run the application; people see messages, never a traceback."""
    try:
        command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except SpecFileError as problem:
        typer.echo(f"energyml: {problem}", err=True)
        return 2
    except SpecError as problem:
        _show(str(problem), err=True)
        return 1
    except EnergyError as problem:
        typer.echo(f"energyml: {problem}", err=True)
        return 1
    except KeyboardInterrupt:
        typer.echo("energyml: interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:
        if os.environ.get("ENERGYML_DEBUG"):
            raise
        if _out_of_memory(problem):
            reason = str(problem).partition("DefaultCPUAllocator: ")[2].partition("\n")[0] or str(problem)
            typer.echo(
                f"energyml: out of memory{': ' if reason else ''}{reason}\n"
                "A smaller batch, shorter examples or another backend (`energyml explain` compares them) need less.",
                err=True,
            )
            return 1
        typer.echo(
            f"energyml: internal error: {type(problem).__name__}: {problem}\n"
            "This is a defect of energyml; ENERGYML_DEBUG=1 shows where.",
            err=True,
        )
        return 70
    return 0


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as people see it: without the place in the program that gave it."""
    typer.echo(f"energyml: warning: {message}", err=True)


def main() -> NoReturn:
    """The entry point of the `energyml` command."""
    warnings.showwarning = _warn
    # Read when torch is imported.  OpenMP's threads wait for each other by spinning for milliseconds, which on a shared
    # machine, where one of them may not be running, made training of small models thirty times slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from energyml import cli_compare, cli_sample, cli_training

    cli_training.register(app)
    cli_sample.register(app)
    cli_compare.register(app)
    sys.exit(_guarded(lambda: app(prog_name="energyml")))


if __name__ == "__main__":
    main()

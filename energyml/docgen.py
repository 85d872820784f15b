"""`make docs`: writes what can be computed in README.md and docs/, and runs everything else that they show.

    python -m energyml.docgen [--check] [PAGE ...]

Kept up to date in a page, and compared by `--check`:

- what stands between `<!-- generated: NAME -->` and `<!-- end generated -->`: tables from cards, the grammar, errors;
- the output of every command in a `console exact` block (`first=12` keeps twelve lines, `exit=1` is the expected code);
- a `text output` block: what the `python` blocks since the last such block have printed.

In both, `near` keeps decimal numbers as they are while they are right to a thousandth.

Run without being compared: `console` blocks, and `python` blocks in order, in one namespace for each page; one with
`fails=E0501` must raise that error.  An `energy` block must check without errors, a `bad` one must not (`bad=E0209`:
with this code); blocks with `part=NAME` are checked together.  With `file=NAME` a block is written to a file, and not
executed.  Each page has a folder and a process of its own; the folder holds a copy of examples/.  Without pages,
README.md, docs/ and the parser's prepared tables are meant.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import cast

from energyml import cards, errors, grammar
from energyml.cards.card import Card, CardKind
from energyml.cards.options import Option
from energyml.cards.options import show as show_value
from energyml.diagnostics import EnergyError, Source, render_all
from energyml.docpages import Page, PageError, shows
from energyml.driver import Compiled, check_text, compile_source
from energyml.model.potentials import PotentialCard
from energyml.nets.cards import NetCard
from energyml.objectives.cards import STAGE_OPTIONS, DecoderCard, ObjectiveCard
from energyml.plan.backend_card import BackendCard
from energyml.plan.planner import survey
from energyml.queries import QUERIES, Quality, View

ROOT = Path(__file__).resolve().parent.parent

LONGEST_DIFFERENCE = 40  # lines that `--check` shows

YES, NOT_YET = "yes", "not yet"


# --------------------------------------------------------------------------------------------------------------- tables


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _option(option: Option) -> str:
    default = ", required" if option.required else ""
    if not option.required and option.default is not None:
        default = f", else `{show_value(option.default, option.type)}`"
    return f"`{option.name}`: {option.type.describe()}{default}; {option.summary}"


def _options(options: Iterable[Option]) -> str:
    return "<br>".join(_option(option) for option in options) or "none"


def _runs(card: Card) -> str:
    return YES if card.implementation or getattr(card, "any_options", False) else NOT_YET


def _plain_cards(kind: CardKind) -> str:
    rows = [(f"`{card.name}`", card.summary, _options(card.options)) for card in cards.every(kind)]
    return table(("name", "what it is", "options"), rows)


def networks() -> str:
    """The catalogue of networks."""
    rows = []
    for card in cast("list[NetCard]", cards.every("net")):
        source = f"<br>{card.source}" if card.source else ""
        role = "function, step or masked" if card.any_options else card.role
        rows.append((f"`{card.name}`", role, card.summary + source, _options(card.options), _runs(card)))
    return table(("name", "role", "what it is", "options", "runs today"), rows)


def potentials() -> str:
    """What `potts(w)` and the like are, and where they may stand."""
    rows = []
    for card in cast("list[PotentialCard]", cards.every("potential")):
        places = ["factor"] * card.table + ["`pair` of `gaussian`"] * card.coupling
        rows.append((f"`{card.name}`", card.summary, ", ".join(places)))
    return table(("name", "what it is", "where"), rows)


def _backends() -> list[BackendCard]:
    return [card for card in cast("list[BackendCard]", cards.every("backend")) if card.answers]


def backends() -> str:
    """Every backend: what it needs, its options, whether it runs."""
    rows = []
    for card in _backends():
        source = f"<br>{card.source}" if card.source else ""
        fitting = "; must be trained first" if card.needs_fitting else ""
        what = card.summary + fitting + source
        rows.append((f"`{card.name}`", what, card.view.name, _options(card.options), _runs(card)))
    return table(("name", "what it does", "view", "options", "runs today"), rows)


def answers() -> str:
    """Queries by quality: who answers what, and how well, where the structure allows it."""
    qualities = [quality for quality in Quality if any(quality in card.answers.values() for card in _backends())]
    rows = []
    for query, meaning in QUERIES.items():
        by_quality = [_code(card.name for card in _backends() if card.answers.get(query) is one) for one in qualities]
        rows.append((f"`{query}`", meaning, *by_quality))
    return table(("query", "what it asks", *(quality.value for quality in qualities)), rows)


def objectives() -> str:
    """Objectives, what they ask, and their own options."""
    rows = []
    for card in cast("list[ObjectiveCard]", cards.every("objective")):
        own = [option for option in card.options if option not in STAGE_OPTIONS]
        asks = _code(card.asks) or (f"nothing; needs the view {card.view.name}" if card.view else "nothing")
        source = f"<br>{card.source}" if card.source else ""
        rows.append((f"`{card.name}`", card.summary + source, asks, _options(own), _runs(card)))
    return table(("name", "what it minimises", "asks", "own options", "runs today"), rows)


def stage_options() -> str:
    """The options that every stage of `train` has."""
    return table(("option", "takes"), ((f"`{one.name}`", _option(one).partition(": ")[2]) for one in STAGE_OPTIONS))


def decoders() -> str:
    """Decoders and what they ask."""
    every = cast("list[DecoderCard]", cards.every("decoder"))
    rows = [(f"`{card.name}`", card.summary, _code(card.asks), _options(card.options)) for card in every]
    return table(("name", "what it gives", "asks", "options"), rows)


def schemes() -> str:
    """Labelling schemes, with an example of what they forbid."""
    from energyml.model.schemes import SCHEMES, forbidden_pairs

    rows = []
    for name, scheme in SCHEMES.items():
        labels = ["O", *(f"{prefix}-{kind}" for kind in ("X", "Y") for prefix in scheme.prefixes)]
        pairs = forbidden_pairs(scheme, labels)
        shown = ", ".join(f"`{a}` `{b}`" for a, b in pairs[:3])
        rows.append((f"`{name}`", ", ".join(scheme.prefixes), f"{len(pairs)} of {len(labels) ** 2}: {shown}, ..."))
    return table(("name", "prefixes", "pairs that it forbids, with two types X and Y"), rows)


def views() -> str:
    """Which views each kind of term offers, as the examples have them."""
    found: dict[str, frozenset[View]] = {}
    for _, compiled in _examples():
        found.update({term.kind: term.views for term in compiled.graph.terms})
    rows = [(f"{view.name}", view.value, ", ".join(kind for kind in found if view in found[kind])) for view in View]
    return table(("view", "what it gives", "kinds of terms that offer it"), rows)


def _examples() -> Iterator[tuple[Path, Compiled]]:
    for path in sorted((ROOT / "examples").glob("*.energy")):
        yield path, compile_source(Source(path.name, path.read_text(encoding="utf-8")))


def coverage() -> str:
    """The examples: what each is, and which backends answer a question about it when they are run here, now."""
    rows = []
    for path, compiled in _examples():
        title = re.split("[:,.]", compiled.source.line(1).lstrip("# "))[0]
        own = compiled.model.choices.infer
        said = [fact for fact in compiled.structure.describe() if fact.startswith("has ") or ":" not in fact]
        facts = [fact.removeprefix("has ").partition(":")[0] for fact in said]
        link = f"[{path.name}](examples/{path.name})"
        chosen = f"`{own.name if own else 'auto'}`"
        rows.append((link, title, "; ".join(facts), chosen, _code(_running(compiled)) or "none without its weights"))
    return table(("spec", "about", "structure", "its `infer`", "backends that run it today"), rows)


# Enough to see that a backend runs; what it answers is not looked at.
_BRIEF = {
    "steps": 2, "sweeps": 1, "burn_in": 0, "chains": 1, "rungs": 2, "draws": 1, "warmup": 1, "rounds": 1, "nodes": 9,
}  # fmt: skip


def _running(compiled: Compiled) -> Iterator[str]:
    from energyml.run import Request, answer_queries

    sizes = {name: 2 for name, dim in compiled.graph.dims.items() if dim.kind == "observed"}
    for verdict in survey(compiled.structure):
        if verdict.serves:
            card = verdict.selection.card
            brief = ", ".join(f"{name}: {value}" for name, value in _BRIEF.items() if card.option(name))
            chosen = f"{card.name}({brief})" if brief else card.name
            query = next(iter(verdict.answers))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # brief runs have not converged, and say so
                    answer_queries(compiled, Request(chosen, (query,), sizes=sizes, batch=1))
            except EnergyError:
                continue
            yield card.name


# --------------------------------------------------------------------------------------------------------------- errors


def error_pages() -> str:
    """Every entry of the catalogue: what it means, a spec that shows it, what the checker says, and the mended spec."""
    parts: list[str] = []
    group = ""
    for kind in sorted(errors.CATALOGUE.values(), key=lambda one: (one.code[1:3], one.code)):
        if kind.code[1:3] != group:
            group = kind.code[1:3]
            parts.append(f"## {_group_title(kind.code)}")
        parts.append(f"### {kind.code}: {kind.title}")
        parts += [kind.why] if kind.why else []
        language, flag, said = _example(kind)
        if kind.bad:
            if not shows(said, kind.code):
                raise PageError(f"the example of {kind.code} does not show it:\n{said}")
            parts += [_fenced(language + flag, kind.bad), _fenced("text", said)]
        if kind.good:
            parts += ["Mended:", _fenced(language, kind.good)]
    return "\n\n".join(parts)


def _example(kind: errors.Kind) -> tuple[str, str, str]:
    """The language of an entry's example, the flag of its block, and what is said about it."""
    if kind in errors.graphs.KINDS:  # the text of a graph is not a spec
        return "text", "", _raised(f"from energyml.ir.text import parse_graph\nparse_graph({kind.bad!r})")
    if kind.bad.startswith("import "):  # what goes wrong with tensors is shown in Python
        return "python", f" fails={kind.code}", _raised(kind.bad)
    return "energy", "" if kind.severity == "warning" else f" bad={kind.code}", _checked(kind.bad)


def _group_title(code: str) -> str:
    names = ("syntax", "names", "types", "scores", "choices", "running", "graphs", "files", "data")
    modules = [getattr(errors, name) for name in names]
    for module in modules:
        if any(kind.code == code for kind in module.KINDS):
            title = re.split("[:.]", str(module.__doc__).partition(": ")[2])[0]
            return title[:1].upper() + title[1:]
    return code


def _checked(spec: str) -> str:
    """What `check` says about a spec."""
    report = check_text(spec.lstrip("\n"), "spec.energy")
    return render_all(report.source, report.ordered())


def _raised(script: str) -> str:
    """What a script raises."""
    try:
        exec(script, {})
    except EnergyError as problem:
        return str(problem)
    return "nothing"


def _fenced(info: str, text: str) -> str:
    return f"```{info}\n{text.strip(chr(10))}\n```"


PARTS: dict[str, Callable[[], str]] = {
    "grammar": lambda: _fenced("lark", grammar.GRAMMAR.read_text(encoding="utf-8")),
    "networks": networks,
    "potentials": potentials,
    "initial values": lambda: _plain_cards("init"),
    "backends": backends,
    "answers": answers,
    "architectures": lambda: _plain_cards("architecture"),
    "decoders": decoders,
    "objectives": objectives,
    "stage options": stage_options,
    "costs": lambda: _plain_cards("cost"),
    "mixing": lambda: _plain_cards("mixing"),
    "optimisers": lambda: _plain_cards("optimizer"),
    "stop rules": lambda: _plain_cards("stop"),
    "balances": lambda: _plain_cards("balance"),
    "readers": lambda: _plain_cards("reader"),
    "metrics": lambda: _plain_cards("metric"),
    "schemes": schemes,
    "views": views,
    "coverage": coverage,
    "errors": error_pages,
}

_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its generated parts written anew."""

    def part(match: re.Match[str]) -> str:
        make = PARTS.get(match[2])
        if make is None:
            raise PageError(f"no generated part is called `{match[2]}`; known: {', '.join(PARTS)}")
        return f"{match[1]}\n{make()}\n\n{match[3]}"

    return _MARKED.sub(part, text)


def rewritten(page: Path) -> str:
    """The text that a page should have; everything in it is run, in a folder with a copy of the examples."""
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        shutil.copytree(ROOT / "examples", "examples")
        text = Page(name).rewritten(page.read_text(encoding="utf-8"))
    return filled(text)  # last, so that the page has the registry of cards as a user finds it


# ----------------------------------------------------------------------------------------------------------------- main


def pages() -> list[Path]:
    """README.md and everything in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def update(page: Path, check: bool) -> bool:
    """Write a page anew, or only compare; says whether it was up to date."""
    found, wanted = page.read_text(encoding="utf-8"), rewritten(page)
    if found == wanted:
        return True
    if check:
        print(f"{page.name}: differs; run `make docs`")
        changes = difflib.unified_diff(found.splitlines(), wanted.splitlines(), "found", "expected", n=0, lineterm="")
        print("\n".join(islice(changes, LONGEST_DIFFERENCE)))
    else:
        page.write_text(wanted, encoding="utf-8")
        print(f"{page.name}: written")
    return False


def update_tables(check: bool) -> bool:
    """The same for the parser's prepared tables."""
    from energyml.syntax.separators import Separators

    fresh = grammar.tables_are_fresh()
    if not fresh and not check:
        grammar.write_tables(Separators())
    if not fresh:
        print(f"{grammar.TABLES.name}: {'stale; run `make docs`' if check else 'written'}")
    return fresh


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 when `--check` finds a difference or a page does not run."""
    about = "Write the generated parts of README.md and docs/, and run what they show."
    parser = argparse.ArgumentParser(prog="python -m energyml.docgen", description=about)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something differs")
    parser.add_argument("pages", nargs="*", type=Path, help="all pages and the parser's tables when left out")
    asked = parser.parse_args(arguments)
    # Read when torch is imported: more threads only cost time on small tensors.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        if len(asked.pages) == 1:
            return int(not update(asked.pages[0].resolve(), asked.check) and asked.check)
    except (EnergyError, OSError) as problem:
        print(f"docgen: {problem}", file=sys.stderr)
        return 1
    stale = [] if asked.pages else [not update_tables(asked.check) and asked.check]
    command = [sys.executable, "-m", "energyml.docgen", *(["--check"] if asked.check else [])]
    # A process for each page: what one page registers or imports is no part of another.
    stale += [subprocess.run([*command, str(page)], check=False).returncode != 0 for page in asked.pages or pages()]
    return int(any(stale))


if __name__ == "__main__":
    sys.exit(main())

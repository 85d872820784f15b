"""E06xx: the text of a graph, as `energyml explain --stage ir` prints it."""

from __future__ import annotations

from energyml.errors.kind import Kind

_GOOD = """\
graph 1
labels Tag = {'A', 'B'}
dim T
output y : Tag[T]
param u : real[Tag]
term unary : table [t in T] (y[t]) = u
"""

KINDS = (
    Kind(
        "E0601",
        "not the text of a graph",
        "the text of a graph starts with `graph {version}`, found {found}",
        why="The first line says which version of the text form follows. A spec is compiled, not read as a graph.",
        bad=_GOOD.removeprefix("graph 1\n"),
        good=_GOOD,
    ),
    Kind(
        "E0602",
        "bad term",
        "{problem}",
        help="write `term NAME : KIND ...`, as in `term pair : table [t in T-1] (y[t], y[t+1]) = W`",
        why="Each term of a graph stands on a line of its own: its name, its kind, and what that kind needs.",
        bad=_GOOD.replace("term unary : table", "term unary : tabel"),
        good=_GOOD,
    ),
    Kind(
        "E0603",
        "statement that no graph has",
        "`{word}` is not part of the text of a graph",
        help="a graph has declarations and terms; choices and sugar belong to a spec",
        why="A graph is what is left of a spec after desugaring: `chain` has become tables, choices stay outside.",
        bad=_GOOD + "infer exact\n",
        good=_GOOD,
    ),
)

"""E00xx: the text does not follow the grammar."""

from __future__ import annotations

from energyml.errors.kind import Kind

_SPEC = {
    "labels": "labels Tag = {A, B}",
    "dim": "dim T",
    "output": "output y : Tag[T]",
    "param": "param u : real[Tag]",
    "factor": "factor unary [t in T] (y[t]) = u",
    "infer": "infer exact",
}


def _spec(**changed: str) -> str:
    """A small complete spec with some of its statements changed, and others added at its end."""
    return "".join(f"{line}\n" for line in (_SPEC | changed).values())


KINDS = (
    Kind(
        "E0001",
        "unexpected word or symbol",
        "unexpected {found}, expected {expected}",
        why="The text follows the grammar up to this word or symbol, which cannot stand here. Often something is "
        "missing just before it, such as a comma between two items.",
        bad=_spec(labels="labels Tag = {A B}"),
        good=_spec(),
    ),
    Kind(
        "E0002",
        "unknown character",
        "`{character}` ({point}) does not belong to the language",
        why="Outside strings and comments a spec has plain letters, digits and a few symbols only. Characters "
        "that look like them, such as curved quotes or a long dash, often come from a copied text.",
        bad=_spec(dim="dim T;"),
        good=_spec(),
    ),
    Kind(
        "E0003",
        "string without an end",
        "this string is not closed",
        help="close it with {quote} on the same line; strings cannot span lines",
        why="A string starts and ends with the same kind of quote, on one line. There are no escapes: a string "
        "that contains one kind of quote is written between the other kind.",
        bad=_spec(labels="labels Tag = {A, 'B-NP}"),
        good=_spec(labels="labels Tag = {A, 'B-NP'}"),
    ),
    Kind(
        "E0004",
        "bracket without an end",
        "`{bracket}` is never closed",
        help="add the missing `{closer}`",
        label="opened here",
        why="The statement ends, because the file ends or a line starts with the word of another statement, and "
        "this bracket is still open.",
        bad=_spec(output="output y : Tag[T"),
        good=_spec(),
    ),
    Kind(
        "E0005",
        "closing bracket without a beginning",
        "`{bracket}` closes nothing",
        help="remove it, or add the bracket that it should close",
        why="No bracket is open at this place of the statement.",
        bad=_spec(output="output y : Tag[T]]"),
        good=_spec(),
    ),
    Kind(
        "E0006",
        "nesting too deep",
        "brackets are nested more than {limit} deep",
        help="name inner parts with `let`",
        why="A value can be nested deeply, but not without limit: nobody could read it, and the tools that walk "
        "through it would run out of stack.",
        bad=_spec(factor=f"factor unary [t in T] (y[t]) = {'(' * 41}u{')' * 41}"),
        good=_spec(),
    ),
    Kind(
        "E0007",
        "number too large",
        "`{number}` is too long or too large to be a number",
        why="Numbers are finite, and have at most 40 characters.",
        bad=_spec(train="train nll { optimizer: adam(lr: 1e999) }"),
        good=_spec(train="train nll { optimizer: adam(lr: 1e-3) }"),
    ),
    Kind(
        "E0008",
        "no statement",
        "{word} does not start a statement",
        why="Every statement starts with its own word, and nothing else can start a line outside brackets. The "
        "usual causes are a misspelt word, and a name that is given a value without `let`.",
        bad=_spec(output="outptu y : Tag[T]"),
        good=_spec(),
    ),
    Kind(
        "E0009",
        "whole number expected",
        "`{found}` must be a whole number, at most {limit}",
        why="Extents and indices count labels and positions, so the numbers in them are whole.",
        bad=_spec(factor="factor unary [t in T-0.5] (y[t]) = u"),
        good=_spec(),
    ),
    Kind(
        "E0010",
        "file too large",
        "the file has {size} characters; the limit is {limit}",
        why="A spec is a description, not data. Long lists of labels come from data: `labels Word from data(min: 2)`.",
    ),
    Kind(
        "E0011",
        "reserved word used as a name",
        "`{word}` is a reserved word and cannot be a name",
        help="choose another name, such as `{word}_`",
        why="The words that start statements are reserved, so that a mistake in one statement never hides another "
        "one. They can be keys of options, roles of axes, and labels in quotes, but not names.",
        bad=_spec(extra="param score : real[Tag]"),
        good=_spec(),
    ),
    Kind(
        "E0012",
        "option with `=`",
        "an option is written `key: value`, not `key = value`",
        help="write `:` here",
        why="Options and roles use `:`. The `=` is kept for definitions and for comparing a label in `forbid`.",
        bad=_spec(train="train nll { epochs = 5 }"),
        good=_spec(train="train nll { epochs: 5 }"),
    ),
    Kind(
        "E0013",
        "type without `:`",
        "a `:` must stand between a name and its type, found {found}",
        help="write `name : type`",
        why="Inputs, outputs, latent variables, fields and parameters are declared as `name : type`.",
        bad=_spec(output="output y Tag[T]"),
        good=_spec(),
    ),
    Kind(
        "E0014",
        "definition without `=`",
        "a `=` must stand before the definition, found {found}",
        help="write `=` before it",
        why="What a name or a term stands for follows an `=`.",
        bad=_spec(factor="factor unary [t in T] (y[t]) u"),
        good=_spec(),
    ),
    Kind(
        "E0015",
        "wrong symbol for `=`",
        "found {found} where `=` is expected",
        help="write `=`",
        why="Definitions and comparisons both use a single `=`.",
        bad=_spec(factor="factor unary [t in T] (y[t]) == u"),
        good=_spec(),
    ),
    Kind(
        "E0016",
        "scope without parentheses",
        "the variables that a term scores stand in parentheses, found {found}",
        help="write `(y[t])` for a factor, `(y)` for a score",
        why="The scope of a term lists the variables that the term looks at: `factor pair [t in T-1] (y[t], "
        "y[t+1]) = W`.",
        bad=_spec(factor="factor unary [t in T] y[t] = u"),
        good=_spec(),
    ),
    Kind(
        "E0017",
        "index set without `in`",
        "an index set is written `[t in T]`, found {found}",
        why="The index set of a factor says which positions it is repeated over: `[t in T]`, `[i in H-1, j in "
        "W]`, or `[e = (i, j) in link]` for the edges of a graph.",
        bad=_spec(factor="factor unary [t : T] (y[t]) = u"),
        good=_spec(),
    ),
    Kind(
        "E0018",
        "block without braces",
        "the options of this statement stand in braces, found {found}",
        help="write `{{ key: value }}`",
        why="The parts of a chain, a Gaussian, a sequence score or a masked energy are options in braces.",
        bad=_spec(factor="chain y unary: u, pair: W", infer="param W : real[from: Tag, to: Tag]"),
        good=_spec(factor="chain y { unary: u, pair: W }", infer="param W : real[from: Tag, to: Tag]"),
    ),
    Kind(
        "E0019",
        "labels without braces",
        "labels stand in braces, found {found}",
        help="write `labels NAME = {{a, b}}` or a range `'a'..'z'`",
        why="A label set is a list in braces, a range of characters, or comes `from` a source.",
        bad=_spec(labels="labels Tag = A, B"),
        good=_spec(),
    ),
    Kind(
        "E0020",
        "bound of a dim",
        "a dim that is part of the answer is written `dim T free <= 60`, found {found}",
        help="write `free <=` and a number, or leave the bound out: a dim that is observed needs none",
        why="The size of an observed dim comes with the data. A dim whose size is part of the answer is declared "
        "`free`, and needs a bound.",
        bad=_spec(dim="dim T <= 60"),
        good=_spec(),
    ),
    Kind(
        "E0021",
        "index that is not a name plus a constant",
        "an index is a name plus a constant, as in `t+1`, found {found}",
        why="With indices of this form the structure of a model (chain, tree, grid) can be seen before any data "
        "is read.",
        bad=_spec(factor="factor unary [t in T] (y[2*t]) = u"),
        good=_spec(),
    ),
    Kind(
        "E0022",
        "option without `:`",
        "a `:` must stand between `{key}` and its value, found {found}",
        help="write `{key}: ...`",
        why="Options and roles are written `key: value`, separated by commas or line breaks.",
        bad=_spec(train="train nll { epochs 5 }"),
        good=_spec(train="train nll { epochs: 5 }"),
    ),
    Kind(
        "E0023",
        "brackets that do not match",
        "`{bracket}` must be closed by `{closer}` before `{found}`",
        why="Brackets are closed in the reverse of the order in which they were opened, each by its own kind.",
        bad=_spec(factor="factor unary [t in T] (y[t) = u"),
        good=_spec(),
    ),
    Kind(
        "E0024",
        "unfinished statement",
        "the {what} ends too early, expected {expected}",
        label="ends here",
        why="The file ends, or a line starts with the word of another statement, before this statement is complete.",
        bad=_spec(factor="factor unary [t in T] (y[t]) ="),
        good=_spec(),
    ),
    Kind(
        "E0025",
        "label without quotes",
        "a label that is not a plain word stands in quotes, found {found}",
        help="write {quoted}",
        why="A plain word is made of letters, digits and `_`, does not start with a digit, and does not start a "
        "statement. Every other label stands in quotes, and so does every pattern.",
        bad=_spec(labels="labels Tag = {O, B-NP}"),
        good=_spec(labels="labels Tag = {O, 'B-NP'}"),
    ),
    Kind(
        "E0026",
        "comment without `#`",
        "a comment starts with `#`, found {found}",
        help="write `#`",
        why="A comment runs from `#` to the end of the line. There is no other kind of comment.",
        bad=_spec(dim="dim T  // words of a sentence"),
        good=_spec(dim="dim T  # words of a sentence"),
    ),
)

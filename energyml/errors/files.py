"""E07xx: model files of other programs: UAI models and evidence, libDAI factor graphs.  Their pages show Python."""

from __future__ import annotations

from energyml.errors.kind import Kind

_MODEL = """\
MARKOV
2
2 3
1
2 0 1
6
0.5 1 1.5
1 0.5 0
"""
_IMPORTS = "import energyml as em\nimport io\n\n"


def _read(text: str, function: str = "read_uai", beyond: str = "") -> str:
    """A script that reads a file."""
    return f'{_IMPORTS}model = em.interop.{function}(io.StringIO("""\n{text}"""))\n{beyond}'


def _changed(old: str, new: str) -> str:
    assert old in _MODEL
    return _read(_MODEL.replace(old, new, 1))


def _evidence(text: str) -> str:
    return _read(_MODEL, beyond=f'evidence = em.interop.read_evid(io.StringIO("{text}"), model)\n')


_GOOD = _read(_MODEL)

KINDS = (
    Kind(
        "E0701",
        "not a model file",
        "{expected}, found {found}",
        help="is it the right file?",
        why="A UAI model starts with the word `MARKOV` or `BAYES`; the two are read alike, as a product of tables. A "
        "libDAI factor graph starts with its number of factors. Files are plain text: a compressed one has to be "
        "unpacked first.",
        bad=_changed("MARKOV", "MARKOW"),
        good=_GOOD,
    ),
    Kind(
        "E0702",
        "file ends too early",
        "the file ends where {expected} should stand",
        help="the file may be cut off, or a count in it may be too large",
        why="Counts in a file say how many numbers follow: the variables, the factors, the size of each table. Here "
        "fewer follow than the counts say.",
        bad=_changed("1 0.5 0\n", "1 0.5\n"),
        good=_GOOD,
    ),
    Kind(
        "E0703",
        "not a number",
        "expected {expected}, found `{found}`",
        help="numbers are separated by spaces or line breaks; a count before this place may be wrong",
        why="Behind its first word, a model file holds nothing but numbers, separated by spaces or line breaks. "
        "Counts, variables and values are whole numbers; a decimal point in such a place often means that a count "
        "before it is wrong.",
        bad=_changed("1.5", "1,5"),
        good=_GOOD,
    ),
    Kind(
        "E0704",
        "number out of range",
        "{what} must be {bounds}, found {found}",
        help="variables and values are counted from 0; a count before this place may be wrong",
        why="Variables and their values are counted from 0, so the last of n is n - 1. Every variable has at least "
        "one value, and the same number of values wherever it stands.",
        bad=_changed("2 0 1", "2 1 2"),
        good=_GOOD,
    ),
    Kind(
        "E0705",
        "table of the wrong size",
        "the table of factor {factor} has {size} values, as its variables say, but the file says {found}",
        help="correct the size, the scope of the factor, or the numbers of values of its variables",
        why="A table has one value for each joint value of the factor's variables, so its size is the product of "
        "their numbers of values. The scope, the numbers of values and the size of the table have to agree.",
        bad=_changed("\n6\n", "\n4\n"),
        good=_GOOD,
    ),
    Kind(
        "E0706",
        "table value that is no weight",
        "{what} must be a number from 0 up, found {found}",
        help="write weights, not scores or energies: exp(score), exp(-energy)",
        why="Tables hold probabilities or unnormalised weights: finite numbers that are not negative. Scores and "
        "energies may be negative; a weight is exp(score).",
        bad=_changed("1.5", "-1.5"),
        good=_GOOD,
    ),
    Kind(
        "E0707",
        "mentioned twice",
        "{what} stands twice in {where}",
        help="leave one of the two out",
        why="A factor has each of its variables once, and a table each of its entries once. Evidence may repeat a "
        "variable, but not with another value.",
        bad=_evidence("2 1 0 1 2"),
        good=_evidence("1 1 2"),
    ),
    Kind(
        "E0708",
        "more than the file should have",
        "nothing should stand behind {what}, found `{found}`",
        help="a count in the file may be too small, or two files may be in one",
        why="Counts in a file say how many numbers follow. Here more follow than the counts say, and nobody can tell "
        "which of the two is right.",
        bad=_read(_MODEL + "0.5\n"),
        good=_GOOD,
    ),
    Kind(
        "E0709",
        "larger than a file may be",
        "the file asks for {found}; the limit is {limit}",
        help="check this number; is the file meant for another format?",
        why="A few characters can ask for more memory than any machine has: a variable that no factor mentions may "
        "have any number of values, and a sparse table lists only a part of its entries. Such sizes are refused "
        "before anything is allocated.",
        bad=_changed("2 3", "2 3000000000").replace("\n6\n", "\n6000000000\n"),
        good=_GOOD,
    ),
    Kind(
        "E0710",
        "cannot be written as tables",
        "`{name}` cannot be written to a UAI file: {reason}",
        help="write a model of factors, chains and constraints over labels",
        why="A UAI file holds tables over variables with finitely many values, and nothing else. Networks over whole "
        "answers, continuous fields and sequences whose length is part of the answer have no such tables.",
        bad=_IMPORTS
        + 'model = em.compile("""\nlabels Tag = {O, B}\ndim T\noutput y : Tag[T]\nnet f = pooled(hidden: 4)\n'
        'score whole (y) = f(soft(y))\n""")\nem.interop.write_uai(model, io.StringIO(), lengths=[3])\n',
        good=_IMPORTS + 'model = em.compile("""\nlabels Tag = {O, B}\ndim T\noutput y : Tag[T]\n'
        'param W : real[from: Tag, to: Tag]\nchain y { pair: W }\n""")\n'
        "em.interop.write_uai(model, io.StringIO(), lengths=[3])\n",
    ),
)

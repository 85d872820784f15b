"""Readers: the data formats that a spec can name, and their options."""

from __future__ import annotations

from energyml.cards.card import Card
from energyml.cards.options import AnyOf, Flag, Option, OptionType, Real, Text, Whole, Word

HELD_OUT = 0.1

_PATH = Option("path", Text(), summary="a file; plain or gzip")
_UNKNOWN = Option(
    "unknown",
    Word(("count_wrong", "error")),
    "count_wrong",
    "what a label that training never saw does in validation and test: it counts as wrong, which is said, or stops",
)
_SEED = Option("seed", Whole(0), 0, "of the draw of what is held out")
_FOLDS = (
    Option("folds", Whole(2), None, "divide what is not for validation into folds, one of them for testing"),
    Option("fold", Whole(0), 0, "the fold for testing, counted from 0"),
)
_TOKENS = (
    Option("split", Word(("blanks", "words", "characters")), "blanks", "what a token is"),
    Option("lower", Flag(), False, "make the text lower-case"),
)


def _split_options(*files: OptionType, where: str = "") -> tuple[Option, ...]:
    """The options that say which examples are for validation and for testing."""
    parts = (*files, Whole(0), Real(0, 1))
    beginning = f"{where}a share or a number of the training examples that is held out"
    return (
        Option("validation", AnyOf(parts), HELD_OUT, f"{beginning}; 0 for none"),
        Option("test", AnyOf(parts), None, beginning),
        *_FOLDS,
        _SEED,
    )


_SPLITS = (*_split_options(Text(), where="a file, or "), _UNKNOWN)


def _reader(
    name: str, summary: str, options: tuple[Option, ...], positional: int, implementation: str, source: str = ""
) -> Card:
    return Card("reader", name, summary, options, positional, f"energyml.data.readers.{implementation}", source)


CARDS: tuple[Card, ...] = (
    _reader(
        "letters",
        "Taskar's handwritten words, letter.data columns: 16 x 8 pixels and a letter a line",
        (
            _PATH,
            Option("fold", Whole(0, 9), 0, "the validation fold"),
            Option("test", Whole(0, 9), None, "the test fold; 1 when left out, or 0 where fold 1 is for validation"),
            _UNKNOWN,
        ),
        1,
        "letters:Letters",
        "Taskar, Guestrin & Koller 2003",
    ),
    _reader(
        "conll",
        "token columns, a blank line between sentences; the first column is spelled out where characters are declared",
        (
            _PATH,
            Option("columns", Text(), "word tag", "what the columns hold, by declared name; `_` skips one"),
            *_SPLITS,
        ),
        1,
        "conll:Conll",
    ),
    _reader(
        "conllu",
        "Universal Dependencies: `form`, `lemma`, `upos`, `xpos`, `feats`, `deprel`, `upos_feats`",
        (
            _PATH,
            Option("labels", Word(("upos", "xpos", "upos_feats", "feats", "deprel")), "upos", "what the output is"),
            *_SPLITS,
        ),
        1,
        "conllu:Conllu",
    ),
    _reader(
        "images",
        "a folder of images and a folder of masks of the same names",
        (
            Option("images", Text(), summary="folder of images"),
            Option("masks", Text(), summary="folder of masks"),
            Option("size", Whole(), None, "side that images are resized to"),
            Option("color", Word(("rgb", "grey")), "rgb", "three channels or one"),
            Option(
                "threshold",
                AnyOf((Whole(1, 255), Word(("none",)))),
                128,
                "grey from which a pixel has the second label; `none`: greys are numbers of labels",
            ),
            *_split_options(),
            _UNKNOWN,
        ),
        2,
        "images:Images",
    ),
    _reader(
        "jsonl",
        "one JSON object a line, keys are declared names",
        (_PATH, *_SPLITS),
        1,
        "jsonl:JsonLines",
    ),
    _reader(
        "pairs",
        "two files of sentences, line by line",
        (
            Option("source", Text(), summary="source sentences"),
            Option("target", Text(), summary="target sentences"),
            Option("longest", Whole(), None, "longest sentence, in tokens, that is trained on"),
            *_TOKENS,
            *_split_options(Text(), where="both files without their endings, or "),
            _UNKNOWN,
        ),
        2,
        "pairs:Pairs",
    ),
    _reader(
        "lines",
        "one sequence a line",
        (_PATH, *_TOKENS, *_SPLITS),
        1,
        "sequences:Lines",
    ),
)

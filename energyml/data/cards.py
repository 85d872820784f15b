"""Readers: the data formats that a spec can name, and their options."""

from __future__ import annotations

from energyml.cards.card import Card
from energyml.cards.options import Option, Text, Whole, Word

_PATH = Option("path", Text(), summary="a file; plain or gzip")
_UNKNOWN = Option("unknown", Word(("error", "count_wrong")), "error", "what to do with a label that training never saw")

CARDS: tuple[Card, ...] = (
    Card(
        "reader",
        "letters",
        "Taskar's handwritten words, letter.data columns",
        (_PATH, Option("fold", Whole(0, 9), 0, "the validation fold")),
        1,
    ),
    Card(
        "reader",
        "conll",
        "token columns, a blank line between sentences",
        (_PATH, Option("columns", Text(), "word tag", "what the columns hold, by declared name"), _UNKNOWN),
        1,
    ),
    Card(
        "reader",
        "conllu",
        "Universal Dependencies",
        (_PATH, Option("labels", Word(("upos", "xpos", "upos_feats")), "upos", "which label"), _UNKNOWN),
        1,
    ),
    Card(
        "reader",
        "images",
        "a folder of images and a folder of masks",
        (
            Option("images", Text(), summary="folder of images"),
            Option("masks", Text(), summary="folder of masks"),
            Option("size", Whole(), None, "side that images are resized to"),
        ),
        2,
    ),
    Card("reader", "jsonl", "one JSON object a line, keys are declared names", (_PATH,), 1),
    Card(
        "reader",
        "pairs",
        "two files of sentences, line by line",
        (
            Option("source", Text(), summary="source sentences"),
            Option("target", Text(), summary="target sentences"),
            Option("longest", Whole(), None, "longest sentence kept"),
        ),
        2,
    ),
    Card(
        "reader",
        "lines",
        "one sequence a line, split at blanks or into characters",
        (_PATH, Option("split", Word(("blanks", "characters")), "blanks", "what an element is")),
        1,
    ),
)

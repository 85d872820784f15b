"""Highlighting for Pygments (Sphinx, MkDocs, `pygmentize`), found through the entry point `pygments.lexers`."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

from energyml.grammar import SOFT_WORDS, STATEMENT_WORDS

KEYWORDS = STATEMENT_WORDS
SOFT_KEYWORDS = tuple(word.lower() for word in SOFT_WORDS)


class EnergymlLexer(RegexLexer):  # type: ignore[misc]
    """Reads `*.energy` files.  A statement's word is a keyword unless a colon makes it a key."""

    name = "energyml"
    aliases: ClassVar = ["energyml", "energy"]
    filenames: ClassVar = ["*.energy"]
    mimetypes: ClassVar = ["text/x-energyml"]

    tokens: ClassVar = {
        "root": [
            (r"#[^\n]*", Comment.Single),
            (r"'[^'\n]*'", String.Single),
            (r'"[^"\n]*"', String.Double),
            (r"[A-Za-z_][A-Za-z0-9_]*(?=:)", Name.Attribute),
            (words(KEYWORDS, prefix=r"\b", suffix=r"\b"), Keyword.Declaration),
            (words(SOFT_KEYWORDS, prefix=r"\b", suffix=r"\b"), Keyword.Pseudo),
            (r"([A-Za-z_][A-Za-z0-9_]*)(\s*)(\()", bygroups(Name.Function, Whitespace, Punctuation)),
            (r"[A-Za-z_][A-Za-z0-9_]*", Name),
            (r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+", Number.Float),
            (r"[0-9]+", Number.Integer),
            (r"->|\.\.|<=|!=|!~|[=~^+*/-]", Operator),
            (r"[()\[\]{},:.]", Punctuation),
            (r"\s+", Whitespace),
        ]
    }

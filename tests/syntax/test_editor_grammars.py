"""The editor grammars know the words of the language, no more and no fewer."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from lark.lexer import PatternRE, PatternStr
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String

from energyml import grammar
from energyml.grammar.pygments_lexer import KEYWORDS, SOFT_KEYWORDS, EnergymlLexer
from energyml.syntax.parser import parser
from tests.strategies import TOUR

ROOT = Path(__file__).resolve().parents[2]
TEXTMATE = json.loads((ROOT / "grammar" / "energyml.tmLanguage.json").read_text(encoding="utf-8"))


def terminal_words() -> dict[str, set[str]]:
    """The words of every terminal that is a word or a choice of words."""
    found = {}
    for terminal in parser().terminals:
        pattern = terminal.pattern
        if isinstance(pattern, PatternStr) and pattern.value.isalpha():
            found[terminal.name] = {pattern.value}
        elif isinstance(pattern, PatternRE) and (match := re.fullmatch(r"\(([a-z|]+)\)\\b", pattern.value)):
            found[terminal.name] = set(match.group(1).split("|"))
    return found


STATEMENT_WORDS = set().union(*(words for name, words in terminal_words().items() if name not in grammar.SOFT_WORDS))
SOFT_WORDS = set().union(*(terminal_words()[name] for name in grammar.SOFT_WORDS))


def test_the_grammar_module_lists_the_words_of_the_grammar() -> None:
    assert set(grammar.STATEMENT_WORDS) == STATEMENT_WORDS
    assert {word.lower() for word in grammar.SOFT_WORDS} == SOFT_WORDS


def test_pygments_has_the_words_of_the_grammar() -> None:
    assert set(KEYWORDS) == STATEMENT_WORDS
    assert set(SOFT_KEYWORDS) == SOFT_WORDS


@pytest.mark.parametrize(("entry", "words"), [("statement", STATEMENT_WORDS), ("soft", SOFT_WORDS)])
def test_textmate_has_the_words_of_the_grammar(entry: str, words: set[str]) -> None:
    match = re.fullmatch(r"\\b\(([a-z|]+)\)\\b", TEXTMATE["repository"][entry]["match"])
    assert match is not None
    assert set(match.group(1).split("|")) == words


def test_textmate_patterns_are_valid_and_all_used() -> None:
    repository = TEXTMATE["repository"]
    assert {pattern["include"] for pattern in TEXTMATE["patterns"]} == {f"#{name}" for name in repository}
    for entry in repository.values():
        for pattern in entry.get("patterns", [entry]):
            re.compile(pattern["match"])
            assert pattern["name"].endswith(".energyml")
    assert TEXTMATE["fileTypes"] == ["energy"]


def lexed(text: str) -> list[tuple[object, str]]:
    return [(kind, word) for kind, word in EnergymlLexer().get_tokens(text) if word.strip()]


def test_pygments_reads_the_tour_whole() -> None:
    assert "".join(word for _, word in EnergymlLexer().get_tokens(TOUR)) == TOUR
    assert not [word for kind, word in EnergymlLexer().get_tokens(TOUR) if kind in Error]


def test_pygments_marks_words() -> None:
    for word in STATEMENT_WORDS:
        assert lexed(word) == [(Keyword.Declaration, word)]
        assert lexed(f"{word}: x")[0] == (Name.Attribute, word)
        assert lexed(f"{word}s_")[0] == (Name, f"{word}s_")
    for word in SOFT_WORDS:
        assert lexed(word) == [(Keyword.Pseudo, word)]


def test_pygments_marks_the_rest() -> None:
    kinds = {word: kind for kind, word in lexed("let x = f(a, 2^-8..1e-3, 'b', \"c\") # d")}
    assert kinds["f"] is Name.Function
    assert kinds["a"] is Name
    assert kinds["8"] is Number.Integer
    assert kinds["1e-3"] is Number.Float
    assert kinds[".."] is Operator
    assert kinds["'b'"] is String.Single
    assert kinds['"c"'] is String.Double
    assert kinds["# d"] is Comment.Single


def test_the_entry_point_names_the_lexer() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = declared["project"]["entry-points"]["pygments.lexers"]["energyml"].partition(":")
    assert getattr(importlib.import_module(module), name) is EnergymlLexer

"""Hypothesis strategies for texts: specs made from the grammar's own rules, damaged specs, and anything at all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from lark import Token
from lark.lexer import PatternStr

from energyml import grammar
from energyml.syntax.parser import parser
from energyml.syntax.separators import CLOSERS, OPENERS, ends_item, starts_item

ROOT = Path(__file__).resolve().parent.parent

Draw = Callable[[st.SearchStrategy], object]

TOUR = """\
# A tour of the language: every statement, every kind of value.
labels Letter = 'a'..'z'
labels Seg = {background, horse}   # two labels
labels Tag = {O, 'B-NP', 'I-NP', '$', "it's"}
labels Word from data(min: 2, unknown: '<unk>')
labels Residue from mlm

dim T
dim H, W
dim K = 32
dim L free <= 60, M[T]
input image : real[T, 1, 16, 8]
input link : edge(T, T)[E]
output y : Tag[T]
latent z : State[T]
field s : real[Seg, H, W]
output seg : Seg[H, W] = argmax s over Seg
net cnn = lenet5(out: Letter)
net f : (Word[T], Tag[T-1]) -> real[T, Tag] = python("pkg.mod:Class", hidden: 100)
net mlm : role[T] = given()
param W : real[from: Tag, to: Tag] = 0.5
let h = enc(word)[t, 0] + 2 * (a - -b) / c^-2

factor unary [t in T]   (y[t])                   = cnn(image)[t]
factor pair  [t in T-1] (from: y[t], to: y[t+1]) = W
factor link  [e = (i, j) in link] (y[i], y[j])   = v(dist)[e]
factor down  [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(w)
factor whole (y, z[0], z[-1]) = u
chain y { unary: cnn(image), pair: W, start: a, end: b }
gaussian s { unary: unet(rgb), pair: potts(embed(rgb)), ridge: 1.0 }
sequence y { step: decoder, given: encoder(word), normalize: local }
masked y { conditionals: mlm, energy: raw }
score tail (y, z) = f(soft(y))
forbid [t in T-1] y[t] = O and y[t+1] ~ 'I-*'
forbid y[0] != y[-1] and y[1] !~ 'B-*'
scheme y bioes

infer mean_field(steps: 10)
decode n_best(5)
train teacher_forcing { epochs: 5 } then direct_loss { infer: relaxed_beam(width: 3, alpha: 1 -> 5) }
train marginal_ce {
  # which scale
  balance:   online(scale: y.unary, against: y.pair, grid: 2^-8..2^8)
  optimizer: adam(lr: 1e-3)      # the usual one
  stop:      plateau(accuracy, patience: 7)
  data: { shape: [T, from: K], 'odd key': 'value' }
}
data letters("letter.data", fold: 0)
include 'other.energy'
"""


@cache
def example_specs() -> tuple[str, ...]:
    """The tour and every example of the repository."""
    return (TOUR, *(file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples").rglob("*.energy"))))


# ------------------------------------------------------------------------------------------- specs from the grammar

NAMES = ("y", "T", "Tag", "W", "x1", "_a", "mean_field", "t", "e3", "encoder_of_the_words_and_their_characters")
NUMBERS = ("0", "1", "2", "10", "007", "1e-3", "0.5", "2.50", "1E+2", "123456789012345678901234567890")
WHOLE_NUMBERS = ("0", "1", "2", "60", "1000000", "007")
STRINGS = ("'a'", '"b"', "'B-NP'", '"it\'s"', "'say \"so\"'", "'# no comment'", "''", "'{(['", "'é → 語'", "'in'")
COMMENTS = ("#", "# a remark", "#no blank", "# 'quotes\" and (brackets", "#   trailing blanks   ", "# é 語")
WHOLE_RULES = ("extent_number", "extent_name", "index", "binder")
SAMPLES = {
    "IDENT_WORD": NAMES,
    "NUMBER": NUMBERS,
    "STRING": STRINGS,
    "SUM_OP": ("+", "-"),
    "PRODUCT_OP": ("*", "/"),
    "COMPARISON": ("!=", "~", "!~"),
    "VARIABLE_KIND": ("output", "latent", "field"),
    "FAMILY": ("chain", "gaussian", "sequence", "masked"),
    "CHOICE_KIND": ("infer", "decode", "train"),
}


@dataclass(frozen=True)
class Rules:
    """The grammar's rules: what each symbol may become, and the fewest tokens that it takes."""

    expansions: dict[str, list[tuple[str, ...]]]
    fewest: dict[str, int]
    literals: dict[str, str]

    def size(self, expansion: Sequence[str]) -> int:
        return sum(self.fewest.get(symbol, 1) for symbol in expansion)


@cache
def rules() -> Rules:
    """The rules as Lark compiled them, without repetition signs."""
    lark = parser()
    expansions: dict[str, list[tuple[str, ...]]] = {}
    for rule in lark.rules:
        expansions.setdefault(rule.origin.name, []).append(tuple(symbol.name for symbol in rule.expansion))
    fewest = dict.fromkeys(expansions, 10**6)
    for _ in expansions:
        for name, choices in expansions.items():
            fewest[name] = min(sum(fewest.get(symbol, 1) for symbol in choice) for choice in choices)
    literals = {t.name: t.pattern.value for t in lark.terminals if isinstance(t.pattern, PatternStr)}
    return Rules(expansions, fewest, literals)


class Growth:
    """Grows the tokens of a symbol; after so many steps only in the shortest way."""

    def __init__(self, draw: Draw, steps: int) -> None:
        self.draw = draw
        self.steps = steps
        self.tokens: list[Token] = []

    def pick(self, choices: Sequence) -> object:
        return choices[0] if len(choices) == 1 else self.draw(st.sampled_from(choices))

    def grow(self, symbol: str, whole: bool = False) -> None:
        known = rules()
        if symbol not in known.expansions:
            self.tokens.append(self.token(symbol, whole))
            return
        self.steps -= 1
        choices = known.expansions[symbol]
        if symbol == "ident" and self.pick((True, True, True, False)):
            choices = [("IDENT_WORD",)]
        elif self.steps <= 0:
            fewest = min(known.size(choice) for choice in choices)
            choices = [choice for choice in choices if known.size(choice) == fewest]
        for part in self.pick(choices):
            self.grow(part, symbol in WHOLE_RULES)

    def token(self, kind: str, whole: bool) -> Token:
        if kind == "NUMBER" and whole:
            return Token(kind, self.pick(WHOLE_NUMBERS))
        return Token(kind, self.pick(SAMPLES[kind]) if kind in SAMPLES else rules().literals[kind])


BLANKS = ("", " ", " ", " ", "  ", "\t", "\f")
BREAKS = ("\n", "\r\n", "\n\n", "\n\n\n", " {comment}\n", "\n{comment}\n", "\n  {comment}\n\n{comment}\n  ")
ENDS = ("\n", "\n", "\n", "\r\n", "\n\n", "\n\n\n\n", "  {comment}\n", "\n{comment}\n", "\n\n{comment}\n\n{comment}\n")


class Spacing:
    """Writes tokens down with any blanks, line breaks and comments that mean nothing between them."""

    def __init__(self, draw: Draw, tidy: bool) -> None:
        self.draw = draw
        self.tidy = tidy

    def write(self, tokens: Sequence[Token]) -> str:
        made = ""
        depth = 0
        for place, token in enumerate(tokens):
            before, after = tokens[place - 1] if place else None, tokens[place + 1] if place + 1 < len(tokens) else None
            if before is not None:
                made += self.gap(before, token, after)
            depth += (token.type in OPENERS) - (token.type in CLOSERS)
            as_break = before is not None and after is not None and token.type == "COMMA" and depth > 0
            if as_break and ends_item(before) and starts_item(after) and self.draw(st.booleans()):
                made += self.fill(self.draw(st.sampled_from(BREAKS)))
            else:
                made += token
        return made

    def gap(self, before: Token, token: Token, after: Token | None) -> str:
        needed = _is_word(before) and _is_word(token)
        reserved = token in grammar.STATEMENT_WORDS
        fixed = before in grammar.STATEMENT_WORDS or (reserved and (after is None or after != ":"))
        if self.tidy or fixed or self.draw(st.integers(0, 7)):
            blank = " " if self.tidy or fixed else self.draw(st.sampled_from(BLANKS))
            return " " if needed and not blank else blank
        return self.fill(self.draw(st.sampled_from(BREAKS)))

    def fill(self, pattern: str) -> str:
        while "{comment}" in pattern:
            pattern = pattern.replace("{comment}", self.draw(st.sampled_from(COMMENTS)), 1)
        return pattern


def _is_word(token: Token) -> bool:
    return token[:1].isalnum() or token[:1] == "_"


@st.composite
def spec_texts(draw: Draw, max_statements: int = 6) -> str:
    """Specs that follow the grammar (not the typing rules), with blanks, line breaks and comments in all places."""
    tidy = draw(st.booleans())
    spacing = Spacing(draw, tidy)
    made = "" if tidy else draw(st.sampled_from(("", "", "\n", "\ufeff", "# first\n", "\r\n\t\n", "\ufeff# first\n")))
    for _ in range(draw(st.integers(0, max_statements))):
        growth = Growth(draw, draw(st.sampled_from((5, 30, 60, 120))))
        growth.grow("statement")
        indent = "" if tidy else draw(st.sampled_from(("", "", "", "  ")))
        end = "\n" if tidy else spacing.fill(draw(st.sampled_from((*ENDS, " "))))
        made += indent + spacing.write(growth.tokens) + end
    return made


@st.composite
def value_texts(draw: Draw) -> str:
    """Values that follow the grammar, on one line."""
    growth = Growth(draw, draw(st.sampled_from((5, 30, 60))))
    growth.grow("value")
    return Spacing(draw, True).write(growth.tokens)


# --------------------------------------------------------------------------------------------------- damaged texts

PIECES = re.compile(r"\w+|\s+|.", re.DOTALL)
SNIPPETS = (
    *grammar.STATEMENT_WORDS, *(word.lower() for word in grammar.SOFT_WORDS), *NAMES, *NUMBERS, *STRINGS, *COMMENTS,
    *"()[]{},:;.=+-*/^~<>!'\"#\\@$%&|`?", "==", ":=", "->", "..", "<=", "!=", "\n", "\r\n", "\r", "\t", "\f", "\v",
    "\x00", "\ufeff",
    "\u00a0", "\u2028", "\u2212", "\u2192", "\u201c", "\u0435", "\u0661", "\uff11", "\U0001f600", "\ud800",
    "((((((((((", "{" * 50, "1e999", "9" * 60,
)  # fmt: skip


@st.composite
def mutations(draw: Draw, text: str | None = None) -> str:
    """A spec after a few edits of characters and words; one of the examples unless a text is given."""
    made = draw(st.sampled_from(example_specs())) if text is None else text
    for _ in range(draw(st.integers(1, 4))):
        made = _mutate(draw, made)
    return made


def _mutate(draw: Draw, text: str) -> str:
    pieces = PIECES.findall(text) if draw(st.booleans()) else list(text)
    start = draw(st.integers(0, len(pieces)))
    end = min(len(pieces), start + draw(st.integers(0, 3)))
    kind = draw(st.sampled_from(("delete", "insert", "replace", "repeat", "swap", "cut")))
    if kind == "cut":
        return "".join(pieces[:start])
    middle = {
        "delete": [],
        "insert": [draw(st.sampled_from(SNIPPETS)), *pieces[start:end]],
        "replace": [draw(st.sampled_from(SNIPPETS))],
        "repeat": pieces[start:end] * 2,
        "swap": pieces[start:end][::-1],
    }[kind]
    return "".join([*pieces[:start], *middle, *pieces[end:]])


def any_text() -> st.SearchStrategy[str]:
    """Any text at all: every character, lone surrogates too; or words and signs of the language in any order."""
    characters = st.characters(exclude_categories=())
    language = st.lists(st.sampled_from((*SNIPPETS, " ", "\n")), max_size=40)
    return st.one_of(st.text(characters, max_size=60), language.map("".join), language.map(" ".join))

"""libDAI factor graphs (`.fg`).

The number of factors, then for each factor: how many variables it has, their numbers, their numbers of values, how many
entries follow, and the entries as pairs `index value`; what is not listed is 0. The FIRST variable runs fastest, and
`#` starts a comment.  J. Mooij, "libDAI", JMLR 11 (2010); the format is described in its manual under "fileformats".
"""

from __future__ import annotations

import math

import numpy as np

from energyml.diagnostics import Span
from energyml.interop.factor_graph import FactorGraph
from energyml.interop.imported import ImportedModel
from energyml.interop.limits import LIMIT, MOST_ENTRIES, first_too_large
from energyml.interop.numbers import Integers, Numbers, Readable, fail, first_word, read_bytes, without_comments
from energyml.interop.uai import HEADERS

EXPECTED = "a libDAI factor graph starts with its number of factors"


def read_fg(source: Readable) -> ImportedModel:
    """The model of a libDAI factor graph, as `read_uai` gives it.

    Variables are known by the numbers that the file has for them, in ascending order; gaps are allowed.

    Args:
        source: a path, or an open file.

    Raises:
        ModelFileError: the file breaks the format; the message shows the place.
        SpecFileError: the file cannot be read.
    """
    name, raw = read_bytes(source)
    bare = without_comments(raw)
    word = first_word(name, bare, EXPECTED)
    if word[0].decode("latin-1") in HEADERS:
        found, help_text = f"`{word[0].decode()}`", "this is a UAI model: em.interop.read_uai reads it"
        raise fail(name, raw, "E0701", Span(*word.span()), expected=EXPECTED, found=found, help=help_text)
    return _Reader(Numbers.read(name, bare)).run().model()


class _Reader:
    """Reads factor after factor."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers, self.at = numbers, 0
        self.cards: dict[int, tuple[int, int]] = {}  # by variable: its number of values, and where the file says so
        self.scopes: list[list[int]] = []
        self.entries = 0  # of all tables so far
        self.tables: list[int] = []  # where each table starts among them
        self.places: list[Integers] = []  # where the values stand that the file lists
        self.targets: list[Integers] = []  # and where they belong among all entries

    def run(self) -> FactorGraph:
        """Read the whole file."""
        numbers = self.numbers
        factors = numbers.whole(0, "the number of factors")
        self.at = 1
        for number in range(factors):
            self._factor(number)
        if self.at < len(numbers):
            raise numbers.fail("E0708", self.at, what="the last factor", found=numbers.text(self.at))
        if not self.cards:
            help_text = "a model has at least one variable"
            raise numbers.fail("E0701", 0, expected=EXPECTED, found="no variable", help=help_text)
        return self._graph()

    def _take(self, count: int, what: str, least: int = 0) -> Integers:
        if self.at + count > len(self.numbers):
            raise self.numbers.fail("E0702", len(self.numbers), expected=what)
        found = self.numbers.wholes(slice(self.at, self.at + count), lambda _: what, least)
        self.at += count
        return found

    def _factor(self, number: int) -> None:
        count = int(self._take(1, f"the number of variables of factor {number}")[0])
        variables = self._take(count, f"a variable of factor {number}").tolist()
        if len(set(variables)) < count:
            second = next(k for k, one in enumerate(variables) if one in variables[:k])
            first = self.at - count + variables.index(variables[second])
            facts = {"what": f"variable {variables[second]}", "where": f"the scope of factor {number}"}
            raise self.numbers.fail("E0707", self.at - count + second, [("it stands here already", first)], **facts)
        self._values(variables, number)
        size = math.prod(self.cards[variable][0] for variable in variables)
        if self.entries + size > MOST_ENTRIES:
            found = f"{size} entries in the table of factor {number}"
            limit = f"{MOST_ENTRIES:,} entries in all tables"
            raise self.numbers.fail("E0709", self.at - 1, found=found, limit=limit)
        self._table(number, size)
        self.scopes.append(variables[::-1])  # the last variable of a scope runs fastest in a `FactorGraph`

    def _values(self, variables: list[int], number: int) -> None:
        """The numbers of values of a factor's variables, the same wherever a variable stands."""
        start = self.at
        cards = self._take(len(variables), f"the number of values of a variable of factor {number}", least=1).tolist()
        for place, (variable, card) in enumerate(zip(variables, cards, strict=True), start):
            known, where = self.cards.setdefault(variable, (card, place))
            if known != card:
                what = f"the number of values of variable {variable}"
                note = [(f"variable {variable} has {known} values here", where)]
                bounds, found = f"{known}, as elsewhere in the file", self.numbers.text(place)
                raise self.numbers.fail("E0704", place, note, what=what, bounds=bounds, found=found)

    def _table(self, number: int, size: int) -> None:
        count = int(self._take(1, f"the number of entries that the table of factor {number} lists")[0])
        if count > size:
            raise self.numbers.fail("E0705", self.at - 1, factor=number, size=size, found=count)
        end = self.at + 2 * count
        if end > len(self.numbers):
            raise self.numbers.fail("E0702", len(self.numbers), expected=f"an entry of the table of factor {number}")
        places = np.arange(self.at, end, 2)
        indices = self.numbers.wholes(places, lambda _: f"the index of an entry of factor {number}", most=size - 1)
        listed, first = np.unique(indices, return_index=True)
        if len(listed) < count:
            second = int(np.setdiff1d(np.arange(count), first)[0])
            what, where = f"index {int(indices[second])}", f"the table of factor {number}"
            raise self.numbers.fail("E0707", int(places[second]), what=what, where=where)
        self.tables.append(self.entries)
        self.places.append(places + 1)
        self.targets.append(self.entries + indices)
        self.entries += size
        self.at = end

    def _graph(self) -> FactorGraph:
        variables = np.asarray(sorted(self.cards), np.int64)
        cards = np.asarray([self.cards[one][0] for one in variables.tolist()], np.int64)
        bad = first_too_large(cards)
        if bad is not None:
            card, place = self.cards[int(variables[bad])]
            found = f"{card} values of variable {variables[bad]}"
            raise self.numbers.fail("E0709", place, found=found, limit=LIMIT)
        flat = np.asarray([one for scope in self.scopes for one in scope], np.int64)
        arities = np.asarray([len(scope) for scope in self.scopes], np.int64)
        tables = np.asarray(self.tables, np.int64)
        targets = np.concatenate(self.targets)

        def owner(entry: int) -> str:
            return f"a value in the table of factor {int(np.searchsorted(tables, targets[entry], side='right')) - 1}"

        logs = np.full(self.entries, -np.inf)
        logs[targets] = self.numbers.logs(np.concatenate(self.places), owner)
        return FactorGraph(self.numbers.name, variables, cards, np.searchsorted(variables, flat), arities, logs, tables)

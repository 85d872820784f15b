"""UAI files: the format of the UAI inference competitions.

A model is a preamble (`MARKOV` or `BAYES`, the variables' numbers of values, the scopes) and a table of non-negative
numbers for each factor; the LAST variable of a scope runs fastest.  Evidence is a list of pairs `variable value`.
https://uaicompetition.github.io/uci-2022/file-formats/
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from energyml.diagnostics import Span, did_you_mean
from energyml.interop.factor_graph import FactorGraph
from energyml.interop.imported import ImportedModel
from energyml.interop.limits import LIMIT, first_too_large
from energyml.interop.numbers import Integers, Numbers, Readable, fail, first_word, read_bytes

HEADERS = ("MARKOV", "BAYES")
EXPECTED = "a UAI model starts with `MARKOV` or `BAYES`"


def read_uai(source: Readable) -> ImportedModel:
    """The model of a `.uai` file.

    Args:
        source: a path, or an open file.

    Returns:
        A model for every backend: `model.infer(evidence=model.evidence({3: 1})).log_partition`. Its scores are natural
        logarithms of the tables' entries in float64, -inf for 0.

    Raises:
        ModelFileError: the file breaks the format; the message shows the place.
        SpecFileError: the file cannot be read.

    Cost: linear in the size of the file, about 30 MB a second.
    """
    name, raw = read_bytes(source)
    numbers = Numbers.read(name, raw, _header(name, raw))
    count = numbers.whole(0, "the number of variables", least=1)
    if count >= len(numbers):
        note = (f"the file says that there are {count} variables", 0)
        what = f"the number of values of variable {len(numbers) - 1}"
        raise numbers.fail("E0702", len(numbers), [note], expected=what)
    cards = numbers.wholes(slice(1, 1 + count), lambda k: f"the number of values of variable {k}", least=1)
    bad = first_too_large(cards)
    if bad is not None:
        raise numbers.fail("E0709", 1 + bad, found=f"{cards[bad]} values of variable {bad}", limit=LIMIT)
    scopes, arities, end = _scopes(numbers, count)
    counts = _table_counts(numbers, cards, scopes, arities, end)
    tables = counts - end - np.arange(len(counts))  # without the counts that stand between them
    entries = np.delete(np.arange(end, len(numbers)), counts - end)

    def owner(entry: int) -> str:
        return f"a value in the table of factor {int(np.searchsorted(tables, entry, side='right')) - 1}"

    logs = numbers.logs(entries, owner)
    return FactorGraph(name, np.arange(count), cards, scopes, arities, logs, tables).model()


def _header(name: str, raw: bytes) -> int:
    """Where the numbers start: behind the word that says which kind of network it is."""
    word = first_word(name, raw, EXPECTED)
    found = word[0].decode("latin-1")
    if found in HEADERS:
        return word.end()
    guess = did_you_mean(found, HEADERS)
    help_text = f"did you mean `{guess}`?" if guess else None
    if found[0] in "#0123456789":
        help_text = "a libDAI factor graph has no such word: em.interop.read_fg reads it"
    span = Span(word.start(), min(word.end(), word.start() + 40))
    raise fail(name, raw, "E0701", span, expected=EXPECTED, found=f"`{found[:40]}`", help=help_text)


def _scopes(numbers: Numbers, count: int) -> tuple[Integers, Integers, int]:
    """The variables of all factors, the size of each scope, and where the tables start."""
    first = 1 + count
    factors = numbers.whole(first, "the number of factors")
    notes = [(f"the file says that there are {factors} factors", first)]
    view, total = memoryview(numbers.values.data), len(numbers)
    places: list[int] = []
    end = first + 1
    for number in range(factors):
        arity = view[end] if end < total else -1.0
        if not (0 <= arity <= count and arity == int(arity)):
            numbers.whole(end, f"the number of variables of factor {number}", 0, count, notes)
        places.append(end)
        end += 1 + int(arity)
    sizes = np.asarray(places, np.int64)
    arities = numbers.values[sizes].astype(np.int64)
    of_variable = np.ones(max(0, end - first - 1), bool)
    of_variable[sizes - first - 1] = False
    members = np.flatnonzero(of_variable) + first + 1
    owners = np.repeat(np.arange(factors), arities)
    if end > total:  # only the last scope can be cut off
        numbers.whole(total, f"a variable of factor {factors - 1}", notes=notes)
    scopes = numbers.wholes(members, lambda k: f"a variable of factor {owners[k]}", most=count - 1)
    _no_variable_twice(numbers, scopes, owners, members)
    return scopes, arities, end


def _no_variable_twice(numbers: Numbers, scopes: Integers, owners: Integers, members: Integers) -> None:
    keys = owners * (int(scopes.max(initial=0)) + 1) + scopes
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    if len(again):
        second = int(again.min())
        first = int(np.flatnonzero(keys[:second] == keys[second])[0])
        where, note = f"the scope of factor {owners[second]}", [("it stands here already", int(members[first]))]
        raise numbers.fail("E0707", int(members[second]), note, what=f"variable {scopes[second]}", where=where)


def _table_counts(numbers: Numbers, cards: Integers, scopes: Integers, arities: Integers, end: int) -> Integers:
    """Where the count of each factor's table stands, in front of the table; each is checked against the scope."""
    total = len(numbers)
    sizes = np.ones(len(arities))
    several = arities > 0
    starts = (np.cumsum(arities) - arities)[several]
    if len(starts):
        sizes[several] = np.multiply.reduceat(cards[scopes].astype(np.float64), starts)
    bounded = np.minimum(sizes, total + 1).astype(np.int64)
    counts = end + np.cumsum(bounded + 1) - (bounded + 1)
    inside = counts < total
    fits = np.zeros(len(sizes), bool)
    fits[inside] = numbers.values[counts[inside]] == sizes[inside]
    good = fits & (counts + bounded < total)
    if not good.all():
        number = int(np.argmin(good))
        raise _bad_table(numbers, number, int(counts[number]), f"{sizes[number]:.0f}", bool(fits[number]), counts)
    last = int(counts[-1] + bounded[-1] + 1) if len(counts) else end
    if last < total:
        raise numbers.fail("E0708", last, what="the last table", found=numbers.text(last))
    return counts


def _bad_table(numbers: Numbers, number: int, count: int, size: str, fits: bool, counts: Integers) -> Exception:
    """What is wrong with the first bad table: its size, or that the file ends inside it."""
    if fits:
        note = [(f"the table of factor {number} has {size} values", count)]
        return numbers.fail("E0702", len(numbers), note, expected=f"a value of the table of factor {number}")
    note = [(f"the table of factor {number - 1} starts here", int(counts[number - 1]))] if number else []
    numbers.whole(count, f"the size of the table of factor {number}", notes=note)
    return numbers.fail("E0705", count, note, factor=number, size=size, found=numbers.text(count))


# ------------------------------------------------------------------------------------------------------------- evidence


def read_evid(source: Readable, model: ImportedModel) -> dict[str, Tensor]:
    """The evidence of an `.evid` file, for `model.infer(evidence=...)`.

    Both dialects are read: `n v x v x ...`, and one that starts with the number of samples, `1 n v x ...`; several
    samples make a batch.  A file without numbers is no evidence.

    Args:
        source: a path, or an open file.
        model: whose variables it is about, by the numbers that the model's own file has for them.

    Returns:
        As `ImportedModel.evidence`.

    Raises:
        ModelFileError: the file breaks the format, or the model has no such variable or value.
        SpecFileError: the file cannot be read.
    """
    name, raw = read_bytes(source)
    if raw.split():
        first_word(name, raw, "evidence is a list of numbers")
    numbers = Numbers.read(name, raw)
    known = dict(zip(model.numbers, model.cards, strict=True))
    samples = [_pairs(numbers, place, count, known) for place, count in _samples(numbers)]
    return model.evidence(samples[0] if len(samples) == 1 else samples) if samples else {}


def _samples(numbers: Numbers) -> list[tuple[int, int]]:
    """Where the pairs of each sample start, and how many there are."""
    total = len(numbers)
    if total == 0:
        return []
    values = numbers.wholes(slice(0, total), lambda _: "a number of the evidence").tolist()
    if total == 1 + 2 * values[0]:
        return [(1, values[0])]
    found: list[tuple[int, int]] = []
    at = 1
    while at < total and len(found) < values[0]:
        found.append((at + 1, values[at]))
        at += 1 + 2 * values[at]
    if at == total and len(found) == values[0]:
        return found
    # Neither dialect: one sample behind its count of samples has an even count of numbers.
    place = 1 if values[0] == 1 and total % 2 == 0 else 0
    end = place + 1 + 2 * values[place]
    note = [(f"the file says that {values[place]} variables are observed", place)]
    if end > total:
        raise numbers.fail("E0702", total, note, expected="an observed variable and its value")
    raise numbers.fail("E0708", end, note, what="the last pair of evidence", found=numbers.text(end))


def _pairs(numbers: Numbers, start: int, count: int, known: Mapping[int, int]) -> dict[int, int]:
    """Values by variable; `known` has the number of values of each variable."""
    found: dict[int, tuple[int, int]] = {}
    for place in range(start, start + 2 * count, 2):
        variable, value = int(numbers.values[place]), int(numbers.values[place + 1])
        if variable not in known:
            bounds = f"a variable of the model, {min(known)} to {max(known)}"
            raise numbers.fail("E0704", place, what="what is observed", bounds=bounds, found=numbers.text(place))
        numbers.whole(place + 1, f"the value of variable {variable}", most=known[variable] - 1)
        before = found.setdefault(variable, (value, place))
        if before[0] != value:
            note = [(f"it is {before[0]} here", before[1])]
            raise numbers.fail("E0707", place, note, what=f"variable {variable}", where="the evidence")
    return {variable: value for variable, (value, _) in found.items()}

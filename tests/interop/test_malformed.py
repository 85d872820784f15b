"""Files that break the format: the code, the place, and never anything but an `EnergyError`."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import energyml as em
from energyml.interop import ModelFileError

MODEL = """\
MARKOV
3
2 2 3
3
1 0
2 0 1
2 1 2

2
0.5 0.5

4
1 2
3 4

6
1 2 3
4 5 6
"""
GRAPH = """\
# two factors
2

1
0
2
2
0 0.5
1 0.5

2
0 1
2 3
2
0 1.5
5 2.5
"""


def refused(read, text, *arguments):
    with pytest.raises(ModelFileError) as caught:
        read(io.StringIO(text), *arguments)
    (found,) = caught.value.diagnostics
    place = None if found.span is None else caught.value.source.position(found.span.start)
    return found, place


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "code", "place", "words"),
    [
        ("MARKOV", "markov", "E0701", (1, 1), "did you mean `MARKOV`"),
        ("MARKOV", "3", "E0701", (1, 1), "read_fg"),
        ("MARKOV", "caf\xe9", "E0701", (1, 1), "not text"),
        (MODEL, "", "E0701", None, "empty"),
        (MODEL, " \n\t\n", "E0701", None, "empty"),
        (MODEL, "MARKOV", "E0702", (1, 7), "the number of variables"),
        (MODEL, "MARKOV\n", "E0702", (1, 7), "the number of variables"),
        ("\n3\n", "\n0\n", "E0704", (2, 1), "at least 1"),
        ("\n3\n", "\n-3\n", "E0704", (2, 1), "at least 1"),
        ("\n3\n", "\n2.5\n", "E0703", (2, 1), "a whole number, the number of variables"),
        ("\n3\n", "\nnan\n", "E0703", (2, 1), "`nan`"),
        ("\n3\n", "\n1e300\n", "E0704", (2, 1), "between"),
        ("\n3\n", "\n999999999999\n", "E0702", (18, 6), "the number of values of variable 27"),
        ("2 2 3", "2 0 3", "E0704", (3, 3), "the number of values of variable 1"),
        ("2 2 3", "2 2 30000000", "E0709", (3, 5), "30000000 values of variable 2"),
        ("2 2 3", "2 2 9007199254740993", "E0709", (3, 5), "values of variable 2"),
        ("\n3\n1 0", "\n999999999999\n1 0", "E0704", (12, 1), "999999999999 factors"),
        ("2 0 1", "9 0 1", "E0704", (6, 1), "the number of variables of factor 1"),
        ("2 0 1", "2 0 -1", "E0704", (6, 5), "a variable of factor 1"),
        ("2 1 2", "2 1 3", "E0704", (7, 5), "between 0 and 2"),
        ("2 1 2", "2 1 x", "E0703", (7, 5), "`x`"),
        ("2 0 1", "2 0 0", "E0707", (6, 5), "variable 0 stands twice in the scope of factor 1"),
        ("\n2\n0.5", "\n3\n0.5", "E0705", (9, 1), "factor 0 has 2 values"),
        ("0.5 0.5", "0.5", "E0705", (13, 1), "the table of factor 0 starts here"),
        ("0.5 0.5", "0.5 0.5 0.5", "E0703", (10, 9), "the size of the table of factor 1"),
        ("3 4\n", "3 -4\n", "E0706", (14, 3), "the table of factor 1"),
        ("3 4\n", "3 nan\n", "E0706", (14, 3), "found nan"),
        ("4 5 6", "4 5 inf", "E0706", (18, 5), "the table of factor 2"),
        ("4 5 6", "4 5 1e99999999999999999999", "E0706", (18, 5), "the table of factor 2"),
        ("4 5 6", "4 5 12-3", "E0703", (18, 5), "`12-3`"),
        ("4 5 6", "4 5", "E0702", (18, 4), "a value of the table of factor 2"),
        ("4 5 6", "4 5 6 7", "E0708", (18, 7), "`7`"),
        ("4 5 6", "4 5 6\nrubbish", "E0703", (19, 1), "`rubbish`"),
        ("0.5 0.5", "0.5 0,5", "E0703", (10, 5), "`0,5`"),
        ("0.5 0.5", "0.5 0.\x005", "E0701", (1, 1), "not text"),
    ],
)  # fmt: skip
def test_uai(old, new, code, place, words):
    found, where = refused(em.interop.read_uai, changed(MODEL, old, new))
    said = " ".join((found.message, found.help, *(note.message for note in found.notes)))
    assert (found.code, where) == (code, place)
    assert words in said


@pytest.mark.parametrize(
    ("old", "new", "code", "place", "words"),
    [
        (GRAPH, "", "E0701", None, "empty"),
        (GRAPH, "# only a comment\n", "E0701", None, "empty"),
        (GRAPH, "0\n", "E0701", (1, 1), "at least one variable"),
        (GRAPH, MODEL, "E0701", (1, 1), "read_uai"),
        ("\n2\n", "\nx\n", "E0703", (2, 1), "`x`"),
        ("\n2\n", "\n3\n", "E0702", (16, 6), "the number of variables of factor 2"),
        ("\n2\n", "\n1\n", "E0708", (11, 1), "the last factor"),
        ("0 1\n2 3", "0 0\n2 2", "E0707", (12, 3), "variable 0 stands twice"),
        ("0 1\n2 3", "0 1\n3 3", "E0704", (13, 1), "2, as elsewhere"),
        ("0 1\n2 3", "0 1\n2 0", "E0704", (13, 3), "at least 1"),
        ("0 1\n2 3", "0 1\n2 300000000", "E0709", (13, 3), "600000000 entries"),
        ("\n0\n2\n2\n", "\n0\n2\n3\n", "E0705", (7, 1), "factor 0 has 2 values"),
        ("5 2.5", "6 2.5", "E0704", (16, 1), "between 0 and 5"),
        ("5 2.5", "0 2.5", "E0707", (16, 1), "index 0 stands twice"),
        ("5 2.5", "5 -2.5", "E0706", (16, 3), "the table of factor 1"),
        ("5 2.5", "5", "E0702", (16, 2), "an entry of the table of factor 1"),
        ("1\n0\n2\n2\n0 0.5\n1 0.5", "1\n-1\n2\n2\n0 0.5\n1 0.5", "E0704", (5, 1), "at least 0"),
    ],
)  # fmt: skip
def test_fg(old, new, code, place, words):
    found, where = refused(em.interop.read_fg, changed(GRAPH, old, new))
    said = " ".join((found.message, found.help, *(note.message for note in found.notes)))
    assert (found.code, where) == (code, place)
    assert words in said


@pytest.mark.parametrize(
    ("text", "code", "place", "words"),
    [
        ("1 3 0", "E0704", (1, 3), "0 to 2"),
        ("1 -1 0", "E0704", (1, 3), "at least 0"),
        ("1 2 3", "E0704", (1, 5), "the value of variable 2 must be between 0 and 2"),
        ("1 2 0.5", "E0703", (1, 5), "`0.5`"),
        ("1 x 0", "E0703", (1, 3), "`x`"),
        ("2 1 0 1 1", "E0707", (1, 7), "it is 0 here"),
        ("2 1 0 2", "E0702", (1, 8), "2 variables are observed"),
        ("1\n2 1 0", "E0702", (2, 6), "2 variables are observed"),
        ("1 1 0 1 2", "E0708", (1, 7), "the last pair"),
        ("1\n1 1 0 7 8", "E0708", (2, 7), "the last pair"),
        ("0 5", "E0708", (1, 3), "`5`"),
        ("1\n1 3 0", "E0704", (2, 3), "0 to 2"),
    ],
)
def test_evidence(text, code, place, words):
    model = em.interop.read_uai(io.StringIO(MODEL))
    found, where = refused(em.interop.read_evid, text, model)
    assert (found.code, where) == (code, place)
    assert words in " ".join((found.message, found.help, *(note.message for note in found.notes)))


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.uai", tmp_path):
        for read in (em.interop.read_uai, em.interop.read_fg):
            with pytest.raises(em.EnergyError, match=str(path)):
                read(path)


def test_many_large_sets_of_values_are_refused():
    cards = range(1000, 3000)
    with pytest.raises(ModelFileError, match="E0709"):
        em.interop.read_uai(io.StringIO(f"MARKOV {len(cards)} {' '.join(map(str, cards))} 0"))


WORDS = ("MARKOV", "BAYES", "0", "1", "2", "3", "4", "-1", "0.5", "nan", "1e400", "x", "#", "\n", "\0")


@given(st.lists(st.sampled_from(WORDS), max_size=40), st.sampled_from([em.interop.read_uai, em.interop.read_fg]))
def test_any_text_is_read_or_refused(words, read):
    text = ("MARKOV " if read is em.interop.read_uai else "") + " ".join(words)
    try:
        read(io.StringIO(text))
    except em.EnergyError as problem:
        assert str(problem)


@given(st.binary(max_size=200), st.sampled_from([em.interop.read_uai, em.interop.read_fg]))
def test_any_bytes_are_read_or_refused(raw, read):
    try:
        read(io.BytesIO(raw))
    except em.EnergyError as problem:
        assert str(problem)


@given(st.integers(0, len(MODEL)), st.integers(0, 10), st.text("0123456789 .-xe\n", max_size=3))
def test_any_change_is_read_or_refused(start, length, text):
    try:
        em.interop.read_uai(io.StringIO(MODEL[:start] + text + MODEL[start + length :]))
    except em.EnergyError as problem:
        assert str(problem)

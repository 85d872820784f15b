"""What a mistake is called, where it points, and what it suggests."""

import pytest

from energyml.diagnostics import Diagnostic, Report, Source, render
from energyml.errors.syntax import KINDS
from energyml.grammar.mistakes import GAPS, HINTS, MISTAKES
from energyml.syntax.parser import parse, parse_choices, parse_value


def read(text: str) -> tuple[list[Diagnostic], Source]:
    source = Source("test.energy", text)
    report = Report(source)
    parse(source, report)
    return report.ordered(), source


# text, code, what is marked, the message, the remedy
CASES = [
    # words and symbols
    ("let x = 3 4", "E0001", "4", "unexpected `4`, expected an operator or the end of the statement", ""),
    ("let x = a b", "E0001", "b", "unexpected `b`, expected an operator or the end of the statement", ""),
    ("labels A = {a b}", "E0001", "b", "unexpected `b`, expected `,` or `}`", ""),
    ("chain y { unary: u pair: W }", "E0001", "pair", "unexpected `pair`, expected `,` or `}`", ""),
    ("infer mean_field(steps: )", "E0001", ")", "unexpected `)`, expected a value", ""),
    ("infer exact, bp", "E0001", ",", "unexpected `,`, expected `then` or the end of the statement", "one choice"),
    ("train a { b: 1,, c: 2 }", "E0001", ",", "unexpected `,`, expected a name or `}`", "remove one comma"),
    ("output y : Tag[T+]", "E0001", "]", "unexpected `]`, expected a number", ""),
    ("output y : Tag[T*2]", "E0001", "*", "unexpected `*`", "a dim plus a constant"),
    ("output y : Tag[T] = s", "E0001", "s", "unexpected `s`, expected `argmax`", "argmax FIELD over LABELS"),
    ("output : Tag[T]", "E0001", ":", "unexpected `:`, expected a name", "give the statement a name first"),
    ("infer: exact", "E0001", ":", "unexpected `:`, expected a name", "leave the `:` out"),
    ("dim T K", "E0001", "K", "expected `,`, `=`, `[`, `free` or the end of the statement", ""),
    ("dim T = K", "E0001", "K", "unexpected `K`, expected a number", ""),
    ("dim 3", "E0001", "3", "unexpected `3`, expected a name", ""),
    ("scheme y 'bioes'", "E0001", "'bioes'", "unexpected `'bioes'`, expected a name", ""),
    ("score g (y[t]) = u", "E0001", "[", "unexpected `[`", "leave the index out"),
    ("forbid y = a or y = b", "E0001", "or", "unexpected `or`", "one `forbid` for each alternative"),
    ("let x = a ** 2", "E0001", "*", "unexpected `*`, expected a value", "write `^`"),
    ("let x = .5", "E0001", ".", "unexpected `.`, expected a value", "`0.5`"),
    ("let x = 5.", "E0001", ".", "unexpected `.`", "`5.0`"),
    ("let x = 2 ^ y", "E0001", "y", "unexpected `y`, expected a number", "an exponent is a number"),
    ("let x = x[t][s]", "E0001", "[", "unexpected `[`", "`x[t, s]`"),
    ("let x = f(a)(b)", "E0001", "(", "unexpected `(`", "`let`"),
    ("let x = 1 -> 2 -> 3", "E0001", "->", "unexpected `->`, expected the end of the statement", ""),
    ("let x = (a\nb)", "E0001", "\n", "unexpected a line break, expected `)`", ""),
    ("net f = python(pkg.mod:Class)", "E0001", ":", "unexpected `:`", "'pkg.mod:Class'"),
    ("data 'x'", "E0001", "'x'", "expected a name", "name a reader first"),
    ("include foo", "E0001", "foo", "expected a string", "put a file name in quotes"),
    ("factor [t in T] (y[t]) = u", "E0001", "[", "expected a name", "give the statement a name first"),
    ("factor f [t in T (y[t]) = u", "E0001", "(", "expected `+`, `-`, `,` or `]`", "ends with `]`"),
    ("factor f [t in 0..T] (y[t]) = u", "E0001", "0", "expected a name", "runs over a dim"),
    ("labels A = 'a'-'z'", "E0001", "-", "unexpected `-`, expected `..`", "'a'..'z'"),
    # characters
    ("let x = a;", "E0002", ";", "`;` (U+003B)", "leave the `;` out"),
    ("let x = a ? b", "E0002", "?", "`?` (U+003F)", ""),
    ("let x = 1 \u2192 2", "E0002", "\u2192", "(U+2192)", "write `->`"),
    ("let x = a \u2212 b", "E0002", "\u2212", "(U+2212)", "a plain minus `-`"),
    ("let x = \u201cabc\u201d", "E0002", "\u201c", "(U+201C)", "a plain quote"),
    ("let x = a\u00a0", "E0002", "\u00a0", "`\\xa0` (U+00A0)", "a plain space"),
    ("let x = \uff41", "E0002", "\uff41", "(U+FF41)", "write a plain `a`"),
    ("let x = \u0430", "E0002", "\u0430", "(U+0430)", "letters a to z"),
    ("let x = a\x00", "E0002", "\x00", "`\\x00` (U+0000)", ""),
    ("dim T < 60", "E0002", "<", "`<`", "`<=`"),
    ("forbid y = a & z = b", "E0002", "&", "`&`", "write `and`"),
    # strings and brackets
    ("let x = 'abc  \ndim T", "E0003", "'abc", "not closed", "close it with `'`"),
    ("let x = \"abc'", "E0003", "\"abc'", "not closed", 'close it with `"`'),
    ("let x = (a", "E0004", "(", "`(` is never closed", "add the missing `)`"),
    ("let x = f({a: g[t", "E0004", "[", "`[` is never closed", "add the missing `]`"),
    ("chain y {\n  unary: u\n\ninfer exact", "E0004", "{", "`{` is never closed", "add the missing `}`"),
    ("let x = a)", "E0005", ")", "`)` closes nothing", "remove it"),
    ("}", "E0005", "}", "`}` closes nothing", "remove it"),
    ("let x = f(y[t)", "E0023", ")", "`[` must be closed by `]` before `)`", ""),
    ("factor f (y[t]] = u", "E0023", "]", "`(` must be closed by `)` before `]`", ""),
    ("chain y {\n  a: f(b\n  c: 3\n}\ndim T", "E0023", "}", "`(` must be closed by `)` before `}`", ""),
    # lines
    ("outptu y : Tag[T]", "E0008", "outptu", "`outptu` does not start a statement", "did you mean `output`?"),
    ("Output y : Tag[T]", "E0008", "Output", "`Output` does not start a statement", "did you mean `output`?"),
    ("dim T\ny = 3", "E0008", "y", "`y` does not start a statement", "write `let y = ...`"),
    ("dim T\n42", "E0008", "42", "`42` does not start a statement", ""),
    ("// remark", "E0026", "//", "a comment starts with `#`, found `//`", "write `#`"),
    ("dim T /* remark */", "E0026", "/*", "found `/*`", "write `#`"),
    ("let x = a // remark", "E0026", "//", "found `//`", "write `#`"),
    ("dim T\n-- remark", "E0026", "--", "found `--`", "write `#`"),
    # names
    ("input data : real[T]", "E0011", "data", "`data` is a reserved word", "such as `data_`"),
    ("let x = labels", "E0011", "labels", "`labels` is a reserved word", "such as `labels_`"),
    ("let x = f(labels)", "E0011", "labels", "`labels` is a reserved word", "such as `labels_`"),
    ("data letters(letter.data)", "E0011", "data", "`data` is a reserved word", "put a file name in quotes"),
    # options
    ("chain y { unary = u }", "E0012", "=", "`key: value`, not `key = value`", "write `:`"),
    ("infer mean_field(steps = 10)", "E0012", "=", "`key: value`, not `key = value`", "write `:`"),
    ("infer mean_field(steps := 10)", "E0012", ":=", "`key: value`, not `key = value`", "write `:`"),
    ("factor f (from = y[t]) = W", "E0012", "=", "`key: value`, not `key = value`", "write `:`"),
    ("chain y { unary u }", "E0022", "u", "a `:` must stand between `unary` and its value, found `u`", "`unary: ...`"),
    ("infer mean_field(steps 10)", "E0022", "10", "between `steps` and its value", "`steps: ...`"),
    ("train nll {\n  infer exact\n}", "E0022", "exact", "between `infer` and its value", "`infer: ...`"),
    ("factor f (from y[t]) = W", "E0022", "y", "between `from` and its value", "`from: ...`"),
    ("chain y unary: u", "E0018", "unary", "stand in braces, found `unary`", "{ key: value }"),
    ("chain y", "E0018", "y", "stand in braces, found the end of the statement", "{ key: value }"),
    ("gaussian s (unary: u)", "E0018", "(", "stand in braces, found `(`", "{ key: value }"),
    # definitions
    ("let x == 3", "E0015", "==", "found `==` where `=` is expected", "write `=`"),
    ("let x := 3", "E0015", ":=", "found `:=` where `=` is expected", "write `=`"),
    ("let x : 3", "E0015", ":", "found `:` where `=` is expected", "write `=`"),
    ("param W := 3", "E0015", ":=", "found `:=` where `=` is expected", "write `=`"),
    ("forbid y == a", "E0015", "==", "found `==` where `=` is expected", "write `=`"),
    ("output y Tag[T]", "E0013", "Tag", "a `:` must stand between a name and its type, found `Tag`", "name : type"),
    ("param W = real", "E0013", "=", "found `=`", "name : type"),
    ("labels A {a, b}", "E0014", "{", "a `=` must stand before the definition, found `{`", "write `=`"),
    ("let x", "E0014", "x", "found the end of the statement", "write `=`"),
    ("factor f [t in T]\n  (y[t])\n  u", "E0014", "u", "found `u`", "write `=`"),
    ("net f : Word[T] -> real[T] = g()", "E0014", "->", "found `->`", "the inputs in parentheses"),
    ("let x =", "E0024", "=", "the statement ends too early, expected a value", ""),
    ("let", "E0024", "let", "expected a name", ""),
    ("dim T,\ndim K", "E0024", ",", "expected a name", ""),
    ("output y : Tag[T] = argmax s", "E0024", "s", "expected `over`", "argmax FIELD over LABELS"),
    ("forbid y[t]", "E0024", "]", "expected `=`, `!=`, `~` or `!~`", ""),
    ("net f = mlp", "E0024", "mlp", "expected `(`", "`mlp()`"),
    # scopes, indices, labels, dims
    ("factor f y[t] = u", "E0016", "y", "stand in parentheses, found `y`", "`(y[t])`"),
    ("score g y = u", "E0016", "y", "stand in parentheses, found `y`", "`(y)`"),
    ("factor f for t in T (y[t]) = u", "E0017", "for", "written `[t in T]`, found `for`", ""),
    ("forbid [t] y[t] = a", "E0017", "]", "written `[t in T]`, found `]`", ""),
    ("labels A = a, b", "E0019", "a", "labels stand in braces, found `a`", "{a, b}"),
    ("labels A = [a, b]", "E0019", "[", "labels stand in braces, found `[`", "{a, b}"),
    ("dim T <= 60", "E0020", "<=", "`dim T free <= 60`, found `<=`", "free"),
    ("dim T free", "E0020", "free", "found the end of the statement", "free"),
    ("factor f (y[2*t]) = u", "E0021", "*", "a name plus a constant, as in `t+1`, found `*`", ""),
    ("let x = a[t+s]", "E0021", "s", "found `s`", ""),
    ("labels A = {O, B-NP}", "E0025", "B-NP", "stands in quotes, found `B-NP`", "write `'B-NP'`"),
    ("labels A = {O, 1st}", "E0025", "1st", "stands in quotes, found `1st`", "write `'1st'`"),
    ("labels A = {\n  data\n}", "E0025", "data", "stands in quotes, found `data`", "write `'data'`"),
    ("forbid y = B-NP and y = a", "E0025", "B-NP", "stands in quotes, found `B-NP`", "write `'B-NP'`"),
    ("forbid y ~ I-*", "E0025", "I-*", "stands in quotes, found `I-*`", "write `'I-*'`"),
    # numbers
    ("let x = " + "9" * 50, "E0007", "9" * 50, "`99999999999999999999...` is too long", ""),
    ("let x = 1e999", "E0007", "1e999", "`1e999` is too long or too large", ""),
    ("output y : Tag[1.5]", "E0009", "1.5", "`1.5` must be a whole number", ""),
]


@pytest.mark.parametrize(("text", "code", "marked", "message", "remedy"), CASES)
def test_mistake(text: str, code: str, marked: str, message: str, remedy: str) -> None:
    (found,), source = read(text)
    assert found.code == code, render(source, found)
    assert source.excerpt(found.span) == marked
    assert message in found.message
    assert remedy in found.help if remedy else not found.help


@pytest.mark.parametrize("before", ["dim A\n", "# b\n\nlet q = f(\n  a\n  b\n)\n", "\r\n\tlabels A = {a,\r\n b}\r\n"])
@pytest.mark.parametrize(("text", "code", "marked"), [case[:3] for case in CASES if case[0] != "}"])
def test_mistakes_are_the_same_anywhere(before: str, text: str, code: str, marked: str) -> None:
    (found,), source = read(before + text)
    assert (found.code, source.excerpt(found.span)) == (code, marked)
    assert found.span.start >= len(before)


def test_a_wrong_bracket_points_at_the_one_that_is_open() -> None:
    (found,), source = read("factor f [t in T] (y[t) = u")
    assert [source.excerpt(note.span) for note in found.notes] == ["["]
    assert found.notes[0].span.start == 20


def test_a_line_that_is_no_statement_is_told_what_is_one() -> None:
    (found,), _ = read("what is this")
    assert "labels, dim, input" in found.notes[0].message


def test_mistakes_outside_files() -> None:
    for parse_start, text, code in [
        (parse_choices, "mean_field(steps = 10)", "E0012"),
        (parse_choices, "mean_field(steps 10", "E0022"),
        (parse_choices, "exact,,bp", "E0001"),
        (parse_choices, "", "E0024"),
        (parse_value, "(1", "E0004"),
        (parse_value, "1 +", "E0024"),
        (parse_value, "1e999", "E0007"),
        (parse_value, "(" * 100, "E0006"),
        (parse_value, "labels", "E0011"),
    ]:
        source = Source("--set", text)
        report = Report(source)
        assert not parse_start(source, report)
        assert [found.code for found in report.found] == [code], text
        assert "statement" not in report.found[0].message


# --------------------------------------------------------------------------------------------- the tables of examples


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for table in (MISTAKES, GAPS) for code, texts in table.items() for text in texts]
)
def test_an_example_is_given_its_own_code(code: str, text: str) -> None:
    assert [found.code for found in read(text)[0]] == [code]


@pytest.mark.parametrize(("hint", "text"), [(hint, text) for hint, texts in HINTS.items() for text in texts])
def test_an_example_is_given_its_own_hint(hint: str, text: str) -> None:
    assert [found.help for found in read(text)[0]] == [hint]


# ------------------------------------------------------------------------------------------------------ the catalogue

TOO_LARGE = "E0010"  # eight million characters are no example


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_every_kind_has_a_page(kind) -> None:
    assert kind.title and kind.message and kind.why
    assert kind.code.startswith("E00")
    if kind.code != TOO_LARGE:
        assert [found.code for found in read(kind.bad)[0]] == [kind.code]
        assert read(kind.good)[0] == []
        assert kind.bad.endswith("\n") and kind.good.endswith("\n")


def test_codes_are_unique_and_in_order() -> None:
    codes = [kind.code for kind in KINDS]
    assert codes == sorted(set(codes))


def test_every_kind_is_reported_by_some_case() -> None:
    reported = {found.code for kind in KINDS for found in read(kind.bad)[0]}
    assert {kind.code for kind in KINDS} - reported == {TOO_LARGE}

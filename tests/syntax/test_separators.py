"""Inside brackets a line break can stand where a comma could, and nowhere else does it mean anything."""

import re

import pytest

from energyml.syntax import tree as t
from tests.syntax.test_parser import codes, read

PAIRS = [
    "labels A = {a, 'b', c}",
    "labels A from data(min: 2, unknown: 'u', from)",
    "input x : edge(T, T)[S, from: T-1, 3, in: 4]",
    "net f : (A[T], B) -> real[T] = python('a', b, 3, k: c, {x: 1, y: 2})",
    "factor f [t in T, e = (i, j) in link, s in T-1] (y[t, s], from: z[0], then: z) = u[t, 0]",
    "score g (y, z, over) = f(y, z)",
    "forbid [i in H, j in W] y[i, j] = a",
    "chain y { unary: f(x)[t], pair: over, then: and, and: argmax, argmax: free, free: from, from: 3, data: 'x' }",
    "train nll(a, b: c) { infer: exact, 'odd key': [T, S], x: (a), y: 2..3 } then ssvm",
]


@pytest.mark.parametrize("text", PAIRS)
@pytest.mark.parametrize("separator", ["\n", ",\n", "\n,", " \n\n ", " # remark, with ( and '\n", "\r\n"])
def test_a_line_break_is_a_comma(text: str, separator: str) -> None:
    broken = re.sub(r",(?! in:)", lambda _: separator, text)
    assert broken != text
    assert t.same(read(text)[0], read(broken)[0])


@pytest.mark.parametrize("text", PAIRS)
def test_a_comma_may_end_a_list(text: str) -> None:
    longer = re.sub(r"(?<=[\w'\])}])\s*(?=[)\]}])", ",", text)
    longer = re.sub(r"\((a),\)", r"(\1)", longer)
    assert t.same(read(text)[0], read(longer)[0])


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("factor f [t\nin\nT\n-1] (y\n[t\n+1\n]) = u", "factor f [t in T-1] (y[t+1]) = u"),
        ("let x = f(a\n-b,\n-c)", "let x = f(a - b, -c)"),
        ("let x = f(a\n(b))", "let x = f(a(b))"),
        ("let x = f(a\n. b\n..\nc)", "let x = f(a.b..c)"),
        ("let x = f(a\n->\nb)", "let x = f(a -> b)"),
        ("let x = f(\na:\nb\n)", "let x = f(a: b)"),
        ("let x =\na\n+\nb", "let x = a + b"),
        ("dim T\n,\nS", "dim T, S"),
        ("scheme\ny\nbioes", "scheme y bioes"),
        ("train a\nthen\nb\n{\n}", "train a then b {}"),
        ("forbid y = a\nand\ny = b", "forbid y = a and y = b"),
        ("output y : S[T] =\nargmax\ns\nover\nS", "output y : S[T] = argmax s over S"),
    ],
)
def test_other_line_breaks_mean_nothing(broken: str, whole: str) -> None:
    assert t.same(read(broken)[0], read(whole)[0])


def test_a_line_break_is_one_comma_at_most() -> None:
    assert codes("let x = f(a,\n,b)") == ["E0001"]
    assert codes("let x = (a\nb)") == ["E0001"]


def test_statements_need_no_line_break() -> None:
    assert t.same(read("dim T dim S infer exact")[0], read("dim T\ndim S\ninfer exact")[0])

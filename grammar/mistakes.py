"""Common syntax mistakes by example: an input that fails in the same parser state gets that mistake's own message."""

from __future__ import annotations

MISTAKES: dict[str, list[str]] = {
    # an option written with `=`
    "E0012": ["chain y { unary = u }", "infer mean_field(steps = 10)", "net a = mlp(out = Tag)", "train nll { a: 1, b = 2 }"],
    # a type without its colon
    "E0013": ["output y Tag[T]", "input x real[T]", "param W real[T]", "field s real[T]"],
    # a definition without its `=`
    "E0014": ["labels A {a, b}", "let h enc(x)", "net f mlp()", "factor f (y) u", "score g (y) u", "factor f [t in T] (y[t]) u"],
    # `==` or `:=`
    "E0015": ["let h == x", "labels A == {a}", "forbid y == a", "net f == mlp()", "param W := 3", "labels A : {a, b}", "let h : x"],
    # a scope without its parentheses
    "E0016": ["factor f y[t] = u", "factor f [t in T] y[t] = u", "score g y = u"],
    # `for t in T`, or an index set without `in`
    "E0017": ["factor f [t : T] (y[t]) = u", "factor f [t] (y[t]) = u", "factor f [t, s in T] (y[t]) = u", "forbid [t] y[t] = a"],
    # a family or a choice without its braces
    "E0018": ["chain y unary: u", "chain y (unary: u)", "masked y conditionals: m"],
    # labels outside braces
    "E0019": ["labels A = a, b", "labels A = a", "labels A = (a, b)", "labels A = [a, b]"],
    # a dim with a bound but without `free`, or the other way around
    "E0020": ["dim T <= 60", "dim T < 60", "dim T free", "dim T free = 60"],
    # an index expression that is not a name plus a constant
    "E0021": ["factor f (y[2*t]) = u", "factor f (y[t*2]) = u", "factor f (y[t+s]) = u", "factor f (y[]) = u"],
}

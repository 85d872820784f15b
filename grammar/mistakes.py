"""Common syntax mistakes by example.

A text that fails where an example fails is given the example's message.  "Where" is the top of the parser's stack, so
an example stands for every text with the same words around the mistake, whatever comes before them.
"""

from __future__ import annotations

# Code -> examples: the same place and the same kind of token.
MISTAKES: dict[str, list[str]] = {
    # an option or a role written with `=`
    "E0012": [
        "chain y { unary = u }",
        "chain y { 'unary' = u }",
        "train nll { infer = exact }",
        "train nll { a: 1, b = 2 }",
        "train nll { a: 1, 'b' = 2 }",
        "train nll { a: 1, infer = exact }",
        "infer mean_field(steps = 10)",
        "infer mean_field('steps' = 10)",
        "infer mean_field(a, steps = 10)",
        "infer mean_field(a, infer = exact)",
        "infer mean_field(infer = exact)",
        "factor f (from = y[t]) = W",
        "factor f (input = y[t]) = W",
        "factor f (from: y[t], to = y[s]) = W",
        "param W : real[from = Tag]",
        "param W : real[from: Tag, to = Tag]",
    ],
    # `:` for `=`
    "E0015": [
        "labels A : {a, b}",
        "let h : x",
        "dim T : 3",
        "factor f (y) : u",
        "factor f [t in T] (y) : u",
        "score g (y) : u",
        "forbid y : a",
        "forbid y[t] : a",
    ],
    # an index set without its `in`
    "E0017": [
        "factor f [t : T] (y[t]) = u",
        "factor f [t] (y[t]) = u",
        "factor f [t, s in T] (y[t]) = u",
        "factor f [s in T, t] (y[t]) = u",
        "factor f [s in T, t : T] (y[t]) = u",
        "factor f [t T] (y[t]) = u",
    ],
    # a dim with a bound but without `free`
    "E0020": ["dim T <= 60", "dim S, T <= 60", "dim T 60"],
    # an index that is not a name plus a constant
    "E0021": [
        "factor f (y[2*t]) = u",
        "factor f (y[t*2]) = u",
        "factor f (y[t+s]) = u",
        "factor f (y[]) = u",
        "factor f (y[f(t)]) = u",
        "factor f (y[t, 2*t]) = u",
        "factor f (y[t, t*2]) = u",
        "factor f (y[t+1+1]) = u",
        "factor f (y['t']) = u",
        "factor f (y[(t)]) = u",
        "factor f (y[t..s]) = u",
        "factor f (y[:]) = u",
        "let x = a[2*t]",
        "let x = a[t*2]",
        "let x = f(a)[2*t]",
        "forbid y[2*t] = a",
    ],
    # an option without its `:`
    "E0022": [
        "infer mean_field(steps 10)",
        "infer mean_field(a, steps 10)",
        "infer mean_field(steps 'a')",
        "infer mean_field(a, steps 'a')",
        "infer mean_field(infer exact)",
        "infer mean_field(infer 10)",
        "infer mean_field(a, infer exact)",
        "train nll { infer exact }",
        "train nll { a: 1, infer exact }",
        "train nll { infer 10 }",
        "train nll { a: 1, infer 10 }",
        "factor f (from y[t]) = W",
        "factor f (from: y[t], to y[s]) = W",
        "param W : real[from Tag]",
        "param W : real[from: Tag, to Tag]",
    ],
    # a label that needs quotes
    "E0025": [
        "labels A = {B-NP}",
        "labels A = {a, B-NP}",
        "labels A = {1, 2}",
        "labels A = {a, 2}",
        "labels A = {data}",
        "labels A = {a, data}",
        "labels A = {a.b}",
        "labels A = {a, a.b}",
        "labels A = {a: 1}",
        "labels A = {a, b/c}",
        "labels A = {b/c}",
        "labels A = {.}",
        "labels A = {a, .}",
        "labels A = {-}",
        "labels A = {a, -}",
        "labels A = {:}",
        "labels A = {a, :}",
        "labels A = {/}",
        "labels A = {a, /}",
        "forbid y = B-NP",
        "forbid y = B/NP",
        "forbid y = 3",
        "forbid y = data",
        "forbid y ~ 3",
        "forbid y ~ data",
        "forbid y ~ *",
        "forbid y ~ I-*",
    ],
}

# Code -> examples: the same place, whatever stands there.
GAPS: dict[str, list[str]] = {
    # a type without its colon
    "E0013": ["output y Tag[T]", "output from Tag[T]", "input x real[T]", "input from real", "param W real[T]"],
    # a definition without its `=`
    "E0014": [
        "labels A {a, b}",
        "let h enc(x)",
        "net f mlp()",
        "factor f (y) u",
        "score g (y) u",
        "net f : real mlp()",
        "net f : real[T] mlp()",
        "net f : (A) -> real mlp()",
        "net f : (A) -> real[T] mlp()",
    ],
    # a scope without its parentheses
    "E0016": ["factor f y[t] = u", "factor f [t in T] y[t] = u", "score g y = u"],
    # a family or a choice without its braces
    "E0018": ["chain y unary: u", "chain from unary: u"],
    # labels outside braces
    "E0019": ["labels A = a, b"],
    # `free` without its bound
    "E0020": ["dim T free"],
}

# Remedy -> examples: the same place and the same kind of token; the message is made of what the grammar could read.
HINTS: dict[str, list[str]] = {
    "write the types of the inputs in parentheses, as in `(Word[T]) -> real[T]`": [
        "net f : Word -> real[T] = g()",
        "net f : Word[T] -> real[T] = g()",
    ],
    "put the module and the class in quotes, as in `'pkg.mod:Class'`": [
        "net f = python(pkg.mod:Class)",
        "net f = python(a, pkg.mod:Class)",
    ],
    "put a file name in quotes": ["data letters(letter.data)", "include foo", "data letters(/home)"],
    "name a reader first, as in `data letters('letter.data')`": ["data 'x'"],
    "leave the `:` out": ["infer: exact", "data: letters()"],
    "a network is a call, even without options: `mlp()`": ["net f = mlp", "net f = from"],
    "write one `forbid` for each alternative": [
        "forbid y = a or y = b",
        "forbid y[t] = a[t] or y = b",
        "forbid y = 'a' or y = b",
    ],
    "write one choice; stages of training are joined by `then`": [
        "train nll, ssvm",
        "train nll {}, ssvm",
        "train nll(a), ssvm",
        "train nll {} and ssvm",
    ],
    "a range of labels is written `'a'..'z'`": ["labels A = 'a'-'z'", "labels A = 'a'..z", "labels A = 'a', 'b'"],
    "a read-out is written `argmax FIELD over LABELS`": [
        "output y : Tag[T] = s",
        "output y : Tag[T] = argmax s",
        "output y : T = 3",
    ],
    "an index set runs over a dim and ends with `]`, as in `[t in T-1]`": [
        "factor f [t in 0..T] (y) = u",
        "factor f [t in range(T)] (y) = u",
    ],
    "an extent is a number, a label set, or a dim plus a constant, as in `T-1`": [
        "output y : Tag[T*2]",
        "output y : Tag[2*T]",
        "output y : Tag[S, T*2]",
        "output y : Tag[S, 2*T]",
        "output y : Tag[T+S]",
        "output y : Tag[T(2)]",
        "output y : Tag[]",
        "let x = f([T*2])",
    ],
    "a score sees whole variables: leave the index out": ["score g (y[t]) = u", "score g (x, y[t]) = u"],
    "an exponent is a number": ["let x = 2 ^ x", "let x = 2 ^ (x)"],
    "give the statement a name first": [
        "factor [t in T] (y[t]) = u",
        "factor (y) = u",
        "labels = {a}",
        "let = 3",
        "net = mlp()",
        "output : Tag[T]",
        "chain { unary: u }",
        "score (y) = u",
    ],
    "options stand in braces, `{ steps: 10 }`, or in parentheses, `(steps: 10)`": [
        "infer mean_field steps: 10",
        "infer exact = 3",
    ],
}

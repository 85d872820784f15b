"""E02xx: types, axes and indices."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0201", "unknown type", "`{name}` is neither `real` nor a label set"),
    Kind("E0202", "two equal axes without roles", "`{type}` has two axes over `{extent}`, so each needs a role",
         help="name them, as in `[from: {extent}, to: {extent}]`"),
    Kind("E0203", "bad edge type", "{problem}",
         help="a list of edges is written `input link : edge(T, T)[E]`"),
    Kind("E0204", "unknown extent", "`{name}` is neither a dim nor a label set"),
    Kind("E0205", "bad extent", "the extent `{extent}` is not possible: {problem}"),
    Kind("E0206", "axes of a variable", "the axes of {kind} `{name}` must be dims, found `{extent}`"),
    Kind("E0207", "elements of a variable", "{kind} `{name}` needs {expected}, found `{found}`"),
    Kind("E0208", "unbound index", "the index `{index}` is not bound here"),
    Kind("E0209", "index out of range", "`{index}` leaves `{dim}`: {problem}"),
    Kind("E0210", "index axis left over", "`{value}` still has the axis `{axis}`"),
    Kind("E0211", "too many indices", "too many indices: `{value}` is `{type}`, which has {has}"),
    Kind("E0212", "index over another dim", "the index `{index}` runs over `{found}`, but this axis is over `{expected}`"),
    Kind("E0213", "table and scope differ", "the table has {found}, but the scope has {expected}"),
    Kind("E0214", "ambiguous axes", "the scope has {count} cells over `{labels}`; roles must say which axis each one reads"),
    Kind("E0215", "role that does not fit", "{problem}"),
    Kind("E0216", "feature axis left over", "`{value}` has an axis of {axis} numbers, which no cell of the scope reads"),
    Kind("E0217", "argument of the wrong type", "`{net}` {problem}"),
    Kind("E0218", "wrong number of arguments", "`{net}` {problem}"),
    Kind("E0219", "not a tensor", "`{name}` is {kind} and cannot be used as a tensor here"),
    Kind("E0220", "operands of different types", "`{operator}` joins `{left}` and `{right}`; {problem}"),
    Kind("E0221", "python network without a type", "a `python` network needs its type, as it is never imported while checking",
         help="write `net {name} : (Input[T]) -> real[T, Tag] = python(...)`"),
    Kind("E0222", "declared type differs", "`{name}` is declared as `{declared}`, but `{card}` {found}"),
    Kind("E0223", "bad read-out", "{problem}"),
    Kind("E0224", "role given twice", "`{type}` has two axes over `{extent}` with the role `{role}`", help="give each its own role"),
    Kind("E0225", "labels where numbers are needed", "`{value}` has labels as elements; scores are real numbers",
         help="a network turns labels into numbers, as in `f(word)`"),
    Kind("E0226", "not a tensor expression", "{found} cannot be part of a score"),
    Kind("E0227", "bad potential", "`{name}` {problem}"),
    Kind("E0228", "type with parameters", "`{name}` takes no parameters in parentheses", help="axes stand in brackets: `{name}[T]`"),
    Kind("E0229", "type that no network has", "`{found}` is not the type of a network",
         help="write `(Input[T]) -> real[T, Tag]`, `step(Tag)` or `conditionals(Tag)`"),
)  # fmt: skip

"""E01xx: names, label sets and dims."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0101", "name declared twice", "`{name}` is already declared", label="declared again"),
    Kind("E0102", "unknown name", "unknown {what} `{name}`", label="not declared"),
    Kind("E0103", "name of the wrong kind", "`{name}` is {found}; {expected} is expected here"),
    Kind("E0104", "include is reserved", "`include` is reserved for a later version", help="copy the declarations into this file"),
    Kind("E0105", "tensor used before its definition", "`{name}` is used before its `let`", help="move the `let` above this line"),
    Kind("E0106", "label given twice", "the label `{label}` occurs twice in `{name}`"),
    Kind("E0107", "empty label set", "the label set `{name}` has no labels", help="give at least one label"),
    Kind("E0108", "bad label range", "'{first}'..'{last}' is no range of labels: {problem}"),
    Kind("E0109", "unknown source of labels", "labels cannot come from `{name}`",
         help="labels come from `data(...)` or from a masked network that brings its own"),
    Kind("E0110", "bad nesting of dims", "`{name}` cannot be nested in {outside}", help="nest in an observed dim"),
    Kind("E0111", "bad size", "the size of `{name}` must be a whole number from 1 to 10^9, found {found}"),
    Kind("E0112", "nothing to infer", "the file declares no output and no field", help="add `output NAME : Labels[T]`"),
    Kind(
        "E0114",
        "built-in word used as a name",
        "`{name}` is a word of the language and cannot be declared",
        help="choose another name",
    ),
    Kind("W0101", "declared but never used", "`{name}` is declared but never used", severity="warning",
         help="remove it, or use it in a term"),
)  # fmt: skip

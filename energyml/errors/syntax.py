"""E00xx: the text does not follow the grammar."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0001", "unexpected word or symbol", "unexpected {found}, expected {expected}"),
    Kind("E0002", "unknown character", "`{character}` ({point}) does not belong to the language"),
    Kind(
        "E0003",
        "string without an end",
        "this string is not closed",
        help="close it with {quote} on the same line; strings cannot span lines",
    ),
    Kind(
        "E0004",
        "bracket without an end",
        "`{bracket}` is never closed",
        help="add the missing `{closer}`",
        label="opened here",
    ),
    Kind("E0005", "closing bracket without a beginning", "`{bracket}` closes nothing", help="remove it, or open it before"),
    Kind("E0006", "nesting too deep", "brackets are nested more than {limit} deep", help="name inner parts with `let`"),
    Kind("E0007", "number too large", "`{number}` is too long or too large to be a number"),
    Kind("E0008", "no statement", "{word} does not start a statement"),
    Kind("E0009", "whole number expected", "`{found}` must be a whole number below a million"),
    Kind("E0010", "file too large", "the file has {size} characters; the limit is {limit}"),
    Kind(
        "E0011",
        "reserved word used as a name",
        "`{word}` is a reserved word and cannot be a name",
        help="choose another name, such as `{word}_`",
    ),
    Kind("E0012", "option with `=`", "an option is written `key: value`, not `key = value`", help="write `:` here"),
    Kind("E0013", "type without `:`", "a `:` must stand between a name and its type, found {found}"),
    Kind("E0014", "definition without `=`", "a `=` must stand before the definition, found {found}"),
    Kind("E0015", "wrong definition symbol", "found {found} where a single `=` is expected", help="write `=`"),
    Kind(
        "E0016",
        "scope without parentheses",
        "the variables that a term scores stand in parentheses, found {found}",
        help="write `(y[t])`",
    ),
    Kind("E0017", "index set without `in`", "an index set is written `[t in T]`, found {found}"),
    Kind("E0018", "block without braces", "the options of this statement stand in braces, found {found}", help="write `{{ ... }}`"),
    Kind("E0019", "labels without braces", "labels stand in braces, found {found}", help="write `labels NAME = {{a, b}}` or a range `'a'..'z'`"),
    Kind(
        "E0020",
        "bounded dim",
        "a dim that is part of the answer is written `dim T free <= 60`, found {found}",
    ),
    Kind("E0021", "index that is not affine", "an index is a name plus a constant, as in `t+1`, found {found}"),
)

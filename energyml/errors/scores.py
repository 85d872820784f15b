"""E03xx: terms, families and constraints."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0301", "cell scored twice in one scope", "`{cell}` occurs twice in the scope", help="leave one of them out"),
    Kind("E0302", "two terms of one name", "there is already a term `{name}`", help="choose another name, or remove one of them"),
    Kind("E0303", "index bound twice", "the index `{index}` is bound twice", help="choose another name"),
    Kind("E0304", "bad edge index", "`{source}` has {expected} ends, but {found} are bound"),
    Kind("E0305", "index never used in the scope", "the index `{index}` does not occur in the scope, so each of its values would add the same term again",
         help="leave the index out, or use it in a cell"),
    Kind("E0306", "chain over a variable that is no sequence", "`{family}` needs a variable over one dim, but `{name}` is `{type}`"),
    Kind("E0307", "unknown option of a family", "`{family}` has no option `{option}`"),
    Kind("E0308", "missing option of a family", "`{family}` needs `{option}: ...`"),
    Kind("E0309", "family over the wrong kind of variable", "`{family}` scores {expected}, but `{name}` is {found}"),
    Kind("E0310", "wrong role of a network", "`{option}` needs a {expected} network, but `{name}` is a {found} network"),
    Kind("E0312", "free length without an end", "the length `{dim}` of `{name}` is part of the answer, but nothing says where it ends"),
    Kind("E0313", "unknown label", "`{label}` is not a label of `{labels}`"),
    Kind("E0314", "score with axes", "a `score` is one number, but this is `{type}`", help="let the network end in one number for the whole, as `pooled` does"),
    Kind("E0315", "bad relaxation", "{problem}"),
    Kind("E0317", "pattern without a match", "the pattern '{pattern}' matches no label of `{labels}`"),
    Kind("E0318", "comparison across label sets", "`{left}` is over `{left_labels}` and `{right}` over `{right_labels}`; they have no common labels to compare"),
    Kind("E0319", "unknown scheme", "unknown scheme `{scheme}`"),
    Kind("E0320", "labels that do not fit a scheme", "the label `{label}` of `{labels}` does not fit the scheme `{scheme}`: {problem}"),
    Kind("E0322", "field without a score", "the field `{name}` has no `gaussian` term", help="add `gaussian {name} {{ ... }}`"),
    Kind("E0324", "variable missing in a score", "`{name}` is {problem}"),
    Kind("E0325", "value that a family does not take", "`{option}` of `{family}` takes {expected}, found {found}"),
    Kind("E0326", "field in a factor", "`{name}` is a field; factors score labels", help="use `gaussian {name} {{ ... }}`"),
    Kind("E0327", "read-out with a score", "`{name}` is read out of the field `{field}`, so no term can score or constrain it",
         help="score the field instead"),
    Kind("W0301", "variable without a score", "nothing scores `{name}`, so all of its answers are equally likely", severity="warning"),
    Kind("W0302", "scheme repeated", "`scheme {name} {scheme}` is already there", severity="warning", help="remove one of them"),
)  # fmt: skip

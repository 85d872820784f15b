"""E03xx: terms, families and constraints."""

from __future__ import annotations

from energyml.errors.kind import Kind
from energyml.errors.specs import chain, factors, field

_PAIR = "param W : real[from: Tag, to: Tag]"
_STEP = {"param": "", "net": "net d = lstm_decoder()", "term": "sequence y { step: d }"}
_SCORE = {"param": "", "net": "net g = pooled()", "term": "score tail (y) = g(soft(y))"}
_BIO = {"labels": "labels Tag = {O, 'B-NP', 'I-NP'}"}

KINDS = (
    Kind(
        "E0301",
        "cell given twice",
        "`{cell}` occurs twice in the scope",
        help="leave one of them out",
        why="A scope is a set of cells, and a table over it has one axis for each. A cell that is compared with "
        "itself, or listed twice, is a slip: usually one of the two should be a neighbour.",
        bad=factors(param=_PAIR, term="factor pair [t in T] (from: y[t], to: y[t]) = W"),
        good=factors(param=_PAIR, term="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0302",
        "two terms of one name",
        "there is already a term `{name}`",
        help="choose another name, or remove one of them",
        why="Terms have names, so that a training stage can scale one against another and an answer can be taken "
        "apart. A `chain` over `y` makes the terms `y.unary` and `y.pair`, so a variable has one chain; further "
        "tables are factors.",
        bad=factors(param=f"param u : real[Tag]\n{_PAIR}", pair="factor unary [t in T-1] (from: y[t], to: y[t+1]) = W"),
        good=factors(param=f"param u : real[Tag]\n{_PAIR}", pair="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0303",
        "index bound twice",
        "the index `{index}` is bound twice",
        help="choose another name",
        why="Each index of a term runs on its own; two that share a name could not be told apart in a subscript.",
        bad=factors(dim="dim H, W", output="output y : Tag[H, W]", term="factor site [i in H, i in W] (y[i, i]) = u"),
        good=factors(dim="dim H, W", output="output y : Tag[H, W]", term="factor site [i in H, j in W] (y[i, j]) = u"),
    ),
    Kind(
        "E0304",
        "ends of an edge",
        "`{source}` has {expected} ends, but {found} are bound",
        why="An index set over a list of edges binds one index for the edge and one for each of its ends.",
        bad=factors(
            dim="dim T, E",
            input="input link : edge(T, T)[E]",
            term="factor node [e = (i, j, k) in link] (y[i]) = u",
        ),
        good=factors(
            dim="dim T, E",
            input="input link : edge(T, T)[E]",
            term="factor node [e = (i, j) in link] (y[i]) = u",
        ),
    ),
    Kind(
        "E0305",
        "index without a use",
        "neither the cells nor the table depend on `{index}`, so each of its values would add the same term again",
        help="leave the index out, or use it in a cell",
        why="A term is repeated for each value of its indices. If nothing in it depends on an index, the same number "
        "is added again and again, which is hardly what was meant. A table may depend on an index that the cells do "
        "not: then its values add up, as in `factor each [t in T, m in M] (y[t]) = c[t, m]`.",
        bad=factors(term="factor first [t in T] (y[0]) = u"),
        good=factors(term="factor first (y[0]) = u"),
    ),
    Kind(
        "E0306",
        "sequence of a variable that is none",
        "`{family}` needs a variable over one dim, but `{name}` is `{type}`",
        why="Chains, sequence scores, masked energies and labelling schemes run along one dim. Over two dims, write "
        "the neighbours as factors, as in a grid.",
        bad=factors(
            dim="dim H, W",
            output="output y : Tag[H, W]",
            param="param V : real[from: Tag, to: Tag]",
            term="chain y { pair: V }",
        ),
        good=factors(
            dim="dim H, W",
            output="output y : Tag[H, W]",
            param="param V : real[from: Tag, to: Tag]",
            term="factor down [i in H-1, j in W] (from: y[i, j], to: y[i+1, j]) = V",
        ),
    ),
    Kind(
        "E0307",
        "unknown option of a family",
        "`{family}` has no option `{option}`",
        why="The parts of a family have fixed names. A chain has `unary`, `pair`, `start` and `end`; a Gaussian "
        "field `unary`, `pair`, `ridge` and `bounded`; a sequence `step`, `given`, `normalize` and `end`; a masked "
        "energy `conditionals`, `energy` and `given`.",
        bad=chain(term="chain y { unary: f(x), pairs: W }"),
        good=chain(),
    ),
    Kind(
        "E0308",
        "missing option of a family",
        "`{family}` needs `{option}: ...`",
        why="Without it there is nothing to compute. Independent cells, without a `pair`, are written as a factor.",
        bad=chain(term="chain y { unary: f(x) }"),
        good=chain(),
    ),
    Kind(
        "E0309",
        "family over the wrong kind of variable",
        "`{family}` scores {expected}, but `{name}` is {found}",
        why="A Gaussian field scores real values; chains, sequence scores and masked energies score labels. An "
        "output that is read out of a field is scored through the field.",
        bad=field(field="output s : Seg[H, W]"),
        good=field(),
    ),
    Kind(
        "E0310",
        "wrong role of a network",
        "`{option}` needs a {expected} network, but `{name}` is a {found} network",
        why="Networks play three roles. A function network is called with tensors; a step network scores the next "
        "label after a prefix; a masked network scores each label given all others.",
        bad=factors(**(_STEP | {"net": "net d = blstm(hidden: 10)"})),
        good=factors(**_STEP),
    ),
    Kind(
        "E0312",
        "free length without an end",
        "the length `{dim}` of `{name}` is part of the answer, but nothing says where it ends",
        why="A free dim has as many positions as the answer says. Some label has to end the answer, and a `sequence` "
        "score has to score it: `end: '</s>'`. Where the length is given, declare the dim without `free`.",
        bad=factors(**(_STEP | {"labels": "labels Tag = {O, B, end}", "dim": "dim T free <= 9"})),
        good=factors(
            **(
                _STEP
                | {
                    "labels": "labels Tag = {O, B, end}",
                    "dim": "dim T free <= 9",
                    "term": "sequence y { step: d, end: end }",
                }
            )
        ),
    ),
    Kind(
        "E0313",
        "unknown label",
        "`{label}` is not a label of `{labels}`",
        why="A constraint compares a cell with a label of its own label set. Labels are compared exactly, capitals "
        "included; `~` compares with a pattern.",
        bad=factors(forbid="forbid y[0] = I"),
        good=factors(forbid="forbid y[0] = B"),
    ),
    Kind(
        "E0314",
        "score with axes",
        "a `score` is one number, but this is `{type}`",
        help="let the network end in one number for the whole, as `pooled` does",
        why="A black box adds one number to the score of a whole answer. A tensor with axes would leave open how to "
        "add it up.",
        bad=factors(**(_SCORE | {"net": "net g = mlp(out: 1)"})),
        good=factors(**_SCORE),
    ),
    Kind(
        "E0315",
        "bad relaxation",
        "{problem}",
        why="`soft(y)` are the probabilities of a whole variable, and `hard(y)` its labels. They stand inside "
        "`score`, and take the name of a variable that the score lists in its parentheses.",
        bad=factors(net="net h = linear(out: Tag)", term="factor unary [t in T] (y[t]) = u + h(soft(y))[t]"),
        good=factors(net="net g = pooled()", tail="score tail (y) = g(soft(y))"),
    ),
    Kind(
        "E0317",
        "pattern without a match",
        "the pattern '{pattern}' matches no label of `{labels}`",
        why="A constraint that can never hold is a slip. In patterns `*` stands for any text, `?` for one character "
        "and `[ab]` for one of several; capitals count.",
        bad=factors(**_BIO, forbid="forbid y[0] ~ 'i-*'"),
        good=factors(**_BIO, forbid="forbid y[0] ~ 'I-*'"),
    ),
    Kind(
        "E0318",
        "comparison across label sets",
        "`{left}` is over `{left_labels}` and `{right}` over `{right_labels}`; they have no common labels to compare",
        help="compare each with a label, joined by `and`",
        why="Two cells are equal when they hold the same label, so they must be over one label set. Labels of "
        "different sets are different, even when they are spelt alike.",
        bad=factors(
            labels="labels Tag = {O, B}\nlabels Tag2 = {O, C}",
            latent="latent z : Tag2[T]",
            param="param u : real[Tag]\nparam v : real[Tag2]",
            two="factor two [t in T] (z[t]) = v",
            forbid="forbid [t in T] y[t] = z[t]",
        ),
        good=factors(
            labels="labels Tag = {O, B}\nlabels Tag2 = {O, C}",
            latent="latent z : Tag2[T]",
            param="param u : real[Tag]\nparam v : real[Tag2]",
            two="factor two [t in T] (z[t]) = v",
            forbid="forbid [t in T] y[t] = O and z[t] = O",
        ),
    ),
    Kind(
        "E0319",
        "unknown scheme",
        "unknown scheme `{scheme}`",
        why="The schemes are `bio` (a span starts with B and goes on with I), `bioes` (with E for its end and S for "
        "a span of one) and `bilou` (the same with L and U). Other rules are written with `forbid`.",
        bad=factors(**_BIO, scheme="scheme y iob"),
        good=factors(**_BIO, scheme="scheme y bio"),
    ),
    Kind(
        "E0320",
        "labels that do not fit a scheme",
        "the label `{label}` of `{labels}` does not fit the scheme `{scheme}`: {problem}",
        why="A scheme reads the labels themselves: `O`, or a prefix and a type joined by `-`, as in `B-NP`. Every "
        "label of the set must have that form, with a prefix of the scheme.",
        bad=factors(labels="labels Tag = {O, 'B-NP', 'I-NP', 'E-NP'}", scheme="scheme y bio"),
        good=factors(labels="labels Tag = {O, 'B-NP', 'I-NP', 'E-NP'}", scheme="scheme y bioes"),
    ),
    Kind(
        "E0322",
        "field without a score",
        "the field `{name}` has no `gaussian` term",
        help="add `gaussian {name} {{ ... }}`",
        why="Real values without a score have no best value and no distribution.",
        bad=field(term="", net="", input=""),
        good=field(),
    ),
    Kind(
        "E0324",
        "variables of a score",
        "`{name}` is {problem}",
        why="The parentheses of a `score` list the variables that it depends on, so that the planner knows which "
        "cells it ties together. It must read each of them, and no others.",
        bad=factors(net="net g = pooled()", input="input x : real[T, 4]", tail="score tail (y) = g(x)"),
        good=factors(net="net g = pooled()", input="input x : real[T, 4]", tail="score tail (y) = g(x, soft(y))"),
    ),
    Kind(
        "E0325",
        "value that does not fit",
        "`{option}` of `{family}` takes {expected}, found {found}",
        why="Each part of a family has a type of its own. The `unary` of a chain has a score for each position and "
        "label, its `pair` a table with the roles `from` and `to`; `step` and `conditionals` take the name of a "
        "network, without a call.",
        bad=chain(param="param W : real[Tag]"),
        good=chain(),
    ),
    Kind(
        "E0326",
        "field in a factor",
        "`{name}` is a field; factors and constraints are over labels",
        help="use `gaussian {name} {{ ... }}`",
        why="A table has one entry for each label, and a field has no labels. Its score is quadratic, and written in "
        "one `gaussian` statement.",
        bad=field(param="param v : real[Seg]", factor="factor prior [i in H, j in W] (s[i, j]) = v"),
        good=field(),
    ),
    Kind(
        "E0327",
        "read-out with a score",
        "`{name}` is read out of the field `{field}`, so no term can score or constrain it",
        help="score the field instead",
        why="A read-out follows from its field, position by position. A score or a constraint on the labels would "
        "have to act on the field, which stays Gaussian.",
        bad=field(output="output y : Seg[H, W] = argmax s over Seg", forbid="forbid y[0, 0] = horse"),
        good=field(output="output y : Seg[H, W] = argmax s over Seg"),
    ),
    Kind(
        "W0301",
        "variable without a score",
        "nothing scores `{name}`, so all of its answers are equally likely",
        severity="warning",
        help="add a term over it",
        why="Constraints only forbid. Without a score there is nothing to choose by: every answer that is allowed is "
        "as good as any other.",
        bad=factors(output="output y : Tag[T]\noutput z : Tag[T]"),
        good=factors(output="output y : Tag[T]\noutput z : Tag[T]", two="factor two [t in T] (z[t]) = u"),
    ),
    Kind(
        "W0302",
        "scheme repeated",
        "`scheme {name} {scheme}` is already there",
        severity="warning",
        help="remove one of them",
        why="A constraint holds or not; saying it twice changes nothing.",
        bad=factors(**_BIO, scheme="scheme y bio\nscheme y bio"),
        good=factors(**_BIO, scheme="scheme y bio"),
    ),
)

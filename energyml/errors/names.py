"""E01xx: names, label sets and dims."""

from __future__ import annotations

from energyml.errors.kind import Kind
from energyml.errors.specs import chain, factors

KINDS = (
    Kind(
        "E0101",
        "name declared twice",
        "`{name}` is already declared",
        label="declared again",
        help="choose another name for one of them",
        why="A name means one thing in the whole file: label sets, dims, inputs, variables, networks, parameters and "
        "named tensors share one space of names. Terms have a space of their own, so a factor may have the name of a "
        "network.",
        bad=chain(dim="dim T, W"),
        good=chain(dim="dim T"),
    ),
    Kind(
        "E0102",
        "unknown name",
        "unknown {what} `{name}`",
        label="not declared",
        why="Every name is declared in the file, in any order; only a `let` must come before its uses. Networks of "
        "the catalogue are kinds of networks: `net f = mlp(out: Tag)` makes one, and `f(x)` uses it.",
        bad=chain(term="chain y { unary: g(x), pair: W }"),
        good=chain(),
    ),
    Kind(
        "E0103",
        "name of the wrong kind",
        "`{name}` is {found}; {expected} is expected here",
        why="The name exists, but what it stands for cannot be used in this place. A scope lists variables, an index "
        "set names dims, and only networks are called.",
        bad=factors(term="factor unary [t in Tag] (y[t]) = u"),
        good=factors(),
    ),
    Kind(
        "E0104",
        "include is reserved",
        "`include` is reserved for a later version",
        help="copy the declarations into this file",
        why="A spec is one file for now. The word is reserved so that later versions can give it a meaning.",
        bad='include "tags.energy"\n' + factors(),
        good=factors(),
    ),
    Kind(
        "E0105",
        "tensor used before its definition",
        "`{name}` is used before its `let`",
        help="move the `let` above this line",
        why="A named tensor may use only what stands above it, so that no definition goes round in a circle. All "
        "other declarations may come in any order.",
        bad=chain(term="chain y { unary: h, pair: W }", let="let h = f(x)"),
        good=chain(term="let h = f(x)", chain="chain y { unary: h, pair: W }"),
    ),
    Kind(
        "E0106",
        "label given twice",
        "the label `{label}` occurs twice in `{name}`",
        help="remove one of them",
        why="A label set is an ordered set: each label stands for one row of every table over it. Quotes make no "
        "difference, so `O` and 'O' are the same label.",
        bad=factors(labels="labels Tag = {O, B, 'O'}"),
        good=factors(),
    ),
    Kind(
        "E0107",
        "empty label set",
        "the label set `{name}` has no labels",
        help="give at least one label",
        why="A cell over an empty set could hold nothing. Labels that are not known yet come from the data: `labels "
        "Tag from data`.",
        bad=factors(labels="labels Tag = {}"),
        good=factors(labels="labels Tag from data"),
    ),
    Kind(
        "E0108",
        "bad label range",
        "'{first}'..'{last}' is no range of labels: {problem}",
        why="A range lists the single characters from one to another, in the order of Unicode. Anything else is "
        "listed in braces.",
        bad=factors(labels="labels Tag = '8'..'11'"),
        good=factors(labels="labels Tag = {'8', '9', '10', '11'}"),
    ),
    Kind(
        "E0109",
        "source without labels",
        "labels cannot come from `{name}`",
        help="labels come from `data(...)` or from a masked network that brings its own",
        why="Labels are listed in the file, found in the data (`from data(min: 2)`), or brought along by a "
        "pretrained masked language model (`from mlm`). A network that is trained here has no labels of its own: it "
        "takes them from the variable that it scores.",
        bad=factors(labels="labels Tag from vocabulary(min: 2)"),
        good=factors(labels="labels Tag from data(min: 2)"),
    ),
    Kind(
        "E0110",
        "bad nesting of dims",
        "`{name}` cannot be nested in {outside}",
        help="nest in an observed dim",
        why="`dim M[T]` has one size for each position of `T`, such as the characters of each word. The sizes come "
        "with the input, so `T` is observed or fixed, and nesting goes one level deep.",
        bad=factors(dim="dim T\ndim M[T]\ndim P[M]", input="input c : real[T, M, P]"),
        good=factors(
            dim="dim T\ndim M[T]",
            input="input c : real[T, M, Tag]",
            term="factor a [t in T, m in M] (y[t]) = c[t, m]",
            param="",
        ),
    ),
    Kind(
        "E0111",
        "bad size",
        "the size of `{name}` must be a whole number from 1 to 10^9, found {found}",
        why="A fixed dim has a known number of positions, and a free dim an upper bound on them.",
        bad=factors(dim="dim T = 2.5"),
        good=factors(dim="dim T = 3"),
    ),
    Kind(
        "E0112",
        "nothing to infer",
        "the file declares no output and no field",
        help="add `output NAME : Labels[T]`",
        why="A spec scores answers, and an answer is a value for each output or field. Inputs are given and latent "
        "variables are summed out, so neither is an answer.",
        bad=factors(output="latent y : Tag[T]"),
        good=factors(),
    ),
    Kind(
        "E0114",
        "built-in word used as a name",
        "`{name}` is a word of the language and cannot be declared",
        help="choose another name",
        why="The words `real`, `edge`, `soft`, `hard`, `true`, `false`, `step` and `conditionals` have a meaning "
        "wherever a name can stand, so they cannot mean something else.",
        bad=chain(net="net soft = mlp(out: Tag)", term="chain y { unary: soft(x), pair: W }"),
        good=chain(net="net scores = mlp(out: Tag)", term="chain y { unary: scores(x), pair: W }"),
    ),
    Kind(
        "W0101",
        "declared but never used",
        "`{name}` is declared but never used",
        severity="warning",
        help="remove it, or use it in a term",
        why="Nothing in the file refers to this name, so it has no influence on the score. An unused input would "
        "still have to be passed by every caller. Often the name in a term is misspelt, or a term is missing.",
        bad=factors(input="input x : real[T, 4]"),
        good=factors(),
    ),
)

"""E02xx: types, axes and indices."""

from __future__ import annotations

from energyml.errors.kind import Kind
from energyml.errors.specs import chain, factors, field

_PAIR = "param W : real[from: Tag, to: Tag]"
_GRID = {
    "labels": "labels Spin = {down, up}",
    "dim": "dim H, W",
    "input": "input outer : real[H, W, Spin]",
    "output": "output y : Spin[H, W]",
    "param": "",
    "term": "factor site [i in H, j in W] (y[i, j]) = outer[i, j]",
}
_LINK = {
    "dim": "dim T, E",
    "input": "input link : edge(T, T)[E]",
    "param": _PAIR,
    "term": "factor arc [e = (i, j) in link] (from: y[i], to: y[j]) = W",
}

KINDS = (
    Kind(
        "E0201",
        "unknown elements",
        "`{name}` is neither `real` nor a label set",
        why="A tensor holds real numbers or labels. There is no separate type of tokens: words are labels of a set, "
        "usually one that comes from the data.",
        bad=factors(input="input word : string[T]"),
        good=chain(labels="labels Tag = {O, B}\nlabels Word from data", input="input x : Word[T]"),
    ),
    Kind(
        "E0202",
        "two equal axes without roles",
        "`{type}` has two axes over `{extent}`, so each needs a role",
        help="name them, as in `[from: {extent}, to: {extent}]`",
        why="Nothing but a role tells the rows of such a table from its columns. A scope names the roles too, so "
        "that a transition matrix is never read the wrong way round.",
        bad=chain(param="param W : real[Tag, Tag]"),
        good=chain(),
    ),
    Kind(
        "E0203",
        "bad list of edges",
        "{problem}",
        help="a list of edges is written `input link : edge(T, T)[E]`",
        why="A graph that is known only when an example arrives is an input: `edge(T, T)[E]` holds two positions of "
        "`T` for each edge of `E`. An index set binds one index for the edge and one for each end, `[e = (i, j) in "
        "link]`.",
        bad=factors(**(_LINK | {"input": "input link : edge(T)[E]"})),
        good=factors(**_LINK),
    ),
    Kind(
        "E0204",
        "unknown extent",
        "`{name}` is neither a dim nor a label set",
        why="An axis runs over a dim (perhaps shortened, `T-1`), over a label set, or over a fixed number of features.",
        bad=chain(input="input x : real[Time, 4]"),
        good=chain(),
    ),
    Kind(
        "E0205",
        "impossible extent",
        "the extent `{extent}` is not possible: {problem}",
        why="An axis or an index can be shorter than its dim, never longer or empty. A parameter and the result of a "
        "network have fixed sizes: a network keeps the dims of its arguments, and a table without a dim is shared "
        "over positions. An axis over a nested dim comes after the dim that it is nested in.",
        bad=factors(param="param u : real[T, Tag]", term="factor unary [t in T] (y[t]) = u[t]"),
        good=factors(),
    ),
    Kind(
        "E0206",
        "axes of a variable",
        "the axes of {kind} `{name}` must be dims, found `{extent}`",
        why="A variable has one cell for each position of its dims, and a cell holds one label. The label set stands "
        "before the brackets, the dims inside them.",
        bad=factors(output="output y : Tag[10]", dim="", term="factor first (y[0]) = u"),
        good=factors(output="output y : Tag[K]", dim="dim K = 10", term="factor first (y[0]) = u"),
    ),
    Kind(
        "E0207",
        "elements of a variable",
        "{kind} `{name}` needs {expected}, found `{found}`",
        why="Outputs and latent variables hold labels, fields and parameters hold real numbers.",
        bad=field(field="field s : Seg[H, W]"),
        good=field(),
    ),
    Kind(
        "E0208",
        "unbound index",
        "the index `{index}` is not bound here",
        why="The index set of a factor or of `forbid` says over which positions the term is repeated, and only its "
        "indices can stand in subscripts. A `chain` and a `let` read whole tensors, without subscripts.",
        bad=factors(term="factor unary (y[t]) = u"),
        good=factors(),
    ),
    Kind(
        "E0209",
        "index out of range",
        "`{index}` leaves `{dim}`: {problem}",
        why="A subscript must exist for every value of its index. For `t in T-a`, `y[t+k]` on a dim `T` is legal "
        "when k lies between 0 and a. Terms look forward: let the index be the earliest position, and write `t+1` "
        "for the next.",
        bad=factors(param=_PAIR, term="factor pair [t in T] (from: y[t-1], to: y[t]) = W"),
        good=factors(param=_PAIR, term="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0210",
        "index axis left over",
        "`{value}` still has the axis `{axis}`",
        why="In a factor every axis over a dim is consumed by an index: nothing broadcasts over positions. A cell "
        "needs an index for each of its dims, and so does a table.",
        bad=chain(param="", term="factor unary [t in T] (y[t]) = f(x)"),
        good=chain(param="", term="factor unary [t in T] (y[t]) = f(x)[t]"),
    ),
    Kind(
        "E0211",
        "too many indices",
        "too many indices: `{value}` is `{type}`, which has {has}",
        why="Subscripts consume the axes over dims, in order. Label axes are consumed by the scope, and feature axes "
        "by networks; neither takes an index.",
        bad=factors(term="factor unary [t in T] (y[t]) = u[t]"),
        good=factors(),
    ),
    Kind(
        "E0212",
        "index over another dim",
        "the index `{index}` runs over `{found}`, but this axis is over `{expected}`",
        why="An index runs over one dim, and can only stand where an axis over that dim is consumed. Usually two "
        "indices are swapped, or a tensor over another sequence is read.",
        bad=factors(**(_GRID | {"term": "factor site [i in H, j in W] (y[i, j]) = outer[j, i]"})),
        good=factors(**_GRID),
    ),
    Kind(
        "E0213",
        "table and scope differ",
        "the table has {found}, but the scope has {expected}",
        why="After subscripting, a table has exactly one label axis for each cell of the scope, over the labels of "
        "that cell. Nothing broadcasts over a scope: a pair of cells needs a table with two axes.",
        bad=factors(term="factor pair [t in T-1] (y[t], y[t+1]) = u"),
        good=factors(param=_PAIR, term="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0214",
        "ambiguous axes",
        "the scope has {count} cells over `{labels}`; roles must say which axis each one reads",
        why="A cell finds its axis by its role, or by its label set where only one axis has it. With two cells over "
        "one label set only roles can tell which is which.",
        bad=factors(param=_PAIR, term="factor pair [t in T-1] (y[t], y[t+1]) = W"),
        good=factors(param=_PAIR, term="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0215",
        "role that does not fit",
        "{problem}",
        why="A role in a scope names an axis of the table. Each role belongs to one cell, and the axis is over the "
        "labels of that cell.",
        bad=factors(param=_PAIR, term="factor pair [t in T-1] (form: y[t], to: y[t+1]) = W"),
        good=factors(param=_PAIR, term="factor pair [t in T-1] (from: y[t], to: y[t+1]) = W"),
    ),
    Kind(
        "E0216",
        "feature axis left over",
        "`{value}` has an axis of {axis} numbers, which no cell of the scope reads",
        why="A table has label axes only. The hidden states of an encoder are features: a last layer, such as "
        "`linear`, turns them into a score for each label.",
        bad=chain(net="net f = blstm(hidden: 10)", param="", term="factor unary [t in T] (y[t]) = f(x)[t]"),
        good=chain(net="net f = blstm(out: Tag, hidden: 10)", param="", term="factor unary [t in T] (y[t]) = f(x)[t]"),
    ),
    Kind(
        "E0217",
        "argument of the wrong type",
        "`{net}` {problem}",
        why="Every network of the catalogue says which tensors it takes, and a `python` network has a declared type. "
        "docs/language.md lists the catalogue.",
        bad=chain(net="net f = lenet5(out: Tag)"),
        good=chain(net="net f = lenet5(out: Tag)", input="input x : real[T, 1, 16, 8]"),
    ),
    Kind(
        "E0218",
        "wrong number of arguments",
        "`{net}` {problem}",
        why="The network is called with more or with fewer tensors than it takes.",
        bad=chain(
            net="net f : (real[T, 4]) -> real[T, Tag] = python('package.module:Net')",
            term="chain y { unary: f(x, x), pair: W }",
        ),
        good=chain(net="net f : (real[T, 4]) -> real[T, Tag] = python('package.module:Net')"),
    ),
    Kind(
        "E0219",
        "not a tensor",
        "`{name}` is {kind} and cannot be used as a tensor here",
        why="Scores are computed from inputs, parameters, named tensors and the results of networks. A variable is "
        "read through the scope of a term; a network is called, or named in `sequence` and `masked`; a list of edges "
        "is bound in an index set.",
        bad=chain(term="chain y { unary: f, pair: W }"),
        good=chain(),
    ),
    Kind(
        "E0220",
        "operands that do not fit",
        "`{operator}` joins `{left}` and `{right}`; {problem}",
        why="Sums join tensors with the same axes in the same order and with the same roles; products and quotients "
        "scale a tensor by a single number. Nothing broadcasts, so that an axis in the wrong place is found here and "
        "not in a result.",
        bad=factors(term="factor unary [t in T] (y[t]) = u + 1"),
        good=factors(term="factor unary [t in T] (y[t]) = u + 2 * u"),
    ),
    Kind(
        "E0221",
        "python network without a type",
        "a `python` network needs its type, as it is never imported while checking",
        help="write `net {name} : (Input[T]) -> real[T, Tag] = python(...)`",
        why="A file can be checked without running anybody's code, also on a machine that lacks it. So the type of a "
        "network of yours is part of the spec: a signature, `step(Tag)` or `conditionals(Tag)`.",
        bad=chain(net="net f = python('package.module:Net')"),
        good=chain(net="net f : (real[T, 4]) -> real[T, Tag] = python('package.module:Net')"),
    ),
    Kind(
        "E0222",
        "declared type differs",
        "`{name}` is declared as `{declared}`, but `{card}` {found}",
        why="A network of the catalogue has its own type. Declaring it is allowed, as documentation, and then it "
        "must be the same.",
        bad=chain(net="net f : (real[T, 4]) -> real[T, 7] = mlp(out: Tag)"),
        good=chain(net="net f : (real[T, 4]) -> real[T, Tag] = mlp(out: Tag)"),
    ),
    Kind(
        "E0223",
        "bad read-out",
        "{problem}",
        why="`argmax s over Seg` picks, at each position of a field, the label of `Seg` with the largest value. The "
        "field has one axis over those labels, and what is left of its axes are the axes of the output.",
        bad=field(output="output y : Seg[W, H] = argmax s over Seg"),
        good=field(output="output y : Seg[H, W] = argmax s over Seg"),
    ),
    Kind(
        "E0224",
        "role given twice",
        "`{type}` has two axes over `{extent}` with the role `{role}`",
        help="give each its own role",
        why="Axes over the same label set or dim are told apart by their roles alone.",
        bad=chain(param="param W : real[from: Tag, from: Tag]"),
        good=chain(),
    ),
    Kind(
        "E0225",
        "labels where numbers are needed",
        "`{value}` has labels as elements; scores are real numbers",
        help="a network turns labels into numbers, as in `f(word)`",
        why="A tensor of labels says which label stands where; it has no arithmetic. Networks embed labels by "
        "themselves, so a tagger reads words as they are.",
        bad=factors(input="input word : Tag[T]", term="factor unary [t in T] (y[t]) = u + word[t]"),
        good=factors(
            input="input word : Tag[T]",
            net="net f = linear(out: Tag)",
            term="factor unary [t in T] (y[t]) = u + f(word)[t]",
        ),
    ),
    Kind(
        "E0226",
        "not a tensor expression",
        "{found} cannot be part of a score",
        why="A score is made of tensors, numbers, sums, products and calls of networks. Ranges, schedules, strings "
        "and blocks are values of options. Powers are for numbers: other functions of tensors belong in a network.",
        bad=factors(term="factor unary [t in T] (y[t]) = u^2"),
        good=factors(term="factor unary [t in T] (y[t]) = u * 2^3"),
    ),
    Kind(
        "E0227",
        "bad potential",
        "`{name}` {problem}",
        why="A potential stands for a whole table or coupling. As a factor's table, `potts(w)` adds the number `w` "
        "where two cells over one label set agree. As the `pair` of a Gaussian field, `potts`, `lowrank`, `smooth`, "
        "`dense` and `sparse` couple its positions.",
        bad=factors(param="param w : real", term="factor unary [t in T] (y[t]) = potts(w)"),
        good=factors(param="param w : real", term="factor pair [t in T-1] (y[t], y[t+1]) = potts(w)"),
    ),
    Kind(
        "E0228",
        "type with parameters",
        "`{name}` takes no parameters in parentheses",
        help="axes stand in brackets: `{name}[T]`",
        why="Only lists of edges and the types of networks have parameters in parentheses: `edge(T, T)[E]`, "
        "`step(Tag)` and `conditionals(Tag)`.",
        bad=chain(input="input x : real(T)"),
        good=chain(),
    ),
    Kind(
        "E0229",
        "type that no network has",
        "`{found}` is not the type of a network",
        help="write `(Input[T]) -> real[T, Tag]`, `step(Tag)` or `conditionals(Tag)`",
        why="A function network has a signature. A step network, for `sequence`, scores the next label of a set; a "
        "masked network, for `masked`, scores each label given all others.",
        bad=chain(net="net f : real[T, Tag] = python('package.module:Net')"),
        good=chain(net="net f : (real[T, 4]) -> real[T, Tag] = python('package.module:Net')"),
    ),
)

"""Contract cases with terms over whole variables: step networks, masked conditionals and black boxes, beside tables."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from tests.contract.cases import Case
from tests.contract.draft import END_TAGS, TAGS, Draft, Numbers, finish, ragged

DECODERS = (
    "lstm_decoder(hidden: 3, embed: 2)",
    "lstm_decoder(hidden: 3, embed: 2, cell: gru)",
    "lstm_decoder(hidden: 3, embed: 2, attention: aligned)",
    "lstm_decoder(hidden: 3, embed: 2, attention: dot)",
    "lstm_decoder(hidden: 3, embed: 2, attention: bahdanau)",
    "transformer_decoder(hidden: 4, heads: 2, layers: 1)",
)
MASKED = ("masked_blstm(hidden: 3, embed: 2)", "masked_transformer(hidden: 4, heads: 2, layers: 1)")


def _sequence(draw: st.DrawFn, draft: Draft, size: int, end: bool) -> None:
    decoder = draw(st.sampled_from(DECODERS))
    options = [f"step: {draft.net(decoder)}", f"normalize: {draw(st.sampled_from(['local', 'global']))}"]
    if "attention" in decoder or draw(st.booleans()):
        x = draft.feature("T, 2", size, 2)
        options.append(f"given: {draft.net('blstm(hidden: 2)')}({x})" if draw(st.booleans()) else f"given: {x}")
    if end:
        options.append("end: stop")
    draft.terms.append(f"sequence y {{ {', '.join(options)} }}")


def _masked(draw: st.DrawFn, draft: Draft, size: int) -> None:
    net = draft.net(str(draw(st.sampled_from(MASKED))))
    options = [f"conditionals: {net}", f"energy: {draw(st.sampled_from(['raw', 'local']))}"]
    if draw(st.booleans()):
        options.append(f"given: {draft.feature('T, 2', size, 2)}")
    draft.terms.append(f"masked y {{ {', '.join(options)} }}")


def _score(draw: st.DrawFn, draft: Draft, size: int) -> None:
    net, name = draft.net("pooled(hidden: 3, embed: 2, activation: tanh)"), draft.name("tail")
    word = draw(st.sampled_from(["soft", "hard"]))
    kind = draw(st.sampled_from(["alone", "scaled", "beside", "encoded", "both"]))
    if kind == "alone":
        draft.terms.append(f"score {name} (y) = {net}({word}(y))")
    elif kind == "scaled":
        draft.terms.append(f"score {name} (y) = 2 * {net}({word}(y)) + {draft.param('')}")
    elif kind == "beside":
        draft.terms.append(f"score {name} (y) = {net}({word}(y), {draft.feature('T, 2', size, 2)})")
    elif kind == "encoded":
        encoder = draft.net("blstm(hidden: 2)")
        reader = draft.net("blstm(hidden: 2, embed: 2)")
        value = f"{net}({reader}({word}(y), {encoder}({draft.feature('T, 2', size, 2)})))"
        draft.terms.append(f"score {name} (y) = {value}")
    else:
        draft.declare("output z : Tag[T]")
        draft.variables["z"] = (("T",), draft.variables["y"][1])
        draft.terms.append(f"score {name} (y, z) = {net}({word}(y), soft(z))")


def _tables(draw: st.DrawFn, draft: Draft, size: int, count: int) -> None:
    if draw(st.booleans()):
        draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, count)}[t]")
    if draw(st.booleans()):
        draft.factor("t in T-1", "from: y[t], to: y[t+1]", draft.param("from: Tag, to: Tag"))
    if draw(st.booleans()):
        draft.terms.append("forbid [t in T-1] y[t] = A and y[t+1] = A")


@st.composite
def wholes(draw: st.DrawFn) -> Case:
    """Whole-variable terms over an observed dim, mixed with tables."""
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    seed, batch, size = draw(st.integers(0, 2**16)), draw(st.sampled_from([1, 2])), draw(st.integers(0, 3))
    draft = Draft(Numbers(dtype, 1.0, draw(st.booleans()), draw(st.booleans())), seed, batch)
    end = draw(st.booleans()) and size < 3
    count = 3 if end else 2
    draft.sizes["T"] = size
    draft.declare("dim T")
    draft.declare(f"labels Tag = {END_TAGS if end else TAGS[2]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), count)
    kinds = draw(st.sets(st.sampled_from(["sequence", "masked", "score"]), min_size=1))
    if "sequence" in kinds:
        _sequence(draw, draft, size, bool(end))
    if "masked" in kinds:
        _masked(draw, draft, size)
    if "score" in kinds:
        _score(draw, draft, size)
    _tables(draw, draft, size, count)
    ragged(draw, draft, "T", size)
    return finish(draw, draft)


@st.composite
def free_lengths(draw: st.DrawFn) -> Case:
    """The length is part of the answer; what is given has a length of its own."""
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    seed, batch = draw(st.integers(0, 2**16)), draw(st.sampled_from([1, 2]))
    draft = Draft(Numbers(dtype, 1.0, False, draw(st.booleans())), seed, batch)
    bound, source = draw(st.integers(2, 3)), draw(st.integers(0, 2))
    draft.declare("dim S")
    draft.declare(f"dim T free <= {bound}")
    draft.sizes.update({"T": bound, "S": source})
    draft.declare(f"labels Tag = {END_TAGS}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 3)
    decoder = draw(st.sampled_from([one for one in DECODERS if "aligned" not in one]))
    options = [
        f"step: {draft.net(str(decoder))}",
        f"normalize: {draw(st.sampled_from(['local', 'global']))}",
        "end: stop",
    ]
    options.append(f"given: {draft.net('blstm(hidden: 2)')}({draft.feature('S, 2', source, 2)})")
    draft.terms.append(f"sequence y {{ {', '.join(options)} }}")
    extra = [
        lambda: draft.factor("t in T", "y[t]", draft.real("Tag", 3)),
        lambda: draft.factor("t in T-1", "y[t]", draft.param("Tag")),
        lambda: draft.factor("t in T-1", "from: y[t], to: y[t+1]", draft.param("from: Tag, to: Tag")),
        lambda: draft.factor("", "a: y[0], b: y[-1]", draft.param("a: Tag, b: Tag")),
        lambda: draft.factor("", "y[-2]", draft.param("Tag")),
        lambda: draft.terms.append("forbid [t in T-1] y[t] = y[t+1]"),
        lambda: draft.terms.append(f"score whole (y) = {draft.net('pooled(hidden: 3, activation: tanh)')}(soft(y))"),
    ]
    for number in draw(st.lists(st.integers(0, len(extra) - 1), max_size=3, unique=True)):
        extra[number]()
    ragged(draw, draft, "S", source)
    return finish(draw, draft, masks=False)

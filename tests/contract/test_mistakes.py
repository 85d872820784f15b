"""Calls with mistakes: what is wrong is said in the words of the declarations, and only where there is a cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.bind.inputs import DataError
from energyml.diagnostics import QueryRefused
from energyml.energy_model import BackendRefused
from energyml.metrics import make_metric
from energyml.queries import Query
from tests.contract.calls import CHAIN, model, scores

torch.set_num_threads(1)

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown input": ({"v": torch.zeros(2, 4, 3)}, "no input or variable `v`"),
    "no input": ({"u": None}, "was not given"),
    "a list": ({"u": [[1.0]]}, "holds list"),
    "too few axes": ({"u": torch.zeros(4, 3)}, "needs a batch axis"),
    "the wrong labels": ({"u": torch.zeros(2, 4, 5)}, "should be 3, found 5"),
    "integers": ({"u": torch.zeros(2, 4, 3, dtype=torch.long)}, "holds integers"),
    "another device": ({"u": torch.zeros(2, 4, 3, device="meta")}, "values on `meta`"),
    "too long": ({"lengths": [5, 1]}, "lies outside 0..4"),
    "negative": ({"lengths": [-1, 1]}, "lies outside 0..4"),
    "real lengths": ({"lengths": [1.5, 2.0]}, "must be whole numbers"),
    "one length": ({"lengths": 3}, "must be whole numbers"),
    "three lengths": ({"lengths": [1, 2, 3]}, "the batch has 2 examples"),
    "ragged lists": ({"lengths": [[1], [1, 2]]}, "are no tensor"),
    "an unknown dim": ({"lengths": {"S": [1, 2]}}, "no dim of the model"),
    "an integer mask": ({"mask": torch.ones(2, 4)}, "must be a bool tensor"),
    "a short mask": ({"mask": torch.ones(2, 3, dtype=torch.bool)}, "has 3 positions along `T`, expected 4"),
    "a mask for nothing": ({"mask": {"z": torch.ones(2, 4, dtype=torch.bool)}}, "no variable of the score"),
    "unknown evidence": ({"evidence": {"z": torch.zeros(2, 4)}}, "no input or variable `z`"),
    "evidence out of range": ({"evidence": {"y": torch.full((2, 4), 3)}}, "holds 3 in example 0"),
    "evidence of the wrong shape": (
        {"evidence": {"y": torch.ones(2, 4, 2, dtype=torch.bool)}},
        "expected \\[2, 4, 3\\]",
    ),
    "no evidence": ({"evidence": {"y": None}}, "holds NoneType"),
    "real evidence": ({"evidence": {"y": torch.zeros(2, 4)}}, "holds real numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_the_declaration(name: str) -> None:
    changes, message = MISTAKES[name]
    arguments = {key: one for key, one in {"u": scores(), **changes}.items() if one is not None}
    with pytest.raises(DataError, match=message):
        model().infer(using="exact", **arguments)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_value_errors_too(name: str) -> None:
    changes, message = MISTAKES[name]
    arguments = {key: one for key, one in {"u": scores(), **changes}.items() if one is not None}
    with pytest.raises(ValueError, match=message) as refused:
        model().infer(using="exact", **arguments)
    assert isinstance(refused.value, em.EnergyError)


def test_shapes_are_value_errors_wherever_they_are_looked_at() -> None:
    made, posterior = model(), model().infer(u=scores())
    wrong: dict[str, Callable[[], object]] = {
        "score": lambda: made.score(u=scores(), y=torch.zeros(2, 3, dtype=torch.long)),
        "loss": lambda: made.loss(objective="nll", u=scores(), y=torch.zeros(2, 3, dtype=torch.long)),
        "log_prob": lambda: posterior.log_prob(y=torch.zeros(2, 3, dtype=torch.long)),
        "costs": lambda: posterior.max_with_cost(y=torch.zeros(2, 4)),
        "values": lambda: posterior.expectation({"y": torch.zeros(2, 5, 3)}),
        "vectors": lambda: made.soft_score(u=scores(), y=torch.zeros(2, 4)),
        "fixed": lambda: made.fix(u=torch.zeros(1, 4, 2)),
        "metric": lambda: make_metric("accuracy", ["O"]).update(torch.zeros(2), torch.zeros(3)),
    }
    for name, call in wrong.items():
        with pytest.raises(ValueError, match=r"shape|should be|have the shape|expected") as refused:
            call()
        assert isinstance(refused.value, em.EnergyError), name


def test_mistakes_in_answers() -> None:
    made, u = model(), scores()
    posterior = made.infer(using="exact", u=u)
    with pytest.raises(DataError, match="no input or variable `z`"):
        posterior.log_prob(z=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(DataError, match="expected \\[2, 4\\]"):
        posterior.log_prob(y=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(DataError, match="holds 7 in example 1"):
        posterior.log_prob(y=torch.tensor([[0] * 4, [0, 7, 0, 0]]))
    with pytest.raises(DataError, match="expected \\[2, 4, 3\\]"):
        posterior.max_with_cost(y=torch.zeros(2, 4))
    with pytest.raises(QueryRefused, match="needs an answer"):
        posterior.ask("log_prob")
    with pytest.raises(QueryRefused, match="needs costs"):
        posterior.ask("max_with_cost")
    with pytest.raises(QueryRefused, match="does not have"):
        posterior.ask("factor_marginals", target="nothing")
    with pytest.raises(ValueError, match="at least 1"):
        posterior.n_best(0)
    with pytest.raises(ValueError, match="unknown query"):
        Query("mapp")
    with pytest.raises(DataError, match="was not given"):
        made.score(u=u)
    with pytest.raises(DataError, match="holds -1 in example 0"):
        made.score(u=u, y=torch.full((2, 4), -1))
    with pytest.raises(em.EnergyError, match="needs gold labels"):
        made.loss(objective="nll", u=u)


def test_what_goes_by_name_is_no_bare_tensor() -> None:
    made, u = model(), scores()
    posterior = made.infer(u=u)
    for argument in ("evidence", "start"):
        with pytest.raises(em.EnergyError, match=f"`{argument}` is given by variable, .* found Tensor"):
            made.infer(u=u, **{argument: torch.zeros(2, 4, dtype=torch.long)})
    with pytest.raises(QueryRefused, match="`expectation` takes its values by name"):
        posterior.expectation(torch.zeros(2, 4, 3))  # type: ignore[arg-type]
    with pytest.raises(QueryRefused, match="takes its cost by name"):
        posterior.log_prob_with_cost({"y": torch.zeros(2, 4, dtype=torch.long)}, torch.zeros(2, 4, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`n_best` needs a whole number of at least 1 as its count"):
        posterior.n_best(1.5)  # type: ignore[arg-type]


def test_unserved_and_unfinished_backends_are_refused() -> None:
    made = em.compile(
        CHAIN + "param v : real[from: Tag, to: Tag]\nfactor skip [t in T-2] (from: y[t], to: y[t+2]) = v\n"
    )
    with pytest.raises(BackendRefused, match="torch-struct serves first-order chains"):
        made.infer(using="exact(engine: torch_struct)", u=scores())
    unfinished = [card.name for card in em_cards() if card.implementation is None and card.name != "auto"]
    for name in unfinished:
        with pytest.raises(BackendRefused, match="cannot serve this model"):
            made.infer(using=name, u=scores())


def em_cards() -> list[Any]:
    from energyml import cards

    return cards.every("backend")


def test_edges_must_lead_to_positions() -> None:
    text = """\
dim N, E
labels Tag = {A, B}
input link : edge(N, N)[E]
input u : real[N, Tag]
output y : Tag[N]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (y[i], y[j]) = potts(1)
"""
    made = em.compile(text)
    u = torch.zeros(1, 2, 2)
    for position in (2, -5):
        with pytest.raises(DataError, match=f"the position {position} in example 0"):
            made.infer(u=u, link=torch.tensor([[[0, position]]]))
    known = made.infer(u=u, link=torch.tensor([[[0, 1], [-1, -1]]])).log_partition
    torch.testing.assert_close(known, torch.tensor([2 * (torch.e + 1)]).log())


PUSH = """\
dim N, E
labels Tag = {A, B}
input link : edge(N, N)[E]
input u : real[N, Tag]
output y : Tag[N]
factor push [e = (i, j) in link] (y[j]) = u[i]
"""


def single(n: int, size: int, edges: list[list[int]]) -> dict[str, Any]:
    """An example of its own size, as tensors without padding."""
    u = torch.arange(2.0 * size).reshape(size, 2)
    return {"u": u[:n].unsqueeze(0), "link": torch.tensor(edges, dtype=torch.long).reshape(1, len(edges), 2)}


@pytest.mark.parametrize("stated", ["lengths of both", "lengths of N"])
def test_edges_in_a_batch_are_refused_as_those_of_its_examples_are(stated: str) -> None:
    """The position must exist in its own example; rows of padding may hold anything where their number is stated."""
    made, size, most = em.compile(PUSH), 4, 3
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        ns = torch.randint(1, size + 1, (3,), generator=generator).tolist()
        es = torch.randint(0, most + 1, (3,), generator=generator).tolist()
        edges = [torch.randint(-1, size if k else 1, (e, 2), generator=generator).tolist() for k, e in enumerate(es)]
        both = stated == "lengths of both"
        link = torch.full((3, most, 2), 9 if both else -1)
        for row, one in zip(link, edges, strict=True):
            row[: len(one)] = torch.tensor(one, dtype=torch.long).reshape(-1, 2)
        u = torch.arange(2.0 * size).reshape(1, size, 2).repeat(3, 1, 1)
        lengths = {"N": torch.tensor(ns), **({"E": torch.tensor(es)} if both else {})}
        alone: list[Any] = []
        for n, one in zip(ns, edges, strict=True):
            try:
                alone.append(made.infer(**single(n, size, one)).log_partition)
            except DataError as problem:
                alone.append(str(problem))
        wrong = [number for number, one in enumerate(alone) if isinstance(one, str)]
        if not wrong:
            found = made.infer(u=u, link=link, lengths=lengths).log_partition
            torch.testing.assert_close(found, torch.cat(alone))
            continue
        with pytest.raises(DataError) as refused:
            made.infer(u=u, link=link, lengths=lengths)
        told = [
            one.replace("in example 0", f"in example {number}") for number, one in enumerate(alone) if number in wrong
        ]
        assert str(refused.value) in told


@pytest.mark.parametrize("using", ["exact", "enumerate"])
def test_an_edge_from_a_position_without_a_cell_is_no_edge(using: str) -> None:
    made = em.compile(PUSH)
    u = torch.tensor([[[0.0, 1.0], [0.0, 5.0]]]).repeat(2, 1, 1)
    link = torch.tensor([[[0, 0], [1, 0]]]).repeat(2, 1, 1)
    with pytest.raises(DataError, match=r"the position 1 in example 1(.|\n)*`N` has 1 positions"):
        made.infer(using=using, u=u, link=link, lengths={"N": [2, 1]})
    masked = made.infer(using=using, u=u, link=link, mask={"y": torch.tensor([[True, False], [True, True]])})
    gained = masked.max_marginals["y"][:, 0]
    assert (gained[:, 1] - gained[:, 0]).tolist() == [6.0, 6.0], "a position without a cell still exists"


@pytest.mark.parametrize("value", ["NaN", "inf"])
def test_no_number_is_refused_only_where_there_is_a_cell(value: str) -> None:
    """Behind the lengths and in the gaps of a mask anything may stand; -inf forbids."""
    made, u = model(), scores()
    u[1, 2, 0] = float(value)
    for beside in (float("-inf"), 0.0):
        u[0, 0, 0] = beside
        with pytest.raises(DataError, match=rf"E0512.*`u` holds {value} in example 1, at \[2, 0\]"):
            made.infer(u=u)
    gap = torch.ones(2, 4, dtype=torch.bool)
    gap[1, 2] = False
    for around in ({"lengths": [4, 2]}, {"mask": gap}, {"mask": {"y": gap}}):
        assert bool(made.infer(u=u, **around).log_partition.isfinite().all())
    u[1, 2] = torch.tensor([float("-inf"), 0.0, 1.0])
    made.infer(u=u)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_costs_are_numbers_where_there_is_a_cell(value: str) -> None:
    made, cost = model(), torch.zeros(2, 4, 3)
    cost[1, 2, 0] = float(value)
    with pytest.raises(em.EnergyError, match="the cost of `y` holds NaN or inf"):
        made.infer(u=scores()).max_with_cost(y=cost)
    assert made.infer(u=scores(), lengths=[4, 2]).max_with_cost(y=cost).score.isfinite().all()


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "enumerate", "bp"])
def test_functions_are_numbers_where_there_is_a_cell(using: str) -> None:
    """Of cells and of factors, shared and not; behind the lengths anything may stand, and -inf is no NaN."""
    made, on_cells, on_pairs = model(), torch.zeros(2, 4, 3), torch.zeros(2, 3, 3, 3)
    on_cells[1, 2, 0], on_pairs[1, 2, 1, 0] = float("nan"), float("nan")
    posterior, shorter = made.infer(u=scores(), using=using), made.infer(u=scores(), lengths=[4, 2], using=using)
    pair = next(name for name, one in posterior.factor_marginals.items() if one.dim() == 4)
    for name, values, place in (("y", on_cells, "[2, 0]"), (pair, on_pairs, "[2, 1, 0]")):
        with pytest.raises(DataError, match=rf"E0512.*`{name}` holds NaN in example 1, at {re.escape(place)}") as seen:
            posterior.expectation({name: values})
        assert "`expectation` takes a number for every label" in str(seen.value)
        assert bool(shorter.expectation({name: values}).isfinite().all())
    with pytest.raises(DataError, match=r"E0512.*in example 0"):
        posterior.expectation({"y": torch.full((1, 1, 3), float("nan"))})
    with pytest.raises(em.EnergyError, match="have the shape"):
        shorter.expectation({"y": torch.full((2, 5, 3), float("nan"))})


def test_no_number_in_a_pair_next_to_a_gap_is_let_through() -> None:
    pairs = em.compile(
        CHAIN.replace("input u", "input v : real[T-1, from: Tag, to: Tag]\ninput u").replace("pair: w", "pair: v")
    )
    v = torch.zeros(2, 3, 3, 3)
    v[0, 2] = float("nan")  # of a pair that starts at the gap
    with pytest.raises(DataError, match="E0512"):
        pairs.infer(u=scores(), v=v)
    gap = torch.tensor([[True, True, False, True], [True] * 4])
    assert bool(pairs.infer(u=scores(), v=v, mask=gap).log_partition.isfinite().all())


TAGGED = """\
labels Tag = {A, B, C}
dim T
input word : Tag[T]
input u : real[T, Tag]
input v : real[T-1, from: Tag, to: Tag]
output y : Tag[T]
net f = embedding(out: Tag)
chain y { unary: f(word) + u, pair: v }
"""
# Where a mistake stands along the axis of positions, and the call that reads it.
PLACED: dict[str, Callable[[em.EnergyModel, dict[str, Any], Callable[[Tensor], Tensor]], object]] = {
    "a word": lambda made, given, wrong: made.infer(**{**given, "word": wrong(given["word"])}),
    "a score": lambda made, given, wrong: made.infer(**{**given, "u": wrong(given["u"])}),
    "a pair": lambda made, given, wrong: made.infer(**{**given, "v": wrong(given["v"])}),
    "evidence": lambda made, given, wrong: made.infer(**given, evidence={"y": wrong(given["word"])}),
    "an answer": lambda made, given, wrong: made.infer(**given).log_prob(y=wrong(given["word"])),
    "a full answer": lambda made, given, wrong: made.score(**given, y=wrong(given["word"])),
    "gold": lambda made, given, wrong: made.loss(objective="nll", **given, y=wrong(given["word"])),
    "a cost": lambda made, given, wrong: made.infer(**given).max_with_cost(y=wrong(given["u"])),
    "a vector": lambda made, given, wrong: made.soft_score(**given, y=wrong(given["u"].double())),
    "values": lambda made, given, wrong: made.infer(**given).expectation({"y": wrong(given["u"])}),
}


@pytest.mark.parametrize("kind", PLACED)
def test_mistakes_count_where_a_single_example_would_have_them(kind: str) -> None:
    made = em.compile(TAGGED, seed=0)
    given: dict[str, Any] = {
        "word": torch.zeros(2, 4, dtype=torch.long),
        "u": torch.zeros(2, 4, 3),
        "v": torch.zeros(2, 3, 3, 3),
        "lengths": torch.tensor([4, 2]),
    }
    ends = {"a pair": 1}.get(kind, 2)  # one more position than pairs
    for place in range(3):

        def wrong(tensor: Tensor, place: int = place) -> Tensor:
            tensor = tensor.clone()
            tensor[1, place] = (
                9 if not tensor.is_floating_point() else -1e300 if tensor.dtype == torch.float64 else float("nan")
            )
            return tensor

        if place >= ends:
            PLACED[kind](made, given, wrong)
            continue
        message = "the cost of `y` holds NaN" if kind == "a cost" else "in example 1"
        with pytest.raises(em.EnergyError, match=message):
            PLACED[kind](made, given, wrong)


def test_lengths_inside_of_a_position_count_where_there_is_one() -> None:
    text = """\
labels Char = {a, b}
labels Tag = {A, B}
dim T
dim M[T]
input char : Char[T, M]
output y : Tag[T]
net f = chars_words(out: Tag, chars: 2, char_layers: 1, hidden: 2, layers: 1)
param w : real[from: Tag, to: Tag]
chain y { unary: f(char), pair: w }
"""
    made = em.compile(text.replace("f(char)", "f(char, word)").replace("output", "input word : Tag[T]\noutput"), seed=0)
    given = {"char": torch.zeros(2, 3, 2, dtype=torch.long), "word": torch.zeros(2, 3, dtype=torch.long)}
    lengths = {"T": torch.tensor([3, 2]), "M": torch.tensor([[1, 2, 1], [2, 1, 0]])}
    known = made.infer(**given, lengths=lengths).log_partition
    for junk in (-7, 9):
        inner = lengths["M"].clone()
        inner[1, 2] = junk
        torch.testing.assert_close(made.infer(**given, lengths={**lengths, "M": inner}).log_partition, known)
        inner[1, 1] = junk
        with pytest.raises(DataError, match=r"a length of `M` lies outside 0..2"):
            made.infer(**given, lengths={**lengths, "M": inner})


WIDE = {"float32": (torch.float32, torch.float64, 1e300), "float16": (torch.float16, torch.float32, 1e30)}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", WIDE)
def test_numbers_that_leave_the_type_of_scores_are_refused(dtype: str, sign: int) -> None:
    """-inf forbids, but a finite number that becomes -inf was not meant to."""
    narrow, wide, large = WIDE[dtype]
    made, u = em.compile(CHAIN.replace("f(u) + u", "u")).to(narrow), scores().to(wide)
    u[1, 2, 0] = sign * large
    said = rf"E0512.*`u` holds {sign * large:g}, which {dtype} cannot hold, in example 1, at \[2, 0\]".replace(
        "+", r"\+"
    )
    with pytest.raises(DataError, match=said):
        made.infer(u=u)
    made.infer(u=u, lengths=[4, 2])
    made.infer(u=u, mask=torch.tensor([[True] * 4, [True, True, False, True]]))
    fixed = model().to(narrow).fix(u=u[1:])
    with pytest.raises(DataError, match=r"in example 0, at \[2, 0\]"):
        fixed.infer()
    u[1, 2, 0] = float("-inf")
    assert bool(made.infer(u=u).log_partition.isfinite().all())
    with pytest.raises(DataError, match=f"`y` holds .*, which {dtype} cannot hold, in example 1"):
        made.infer(u=scores().to(narrow)).max_with_cost(y=torch.where(u.isinf(), sign * large, u))
    with pytest.raises(DataError, match=f"`y` holds a number that {dtype} cannot hold in example 1"):
        made.infer(u=scores().to(narrow)).expectation({"y": torch.where(u.isinf(), sign * large, u)})


def test_whole_numbers_that_conversion_would_change_are_refused() -> None:
    made = em.compile(TAGGED, seed=0)
    given = {"u": torch.zeros(1, 2, 3), "v": torch.zeros(1, 1, 3, 3)}
    for dtype, kind in (
        (torch.bool, "truth values"),
        (torch.uint64, "unsigned 64-bit numbers"),
        (torch.float32, "real"),
    ):
        wrong = torch.ones(1, 2).to(dtype)
        with pytest.raises(DataError, match=f"`word` holds {kind}"):
            made.infer(word=wrong, **given)
        with pytest.raises(DataError, match=f"`y` holds {kind}"):
            made.score(word=torch.zeros(1, 2, dtype=torch.long), y=wrong, **given)


def padded(*lengths: int) -> Tensor:
    """Scores [B, 4, 3] that are zero behind the end of each example."""
    u = scores(len(lengths))
    for row, length in zip(u, lengths, strict=True):
        row[length:] = 0
    return u


def test_padding_without_lengths_is_told_once() -> None:
    made, u = model(), padded(4, 2, 3)
    with pytest.warns(UserWarning, match="2 of 3 examples end in zeros along `T`.*Pass `lengths=` or `mask=`") as told:
        made.infer(u=u)
    assert told[0].filename == __file__
    made.infer(u=u)
    with pytest.warns(UserWarning, match="end in zeros"):
        model().loss(objective="nll", u=u, y=torch.zeros(3, 4, dtype=torch.long))


def test_what_may_be_meant_is_no_padding() -> None:
    inside = padded(4, 2)
    inside[0, 1] = 0
    part = padded(4, 2)
    part[1, 2:, 0] = 0.5
    for u in (scores(), padded(3, 2), padded(0, 0), padded(4, 0), padded(2), inside, part):
        model().infer(u=u)
    model().infer(u=padded(4, 2), lengths=[4, 2])
    model().infer(u=padded(4, 2), mask=torch.ones(2, 4, dtype=torch.bool))
    single = em.compile("dim T\nlabels Tag = {A, B}\ninput x : real[T]\noutput y : Tag[T]\nnet f = mlp(out: Tag)\n"
                        "factor one [t in T] (y[t]) = f(x)[t]\n", seed=0)  # fmt: skip
    single.infer(x=torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tagged = em.compile(TAGGED, seed=0)
    given = {"u": padded(4, 2), "v": torch.zeros(2, 3, 3, 3)}
    tagged.infer(word=torch.ones(2, 4, dtype=torch.long), **given)
    with pytest.warns(UserWarning, match="1 of 2 examples"):
        em.compile(TAGGED, seed=0).infer(word=torch.tensor([[1, 1, 1, 1], [2, 2, 0, 0]]), **given)

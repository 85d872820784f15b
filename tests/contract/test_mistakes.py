"""Calls with mistakes: what is wrong is said in the words of the declarations, and only where there is a cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import energyml as em
from energyml.backend import QueryRefused
from energyml.bind.inputs import DataError
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


@pytest.mark.parametrize("using", ["exact", "enumerate"])
def test_an_edge_from_padding_is_no_edge(using: str) -> None:
    text = """\
dim N, E
labels Tag = {A, B}
input link : edge(N, N)[E]
input u : real[N, Tag]
output y : Tag[N]
factor push [e = (i, j) in link] (y[j]) = u[i]
"""
    made = em.compile(text)
    u = torch.tensor([[[0.0, 1.0], [0.0, 5.0]]]).repeat(2, 1, 1)
    link = torch.tensor([[[0, 0], [1, 0]]]).repeat(2, 1, 1)
    found = made.infer(using=using, u=u, link=link, lengths={"N": [2, 1]}).max_marginals["y"][:, 0]
    assert (found[:, 1] - found[:, 0]).tolist() == [6.0, 1.0]
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

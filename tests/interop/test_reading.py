"""Models that are read mean what their files say, whatever the numbers of values and the scopes."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import energyml as em
from tests.interop.files import Factors, factor_graphs, log, log_sum

PAIR = Factors([2, 3], [((0, 1), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]]))])


def scores(model: em.interop.ImportedModel, cards: list[int]) -> np.ndarray:
    """[*cards]: the score of every joint value."""
    values = torch.cartesian_prod(*(torch.arange(card) for card in cards)).reshape(-1, len(cards))
    return model.score(**model.answer(values)).detach().numpy().reshape(cards)


@given(factor_graphs())
def test_uai_scores(graph):
    model = em.interop.read_uai(io.StringIO(graph.uai()))
    np.testing.assert_allclose(scores(model, graph.cards), log(graph.weights()), rtol=1e-12, atol=1e-12)


@given(factor_graphs(mentioned=True))
def test_fg_scores(graph):
    model = em.interop.read_fg(io.StringIO(graph.fg()))
    np.testing.assert_allclose(scores(model, graph.cards), log(graph.weights()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["enumerate", "exact"])
@settings(max_examples=30)
@given(factor_graphs())
def test_inference(backend, graph):
    weights = graph.weights()
    model = em.interop.read_uai(io.StringIO(graph.uai("BAYES")))
    posterior = model.infer(using=backend)
    assert posterior.log_partition.item() == pytest.approx(log_sum(weights), abs=1e-10)
    best = model.values(posterior.map())
    assert best.shape == (1, len(graph.cards))
    if weights.sum() == 0:
        return
    assert weights[tuple(best[0].tolist())] == pytest.approx(weights.max())
    for place, found in enumerate(model.probabilities(posterior.marginals)):
        truth = weights.sum(tuple(axis for axis in range(weights.ndim) if axis != place)) / weights.sum()
        np.testing.assert_allclose(found[0].detach(), truth, atol=1e-10)


def test_the_last_variable_runs_fastest_in_uai_and_the_first_in_fg():
    uai = em.interop.read_uai(io.StringIO("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3 4\n"))
    fg = em.interop.read_fg(io.StringIO("1\n\n2\n0 1\n2 2\n4\n0 1\n1 2\n2 3\n3 4\n"))
    answer = torch.tensor([[0, 1]])
    assert uai.score(**uai.answer(answer)).exp().item() == pytest.approx(2)
    assert fg.score(**fg.answer(answer)).exp().item() == pytest.approx(3)


def test_the_spec_is_lifted():
    size = 30
    graph = Factors([2] * size, [((i, i + 1), np.ones((2, 2))) for i in range(size - 1)])
    model = em.interop.read_uai(io.StringIO(graph.uai()))
    assert [term.term.name for term in model.terms] == ["unary2", "joint2_2"]
    assert model.cells[3] == ("x2", 3)
    assert em.check_text(model.compiled.source.text).errors == []


def test_scopes_of_the_same_cardinalities_make_one_group():
    graph = Factors([2, 3, 2], [((0, 1), np.ones((2, 3))), ((1, 2), np.ones((3, 2)))])
    model = em.interop.read_uai(io.StringIO(graph.uai()))
    assert [term.term.name for term in model.terms] == ["unary2", "unary3", "joint2_3"]
    assert model.fixed["scope2_3"].tolist() == [[[0, 0], [1, 0]]]


def test_paths_and_streams(tmp_path):
    path = tmp_path / "pair.uai"
    path.write_bytes(b"\xef\xbb\xbf" + PAIR.uai().replace("\n", "\r\n").encode())
    expected = log(PAIR.weights())
    for source in (path, str(path), io.BytesIO(path.read_bytes()), io.StringIO(PAIR.uai())):
        np.testing.assert_allclose(scores(em.interop.read_uai(source), PAIR.cards), expected)
    with path.open() as stream:
        np.testing.assert_allclose(scores(em.interop.read_uai(stream), PAIR.cards), expected)


@pytest.mark.parametrize(
    ("written", "score"),
    [
        ("1e-400", -400 * math.log(10)),
        ("3.5e400", math.log(3.5) + 400 * math.log(10)),
        ("1e4000", 4000 * math.log(10)),
        ("4e-320", math.log(4) - 320 * math.log(10)),
    ],
)
def test_weights_that_no_double_holds(written, score):
    model = em.interop.read_uai(io.StringIO(f"MARKOV\n1\n2\n1\n1 0\n2\n0 {written}\n"))
    found = model.score(**model.answer(torch.tensor([[0], [1]])))
    assert found.tolist() == [-float("inf"), pytest.approx(score, rel=1e-12)]


def test_numbers_in_unusual_spelling():
    model = em.interop.read_uai(io.StringIO("MARKOV 1 2 1 1 0 2 +1. .5E+1"))
    assert model.score(**model.answer(torch.tensor([[0], [1]]))).exp().tolist() == pytest.approx([1, 5])


def test_a_graph_with_gaps_in_its_numbers():
    model = em.interop.read_fg(io.StringIO("1\n2\n7 3\n2 3\n1\n1 0.5\n"))
    assert (model.numbers, model.cards) == ((3, 7), (3, 2))
    assert model.infer(using="enumerate").log_partition.exp().item() == pytest.approx(0.5)
    assert model.values(model.infer(using="enumerate").map()).tolist() == [[0, 1]]
    assert model.evidence({7: 1})["x2"].tolist() == [[1]]


def test_it_is_an_ordinary_module():
    model = em.interop.read_uai(io.StringIO(PAIR.uai()))
    assert isinstance(model, em.EnergyModel)
    assert set(model.state_dict()) == {"u2", "u3", "t2_3", "scope2_3", "_extra_state"}
    expected = scores(model, PAIR.cards)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(scores(same, PAIR.cards), expected)
        assert same.cells == model.cells
    loss = model.loss(objective="nll", using="enumerate", **model.answer(torch.tensor([[0, 1], [1, 1]])))
    loss.backward()
    assert loss.item() == pytest.approx(-(np.log(2 / 15) + np.log(5 / 15)) / 2)
    assert model.get_parameter("t2_3").grad.isfinite().all()


def test_draws_and_n_best_in_the_order_of_the_file():
    model = em.interop.read_uai(io.StringIO(PAIR.uai()))
    posterior = model.infer(using="enumerate")
    assert model.values(posterior.n_best(2)).tolist() == [[[1, 1], [1, 0]]]
    assert model.values(posterior.sample(5)).shape == (5, 1, 2)


def test_answers_of_another_shape_are_refused():
    model = em.interop.read_uai(io.StringIO(PAIR.uai()))
    with pytest.raises(em.EnergyError, match=r"expected values \[B, 2\], found \[1, 3\]"):
        model.answer(torch.zeros(1, 3, dtype=torch.long))

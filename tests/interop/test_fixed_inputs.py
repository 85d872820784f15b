"""Inputs that hold for every example: calls may leave them out, and everything that keeps a model keeps them."""

import copy
import pickle

import pytest
import torch

import energyml as em

SPEC = """\
labels Spin = {down, up}
dim N, E
input bias : real[N, Spin]
input link : edge(N, N)[E]
output y : Spin[N]
param w : real[a: Spin, b: Spin]
factor unary [i in N] (y[i]) = bias[i]
factor pair [e = (i, j) in link] (a: y[i], b: y[j]) = w
"""
LINK = torch.tensor([[[0, 1], [1, 2]]])
BIAS = torch.tensor([[[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]]])


@pytest.fixture
def model():
    return em.compile(SPEC, seed=0)


def partition(model, **arguments):
    return model.infer(using="enumerate", **arguments).log_partition


def test_calls_may_leave_them_out(model):
    batch = BIAS.repeat(4, 1, 1) * torch.arange(4.0).reshape(4, 1, 1)
    expected = partition(model, bias=batch, link=LINK.expand(4, -1, -1))
    labels = torch.zeros(4, 3, dtype=torch.long)
    score = model.score(bias=batch, link=LINK.expand(4, -1, -1), y=labels)
    loss = model.loss(objective="nll", using="enumerate", bias=batch, link=LINK.expand(4, -1, -1), y=labels)
    assert model.fix(link=LINK) is model
    torch.testing.assert_close(partition(model, bias=batch), expected)
    torch.testing.assert_close(model.score(bias=batch, y=labels), score)
    torch.testing.assert_close(model.loss(objective="nll", using="enumerate", bias=batch, y=labels), loss)


def test_the_batch_comes_from_what_else_is_given(model):
    one = partition(model, bias=BIAS, link=LINK)
    model.fix(link=LINK, bias=BIAS)
    assert partition(model).tolist() == one.tolist()
    assert partition(model, lengths={"N": torch.tensor([3, 3, 3])}).shape == (3,)
    assert partition(model, mask=torch.ones(2, 3, dtype=torch.bool)).tolist() == pytest.approx(one.tolist() * 2)
    assert partition(model, evidence={"y": torch.full((5, 3), -1)}).tolist() == pytest.approx(one.tolist() * 5)
    assert model.score(y=torch.zeros(0, 3, dtype=torch.long)).shape == (0,)


def test_fixed_edges_beyond_the_end_of_an_example_are_refused(model):
    model.fix(link=LINK, bias=BIAS)
    for _ in range(2):
        with pytest.raises(em.SpecError, match=r"the position 2 in example 1(.|\n)*`N` has 2 positions"):
            partition(model, lengths={"N": torch.tensor([3, 2, 3])})
        partition(model, lengths={"N": torch.tensor([3, 3, 3])})


def test_a_call_may_pass_another(model):
    other = torch.tensor([[[0, 2]]])
    expected = partition(model, bias=BIAS, link=other)
    model.fix(link=LINK)
    torch.testing.assert_close(partition(model, bias=BIAS, link=other), expected)


def test_what_changes_in_place_is_looked_at_again(model):
    other = torch.tensor([[[0, 2], [1, 2]]])
    expected = partition(model, bias=BIAS, link=other)
    model.fix(link=LINK)
    model.infer(using="exact", bias=BIAS).log_partition  # noqa: B018
    model.fixed["link"][0, 0, 1] = 2
    torch.testing.assert_close(model.infer(using="exact", bias=BIAS).log_partition, expected)
    model.fixed["link"][0, 0, 1] = 7
    with pytest.raises(em.SpecError, match="the position 7"):
        model.infer(using="exact", bias=BIAS)


def test_copies_pickles_and_states_keep_them(model):
    expected = partition(model.fix(link=LINK), bias=BIAS)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(partition(same, bias=BIAS), expected)
        assert same.fixed["link"].tolist() == LINK.tolist()
    fresh = em.compile(SPEC, seed=1).fix(link=torch.zeros_like(LINK))
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(partition(fresh, bias=BIAS), expected)
    assert list(model.state_dict()) == ["w", "link", "_extra_state"]


def test_they_are_the_models_own(model):
    mine = LINK.clone()
    model.fix(link=mine)
    mine.zero_()
    assert model.fixed["link"].tolist() == LINK.tolist()


def test_they_follow_the_models_type(model):
    model.fix(link=LINK, bias=BIAS).double()
    assert model.fixed["bias"].dtype == torch.float64 and model.fixed["link"].dtype == torch.int64
    assert partition(model).dtype == torch.float64


def test_giving_one_back(model):
    model.fix(link=LINK).fix(link=None)
    assert model.fixed == {}
    with pytest.raises(em.EnergyError, match="`link` was not given"):
        partition(model, bias=BIAS)
    model.fix(link=None)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"lnik": LINK}, "did you mean `link`"),
        ({"lnik": None}, "did you mean `link`"),
        ({"y": torch.zeros(1, 3)}, "no input or variable `y`"),
        ({"link": LINK.expand(2, -1, -1)}, "its batch axis is 1, found 2"),
        ({"link": LINK[0]}, "it needs a batch axis and 2 more"),
        ({"link": LINK.float()}, "`link` holds real numbers"),
        ({"link": [[[0, 1]]]}, "pass a torch.Tensor"),
        ({"bias": BIAS, "link": LINK + 1}, "`N` has 3 positions"),
        ({"link": LINK + 1, "bias": BIAS}, "`N` has 3 positions"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(model, inputs, message):
    with pytest.raises(em.EnergyError, match=message):
        model.fix(**inputs)
    assert model.fixed == {}


def test_a_call_that_does_not_fit_them_is_refused(model):
    model.fix(link=LINK)
    with pytest.raises(em.EnergyError, match="the position 2 in example 0"):
        partition(model, bias=BIAS[:, :2])

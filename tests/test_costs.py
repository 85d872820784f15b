"""Weighted costs: what a weight changes, and a weight for a label that does not exist."""

import pytest
import torch

import energyml as em

SPEC = """\
labels Tag = {O, 'B-NP'}
dim T
input u : real[T, Tag]
output y : Tag[T]
factor unary [t in T] (y[t]) = u[t]
infer exact
"""


def test_a_weight_counts_where_its_label_is_predicted_wrongly():
    model = em.compile(SPEC)
    scores = torch.zeros(1, 2, 2)
    gold = torch.tensor([[1, 1]])
    plain = model.loss(u=scores, y=gold, objective="ssvm")
    weighted = model.loss(u=scores, y=gold, objective="ssvm(cost: hamming({ O: 2 }))")
    other = model.loss(u=scores, y=gold, objective="ssvm(cost: hamming({ 'B-NP': 2 }))")
    assert (plain.item(), weighted.item(), other.item()) == pytest.approx((1.0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("cost", "wanted"),
    [("hamming(normalize: false)", 3.0), ("hamming({ O: 2 }, normalize: false)", 6.0),
     ("confusion({ 'B-NP': { O: 5 } }, normalize: false)", 15.0), ("hamming(normalize: true)", 1.0)],
)  # fmt: skip
def test_a_cost_that_is_no_share_grows_with_the_number_of_cells(cost, wanted):
    model = em.compile(SPEC)
    gold = torch.tensor([[1, 1, 1, -1]])  # an unknown label costs nothing
    found = model.loss(u=torch.zeros(1, 4, 2), y=gold, objective=f"ssvm(cost: {cost})")
    assert found.item() == pytest.approx(wanted)


def test_an_unknown_label_is_refused():
    model = em.compile(SPEC)
    with pytest.raises(em.EnergyError, match="did you mean `B-NP`"):
        model.loss(
            u=torch.zeros(1, 2, 2),
            y=torch.zeros(1, 2, dtype=torch.long),
            objective="ssvm(cost: hamming({ 'B-NQ': 2 }))",
        )

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


def test_an_unknown_label_is_refused():
    model = em.compile(SPEC)
    with pytest.raises(em.EnergyError, match="did you mean `B-NP`"):
        model.loss(
            u=torch.zeros(1, 2, 2),
            y=torch.zeros(1, 2, dtype=torch.long),
            objective="ssvm(cost: hamming({ 'B-NQ': 2 }))",
        )

"""Pseudo-likelihood from terms against the conditionals that enumeration finds."""

from __future__ import annotations

import pytest
import torch

import energyml as em

SPECS = {
    "chain": """
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
chain y { unary: u, pair: w }
forbid [t in T-1] y[t] = A and y[t+1] = C
""",
    "grid": """
dim T, W
labels Tag = {A, B}
input u : real[T, W, Tag]
output y : Tag[T, W]
param w : real = constant(0.7)
factor own [i in T, j in W] (y[i, j]) = u[i, j]
factor down [i in T-1, j in W] (y[i, j], y[i+1, j]) = potts(w)
factor right [i in T, j in W-1] (y[i, j], y[i, j+1]) = potts(w)
""",
    "all pairs, cells with themselves": """
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
output z : Tag
param w : real[a: Tag, b: Tag]
param v : real[T, Tag] = normal(1.0)
factor all [i in T, j in T] (a: y[i], b: y[j]) = w
factor both [i in T] (a: y[i], b: z) = w
factor own [i in T] (y[i]) = u[i]
""".replace("param v : real[T, Tag] = normal(1.0)\n", ""),
    "black box and sequence": """
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
net tail = pooled(hidden: 4)
net decoder = lstm_decoder(hidden: 4)
factor own [t in T] (y[t]) = u[t]
score whole (y) = tail(soft(y), u)
sequence y { step: decoder }
""",
}


@pytest.mark.parametrize("name", SPECS)
def test_each_cell_given_all_others(name: str) -> None:
    model = em.compile(SPECS[name], seed=1).double()
    generator = torch.Generator().manual_seed(0)
    shape = (3, 3, 2, 2) if name == "grid" else (3, 4, 3)
    u = torch.randn(shape, generator=generator, dtype=torch.float64)
    lengths = {"T": torch.tensor([shape[1], 2, 1])}
    drawn = model.infer(u=u, lengths=lengths, using="enumerate").sample(1, generator)
    gold = {key: one[0] for key, one in drawn.labels.items()}
    wanted = torch.zeros(3, dtype=torch.float64)
    posterior = model.infer(u=u, lengths=lengths, using="enumerate")
    for key, known in posterior.conditionals(**gold).items():
        labels = gold[key]
        picked = known.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        cells = torch.where(labels >= 0, -picked, 0)
        wanted += cells.flatten(1).sum(1) if cells.dim() > 1 else cells
    found = model.loss(u=u, lengths=lengths, objective="pseudo_likelihood", using="enumerate", reduction="none", **gold)
    assert torch.allclose(found, wanted)
    assert (found >= 0).all()


def test_a_forbidden_label_costs_everything() -> None:
    model = em.compile(SPECS["chain"], seed=1)
    loss = model.loss(
        u=torch.zeros(1, 2, 3), y=torch.tensor([[0, 2]]), objective="pseudo_likelihood", using="enumerate"
    )
    assert loss.isposinf()


def test_a_part_of_an_answer_is_not_enough() -> None:
    model = em.compile(SPECS["all pairs, cells with themselves"], seed=1)
    with pytest.raises(em.EnergyError, match="needs a full answer, and `z` is missing"):
        model.loss(u=torch.zeros(1, 2, 3), y=torch.zeros(1, 2, dtype=torch.long), objective="pseudo_likelihood")

"""The score of relaxed labels: expectations of tables, networks at vectors, prices of what is forbidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import EnergyError

torch.set_num_threads(1)

MIXED = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
net whole = pooled(hidden: 3, activation: tanh)
net next = lstm_decoder(hidden: 3, embed: 2)
chain y { unary: u, pair: W }
score tail (y) = whole(soft(y))
sequence y { step: next, normalize: local }
"""
CHAIN = """\
labels Tag = {A, B}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
chain y { unary: u, pair: W }
"""
LINKED = """\
labels Tag = {A, B}
dim N, E
input link : edge(N, N)[E]
output y : Tag[N]
param W : real[from: Tag, to: Tag] = normal(1)
factor pair [e = (i, j) in link] (from: y[i], to: y[j]) = W
"""


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def test_gradients_of_every_kind_of_term() -> None:
    model = em.compile(MIXED, seed=0).double()
    u, p = torch.randn(2, 4, 3, dtype=torch.float64), vectors(2, 4, 3)
    lengths, mask = torch.tensor([4, 3]), torch.tensor([[True, False, True, True], [True, True, True, False]])

    def score(u: Tensor, p: Tensor, W: Tensor) -> Tensor:
        given = {"u": u, "y": p, "lengths": lengths, "mask": mask}
        return torch.func.functional_call(_Soft(model), {"model.W": W}, (), given)

    weights = model._parameters["W"]
    assert weights is not None
    assert torch.autograd.gradcheck(score, (u.requires_grad_(), p.requires_grad_(), weights.detach().requires_grad_()))


class _Soft(torch.nn.Module):
    def __init__(self, model: em.EnergyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Tensor) -> Tensor:
        return self.model.soft_score(**given)


def test_copies_are_answers_of_their_own() -> None:
    model = em.compile(MIXED, seed=0).double()
    problem = model.problem(u=torch.randn(2, 4, 3, dtype=torch.float64), lengths=torch.tensor([4, 2]))
    cells = problem.env.batch.cells("y", ("T",))
    assert cells is not None
    p = vectors(6, 4, 3) * cells.repeat_interleave(3, 0).unsqueeze(-1)
    together = problem.soft_score({"y": p}, 3).reshape(2, 3)
    for copy in range(3):
        torch.testing.assert_close(problem.soft_score({"y": p[copy::3]}), together[:, copy])


def test_a_cell_that_a_factor_holds_twice_counts_once() -> None:
    model = em.compile(LINKED, seed=0).double()
    p, W = vectors(1, 2, 2), model._parameters["W"]
    assert W is not None
    found = model.soft_score(link=torch.tensor([[[0, 0], [0, 1]]]), y=p)
    wanted = (p[0, 0] * W.diagonal()).sum() + p[0, 0] @ W @ p[0, 1]
    torch.testing.assert_close(found[0], wanted)


def test_forbidden_labels_are_priced_or_end_it() -> None:
    model = em.compile(CHAIN + "forbid [t in T-1] y[t] = A and y[t+1] = B\n", seed=0).double()
    u, p = torch.zeros(1, 3, 2, dtype=torch.float64), vectors(1, 3, 2)
    free = em.compile(CHAIN, seed=0).double().soft_score(u=u, y=p)
    mass = (p[0, :-1, 0] * p[0, 1:, 1]).sum()
    torch.testing.assert_close(model.soft_score(u=u, y=p, penalty=3.0)[0], free[0] - 3 * mass)
    assert model.soft_score(u=u, y=p).isneginf().all()
    sure = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(model.soft_score(u=u, y=sure), model.score(u=u, y=sure.argmax(-1)))


@pytest.mark.parametrize("penalty", [None, 5.0])
def test_infinities_and_padding_leave_no_nan(penalty: float | None) -> None:
    model = em.compile(CHAIN, seed=0).double()
    u = torch.randn(2, 4, 2, dtype=torch.float64)
    u[0, 1, 0] = float("-inf")
    u[1, 3] = float("nan")
    p = vectors(2, 4, 2)
    p[0, 1] = torch.tensor([0.0, 1.0])
    p.requires_grad_()
    score = model.soft_score(u=u.requires_grad_(), y=p, lengths=torch.tensor([4, 3]), penalty=penalty)
    assert score.isfinite().all()
    slopes = torch.autograd.grad(score.sum(), (p, u, *model.parameters()))
    assert all(bool(one.isfinite().all()) for one in slopes)
    if penalty is not None:
        assert slopes[0][0, 1, 0] < slopes[0][0, 1, 1]


def test_single_precision() -> None:
    model = em.compile(MIXED, seed=0)
    u, p = torch.randn(2, 4, 3), vectors(2, 4, 3)
    found = model.soft_score(u=u, y=p.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), model.double().soft_score(u=u.double(), y=p), rtol=1e-5, atol=1e-5)


def test_wrong_vectors_are_named() -> None:
    model = em.compile(CHAIN, seed=0)
    u = torch.zeros(1, 3, 2)
    with pytest.raises(EnergyError, match="`y`"):
        model.soft_score(u=u)
    with pytest.raises(EnergyError, match="probability for each label"):
        model.soft_score(u=u, y=torch.zeros(1, 3, 2, dtype=torch.long))
    with pytest.raises(EnergyError, match="expected"):
        model.soft_score(u=u, y=torch.zeros(1, 3))
    hard = em.compile(CHAIN + "net f = pooled(hidden: 2)\nscore tail (y) = f(hard(y))\n", seed=0)
    with pytest.raises(EnergyError, match="cannot be relaxed"):
        hard.soft_score(u=u, y=torch.zeros(1, 3, 2))

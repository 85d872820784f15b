"""States that strings share: the same scores and gradients with and without, and one enumeration for equal examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.enumerate.enumeration import Enumeration
from energyml.nets import masked

torch.set_num_threads(1)
SPEC = """
labels S = {{a, b, c}}
dim T
output y : S[T]
net n = masked_blstm(hidden: 6, embed: 4, layers: {layers})
masked y {{ conditionals: n, energy: {energy} }}
"""


def made(layers: int = 1, energy: str = "raw") -> em.EnergyModel:
    return em.compile(SPEC.format(layers=layers, energy=energy), seed=0).double()


def ragged(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 5, (rows,), generator=generator)
    y = torch.randint(3, (rows, 4), generator=generator)
    return y.masked_fill(torch.arange(4) >= lengths.unsqueeze(1), -1), lengths


@pytest.mark.parametrize("layers", [1, 2])
def test_shared_states_change_nothing(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(layers)
    y, lengths = ragged(40)
    mask = torch.ones_like(y, dtype=torch.bool)
    mask[::2, 1] = False  # gaps
    found = []
    for rows in (10**9, 10):
        monkeypatch.setattr(masked, "SHARED_ROWS", rows)
        model.zero_grad()
        plain = model.loss(objective="mlm", y=y, lengths=lengths)
        gaps = model.score(y=y.clamp(min=0).masked_fill(~mask, -1), mask=mask).mean()
        (plain + gaps + model.loss(objective="pseudo_likelihood", y=y, lengths=lengths)).backward()
        found.append([plain.detach(), gaps.detach(), *(one.grad for one in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_is_shared_where_something_is_given() -> None:
    given = em.compile(
        """
        labels S = {a, b}
        dim T
        input x : real[T, 2]
        output y : S[T]
        net n = masked_blstm(hidden: 4, embed: 3)
        masked y { conditionals: n, given: x }
        """,
        seed=0,
    )
    y, x = torch.zeros(2000, 3, dtype=torch.long), torch.randn(2000, 3, 2)
    assert given.score(x=x, y=y).unique().numel() > 1000


def test_examples_of_one_kind_are_enumerated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    y, lengths = ragged(30)
    single = torch.cat([
        model.loss(objective="nll", using="enumerate", y=y[row : row + 1, :n], reduction="none")
        for row, n in enumerate(lengths.tolist())
    ])  # fmt: skip
    numbers = []
    whole = Enumeration.example
    monkeypatch.setattr(Enumeration, "example", lambda self, number: numbers.append(number) or whole(self, number))
    together = model.loss(objective="nll", using="enumerate", y=y, lengths=lengths, reduction="none")
    assert len(numbers) == len(set(lengths.tolist()))
    torch.testing.assert_close(together, single)
    numbers.clear()
    evidence = torch.tensor([[0, -1], [0, -1], [1, -1]])
    posterior = model.infer(using="enumerate", evidence={"y": evidence}, lengths=torch.tensor([2, 2, 2]))
    log_z = posterior.log_partition
    assert len(numbers) == 2
    assert log_z[0] == log_z[1] != log_z[2]


def test_a_partial_answer_is_summed_out_and_an_impossible_one_has_no_probability() -> None:
    model = made()
    posterior = model.infer(using="enumerate", lengths=torch.tensor([2, 2]))
    partial = posterior.log_prob(y=torch.tensor([[0, -1], [1, -1]]))
    each = torch.stack([posterior.log_prob(y=torch.tensor([[0, k], [1, k]])) for k in range(3)])
    torch.testing.assert_close(partial, each.logsumexp(0))
    ruled = model.infer(using="enumerate", evidence={"y": torch.tensor([[0, -1]])}, lengths=torch.tensor([2]))
    assert ruled.log_prob(y=torch.tensor([[1, 1]])).isneginf().all()

"""Chains to try the torch operations on: potentials of every shape, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.unscaled import taped_log_partition

NINF = float("-inf")
# What torch says of itself when its forward derivatives and its compiler are loaded.
LOADING = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
SIZES = [(1, 2, 1), (3, 2, 3), (5, 4, 3), (4, 9, 8), (2, 30, 5), (3, 1, 4), (2, 70, 3), (2, 0, 3), (0, 4, 2)]
KINDS = ["shared", "example", "step", "both"]


def draw(
    batch: int, size: int, labels: int, kind: str = "shared", *, scale: float = 1.0, forbidden: float = 0.0,
    ragged: bool = False, dtype: torch.dtype = torch.float64, seed: int = 0,
) -> Potentials:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    examples = max(1, batch) if kind in ("example", "both") else 1
    positions = max(1, size - 1) if kind in ("step", "both") else 1
    scores = scale * torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
    steps = scale * torch.randn(examples, positions, labels, labels, generator=generator, dtype=torch.float64)
    if forbidden:
        scores[torch.rand(scores.shape, generator=generator) < forbidden] = NINF
        steps[torch.rand(steps.shape, generator=generator) < forbidden] = NINF
    count = torch.randint(0, size + 1, (batch,), generator=generator) if ragged else None
    if count is not None and not batch:
        count = None
    return Potentials(scores.to(dtype), steps.to(dtype), count)


def tracked(potentials: Potentials) -> Potentials:
    scores, steps = (one.detach().clone().requires_grad_() for one in (potentials.scores, potentials.steps))
    return Potentials(scores, steps, potentials.count)


def double(potentials: Potentials) -> Potentials:
    return Potentials(potentials.scores.double(), potentials.steps.double(), potentials.count)


def gradients(potentials: Potentials, value: Callable[[Potentials], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-partitions, and the gradients of their sum, each weighted by another number."""
    potentials = tracked(potentials)
    found = value(potentials)
    weights = torch.arange(1, len(found) + 1, dtype=found.dtype)
    total = (found.masked_fill(found.isneginf(), 0) * weights).sum()
    wanted = (potentials.scores, potentials.steps)
    by = torch.autograd.grad(total, wanted, materialize_grads=True, allow_unused=True)
    return found.detach(), by[0], by[1]


def reference(potentials: Potentials) -> tuple[Tensor, Tensor, Tensor]:
    def value(one: Potentials) -> Tensor:
        if one.scores.shape[1] == 0:
            return one.scores.sum((1, 2)) + 0 * one.steps.sum().nan_to_num(0, 0, 0)
        return taped_log_partition(one.scores, one.steps, one.exists)

    return gradients(double(potentials), value)


def same(found: Tensor, wanted: Tensor, error: float, relative: float = 1e-6) -> None:
    assert not found.isnan().any()
    assert torch.equal(found.isneginf(), wanted.isneginf())
    finite = wanted.isfinite()
    torch.testing.assert_close(found[finite].double(), wanted[finite].double(), atol=error, rtol=relative)


def answers(potentials: Potentials) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each example all its answers [n, T], cells that do not exist being 0, and their scores [n]."""
    batch, size, labels = potentials.scores.shape
    for b in range(batch):
        length = size if potentials.count is None else int(potentials.count[b])
        every = torch.zeros(labels**length, size, dtype=torch.long)
        if length:
            every[:, :length] = torch.cartesian_prod(*[torch.arange(labels)] * length).reshape(-1, length)
        table = potentials.steps.expand(batch, size - 1, labels, labels)[b] if size > 1 else None
        total = torch.zeros(len(every), dtype=torch.float64)
        for t in range(length):
            total = total + potentials.scores[b, t, every[:, t]].double()
            if t:
                assert table is not None
                total = total + table[t - 1, every[:, t - 1], every[:, t]].double()
        yield b, every, total


def cases() -> list[tuple[Potentials, str]]:
    return [
        (draw(2, 4, 3, kind, ragged=ragged, seed=number), f"{kind}-{ragged}")
        for number, kind in enumerate(KINDS)
        for ragged in (False, True)
    ]


CASES = pytest.mark.parametrize("case", [one for one, _ in cases()], ids=[name for _, name in cases()])

"""Losses in half precision: scores of answers are added up in float32, and what they differ by is rounded once.

The truth is the same loss in float64 of the same rounded scores.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.objectives.sequences import prefix_scores
from tests.objectives.models import SPECS

DTYPES = [torch.bfloat16, torch.float16]
# Sixteen cells: the shares of a normalised cost are numbers of every type.
SIZE = 16
LINKS = torch.tensor([[[one, one + 1] for one in range(SIZE - 1)]]).expand(2, -1, -1)
LOSSES = ["nll", "ssvm", "softmax_margin", "nce", "minimum_risk(count: 6)"]


def both(name: str, dtype: torch.dtype) -> tuple[em.EnergyModel, em.EnergyModel, dict[str, Tensor]]:
    """A model in half precision, the same in float64, and inputs whose sums have more digits than half precision."""
    generator = torch.Generator().manual_seed(0)
    half = em.compile(SPECS[name], seed=0).to(dtype)
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.copy_(5 + torch.randn(parameter.shape, generator=generator))
    wide = em.compile(SPECS[name], seed=0).double()
    wide.load_state_dict(half.state_dict())
    given = {"u": (20 + 2 * torch.randn(2, SIZE, 3, generator=generator)).to(dtype)}
    return half, wide, {**given, "link": LINKS} if name == "tree" else given


def gold(seed: int = 1) -> Tensor:
    labels = torch.randint(0, 3, (2, SIZE), generator=torch.Generator().manual_seed(seed))
    labels[:, 0] = 0
    return labels


def in_double(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.double() if one.is_floating_point() else one for name, one in given.items()}


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.detach().double(), wanted.detach(), rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "tracked"])
@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize("name", SPECS)
def test_losses_are_rounded_once(name: str, objective: str, grad: bool, dtype: torch.dtype) -> None:
    half, wide, given = both(name, dtype)
    with torch.set_grad_enabled(grad):
        torch.manual_seed(0)
        found = half.loss(objective=objective, using="exact", reduction="none", y=gold(), **given)
        torch.manual_seed(0)
        wanted = wide.loss(objective=objective, using="exact", reduction="none", y=gold(), **in_double(given))
    close(found, wanted, dtype)
    if grad:
        found.sum().backward()
        assert all(one.grad is not None and one.grad.dtype == dtype for one in half.parameters())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", SPECS)
def test_sets_of_labels(name: str, dtype: torch.dtype) -> None:
    """Two log-partitions that are large beside what they differ by."""
    half, wide, given = both(name, dtype)
    given["u"] = given["u"] + 1000
    allowed = torch.nn.functional.one_hot(gold(), 3).bool() | torch.nn.functional.one_hot(gold(2), 3).bool()
    found = half.loss(objective="nll", using="exact", reduction="none", y=allowed, **given)
    wanted = wide.loss(objective="nll", using="exact", reduction="none", y=allowed, **in_double(given))
    assert found.dtype == dtype
    rtol = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.double(), wanted, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", SPECS)
def test_scores_of_answers_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    half, wide, given = both(name, dtype)
    found, wanted = half.score(y=gold(), **given), wide.score(y=gold(), **in_double(given))
    assert torch.equal(found, wanted.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
def test_scores_of_prefixes_are_not_rounded(dtype: torch.dtype) -> None:
    """They are about to be subtracted from each other; a step adds up its own tables in half precision."""
    half, wide, given = both("chain", dtype)
    labels = gold()
    found = prefix_scores(half.infer(**given).problem.steps(), labels.unsqueeze(1), torch.ones(2, 1, SIZE).bool())
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found[:, 0].double(), wide.score(y=labels, **in_double(given)), rtol=torch.finfo(dtype).eps / 8, atol=0
    )

"""Memory of large tensors that is used again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from energyml.native import reused


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces count as large from a page on, and none is left behind."""
    monkeypatch.setattr(reused, "LARGE", 4096)
    reused._free.clear()
    yield
    reused._free.clear()


def test_freed_memory_comes_back() -> None:
    like = torch.empty(3, 5, 700, dtype=torch.float64).transpose(0, 1)
    first = reused.empty_like(like)
    assert first.shape == like.shape and first.dtype == like.dtype and first.is_contiguous()
    first.fill_(1)
    place = first.data_ptr()
    del first
    second = reused.empty_like(like)
    assert second.data_ptr() == place
    second.fill_(2)
    assert bool((second == 2).all())


def test_memory_that_somebody_holds_is_left_alone() -> None:
    like = torch.empty(5000)
    first = reused.empty_like(like).fill_(1)
    part = first[10:20]
    del first
    second = reused.empty_like(like).fill_(2)
    assert part.tolist() == [1] * 10
    assert bool((second == 2).all())


def test_another_size_gets_memory_of_its_own() -> None:
    small = reused.empty_like(torch.empty(5000))
    del small
    large = reused.empty_like(torch.empty(6000)).fill_(3)
    assert bool((large == 3).all())
    assert not reused._free


def test_small_tensors_are_those_of_torch() -> None:
    one = reused.empty_like(torch.empty(4))
    assert one.shape == (4,)
    del one
    assert not reused._free

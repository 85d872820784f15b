"""Recursions of torch operations leave small steps to one thread, hand out large ones, and keep torch's setting."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from energyml.backends.exact import meeting, threads
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best, chain_log_partition
from tests.exact.torch_chains import NINF, draw


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _noted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return noted


def test_small_steps_have_one_thread_and_others_all_of_them() -> None:
    with threads.for_small_steps(torch.zeros(4, 3, 5)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads.for_small_steps(torch.zeros(1, 1, 1).expand(32, 2, 500)):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["shared", "example"])
@pytest.mark.parametrize("shape", [(5, 7, 9), (3, 8, 40), (4, 2, 33), (6, 3, 1), (1, 30, 6)])
def test_steps_for_all_threads_give_the_best_answers_of_one(
    shape: tuple[int, int, int], kind: str, forbidden: float, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "FEW", 0)  # sums are not held
    monkeypatch.setattr(meeting, "SHARED", 4 * shape[2] ** 2)  # for two or three chains
    case = draw(*shape, kind, forbidden=forbidden, ragged=ragged, seed=sum(shape))
    asked: list[Any] = []
    monkeypatch.setattr(meeting, "_maxima_by_rows", _noted(meeting._maxima_by_rows, asked))
    labels, score = chain_best(case, 1)
    assert not asked
    monkeypatch.setattr(threads, "SPREAD_STEP", 0)
    found, best = chain_best(case, 1)
    assert asked
    torch.testing.assert_close(best, score)
    answered = score[:, 0] > NINF
    exists = case.exists if case.exists is not None else torch.ones(shape[:2], dtype=torch.bool)
    assert torch.equal((found == labels)[:, 0] | ~exists | ~answered.unsqueeze(1), torch.ones_like(exists))


def test_steps_are_spread_where_there_is_enough_of_them() -> None:
    scores = torch.zeros(1, 1, 1).expand(20, 2, 100)
    assert threads.worth_spreading(scores, 2 * 20 * 100**2)
    assert not threads.worth_spreading(scores, 100)
    torch.set_num_threads(1)
    assert not threads.worth_spreading(scores, 2 * 20 * 100**2)


def test_the_setting_survives_errors() -> None:
    with pytest.raises(ValueError, match="on the way"), threads.one_thread():
        raise ValueError("on the way")
    assert torch.get_num_threads() == 2


def test_answers_and_gradients_leave_the_setting() -> None:
    unary, pair = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    potentials = Potentials(unary, pair[None, None], torch.tensor([5, 1, 3]))
    chain_log_partition(potentials).sum().backward()
    chain_best(potentials, 1)
    assert torch.get_num_threads() == 2


def test_transforms_and_compiled_code_leave_threads_alone() -> None:
    def width(scores: torch.Tensor) -> torch.Tensor:
        with threads.for_small_steps(scores):
            return scores + torch.get_num_threads()

    assert torch.equal(torch.func.vmap(width)(torch.zeros(2, 3, 4, 5)), torch.full((2, 3, 4, 5), 2.0))

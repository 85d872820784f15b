"""Recursions of torch operations leave small steps to one thread, and torch's setting as it was."""

from collections.abc import Iterator

import pytest
import torch

from energyml.backends.exact import threads
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best, chain_log_partition


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_steps_have_one_thread_and_others_all_of_them() -> None:
    with threads.for_small_steps(torch.zeros(4, 3, 5)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads.for_small_steps(torch.zeros(1, 1, 1).expand(32, 2, 500)):
        assert torch.get_num_threads() == 2


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

"""`em.functional`: the same answers as a compiled chain, from scores alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml import native

torch.set_num_threads(1)

SPEC = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
input v : real[T-1, from: L, to: L]
output y : L[T]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = v[t]
"""


def scores(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Unaries, pair scores as given to the functions, and the same for every example and step."""
    generator = torch.Generator().manual_seed(len(kind))
    shape = {"shared": (3, 3), "positions": (4, 3, 3), "examples": (2, 1, 3, 3), "both": (2, 4, 3, 3)}[kind]
    pair = torch.randn(shape, generator=generator, dtype=torch.float64)
    unary = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    unary[0, 1, 2] = float("-inf")
    return unary, pair, (pair if pair.dim() == 4 else pair[(None,) * (4 - pair.dim())]).expand(2, 4, 3, 3)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["shared", "positions", "examples", "both"])
@pytest.mark.parametrize("lengths", [None, (5, 2), (0, 1)])
def test_the_same_answers(
    kind: str, lengths: tuple[int, int] | None, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr("energyml.native.chain.kernels", None)
    unary, pair, whole = scores(kind)
    count = None if lengths is None else torch.tensor(lengths)
    truth = em.compile(SPEC).double().infer(u=unary, v=whole, lengths=count, using="enumerate")
    torch.testing.assert_close(em.functional.chain_log_partition(unary, pair, count), truth.log_partition)
    torch.testing.assert_close(em.functional.chain_marginals(unary, pair, count), truth.marginals["y"])
    labels, best = em.functional.chain_best(unary, pair, count)
    assert torch.equal(labels, truth.map()["y"])
    torch.testing.assert_close(best, truth.map().score)
    for answer in (labels.clamp(min=0), torch.tensor([[0, -1, 1, 2, 0], [1, 1, -1, -1, 2]])):
        found = em.functional.chain_log_prob(unary, pair, answer, count)
        torch.testing.assert_close(found, truth.log_prob(y=answer))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["shared", "positions", "examples", "both"])
@pytest.mark.parametrize("labels", [[[0, 1, 1, 2, 0], [1, 1, 0, 2, 2]], [[0, 2, 1, 2, 0], [1, 1, 0, 2, 2]],
                                    [[0, -1, 1, 2, 0], [1, 1, -1, -1, 2]]],
                         ids=["possible", "forbidden", "open"])  # fmt: skip
def test_gradients_without_a_tape_are_those_of_the_tape(
    kind: str, labels: list[list[int]], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr("energyml.native.chain.kernels", None)
    unary, pair, _ = scores(kind)
    answer, count = torch.tensor(labels), torch.tensor([5, 4])
    with torch.no_grad():
        loss, by_unary, by_pair = em.functional.chain_nll_and_grad(unary, pair, answer, count)
    unary.requires_grad_()
    pair.requires_grad_()
    value = em.functional.chain_log_prob(unary, pair, answer, count)
    torch.testing.assert_close(loss, -value.detach())
    slopes = torch.autograd.grad(-value.masked_fill(value.isneginf(), 0).sum(), (unary, pair))
    torch.testing.assert_close((by_unary, by_pair), slopes)


def test_gradients_are_marginals() -> None:
    unary, pair, _ = scores("shared")
    unary.requires_grad_()
    (slope,) = torch.autograd.grad(em.functional.chain_log_partition(unary, pair).sum(), unary)
    torch.testing.assert_close(slope, em.functional.chain_marginals(unary, pair))
    assert torch.autograd.gradcheck(
        lambda u: em.functional.chain_log_prob(u, pair, torch.zeros(2, 5, dtype=torch.long)), unary
    )


@pytest.mark.parametrize("pair", [torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, 3, 3), torch.zeros(5, 1, 3, 3)])
def test_shapes_are_checked(pair: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected unary \[B, T, C\] and pair"):
        em.functional.chain_log_partition(torch.zeros(2, 5, 3), pair)


def test_labels_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected labels \[2, 5\], found \[2, 4\]"):
        em.functional.chain_log_prob(torch.zeros(2, 5, 3), torch.zeros(3, 3), torch.zeros(2, 4, dtype=torch.long))


CALLS = {
    "log_partition": lambda u, p, n: em.functional.chain_log_partition(u, p, n),
    "marginals": lambda u, p, n: em.functional.chain_marginals(u, p, n),
    "best": lambda u, p, n: em.functional.chain_best(u, p, n),
    "log_prob": lambda u, p, n: em.functional.chain_log_prob(u, p, torch.zeros(2, 3, dtype=torch.long), n),
    "nll_and_grad": lambda u, p, n: em.functional.chain_nll_and_grad(u, p, torch.zeros(2, 3, dtype=torch.long), n),
}


@pytest.mark.skipif(native.chains is None, reason="the torch recursion takes lengths beyond the end for the end")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("length", [4, -1, 100_000])
def test_lengths_beyond_the_rows_are_refused(call, length):
    with pytest.raises(ValueError, match=f"lengths must lie between 0 and 3, found {length} at place 1"):
        CALLS[call](torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.tensor([3, length]))


@pytest.mark.parametrize("call", CALLS)
def test_there_is_a_length_for_each_chain(call):
    with pytest.raises(ValueError, match=r"expected lengths \[2\], one for each chain, found \[1\]"):
        CALLS[call](torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.tensor([3]))


@pytest.mark.parametrize("label", [2, -2, 10**8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_that_do_not_exist_are_refused(label, dtype):
    given = torch.zeros(1, 3, 2, dtype=dtype), torch.zeros(2, 2, dtype=dtype)
    labels = torch.tensor([[0, label, 1]])
    for call in (em.functional.chain_log_prob, em.functional.chain_nll_and_grad):
        with pytest.raises(ValueError, match="labels must lie between 0 and 1, or be -1"):
            call(*given, labels)
    behind = torch.tensor([[0, 1, label]])
    assert em.functional.chain_log_prob(*given, behind, torch.tensor([2])).isfinite().all()


ARGUMENTS = {
    "chain_log_partition": ("unary", "pair", "lengths"),
    "chain_log_prob": ("unary", "pair", "labels", "lengths"),
    "chain_nll_and_grad": ("unary", "pair", "labels", "lengths"),
    "chain_marginals": ("unary", "pair", "lengths"),
    "chain_best": ("unary", "pair", "lengths"),
}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize(("name", "wrong"), [(name, one) for name, given in ARGUMENTS.items() for one in given])
def test_what_is_no_tensor_is_refused_by_its_name(
    name: str, wrong: str, tracked: bool, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr("energyml.native.chain.kernels", None)
    for other, shown in ((Tensor.numpy, "numpy.ndarray"), (Tensor.tolist, "list")):
        given = {
            "unary": torch.zeros(2, 4, 3),
            "pair": torch.zeros(3, 3),
            "labels": torch.zeros(2, 4, dtype=torch.long),
        }
        given = {**given, "lengths": torch.tensor([4, 2])}
        if tracked:
            given = {key: one.requires_grad_(one.is_floating_point()) for key, one in given.items()}
        given[wrong] = other(given[wrong].detach())
        expected = rf"expected a torch\.Tensor for `{wrong}`, found {shown}; pass `torch\.as_tensor\({wrong}\)`"
        with pytest.raises(TypeError, match=expected):
            getattr(em.functional, name)(**{key: given[key] for key in ARGUMENTS[name]})

"""Log-probabilities of graphs in float32 where scores are large: what two large numbers differ by is right."""

from __future__ import annotations

import pytest
import torch

import energyml as em
from tests.exact.test_again import CYCLE, SPEC, STAR


@pytest.mark.parametrize("edges", [CYCLE, STAR])
@pytest.mark.parametrize("magnitude", [1e4, 1e6])
def test_log_probabilities_beside_enumeration(edges: list[list[int]], magnitude: float) -> None:
    """Every answer has a large score, and differs little from the others."""
    model = em.compile(SPEC).fix(link=torch.tensor([edges]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            # Multiples of 1/8 are numbers of float32 up to two millions.
            parameter.copy_(magnitude + torch.randint(-8, 9, parameter.shape, generator=generator) / 8)
        model.u[3, 1] = -torch.inf
    truth = em.compile(SPEC).double().fix(link=torch.tensor([edges]))
    truth.load_state_dict(model.state_dict())
    answers = torch.randint(0, 3, (6, 5), generator=generator)
    answers[2:4, 1::2] = -1
    answers[5, 3] = 1
    for labels in answers.unsqueeze(1):
        wanted = truth.infer(using="enumerate").log_prob(y=labels)
        for tracked in (False, True):
            with torch.set_grad_enabled(tracked):
                found = model.infer(using="exact").log_prob(y=labels)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    found = model.infer(using="exact").log_prob(y=answers[:1])
    slopes = torch.autograd.grad(found.sum(), list(model.parameters()))
    expected = torch.autograd.grad(
        truth.infer(using="enumerate").log_prob(y=answers[:1]).sum(), list(truth.parameters())
    )
    for one, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "exact(engine: torch_struct)"])
def test_shared_transitions_that_log_space_has_to_serve(using: str) -> None:
    """A large mask and -inf in one table that all steps of all examples share, some of them without cells."""
    model = em.compile(
        "labels Tag = {A, B}\ndim T\ninput u : real[T]\noutput y : Tag[T]\nparam w : real[from: Tag, to: Tag]\n"
        "chain y { pair: w }\n"
    ).double()
    with torch.no_grad():
        model.w.copy_(torch.tensor([[0.8, -1e8], [-torch.inf, -0.3]]))
    given = {"u": torch.zeros(3, 3), "lengths": torch.tensor([0, 0, 2])}
    found, wanted = (model.infer(using=backend, **given) for backend in (using, "enumerate"))
    torch.testing.assert_close(found.log_partition, wanted.log_partition)
    torch.testing.assert_close(found.marginals["y"], wanted.marginals["y"])
    assert (found.sample(4).labels["y"][:, 2, :2] >= 0).all()

"""The order in which one posterior is asked, and whether gradients were on before, change nothing."""

from itertools import permutations

import pytest
import torch

import energyml as em

SPEC = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y { unary: u, pair: W }
infer exact
"""
QUERIES = ("map", "marginals", "factor_marginals", "entropy")


def value(posterior: em.Posterior, query: str) -> torch.Tensor:
    """One number that depends on everything in an answer."""
    if query == "map":
        return posterior.map().score.sum()
    found = getattr(posterior, query)
    if isinstance(found, torch.Tensor):
        return found.sum()
    total = torch.zeros((), dtype=torch.float64)
    for one in found.values():
        total = total + (one * torch.arange(1, one.numel() + 1).reshape(one.shape)).sum()
    return total


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "exact(engine: torch_struct)", "enumerate"])
@pytest.mark.parametrize("gaps", [False, True])
def test_any_order(using: str, gaps: bool) -> None:
    model = em.compile(SPEC, seed=0).double()
    scores = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = torch.tensor([[True, False, True, True], [False, True, True, False]]) if gaps else None

    def ask(order: tuple[str, ...], before: tuple[str, ...] = ()) -> dict[str, list[torch.Tensor]]:
        posterior = model.infer(u=scores, mask=mask, using=using)
        with torch.no_grad():
            for query in before:
                value(posterior, query)
        found = {}
        for query in order:
            number = value(posterior, query)
            gradients = torch.autograd.grad(number, (scores, model.W), retain_graph=True, materialize_grads=True)
            found[query] = [number.detach(), *gradients]
        return found

    alone = {query: ask((query,))[query] for query in QUERIES}
    for order in permutations(QUERIES):
        for before in ((), QUERIES):
            for query, found in ask(order, before).items():
                torch.testing.assert_close(found, alone[query])

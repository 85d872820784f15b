"""Models and functions under `torch.compile`: the same answers."""

from __future__ import annotations

import pytest
import torch

import energyml as em

torch.set_num_threads(1)

HEAD = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact(engine: torch)
"""
SKIP = HEAD + "factor skip [t in T-2] (from: y[t], to: y[t+2]) = W\n"


def draw() -> torch.Tensor:
    return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
@pytest.mark.parametrize("spec", [HEAD, SKIP], ids=["order 1", "order 2"])
def test_models_compile(spec: str) -> None:
    model, scores = em.compile(spec, seed=0), draw().requires_grad_()

    def asked(u: torch.Tensor) -> torch.Tensor:
        posterior = model.infer(u=u)
        return posterior.marginals["y"].square().sum() + posterior.entropy.sum() + posterior.log_partition.sum()

    found, wanted = torch.compile(asked, backend="aot_eager")(scores), asked(scores)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(*(torch.autograd.grad(value, (scores, model.W)) for value in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)


FUNCTIONS = {
    "log_partition": lambda u, w, n: em.functional.chain_log_partition(u, w, n),
    "log_prob": lambda u, w, n: em.functional.chain_log_prob(u, w, torch.tensor([[0, 1, 2, 0], [2, -1, 0, 1]]), n),
    "marginals": lambda u, w, n: em.functional.chain_marginals(u, w, n),
    "best": lambda u, w, n: em.functional.chain_best(u, w, n)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compile_as_one_graph(name: str) -> None:
    given = draw(), draw()[0, :3], torch.tensor([4, 3])
    found = torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True)(*given)
    torch.testing.assert_close(found, FUNCTIONS[name](*given))

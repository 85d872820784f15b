"""Every query of every structure under the transforms of `torch.func`: the derivatives that `torch.autograd` gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, vmap

import energyml as em
from energyml.diagnostics import QueryRefused

torch.set_num_threads(1)
# Torch loads its rules for forward differentiation when they are first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

CHAIN = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact
"""
ORDER_TWO = (
    CHAIN
    + """\
param V : real[a: L, b: L, c: L] = normal(1.0)
factor three [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = V
"""
)
EDGES = """\
labels L = {a, b}
dim N, E
input link : edge(N, N)[E]
input u : real[N, L]
output y : L[N]
param W : real[a: L, b: L] = normal(1.0)
factor own [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = W
infer exact
"""
GRID = """\
labels L = {a, b}
dim H, W
input u : real[H, W, L]
output y : L[H, W]
param J : real[a: L, b: L] = normal(1.0)
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor down [i in H-1, j in W] (a: y[i, j], b: y[i+1, j]) = J
factor right [i in H, j in W-1] (a: y[i, j], b: y[i, j+1]) = J
infer exact
"""
TWO = """\
labels L = {a, b}
labels M = {p, q, r}
dim T
input u : real[T, L]
output y : L[T]
output z : M[T]
param W : real[from: L, to: L] = normal(1.0)
param V : real[l: L, m: M] = normal(1.0)
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
factor cross [t in T] (l: y[t], m: z[t]) = V
infer exact
"""
TREE_EDGES, LOOP_EDGES = torch.tensor([[0, 1], [1, 2], [1, 3]]), torch.tensor([[0, 1], [1, 2], [2, 0], [3, 0]])
STRUCTURES: dict[str, tuple[str, tuple[int, ...], Tensor | None]] = {
    "chain": (CHAIN, (3, 3), None),
    "order 2": (ORDER_TWO, (4, 3), None),
    "tree": (EDGES, (4, 2), TREE_EDGES),
    "cycle": (EDGES, (4, 2), LOOP_EDGES),
    "grid": (GRID, (2, 2, 2), None),
    "two variables": (TWO, (3, 2), None),
    "latent": (TWO.replace("output z", "latent z"), (3, 2), None),
}
MIXTURES = torch.randn(4, 200, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Asked = Callable[[Tensor], Tensor]


@cache
def models(name: str) -> tuple[em.EnergyModel, em.EnergyModel]:
    text = STRUCTURES[name][0]
    return em.compile(text, seed=0).double(), em.compile(text, seed=1).double()


def scores(name: str, count: int = 2, forbidden: bool = True) -> Tensor:
    """[count, *dims, labels], with a score of -inf in each example."""
    models(name)  # whose parameters are drawn, which `vmap` would refuse
    made = torch.randn(count, *STRUCTURES[name][1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if forbidden:
        made.view(count, -1, made.shape[-1])[:, 1, 0] = float("-inf")
    return made


def posterior(name: str, u: Tensor, second: bool = False) -> em.Posterior:
    """Of a batch, or of one example without a batch axis."""
    link = STRUCTURES[name][2]
    u = u if u.dim() > len(STRUCTURES[name][1]) else u[None]
    edges = {} if link is None else {"link": link.expand(u.shape[0], -1, -1)}
    return models(name)[second].infer(u=u, **edges)


def answers(name: str, one: em.Posterior) -> dict[str, Tensor]:
    return {
        v.name: torch.ones(1, *STRUCTURES[name][1][:-1], dtype=torch.long)
        for v in one.problem.graph.discrete
        if v.kind == "output"
    }


def everything(name: str, u: Tensor) -> Tensor:
    """All that is differentiable, of one example, in four random mixtures."""
    one = posterior(name, u)
    known = answers(name, one)
    partial = {key: label.index_fill(1, torch.tensor([0]), -1) for key, label in known.items()}
    costs = {key: torch.ones(*label.shape, one.problem.label_count(key)).double() for key, label in known.items()}
    values = torch.linspace(0, 1, u.shape[-1], dtype=torch.float64)
    found = [
        one.log_partition,
        one.entropy,
        *one.marginals.values(),
        *one.factor_marginals.values(),
        one.expectation({"y": values.reshape(*([1] * u.dim()), -1)}),
        one.log_prob(**known),
        one.log_prob(**partial),
        one.log_prob_with_cost(known, costs),
        one.map().score,
        one.n_best(2).score,
        one.max_with_cost(**costs).score,
        *(best.masked_fill(best.isneginf(), 0) for best in one.max_marginals.values()),
    ]
    if name != "latent":
        other = posterior(name, u * 0.5, second=True)
        found += [one.cross_entropy(other), one.kl(other)]
    flat = torch.cat([part.flatten() for part in found])
    return MIXTURES[:, : len(flat)] @ flat


def autograd_jacobian(asked: Asked, u: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(asked, u)


@pytest.mark.parametrize("name", STRUCTURES)
def test_jacobians(name: str) -> None:
    def asked(u: Tensor) -> Tensor:
        return everything(name, u)

    u = scores(name)
    wanted = torch.stack([autograd_jacobian(asked, one) for one in u])
    assert wanted.isfinite().all()
    torch.testing.assert_close(jacrev(asked)(u[0]), wanted[0])
    torch.testing.assert_close(jacfwd(asked)(u[0]), wanted[0])
    torch.testing.assert_close(vmap(jacrev(asked))(u), wanted)
    torch.testing.assert_close(vmap(asked)(u), torch.stack([asked(one) for one in u]).detach())


@pytest.mark.parametrize("name", STRUCTURES)
def test_gradients_of_sums_over_vmap_and_directions(name: str) -> None:
    u = scores(name)
    inner = torch.zeros_like(u).requires_grad_()  # -inf plus a number is -inf

    def total(added: Tensor) -> Tensor:
        return vmap(lambda one: everything(name, one))(u + added).square().sum()

    wanted = torch.autograd.grad(sum(everything(name, one).square().sum() for one in u + inner), inner)[0]
    torch.testing.assert_close(grad(total)(torch.zeros_like(u)), wanted)
    along = torch.randn(u[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with forward_ad.dual_level():
        moved = everything(name, forward_ad.make_dual(u[0], along))
        tangent = forward_ad.unpack_dual(moved).tangent
    jacobian = autograd_jacobian(lambda one: everything(name, one), u[0])
    torch.testing.assert_close(tangent, jacobian.flatten(1) @ along.flatten())


@pytest.mark.parametrize("name", STRUCTURES)
def test_second_derivatives(name: str) -> None:
    u = scores(name, 1)[0]

    def total(one: Tensor) -> Tensor:
        asked = posterior(name, one)
        return asked.entropy.sum() + sum(part.square().sum() for part in asked.factor_marginals.values())

    curve = jacfwd(grad(total))(u)
    assert curve.isfinite().all()
    torch.testing.assert_close(curve, torch.autograd.functional.hessian(total, u))
    torch.testing.assert_close(jacrev(grad(total))(u), curve)


@pytest.mark.parametrize("name", STRUCTURES)
def test_second_derivatives_of_a_function_of_the_log_partition(name: str) -> None:
    """The weight of the gradient depends on the scores as well: the Hessian of log Z squared."""
    u = scores(name, 1, forbidden=False)[0]

    def total(one: Tensor) -> Tensor:
        return posterior(name, one).log_partition.square().sum()

    torch.testing.assert_close(torch.autograd.functional.hessian(total, u), jacfwd(grad(total))(u))


@pytest.mark.parametrize("ruled_out", ["one label", "every label"])
@pytest.mark.parametrize("name", [name for name in STRUCTURES if name != "latent"])
def test_divergence_from_a_model_that_rules_out_what_the_other_does_not(name: str, ruled_out: str) -> None:
    """The first example's is inf, with zero gradients to second order; the second's is what it would be alone."""
    u, theirs = (scores(name, forbidden=False).requires_grad_() for _ in range(2))
    gone = torch.zeros_like(theirs, dtype=torch.bool)
    gone.view(2, -1, u.shape[-1])[0, 1, : 1 if ruled_out == "one label" else None] = True

    def asked(mine: Tensor, other: Tensor) -> Tensor:
        q = posterior(name, other.masked_fill(gone, float("-inf")), second=True)
        return torch.stack([posterior(name, mine).cross_entropy(q), posterior(name, mine).kl(q)])

    found = asked(u, theirs)
    assert found[:, 0].isposinf().all() and found[:, 1].isfinite().all()
    slopes = torch.autograd.grad(found.sum(), (u, theirs), create_graph=True)
    curves = torch.autograd.grad(sum(one.square().sum() for one in slopes), (u, theirs))
    for one in (*slopes, *curves):
        assert one.isfinite().all() and not one[0].any() and one[1].any()
    assert torch.autograd.gradgradcheck(lambda *pair: asked(*pair)[:, 1], (u, theirs), fast_mode=True)


@pytest.mark.parametrize("name", STRUCTURES)
def test_an_ensemble_of_parameters(name: str) -> None:
    model, u = models(name)[0], scores(name, 1)

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return everything(name, u[0])

    def asked(values: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(Bound(), {f"model.{key}": one for key, one in values.items()}, ())
        return found

    ensemble = {key: torch.stack([one.detach(), one.detach() * 0.3]) for key, one in model.named_parameters()}
    singles = [{key: one[number] for key, one in ensemble.items()} for number in range(2)]
    torch.testing.assert_close(vmap(asked)(ensemble), torch.stack([asked(one) for one in singles]).detach())


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_gradients_of_each_example(name: str, objective: str) -> None:
    """Labels are mapped over as well; those of unknown cells are -1."""
    model, link, u = models(name)[0], STRUCTURES[name][2], scores(name, forbidden=False)
    edges = {} if link is None else {"link": link[None]}
    labels = torch.zeros(u.shape[:-1], dtype=torch.long)
    labels[1] = 1
    if objective == "nll":
        labels.view(2, -1)[1, 0] = -1
    variables = [v.name for v in model.graph.discrete if v.kind == "output"]

    def loss(one: Tensor, gold: Tensor) -> Tensor:
        return model.loss(u=one[None], objective=objective, **dict.fromkeys(variables, gold[None]), **edges)

    each = []
    for one, gold in zip(u, labels, strict=True):
        leaf = one.clone().requires_grad_()
        each.append(torch.autograd.grad(loss(leaf, gold), leaf)[0])
    torch.testing.assert_close(vmap(grad(loss))(u, labels), torch.stack(each))


@pytest.mark.parametrize("name", ["chain", "order 2", "two variables", "latent"])
def test_vmap_over_lengths_and_evidence(name: str) -> None:
    model, u = models(name)[0], scores(name, forbidden=False)
    lengths, known = torch.tensor([u.shape[1], u.shape[1] - 1]), torch.full(u.shape[:2], -1)
    known[1, 0] = 1

    def asked(one: Tensor, length: Tensor, labels: Tensor) -> Tensor:
        found = model.infer(u=one[None], lengths=length[None], evidence={"y": labels[None]})
        return torch.cat([found.log_partition, found.entropy, found.marginals["y"].flatten()])

    wanted = [asked(*each).detach() for each in zip(u, lengths, known, strict=True)]
    torch.testing.assert_close(vmap(asked)(u, lengths, known), torch.stack(wanted))


def test_labels_that_do_not_exist_are_refused_inside_of_transforms() -> None:
    model, u = models("chain")[0], scores("chain")

    def loss(one: Tensor) -> Tensor:
        return model.infer(u=one[None]).log_prob(y=torch.full((1, 3), 7)[:, :]).sum()

    with pytest.raises(em.SpecError, match="E0505"):
        grad(loss)(u[0])


def test_vmap_over_edges_is_refused() -> None:
    model, u = models("tree")[0], scores("tree")
    with pytest.raises(QueryRefused, match="along its batch axis"):
        vmap(lambda one, link: model.infer(u=one[None], link=link[None]).log_partition)(
            u, torch.stack([TREE_EDGES, TREE_EDGES.flip(0)])
        )


def test_constants_of_a_model_outlive_a_transform() -> None:
    """Tables of hard constraints are made once: what a transform wraps is not kept."""
    model = em.compile(ORDER_TWO + "forbid [t in T-1] y[t] = a and y[t+1] = b\n", seed=0).double()
    u = scores("order 2", forbidden=False)
    slope = grad(lambda one: model.infer(u=one[None]).log_partition.sum())(u[0])
    torch.testing.assert_close(model.infer(u=u[:1]).marginals["y"][0].detach(), slope)
    fresh = em.compile(ORDER_TWO + "forbid [t in T-1] y[t] = a and y[t+1] = b\n", seed=0).double()
    assert torch.equal(model.infer(u=u).log_partition, fresh.infer(u=u).log_partition)

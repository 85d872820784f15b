"""Mean field: the order of updates, the bound, constraints, gradients, and answers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import energyml as em
from tests.variational.graphs import (
    CHAIN,
    GRAPH,
    GRID,
    SCHEME,
    TRIPLES,
    chain,
    compiled,
    grid,
    random_graph,
    real,
    tagged,
    triples,
)

torch.set_num_threads(1)

MODELS = {"chain": (CHAIN, chain), "grid": (GRID, grid), "graph": (GRAPH, random_graph), "triples": (TRIPLES, triples)}


SMALL = {
    "chain": lambda seed: chain(seed, batch=1, size=3, scale=0.4),
    "grid": lambda seed: grid(seed, batch=1, sizes=(2, 2), scale=0.3),
    "graph": lambda seed: random_graph(seed, batch=2, nodes=3, edges=3, scale=0.3),
    "triples": lambda seed: triples(seed, batch=1, size=3, scale=0.3),
}


def sequential_chain(u: Tensor, w: Tensor, sweeps: int) -> Tensor:
    """Eq. 6, cell after cell from softmax(u), as it is written."""
    q = u.softmax(-1)
    for _ in range(sweeps):
        for t in range(u.shape[1]):
            field = u[:, t]
            if t > 0:
                field = field + torch.einsum("bi,bij->bj", q[:, t - 1], w)
            if t + 1 < u.shape[1]:
                field = field + torch.einsum("bj,bij->bi", q[:, t + 1], w)
            q = torch.cat([q[:, :t], field.softmax(-1).unsqueeze(1), q[:, t + 1 :]], 1)
    return q


def sequential_grid(u: Tensor, k: Tensor, sweeps: int) -> Tensor:
    """The same for a grid, row by row."""
    q = u.softmax(-1).clone()
    height, width = u.shape[1:3]
    for _ in range(sweeps):
        for i in range(height):
            for j in range(width):
                field = u[:, i, j].clone()
                for a, b in ((i - 1, j), (i, j - 1)):
                    if a >= 0 and b >= 0:
                        field += torch.einsum("bx,bxz->bz", q[:, a, b], k)
                for a, b in ((i + 1, j), (i, j + 1)):
                    if a < height and b < width:
                        field += torch.einsum("bz,bxz->bx", q[:, a, b], k)
                q[:, i, j] = field.softmax(-1)
    return q


# -------------------------------------------------------------------------------------------------------------- orders


@pytest.mark.parametrize("sweeps", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_overlapping_sweeps_of_a_chain_are_plain_sweeps(size: int, sweeps: int) -> None:
    inputs = chain(size=size)
    found = compiled(CHAIN).infer(using=f"mean_field({sweeps})", **inputs).marginals["y"]
    torch.testing.assert_close(found, sequential_chain(inputs["u"], inputs["w"], sweeps))


@pytest.mark.parametrize("sizes", [(1, 4), (3, 3), (4, 5)])
def test_overlapping_sweeps_of_a_grid_are_plain_sweeps(sizes: tuple[int, int]) -> None:
    inputs = grid(sizes=sizes)
    found = compiled(GRID).infer(using="mean_field(4)", **inputs).marginals["y"]
    torch.testing.assert_close(found, sequential_grid(inputs["u"], inputs["k"], 4))


def test_ragged_chains_and_gaps_are_updated_alone() -> None:
    inputs, lengths = chain(size=7), torch.tensor([7, 3, 1, 5])
    model = compiled(CHAIN)
    found = model.infer(using="mean_field(3)", lengths=lengths, **inputs).marginals["y"]
    mask = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    gaps = model.infer(using="mean_field(3)", mask=mask, **inputs).marginals["y"]
    for b, length in enumerate(lengths.tolist()):
        u, w = inputs["u"][b : b + 1], inputs["w"][b : b + 1]
        torch.testing.assert_close(found[b : b + 1, :length], sequential_chain(u[:, :length], w, 3))
        assert not found[b, length:].any()
        torch.testing.assert_close(gaps[b : b + 1, mask[b]], sequential_chain(u[:, mask[b]], w, 3))
        assert not gaps[b, ~mask[b]].any()


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_its_examples(name: str) -> None:
    text, make = MODELS[name]
    model, inputs = compiled(text), make(3)
    together = model.infer(using="mean_field(5)", **inputs)
    for b in range(4):
        alone = model.infer(using="mean_field(5)", **{key: one[b : b + 1] for key, one in inputs.items()})
        torch.testing.assert_close(together.marginals["y"][b], alone.marginals["y"][0])
        torch.testing.assert_close(together.log_partition[b], alone.log_partition[0])


@pytest.mark.parametrize("schedule", ["sequential", "coloured", "parallel"])
@pytest.mark.parametrize("name", MODELS)
def test_every_order_finds_a_fixed_point(name: str, schedule: str) -> None:
    text, make = MODELS[name]
    using = f"mean_field(steps: 2000, schedule: {schedule}, damping: 0.3, tol: 1e-10)"
    result = compiled(text).infer(using=using, **make(1, scale=0.3)).ask("marginals")
    assert result.status.ok
    assert result.statistics["change"] <= 1e-10
    assert result.statistics["sweeps"] < 2000


# --------------------------------------------------------------------------------------------------------------- bound


@pytest.mark.parametrize("start", ["unary", "uniform"])
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_holds_and_grows_with_each_sweep(name: str, start: str) -> None:
    text, make = MODELS[name]
    model = compiled(text)
    for seed, scale in ((0, 0.3), (1, 1.0), (2, 3.0)):
        inputs = make(seed, scale=scale)
        exact = model.infer(using="exact", **inputs).log_partition
        before = torch.full_like(exact, float("-inf"))
        for sweeps in (1, 2, 3, 5, 10):
            found = model.infer(using=f"mean_field({sweeps}, start: {start})", **inputs).log_partition
            assert (found <= exact + 1e-9).all()
            assert (found >= before - 1e-9).all()
            before = found


def test_the_bound_holds_for_thousands_of_models_in_any_order() -> None:
    model = compiled(GRID)
    for seed, scale in enumerate((0.1, 0.5, 1.0, 2.0, 5.0, 20.0)):
        inputs = grid(seed, batch=400, sizes=(2, 3), scale=scale)
        exact = model.infer(using="exact", **inputs).log_partition
        for schedule in ("sequential", "coloured", "parallel"):
            bound = model.infer(using=f"mean_field(2, schedule: {schedule})", **inputs).log_partition
            assert (bound <= exact + 1e-9).all()


def test_independent_cells_are_exact() -> None:
    inputs = {**chain(), "w": torch.zeros(4, 3, 3, dtype=torch.float64)}
    model = compiled(CHAIN)
    found, exact = (model.infer(using=using, **inputs) for using in ("mean_field(1)", "exact"))
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.entropy, exact.entropy)
    torch.testing.assert_close(found.marginals["y"], exact.marginals["y"])


# --------------------------------------------------------------------------------------------------------- constraints


@pytest.mark.parametrize("scale", [1.0, 5.0, 1e4])
def test_constraints_leave_a_finite_bound_and_answers_that_keep_them(scale: float) -> None:
    model = compiled(SCHEME.replace("input w", "param w"))
    u = real(5, 200, 8, 3, scale=scale)
    posterior, exact = model.infer(u=u, using="mean_field"), model.infer(u=u, using="exact")
    assert posterior.log_partition.isfinite().all()
    assert (posterior.log_partition <= exact.log_partition + 1e-9 * scale).all()
    assert posterior.map().score.isfinite().all()
    assert posterior.sample(3, generator=torch.Generator().manual_seed(0)).score.isfinite().all()
    joint = posterior.factor_marginals["y.pair"]
    assert not joint[..., 0, 2].any(), "no product gives `I` after `O` any probability"


@pytest.mark.parametrize("more", ["", ", start: uniform", ", schedule: parallel", ", gradients: implicit"])
def test_a_scheme_does_not_make_the_product_collapse(more: str) -> None:
    """Near the exact bound, above the score of the best answer, and as good at the labels as the exact marginals."""
    model, inputs = compiled(SCHEME), tagged(0, 100, 12)
    found, exact = model.infer(using=f"mean_field(10{more})", **inputs), model.infer(using="exact", **inputs)
    best = exact.map()
    assert (found.log_partition <= exact.log_partition + 1e-9).all()
    assert (found.log_partition >= best.score - 1e-9).all()
    assert (exact.log_partition - found.log_partition).mean() < 0.1 * (exact.log_partition - best.score).mean() + 0.5
    agree = (found.marginals["y"].argmax(-1) == exact.marginals["y"].argmax(-1)).double().mean()
    assert agree > 0.97
    assert found.ask("log_partition").status.ok
    assert (model.loss(objective="nll", using="mean_field", reduction="none", y=best["y"], **inputs) >= 0).all()


def test_examples_without_constraints_are_not_touched_by_those_of_others() -> None:
    """A table of -inf in one example leaves the product of the other as it is alone, to the last bit."""
    model, inputs = compiled(CHAIN), chain(batch=2)
    alone = model.infer(using="mean_field", **{name: one[1:] for name, one in inputs.items()})
    inputs["w"] = inputs["w"].clone()
    inputs["w"][0, 0, 1] = float("-inf")
    together = model.infer(using="mean_field", **inputs)
    assert torch.equal(together.marginals["y"][1], alone.marginals["y"][0])
    torch.testing.assert_close(together.log_partition[1], alone.log_partition[0], rtol=1e-15, atol=0)


def test_a_bound_below_a_known_answer_is_said() -> None:
    """Large negative scores in place of -inf: the sweeps that the paper has end far from the optimum."""
    model, inputs = compiled(CHAIN), tagged(0, 20, 12)
    inputs["w"] = inputs["w"].clone()
    inputs["w"][:, 0, 2] = -1e4
    posterior = model.infer(using="mean_field", **inputs)
    best = posterior.ask("map").value
    low = best.score - posterior.log_partition > 1
    assert low.any()
    for kind in ("log_partition", "marginals", "entropy"):
        status = posterior.ask(kind).status
        assert not status.ok and "write -inf" in status.message and "raise `steps`" in status.message
    with pytest.warns(UserWarning, match="a negative loss"):
        losses = model.loss(objective="nll", using="mean_field", reduction="none", y=best["y"], **inputs)
    assert (losses[low] < 0).all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for scale in (1.0, 1.1, 1.2):
            given = {**inputs, "u": inputs["u"] * scale}
            model.loss(objective="nll", using="mean_field", y=best["y"], **given)
    assert len(caught) == 1, "the same words warn once"


def test_an_answer_that_was_not_found_is_said() -> None:
    text = "labels Tag = {A, B}\ndim N, E\ninput e : edge(N, N)[E]\noutput y : Tag[N]\n"
    model = compiled(text + "forbid [k = (i, j) in e] y[i] = y[j]\n")
    triangle = torch.tensor([[[0, 1], [1, 2], [2, 0]]])
    for using in ("mean_field", "bp", "trw", "dual"):
        result = model.infer(e=triangle, using=using, lengths={"N": torch.tensor([3])}).ask("map")
        assert result.value.score.isneginf().all()
        assert not result.status.ok and "all that it met are forbidden" in result.status.message
    exact = model.infer(e=triangle, using="ilp", lengths={"N": torch.tensor([3])}).ask("map")
    assert exact.value.score.isneginf().all() and exact.status.ok


def test_two_labels_that_must_differ() -> None:
    text = "labels Tag = {A, B}\ndim T\ninput u : real[T, Tag]\noutput y : Tag[T]\n"
    model = compiled(text + "factor f [t in T] (y[t]) = u[t]\nforbid [t in T-1] y[t] = y[t+1]\n")
    u = real(0, 50, 9, 2)
    found, exact = (model.infer(u=u, using=using).log_partition for using in ("mean_field", "exact"))
    assert found.isfinite().all() and (found <= exact + 1e-9).all()


def test_no_answer_is_no_answer() -> None:
    text = CHAIN + "forbid [t in T] y[t] ~ '*'\n"
    posterior = compiled(text).infer(using="mean_field", **chain(), lengths=[6, 0, 2, 1])
    ninf = float("-inf")
    assert posterior.log_partition.tolist() == [ninf, 0.0, ninf, ninf]
    assert not posterior.marginals["y"].any()
    assert posterior.map().score.tolist() == [ninf, 0.0, ninf, ninf]


# ----------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("kind", ["marginals", "log_partition", "entropy"])
@pytest.mark.parametrize("gradients", ["unrolled", "implicit"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, gradients: str, kind: str) -> None:
    model, inputs = compiled(MODELS[name][0]), SMALL[name](2)
    using = "mean_field(4)" if gradients == "unrolled" else "mean_field(200, tol: 1e-14, gradients: implicit)"
    names = [key for key, one in inputs.items() if one.is_floating_point()]

    def function(*tensors: Tensor) -> Tensor:
        value = model.infer(using=using, **{**inputs, **dict(zip(names, tensors, strict=True))}).ask(kind).value
        return value["y"] if isinstance(value, dict) else value

    assert torch.autograd.gradcheck(function, tuple(inputs[key].clone().requires_grad_() for key in names), atol=1e-6)


def test_constraints_and_certain_labels_have_gradients_without_nan() -> None:
    model = compiled(SCHEME.replace("input w", "param w"))
    u = real(1, 4, 5, 3).masked_fill(
        torch.rand(4, 5, 3, generator=torch.Generator().manual_seed(0)) < 0.2, float("-inf")
    )
    for scale in (1.0, 1e4):
        leaf = (u * scale).requires_grad_()
        posterior = model.infer(u=leaf, using="mean_field")
        total = posterior.marginals["y"].square().sum() + posterior.entropy.sum()
        bound = posterior.log_partition
        (total + bound[bound.isfinite()].sum()).backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all()


def test_cross_entropy_of_unrolled_marginals_trains() -> None:
    model = em.compile(CHAIN.replace("input w", "param w"), seed=0).double()
    u, gold = real(0, 8, 6, 3), torch.randint(0, 3, (8, 6), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(20):
        loss = model.loss(objective="marginal_ce", using="mean_field", u=u, y=gold)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


# ------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("name", MODELS)
def test_no_single_cell_improves_the_best_answer(name: str) -> None:
    text, make = MODELS[name]
    model, inputs = compiled(text), make(4, scale=2.0)
    best = model.infer(using="mean_field", **inputs).map()
    torch.testing.assert_close(model.score(y=best["y"], **inputs), best.score)
    count = 3 if name in ("chain", "grid") else 2
    flat = best["y"].flatten(1)
    for cell in range(flat.shape[1]):
        for label in range(count):
            other = flat.clone()
            other[:, cell] = label
            assert (model.score(y=other.reshape(best["y"].shape), **inputs) <= best.score + 1e-9).all()


def test_draws_come_from_the_product() -> None:
    posterior = compiled(CHAIN).infer(using="mean_field", **chain(batch=1, size=2))
    drawn = posterior.sample(20_000, generator=torch.Generator().manual_seed(0))
    again = posterior.sample(20_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn["y"], again["y"])
    share = torch.nn.functional.one_hot(drawn["y"], 3).double().mean(0)
    torch.testing.assert_close(share, posterior.marginals["y"], atol=0.02, rtol=0)


def test_the_score_less_the_bound_is_an_upper_bound_of_the_log_probability() -> None:
    model, inputs = compiled(CHAIN), chain(batch=50)
    labels = torch.randint(0, 3, (50, 6), generator=torch.Generator().manual_seed(0))
    found, exact = (model.infer(using=using, **inputs).log_prob(y=labels) for using in ("mean_field", "exact"))
    assert (found >= exact - 1e-9).all()


def test_a_tolerance_that_is_not_met_is_said() -> None:
    posterior = compiled(CHAIN).infer(using="mean_field(steps: 1, tol: 1e-12)", **chain(scale=2.0))
    status = posterior.ask("marginals").status
    assert not status.ok and "raise `steps`" in status.message
    assert posterior.ask("log_partition").status.ok, "a bound holds whether or not it converged"
    with pytest.warns(UserWarning, match="still changes"):
        _ = posterior.marginals

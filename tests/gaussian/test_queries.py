"""Queries about fields through models: ragged sizes, observed cells, read-outs, draws, scores, losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.bind.inputs import DataError
from energyml.diagnostics import QueryRefused
from energyml.queries import Quality
from tests.gaussian.cases import CASES, Case
from tests.gaussian.reference import Array

NAN = float("nan")
BACKENDS = ["exact", "cg(tol: 1e-11)"]


def matrices(case: Case, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    q, u = case.reference(inputs)
    return torch.from_numpy(np.stack(q)), torch.from_numpy(np.stack(u))


def shown(case: Case, cells: Tensor, like: Tensor) -> Tensor:
    """Cells [..., cells] as field values of the shape of one field."""
    if case.on_grid:
        return cells.reshape(*cells.shape[:-1], *like.shape[-3:])
    return cells.reshape(*cells.shape[:-1], like.shape[-1], like.shape[-2]).transpose(-1, -2)


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_modes_read_outs_and_scores(name: str, using: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    q, u = matrices(case, inputs)
    model = case.model()
    posterior = model.infer(**inputs, using=using)
    mode = shown(case, torch.linalg.solve(q, u), inputs["u"])
    assert torch.allclose(posterior.mode["s"], mode, atol=1e-8)
    values = torch.randn_like(inputs["u"])
    cells = case.to_cells(values)
    score = (cells * u).sum(1) - 0.5 * (cells * (q @ cells.unsqueeze(2)).squeeze(2)).sum(1)
    assert torch.allclose(model.score(**inputs, s=values), score)
    if not case.on_grid:
        with pytest.raises(QueryRefused, match="no output is read out"):
            posterior.map()
        return
    best = posterior.map()
    assert torch.equal(best["y"], mode.argmax(1)) and torch.equal(best["s"], posterior.mode["s"])
    assert torch.allclose(best.score, model.score(**inputs, s=mode))
    assert torch.allclose(posterior.marginals["y"], mode.softmax(1).movedim(1, -1), atol=1e-8)
    assert posterior.ask("marginals").quality is Quality.READOUT


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_observed_cells_leave_the_conditional_field(name: str, using: str) -> None:
    case = CASES[name]
    inputs = case.inputs(seed=3)
    q, u = matrices(case, inputs)
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(inputs["u"].shape, generator=generator, dtype=torch.float64)
    spots = torch.rand(2, 1, *values.shape[2:], generator=generator) < 0.4 if case.on_grid else None
    known = (
        spots.expand(values.shape)
        if spots is not None
        else (torch.rand(2, values.shape[1], 1) < 0.4).expand(values.shape)
    )
    posterior = case.model().infer(**inputs, using=using, evidence={"s": torch.where(known, values, NAN)})
    mean, variance, log_z = conditional(q, u, case.to_cells(values), case.to_cells(known))
    assert torch.allclose(case.to_cells(posterior.mode["s"]), mean, atol=1e-8)
    if using == "exact":
        assert torch.allclose(case.to_cells(posterior.variance["s"]), variance, atol=1e-9)
        assert torch.allclose(posterior.log_partition, log_z)


def conditional(q: Tensor, u: Tensor, values: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and log Z of the free cells by the textbook's formulas, example by example."""
    means, variances, logs = values.clone(), torch.zeros_like(values), []
    for b in range(q.shape[0]):
        free, seen = ~known[b], known[b]
        inner = q[b][free][:, free]
        rhs = u[b][free] - q[b][free][:, seen] @ values[b][seen]
        means[b][free] = torch.linalg.solve(inner, rhs)
        variances[b][free] = torch.linalg.inv(inner).diagonal()
        s = values[b][seen]
        constant = u[b][seen] @ s - 0.5 * s @ q[b][seen][:, seen] @ s
        best = 0.5 * rhs @ torch.linalg.solve(inner, rhs)
        logs.append(constant + best - 0.5 * torch.logdet(inner) + 0.5 * int(free.sum()) * math.log(2 * math.pi))
    return means, variances, torch.stack(logs)


def test_evidence_may_differ_between_the_labels_of_a_position() -> None:
    case = CASES["potts and edges"]
    inputs = case.inputs()
    q, u = matrices(case, inputs)
    values = torch.randn_like(inputs["u"])
    known = torch.rand_like(values) < 0.3
    posterior = case.model().infer(**inputs, using="exact", evidence={"s": torch.where(known, values, NAN)})
    mean, variance, log_z = conditional(q, u, case.to_cells(values), case.to_cells(known))
    assert torch.allclose(case.to_cells(posterior.mode["s"]), mean)
    assert torch.allclose(case.to_cells(posterior.variance["s"]), variance)
    assert torch.allclose(posterior.log_partition, log_z)


def test_partial_values_integrate_the_other_cells_out() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    q, u = matrices(case, inputs)
    values = torch.randn_like(inputs["u"])
    partly = values.clone()
    partly[:, :, 1] = NAN
    posterior = case.model().infer(**inputs, using="exact")
    for b in range(2):
        seen = ~case.to_cells(partly)[b].isnan()
        covariance = torch.linalg.inv(q[b])
        peer = torch.distributions.MultivariateNormal((covariance @ u[b])[seen], covariance[seen][:, seen])
        assert torch.allclose(posterior.log_prob(s=partly)[b], peer.log_prob(case.to_cells(partly)[b][seen]))
    conditioned = case.model().infer(**inputs, using="exact", evidence={"s": partly})
    both = posterior.log_prob(s=partly) + conditioned.log_prob(s=values)
    assert torch.allclose(both, posterior.log_prob(s=values))


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.on_grid])
def test_examples_of_different_sizes(name: str, using: str) -> None:
    """A batch with lengths equals its examples cut to size, one by one."""
    case = CASES[name]
    inputs = case.inputs(batch=3, shape=(4, 5))
    heights, widths = [4, 2, 3], [3, 5, 1]
    lengths = {"H": torch.tensor(heights), "W": torch.tensor(widths)}
    model = case.model()
    posterior = model.infer(**inputs, lengths=lengths, using=using)
    for b, (height, width) in enumerate(zip(heights, widths, strict=True)):
        alone = {key: cut(key, one[b : b + 1], height, width) for key, one in inputs.items()}
        single = model.infer(**alone, using=using)
        assert torch.allclose(posterior.mode["s"][b, :, :height, :width], single.mode["s"][0], atol=1e-8)
        assert posterior.mode["s"][b, :, height:].eq(0).all() and posterior.mode["s"][b, :, :, width:].eq(0).all()
        assert posterior.map()["y"][b, height:].eq(-1).all()
        if using == "exact":
            assert torch.allclose(posterior.log_partition[b], single.log_partition[0])
            assert torch.allclose(posterior.variance["s"][b, :, :height, :width], single.variance["s"][0])
            assert torch.allclose(posterior.entropy[b], single.entropy[0])


def cut(name: str, tensor: Tensor, height: int, width: int) -> Tensor:
    axis = {"c": 1, "f": 2}.get(name, 2)
    return tensor.narrow(axis, 0, height).narrow(axis + 1, 0, width)


def test_positions_may_be_left_out() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs(batch=1, shape=(3, 3))
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    mask[0, 1, 1] = False
    posterior = case.model().infer(**inputs, mask=mask, using="exact")
    q = case.reference(inputs)[0][0]
    weights = inputs["w"][0].numpy()
    kept = [i for i in range(27) if i % 9 != 4]
    q = without_edges(q, weights)[np.ix_(kept, kept)]
    wanted = np.linalg.solve(q, inputs["u"][0].reshape(-1).numpy()[kept])
    assert np.allclose(posterior.mode["s"].flatten()[kept].numpy(), wanted)
    assert torch.allclose(posterior.log_partition, posterior_log_z(q, inputs["u"][0].reshape(-1).numpy()[kept]))


def without_edges(q: Array, weights: Array) -> Array:
    """The edges of the middle of a 3 x 3 grid taken off the diagonals of its neighbours."""
    q = q.copy()
    for neighbour, weight in (
        (1, weights[0, 0, 1]),
        (7, weights[0, 1, 1]),
        (3, weights[1, 1, 0]),
        (5, weights[1, 1, 1]),
    ):
        for channel in range(3):
            q[9 * channel + neighbour, 9 * channel + neighbour] -= weight
    return q


def posterior_log_z(q: Array, u: Array) -> Tensor:
    value = 0.5 * u @ np.linalg.solve(q, u) - 0.5 * np.linalg.slogdet(q)[1] + 0.5 * len(u) * math.log(2 * math.pi)
    return torch.tensor([value])


@pytest.mark.parametrize("using", BACKENDS)
def test_draws_have_the_right_mean_and_scores(using: str) -> None:
    """The mean of n draws has a standard error of sqrt(variance / n)."""
    case = CASES["potts and edges"]
    inputs = case.inputs(batch=2, shape=(2, 2))
    model = case.model()
    posterior = model.infer(**inputs, using=using)
    count = 2000 if using == "exact" else 400
    drawn = posterior.sample(count, torch.Generator().manual_seed(0))
    assert drawn["s"].shape == (count, 2, 3, 2, 2) and drawn["y"].shape == (count, 2, 2, 2)
    assert torch.equal(drawn["y"], drawn["s"].argmax(2))
    error = (model.infer(**inputs, using="exact").variance["s"] / count).sqrt()
    assert ((drawn["s"].mean(0) - posterior.mode["s"]).abs() <= 4.5 * error).all()
    assert torch.allclose(drawn.score[7], model.score(**inputs, s=drawn["s"][7]))
    again = posterior.sample(count, torch.Generator().manual_seed(0))
    assert torch.equal(drawn["s"], again["s"])


def test_conditionals_and_pseudo_likelihood() -> None:
    case = CASES["potts and edges"]
    inputs = case.inputs()
    q, u = matrices(case, inputs)
    values = torch.randn_like(inputs["u"])
    cells = case.to_cells(values)
    mean, variance = case.model().infer(**inputs, using="exact").conditionals(s=values)["s"]
    own = q.diagonal(dim1=1, dim2=2)
    others = (q @ cells.unsqueeze(2)).squeeze(2) - own * cells
    wanted = torch.distributions.Normal((u - others) / own, own.rsqrt())
    assert torch.allclose(case.to_cells(mean), wanted.mean) and torch.allclose(case.to_cells(variance), wanted.variance)
    loss = case.model().loss(**inputs, s=values, objective="pseudo_likelihood", using="exact", reduction="none")
    assert torch.allclose(loss, -wanted.log_prob(cells).sum(1))


def test_losses_of_fields_and_of_their_read_outs() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    gold = torch.randint(3, (2, 3, 4))
    gold[0, 0, 0] = -1
    model = case.model()
    posterior = model.infer(**inputs, using="exact")
    loss = model.loss(**inputs, y=gold, objective="marginal_ce", using="exact", reduction="sum")
    picked = posterior.marginals["y"].gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(loss, -picked.log()[gold >= 0].sum())
    values = torch.randn_like(inputs["u"])
    nll = model.loss(**inputs, s=values, objective="nll", using="exact", reduction="none")
    assert torch.allclose(nll, -posterior.log_prob(s=values))
    with pytest.raises(QueryRefused, match="read out of a field"):
        model.loss(**inputs, y=gold, objective="nll", using="exact")


def test_two_fields_are_independent() -> None:
    text = """
dim T
input u : real[T]
field a : real[T]
field b : real[T]
gaussian a { unary: u, pair: smooth(1.0), ridge: 0.5 }
gaussian b { unary: 2 * u, ridge: 2.0 }
"""
    model = em.compile(text)
    u = torch.randn(2, 5, dtype=torch.float64)
    posterior = model.infer(u=u, using="exact")
    assert torch.allclose(posterior.mode["b"], u)
    alone = em.compile(text.replace("field b : real[T]\n", "").replace("gaussian b { unary: 2 * u, ridge: 2.0 }\n", ""))
    other = alone.infer(u=u, using="exact")
    assert torch.allclose(posterior.mode["a"], other.mode["a"])
    rest = (u.square() + 0.5 * math.log(2 * math.pi / 2.0)).sum(1)
    assert torch.allclose(posterior.log_partition, other.log_partition + rest)


def test_gains_scale_couplings_and_never_the_ridge() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs()
    model = case.model()
    model.gains["s.pair"] = 3.0
    model.gains["s.unary"] = 2.0
    changed = {"u": 2 * inputs["u"], "w": 3 * inputs["w"]}
    found = model.infer(**inputs, using="exact").mode["s"]
    assert torch.allclose(found, case.model().infer(**changed, using="exact").mode["s"])


def test_scaling_the_unary_scales_the_mode_and_leaves_the_read_out() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    plain, scaled = (case.model().infer(**{**inputs, "u": factor * inputs["u"]}) for factor in (1.0, 7.0))
    assert torch.allclose(7 * plain.mode["s"], scaled.mode["s"])
    assert torch.equal(plain.map()["y"], scaled.map()["y"])


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_empty_fields_and_empty_batches(name: str, using: str) -> None:
    case = CASES[name]
    model = case.model()
    for batch, shape in ((2, (0, 3)), (0, (2, 2)), (0, (0, 3))):
        inputs = case.inputs(batch=batch, shape=(1, 1) if 0 in shape and not case.on_grid else shape)
        if 0 in shape and not case.on_grid:  # a line without positions, and a list without edges
            sizes = {"u": (0, 2), "e": (0, 3), "p": (0, 2, 0, 2), "link": (3, 2), "weight": (3,)}
            inputs = {key: one.new_full((batch, *sizes[key]), -1) for key, one in inputs.items()}
        given = {key: one.requires_grad_(one.is_floating_point()) for key, one in inputs.items()}
        u = given["u"].detach()
        positions = u.shape[2:] if case.on_grid else u.shape[1:2]
        for mask in (None, {"s": torch.ones((batch, *positions), dtype=torch.bool)}):
            posterior = model.infer(**given, mask=mask, using=using)
            assert posterior.mode["s"].shape == posterior.variance["s"].shape == u.shape
            for one in (posterior.log_partition, posterior.entropy, posterior.log_prob(s=u)):
                assert one.eq(0).all() and one.shape == (batch,)
            assert posterior.sample(2)["s"].shape == (2, *u.shape)
            assert [one.shape for one in posterior.conditionals(s=u)["s"]] == [u.shape, u.shape]
            if using != "exact":
                assert posterior.ask("log_partition").statistics["error"].eq(0).all()
            torch.autograd.grad(posterior.mode["s"].sum() + posterior.log_partition.sum(), given["u"])
            torch.autograd.grad(model.score(**given, s=u, mask=mask).sum(), given["u"])


def test_partial_values_under_estimates_of_several_examples() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs(batch=3)
    values = torch.randn_like(inputs["u"])
    values[:, :, 0] = NAN
    found = case.model().infer(**inputs, using="cg(probes: 100)").ask("log_prob", answer={"s": values})
    wanted = case.model().infer(**inputs, using="exact").log_prob(s=values)
    error = found.statistics["error"]
    assert error.shape == (3,) and ((found.value - wanted).abs() <= 4.5 * error).all()


def test_conditionals_of_observed_cells_are_what_was_observed() -> None:
    case = CASES["potts and edges"]
    inputs = case.inputs()
    values = torch.randn_like(inputs["u"])
    seen = torch.where(torch.rand(values.shape, generator=torch.Generator().manual_seed(3)) < 0.4, values, NAN)
    model = case.model()
    mean, variance = model.infer(**inputs, using="exact", evidence={"s": seen}).conditionals(s=values)["s"]
    free, spread = model.infer(**inputs, using="exact").conditionals(s=values)["s"]
    assert torch.equal(mean, torch.where(seen.isnan(), free, seen))
    assert torch.equal(variance, torch.where(seen.isnan(), spread, 0))


def test_wrong_values_name_the_declaration() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    model = case.model()
    with pytest.raises(DataError, match=r"expected \[2, 3, 3, 4\]"):
        model.score(**inputs, s=torch.zeros(2, 3, 4, 4, dtype=torch.float64))
    with pytest.raises(DataError, match="no real numbers"):
        model.infer(**inputs, evidence={"s": torch.zeros(2, 3, 3, 4, dtype=torch.long)})
    with pytest.raises(DataError, match="evidence is about outputs, latents and fields"):
        model.infer(**inputs, evidence={"y": torch.zeros(2, 3, 4, dtype=torch.long)})
    with pytest.raises(DataError, match="mask the field `s`"):
        model.infer(**inputs, mask={"y": torch.ones(2, 3, 4, dtype=torch.bool)})


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_warm_start_saves_iterations(engine: str) -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs(shape=(12, 12))
    model = case.model(ridge=0.01)
    using = f"cg(tol: 1e-9, engine: {engine})"
    cold = model.infer(**inputs, using=using).ask("mode")
    near = {"s": cold.value["s"] * 1.0001}
    warm = model.infer(**inputs, using=using, start=near).ask("mode")
    assert torch.allclose(warm.value["s"], cold.value["s"], atol=1e-6)
    assert (warm.statistics["iterations"] < cold.statistics["iterations"]).all()
    there = model.infer(**inputs, using=using, start=cold.value).ask("mode")
    assert (there.statistics["iterations"] <= 1).all()


def test_gains_reach_vectors_of_cells_beside_other_couplings() -> None:
    case = CASES["cells and edges"]
    inputs = case.inputs()
    model = case.model()
    model.gains["s.pair"] = 4.0
    changed = {"u": inputs["u"], "f": 2 * inputs["f"], "w": 4 * inputs["w"]}
    found = model.infer(**inputs, using="exact").mode["s"]
    assert torch.allclose(found, case.model().infer(**changed, using="exact").mode["s"])

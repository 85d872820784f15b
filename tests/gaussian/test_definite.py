"""A matrix is called positive definite where it is, by every method, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.gaussian.definite import lower_bound
from energyml.backends.gaussian.preconditioners import preconditioner
from tests.gaussian.cases import CASES

NAN = float("nan")
ITERATIVE = ["cg", "cg(engine: torch)", "cg(preconditioner: none)", "cg(preconditioner: transform)"]
BACKENDS = ["exact", *ITERATIVE]
SPARSE = """
dim T, E
input link : edge(T, T)[E]
input w : real[E]
input u : real[T]
input r : real
field s : real[T]
gaussian s { unary: u, pair: sparse(link, w), ridge: r, bounded: false }
"""
GRID = """
dim H, W
input u : real[H, W]
input w : real
field s : real[H, W]
gaussian s { unary: u, pair: smooth(w), ridge: 2.0, bounded: false }
"""


def star(leaves: int = 4, weight: float = -0.5, ridge: float = 1.5) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs and the matrix of a star: where weights are negative, less is left of each coupling's own diagonal."""
    ends = torch.tensor([[[0, i] for i in range(1, leaves + 1)]])
    matrix = ridge * torch.eye(leaves + 1, dtype=torch.float64)
    matrix[0, 1:] = matrix[1:, 0] = weight
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(1, leaves + 1, generator=generator, dtype=torch.float64)
    inputs = {"link": ends, "w": torch.full((1, leaves), weight), "u": u, "r": torch.tensor([ridge])}
    return {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}, matrix


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("using", BACKENDS)
def test_a_star_of_negative_weights_is_answered(using: str, tracked: bool) -> None:
    inputs, matrix = star()
    assert torch.linalg.eigvalsh(matrix)[[0, -1]].tolist() == pytest.approx([0.5, 2.5])
    u, covariance = inputs["u"][0].clone(), torch.linalg.inv(matrix)
    inputs = {name: one.requires_grad_(tracked and one.is_floating_point()) for name, one in inputs.items()}
    posterior = em.compile(SPARSE).double().infer(**inputs, using=using)
    asked = {kind: posterior.ask(kind) for kind in posterior.answers if kind not in ("marginals", "map", "conditionals")
             and kind != "log_prob"}  # fmt: skip
    asked["log_prob"] = posterior.ask("log_prob", answer={"s": inputs["u"].detach()})
    assert all(result.status.ok for result in asked.values()), {kind: one.status.message for kind, one in asked.items()}
    mean = covariance @ u
    torch.testing.assert_close(asked["mode"].value["s"][0], mean, rtol=1e-5, atol=1e-5)
    total = 0.5 * u @ mean - 0.5 * torch.logdet(matrix) + 2.5 * math.log(2 * math.pi)
    density = torch.distributions.MultivariateNormal(mean, covariance).log_prob(u)
    wanted = {"log_partition": total, "log_prob": density}
    for kind, truth in wanted.items():
        slack = 4 * float(asked[kind].statistics["error"]) if using != "exact" else 1e-8
        assert abs(float(asked[kind].value.detach()) - float(truth)) <= slack
    if tracked:
        (slope,) = torch.autograd.grad(asked["mode"].value["s"].sum(), inputs["u"], retain_graph=True)
        torch.testing.assert_close(slope[0], covariance.sum(1), rtol=1e-5, atol=1e-5)
        (slope,) = torch.autograd.grad(asked["log_partition"].value.sum(), inputs["u"])
        torch.testing.assert_close(slope[0], mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("using", ["exact", "cg"])
def test_well_conditioned_sparse_fields_are_never_called_singular(using: str) -> None:
    """Random edges of both signs, and the ridge of a condition number of 12; with cells that are observed, too."""
    model, generator = em.compile(SPARSE).double(), torch.Generator().manual_seed(0)
    for _ in range(12):
        count = 10
        ends = torch.randint(count, (1, 20, 2), generator=generator)
        ends[0, :, 1] = (ends[0, :, 0] + torch.randint(1, count, (20,), generator=generator)) % count
        w = torch.randn(1, 20, generator=generator, dtype=torch.float64)
        matrix = torch.zeros(count, count, dtype=torch.float64)
        for (i, j), one in zip(ends[0].tolist(), w[0], strict=True):
            matrix[i, j] += one
            matrix[j, i] += one
        values = torch.linalg.eigvalsh(matrix)
        ridge = (values[-1] - 12 * values[0]) / 11
        u = torch.randn(1, count, generator=generator, dtype=torch.float64)
        posterior = model.infer(link=ends, w=w, u=u, r=ridge.reshape(1), using=using)
        whole = matrix + ridge * torch.eye(count, dtype=torch.float64)
        mean = torch.linalg.solve(whole, u[0])
        torch.testing.assert_close(posterior.mode["s"][0], mean, rtol=1e-5, atol=1e-5)
        assert posterior.ask("log_partition").status.ok and posterior.ask("sample").status.ok
        free = torch.arange(count) % 3 > 0
        evidence = u.masked_fill(free, NAN)
        given = model.infer(link=ends, w=w, u=u, r=ridge.reshape(1), using=using, evidence={"s": evidence}).mode["s"][0]
        inner = torch.linalg.solve(whole[free][:, free], (u[0] - whole[:, ~free] @ u[0, ~free])[free])
        torch.testing.assert_close(given[free], inner, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("unary", [0.0, 1.0])
def test_indefinite_matrices_are_found_without_a_right_hand_side_that_meets_them(unary: float, using: str) -> None:
    """Zeros meet no eigenvector at all; numbers that are all the same meet none that is antisymmetric."""
    inputs, _ = star(leaves=4, weight=0.5, ridge=0.9)
    inputs["u"] = torch.full_like(inputs["u"], unary)
    posterior = em.compile(SPARSE).double().infer(**inputs, using=using)
    for kind in ("mode", "log_partition", "variance", "entropy", "sample"):
        status = posterior.ask(kind).status
        assert status.is_useless and "not positive definite" in status.message
    ring = {**inputs, "link": torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 0]]]), "w": torch.ones(1, 4).double()}
    ring["u"] = torch.full((1, 4), unary, dtype=torch.float64)
    assert em.compile(SPARSE).double().infer(**ring, using=using).ask("mode").status.is_useless


@pytest.mark.parametrize("using", ["exact", "cg", "cg(engine: torch)"])
def test_draws_beside_negative_weights_have_the_covariance_of_the_field(using: str) -> None:
    """Weights between neighbours, of which no part of the matrix alone is a covariance."""
    model, count = em.compile(GRID).double(), 600
    inputs = {"u": torch.zeros(1, 2, 3, dtype=torch.float64), "w": torch.tensor([-0.25], dtype=torch.float64)}
    curvature = torch.autograd.functional.hessian(lambda s: model.score(**inputs, s=s).sum(), inputs["u"])
    matrix = -curvature.reshape(6, 6)
    result = model.infer(**inputs, using=using).ask("sample", count=count, generator=torch.Generator().manual_seed(1))
    assert result.status.ok
    values, vectors = torch.linalg.eigh(matrix)
    whitened = result.value["s"][:, 0].flatten(1) @ vectors * values.sqrt()
    assert ((whitened.var(0) - 1).abs() <= 5 * math.sqrt(2 / count)).all()
    variance = model.infer(**inputs, using="cg(probes: 200)").ask("variance")
    assert variance.status.ok
    wanted = torch.linalg.inv(matrix).diagonal().reshape(1, 2, 3)
    assert ((variance.value["s"] - wanted).abs() <= 5 * variance.statistics["error"]).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "nothing"])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_bound_is_below_every_eigenvalue(name: str, bounded: bool) -> None:
    case = CASES[name]
    inputs = case.inputs()
    problem = case.model(bounded=bounded).infer(**inputs, using="exact").problem
    (term,) = problem.quadratic().values()
    lowest = [np.linalg.eigvalsh(q)[0] for q in case.reference(inputs, bounded=bounded)[0]]
    bound = lower_bound(term.form(problem.env))
    assert (bound.numpy() <= np.array(lowest) + 1e-9).all()
    if bounded and "dense" not in name and "cells" not in name:
        assert (bound > 0).all()  # so that nothing has to be solved to see it


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)"])
@pytest.mark.parametrize("ridge", [1e-7, 1e8])
def test_cells_that_do_not_exist_have_no_part_in_the_condition_number(ridge: float, using: str) -> None:
    mask = torch.tensor([[[True, True, False, True], [True, True, True, True], [False, True, True, True]]] * 2)
    for name in ("nothing", "potts", "lowrank", "smooth edges"):
        case = CASES[name]
        inputs = {key: one.float() for key, one in case.inputs().items()}
        inputs |= {key: one * ridge**0.5 for key, one in inputs.items() if key == "e"}
        inputs |= {key: one * ridge for key, one in inputs.items() if key == "w"}
        posterior = em.compile(case.spec(ridge=ridge)).infer(**inputs, mask={"s": mask}, using=using)
        for kind in ("mode", "log_partition", "variance"):
            assert posterior.ask(kind).status.ok, posterior.ask(kind).status.message


def test_preconditioners_stay_within_the_cells_that_exist() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs()
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[:, 1, 1] = False
    posterior = case.model().infer(**inputs, mask={"s": mask}, using="cg(preconditioner: transform)")
    assert posterior.mode["s"][:, :, 1, 1].eq(0).all()


def test_the_transform_serves_literal_fields_whose_own_diagonal_is_negative() -> None:
    text = SPARSE.replace("sparse(link, w)", "sparse(link, w) + smooth(0.1)")
    inputs, _ = star(weight=-0.7, ridge=1.6)
    found = em.compile(text).double().infer(**inputs, using="cg(preconditioner: transform, tol: 1e-10)").mode["s"]
    torch.testing.assert_close(found, em.compile(text).double().infer(**inputs, using="exact").mode["s"])


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_ridge_that_is_needed_is_named_at_every_magnitude(size: float) -> None:
    inputs, _ = star(weight=size, ridge=1.5 * size)
    message = em.compile(SPARSE).double().infer(**inputs, using="exact").ask("mode").status.message
    needed = float(message.split("below the estimated ")[1].split(";")[0])
    assert needed == pytest.approx(2 * size, rel=0.01)


def test_the_transform_becomes_jacobi_where_the_rest_is_not_positive() -> None:
    problem = em.compile(GRID.replace("ridge: 2.0", "ridge: 0 - 1")).infer(
        u=torch.zeros(1, 2, 3), w=torch.ones(1), using="cg"
    ).problem  # fmt: skip
    (term,) = problem.quadratic().values()
    assert preconditioner("transform", term.form(problem.env))[0] == "jacobi"


@pytest.mark.parametrize("pair", ["smooth(w)", "sparse(link, w)", "dense(p)", "lowrank(e)"])
def test_a_pivot_of_zero_loses_one_example_alone(pair: str) -> None:
    """Of two cells that are joined without a ridge; the other example has one."""
    text = f"""
dim T, E
input link : edge(T, T)[E]
input w : real
input p : real[row: T, column: T]
input e : real[1, T]
input r : real
input u : real[T]
field s : real[T]
gaussian s {{ unary: u, pair: {pair}, ridge: r, bounded: false }}
"""
    ones = torch.ones(2, 2, dtype=torch.float64)
    inputs = {"u": ones, "w": ones[:, 0] * (-1 if "sparse" in pair else 1), "r": torch.tensor([0.0, 2.0]).double()}
    inputs |= {"link": torch.tensor([[[0, 1]]] * 2), "e": ones[:, None], "p": torch.ones(2, 2, 2).double()}
    if "sparse" in pair:
        inputs["r"] = torch.tensor([1.0, 2.0]).double()
    model = em.compile(text).double()
    read = {name: one for name, one in inputs.items() if name in model.graph.inputs}
    posterior = model.infer(**read, using="exact")
    for kind in ("mode", "variance", "log_partition", "entropy", "sample"):
        result = posterior.ask(kind)
        assert "`s`: its matrix is not positive definite in example 0" in result.status.message
        assert "leave the range" not in result.status.message
    assert posterior.ask("variance").value["s"][1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["", ", engine: torch"])
def test_a_small_residual_is_no_small_error_where_the_matrix_is_badly_conditioned(
    engine: str, dtype: torch.dtype
) -> None:
    """Numbers that add up to zero have a small solution, of which a small residual along the mean can be all."""
    text = CASES["line"].spec(ridge=1e-4).replace("smooth(0.8)", "smooth(1e5)")
    u = torch.randn(1, 40, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    u = u - u.mean(1, keepdim=True)
    truth = em.compile(text).infer(u=u.double(), using="exact").mode["s"]
    result = em.compile(text).infer(u=u, using=f"cg(tol: 1e-6{engine})").ask("mode")
    error = (result.value["s"] - truth).norm() / truth.norm()
    assert error < 0.01 or not result.status.ok
    if dtype is torch.float32:
        assert "badly conditioned" in result.status.message or "condition number" in result.status.message
    plain = em.compile(text).infer(u=u + 1, using=f"cg(tol: 1e-6{engine})").ask("mode")  # its mean is large
    assert plain.status.ok or dtype is torch.float32


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "cg(tol: 1e-10)"])
@pytest.mark.parametrize(
    "pair", ["lowrank(e)", "lowrank(e) + smooth(0.5)", "lowrank(e) + sparse(link, w)", "lowrank(e) + potts(g)"]
)
def test_vectors_make_up_for_a_ridge_that_is_not_positive(pair: str, using: str) -> None:
    text = f"""
dim T, E
input link : edge(T, T)[E]
input w : real
input e : real[6, T]
input g : real[1, T]
input u : real[2, T]
field s : real[2, T]
gaussian s {{ unary: u, pair: {pair}, ridge: 0 - 0.25, bounded: false }}
"""
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64) * 10
    u = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)
    inputs = {
        "e": e,
        "u": u,
        "g": 0.5 * e[:, :1],
        "link": torch.tensor([[[0, 1]]] * 2),
        "w": torch.tensor([-0.5, -0.4]).double(),
    }
    model = em.compile(text).double()
    inputs = {name: one for name, one in inputs.items() if name == "u" or f"({name}" in pair or f", {name})" in pair}
    curvature = torch.autograd.functional.hessian(lambda s: model.score(**inputs, s=s).sum(), torch.zeros_like(u))
    for b in range(2):
        matrix = -curvature[b, :, :, b].reshape(6, 6)
        assert torch.linalg.eigvalsh(matrix)[0] > 0.1
        posterior = model.infer(**inputs, using=using)
        mean = torch.linalg.solve(matrix, u[b].flatten())
        torch.testing.assert_close(posterior.mode["s"][b].flatten(), mean)
        for kind in ("variance", "log_partition", "entropy", "sample"):
            assert posterior.ask(kind).status.ok
        if using != "cg(tol: 1e-10)":
            torch.testing.assert_close(posterior.variance["s"][b].flatten(), torch.linalg.inv(matrix).diagonal())


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "cg(tol: 1e-10)"])
def test_weights_that_share_a_direction_add_up(using: str) -> None:
    """Of both signs, so that each alone would reach below zero."""
    text = GRID.replace("smooth(w)", "smooth(w) + smooth(1) + smooth(0 - 1)")
    one, other = (em.compile(spec).double() for spec in (text, GRID))
    u = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = {"u": u, "w": torch.tensor([0.1], dtype=torch.float64)}
    found, plain = one.infer(**inputs, using=using), other.infer(**inputs, using="exact")
    torch.testing.assert_close(found.mode["s"], plain.mode["s"])
    assert all(found.ask(kind).status.ok for kind in ("variance", "log_partition", "entropy", "sample"))

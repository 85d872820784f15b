"""Every coupling under every method that serves it, against dense algebra on matrices built entry by entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import energyml as em
from energyml.backends.gaussian.banded import Banded, Blocks, grid_blocks, list_blocks
from energyml.backends.gaussian.bases import Diagonal, Transform
from energyml.backends.gaussian.dense import Dense, written_out
from energyml.backends.gaussian.iterative import Iterative, Settings
from energyml.backends.gaussian.solver import Solver, solved
from energyml.backends.gaussian.woodbury import Direct, Woodbury
from energyml.bind.quadratic import QuadraticForm
from tests.gaussian.cases import CASES, Case

SETTINGS = Settings(tol=1e-10, probes=120)


def form_of(case: Case, inputs: dict[str, Tensor], ridge: float = 1.5, bounded: bool = True) -> QuadraticForm:
    problem = case.model(ridge, bounded).problem(**inputs)
    (term,) = problem.quadratic().values()
    return term.form(problem.env)


def base_of(form: QuadraticForm) -> Diagonal | Transform | Banded:
    if form.stencil is None and form.links is None:
        return Diagonal(form)
    return Banded(form, blocks_of(form))


def blocks_of(form: QuadraticForm) -> Blocks:
    if form.links is not None:
        return list_blocks(form.links.ends, form.links.weights, form.sizes.positions)
    assert form.stencil is not None
    return grid_blocks(form.stencil.shape, form.ridge.device)


def without_vectors(form: QuadraticForm) -> QuadraticForm:
    return replace(form, vectors=())


def solvers(form: QuadraticForm) -> dict[str, Solver]:
    """Every method that serves a form."""
    found: dict[str, Solver] = {"cholesky": Dense(form)}
    for name in ("none", "jacobi", "lowrank", "transform"):
        found[f"cg {name}"] = Iterative(form, Settings(tol=1e-12, preconditioner=name, native=name == "jacobi"))
    if form.dense is None and (form.stencil is None or form.links is None):
        base = base_of(without_vectors(form))
        found["layered"] = Woodbury(form, base) if form.vectors else Direct(form, base, "banded")
        stencil = form.stencil
        constant = stencil is not None and stencil.is_constant and form.links is None and form.diagonal is None
        if constant:
            fast = Transform(without_vectors(form))
            found["transform"] = Woodbury(form, fast) if form.vectors else Direct(form, fast, "transform")
    return found


def direct(form: QuadraticForm) -> dict[str, Solver]:
    return {name: one for name, one in solvers(form).items() if not name.startswith("cg")}


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_matrix_is_what_the_definition_says(name: str, bounded: bool) -> None:
    case = CASES[name]
    inputs = case.inputs()
    written = written_out(form_of(case, inputs, bounded=bounded))
    matrices, _ = case.reference(inputs, bounded=bounded)
    assert np.allclose(written.numpy(), np.stack(matrices), atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_bounded_couplings_are_positive_definite_whatever_their_weights(name: str) -> None:
    case = CASES[name]
    for scale in (1e-3, 1.0, 1e3):
        inputs = {
            key: one * scale if key != "u" and one.is_floating_point() else one for key, one in case.inputs().items()
        }
        eigenvalues = torch.linalg.eigvalsh(written_out(form_of(case, inputs, ridge=0.5)))
        assert (eigenvalues[:, 0] > 0.5 * (1 - 0.9) * 0.999 - 1e-9 * eigenvalues[:, -1]).all()


@pytest.mark.parametrize("name", CASES)
def test_solutions_determinants_and_variances(name: str) -> None:
    case = CASES[name]
    form = form_of(case, case.inputs(shape=(4, 3)))
    q = written_out(form)
    rhs = torch.randn(form.sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = torch.linalg.solve(q, rhs.flatten(1)).reshape(form.sizes)
    variances = torch.linalg.inv(q).diagonal(dim1=1, dim2=2).reshape(form.sizes)
    for method, solver in solvers(form).items():
        x, outcome = solver.solve(rhs)
        assert torch.allclose(x, wanted, atol=1e-9), method
        assert outcome.definite.all() and solver.definite.all(), method
    for method, solver in direct(form).items():
        assert torch.allclose(solver.log_determinant()[0], torch.logdet(q)), method
        assert torch.allclose(solver.variances()[0], variances), method


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_within_their_errors(name: str) -> None:
    case = CASES[name]
    form = form_of(case, case.inputs(shape=(3, 3)))
    q = written_out(form)
    solver = Iterative(form, SETTINGS)
    value, error = solver.log_determinant()
    assert error is not None
    assert ((value - torch.logdet(q)).abs() <= 4.5 * error + 1e-9).all()
    variances, errors = solver.variances()
    assert errors is not None
    wanted = torch.linalg.inv(q).diagonal(dim1=1, dim2=2).reshape(form.sizes)
    assert ((variances - wanted).abs() <= 5 * errors + 1e-9).all()


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_covariance_of_the_field(name: str) -> None:
    """The mean of n squared standardised sums of each draw is 1 with a standard error of sqrt(2 / n)."""
    case = CASES[name]
    form = form_of(case, case.inputs(batch=1, shape=(2, 3)))
    q = written_out(form)[0]
    for method, solver in solvers(form).items():
        if method.startswith("cg") and method != "cg jacobi":
            continue
        count = 4000 if not method.startswith("cg") else 800
        generator = torch.Generator().manual_seed(3)
        drawn = solver.draws(count, lambda shape, g=generator: torch.randn(shape, generator=g, dtype=torch.float64))
        cells = drawn[:, 0].flatten(1)
        covariance = cells.T @ cells / count
        wanted = torch.linalg.inv(q)
        spread = torch.outer(wanted.diagonal(), wanted.diagonal()) + wanted.square()
        assert ((covariance - wanted).abs() <= 5.5 * (spread / count).sqrt()).all(), method
        whitened = torch.linalg.cholesky(q).T @ cells.T
        assert abs(float(whitened.square().mean()) - 1) <= 5 * (2 / whitened.numel()) ** 0.5, method


@pytest.mark.parametrize("method", ["cholesky", "layered", "transform", "cg jacobi", "cg lowrank"])
@pytest.mark.parametrize("name", ["potts", "lowrank of cells", "smooth constant", "smooth diagonals", "potts and edges",
                                  "dense", "sparse and low rank"])  # fmt: skip
def test_implicit_gradients_to_second_order(name: str, method: str) -> None:
    case = CASES[name]
    inputs = case.inputs(shape=(2, 2))
    form = form_of(case, inputs)
    if method not in solvers(form):
        pytest.skip(f"{method} does not serve {name}")
    tensors = [one.detach().clone().requires_grad_() for one in form.tensors()]
    rhs = torch.randn(form.sizes, dtype=torch.float64).requires_grad_()

    def solve(rhs: Tensor, *given: Tensor) -> Tensor:
        made = form.with_tensors(_symmetric(form, given))
        return solved(solvers(made.detached())[method], made, rhs)[0]

    assert torch.autograd.gradcheck(solve, (rhs, *tensors), fast_mode=True)
    assert torch.autograd.gradgradcheck(solve, (rhs, *tensors), fast_mode=True)


def _symmetric(form: QuadraticForm, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if form.dense is None:
        return tensors
    return (*tensors[:-1], (tensors[-1] + tensors[-1].transpose(1, 2)) / 2)


@pytest.mark.parametrize(
    "name", ["potts", "lowrank", "smooth constant", "smooth diagonals", "potts and edges", "dense", "sparse"]
)
def test_gradients_of_determinants_and_variances(name: str) -> None:
    case = CASES[name]
    form = form_of(case, case.inputs(batch=1, shape=(2, 2)))
    tensors = [one.detach().clone().requires_grad_() for one in form.tensors()]
    for method in direct(form):
        for answer in ("log_determinant", "variances"):

            def value(*given: Tensor, answer: str = answer, method: str = method) -> Tensor:
                made = form.with_tensors(_symmetric(form, given))
                return getattr(direct(made)[method], answer)()[0]

            assert torch.autograd.gradcheck(value, tensors, fast_mode=True), (method, answer)


def test_the_estimated_determinant_has_the_gradient_of_its_probes() -> None:
    case = CASES["smooth edges"]
    form = form_of(case, case.inputs(batch=2, shape=(3, 3)))
    tensors = [one.detach().clone().requires_grad_() for one in form.tensors()]
    estimated, _ = Iterative(form.with_tensors(tensors), SETTINGS).log_determinant()
    found = torch.autograd.grad(estimated.sum(), tensors)
    exact, _ = Dense(form.with_tensors(tensors)).log_determinant()
    wanted = torch.autograd.grad(exact.sum(), tensors)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=0.15 * float(other.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_a_loop_of_singles(name: str) -> None:
    case = CASES[name]
    form = form_of(case, case.inputs(batch=3))
    rhs = torch.randn(form.sizes, dtype=torch.float64)
    for method, solver in solvers(form).items():
        together = solver.solve(rhs)[0]
        for b in range(3):
            alone = solvers(form.example(b))[method].solve(rhs[b : b + 1])[0]
            assert torch.allclose(together[b : b + 1], alone, atol=1e-9), method


@pytest.mark.parametrize("name", CASES)
def test_single_precision(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(dtype=torch.float32)
    form = form_of(case, inputs)
    rhs = torch.randn(form.sizes)
    wanted = torch.linalg.solve(written_out(form).double(), rhs.double().flatten(1)).reshape(form.sizes)
    for method, solver in {**solvers(form), "cg": Iterative(form, Settings())}.items():
        x = solver.solve(rhs)[0]
        assert x.dtype == torch.float32
        assert (x - wanted).abs().max() <= 2e-5 * wanted.abs().max(), method


def test_multivariate_normal_agrees_on_the_density() -> None:
    case = CASES["potts and edges"]
    inputs = case.inputs()
    matrices, linear = case.reference(inputs)
    values = torch.randn_like(inputs["u"])
    posterior = case.model().infer(**inputs, using="exact")
    for b, (matrix, u) in enumerate(zip(matrices, linear, strict=True)):
        q = torch.from_numpy(matrix)
        peer = MultivariateNormal(torch.linalg.solve(q, torch.from_numpy(u)), precision_matrix=q)
        assert torch.allclose(posterior.log_prob(s=values)[b], peer.log_prob(case.to_cells(values)[b]))
        assert torch.allclose(posterior.entropy[b], peer.entropy())
        assert torch.allclose(case.to_cells(posterior.variance["s"])[b], peer.variance)


def test_values_other_than_the_observed_have_no_density() -> None:
    model = em.compile(
        "dim T\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u, pair: smooth(2.0), ridge: 0.5 }\n"
    )
    nothing = torch.full((2, 4), float("nan"))
    seen, partial = nothing.clone(), nothing.clone()
    seen[:, 0], partial[:, 1] = torch.tensor([1.0, 0.0]), 0.3
    posterior = model.infer(u=torch.zeros(2, 4), evidence={"s": seen})
    density = posterior.log_prob(s=torch.zeros(2, 4))
    assert density[0].isneginf() and density[1].isfinite()
    again = partial.where(seen.isnan(), seen)
    assert torch.equal(posterior.log_prob(s=partial), posterior.log_prob(s=again))

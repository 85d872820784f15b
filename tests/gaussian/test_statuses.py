"""What goes wrong with a field is said, with its cause and its remedy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.result import Failed
from tests.gaussian.cases import CASES

BACKENDS = ["exact", "cg", "cg(engine: torch)"]


def indefinite(name: str = "potts") -> tuple[em.EnergyModel, dict[str, Tensor]]:
    case = CASES[name]
    return case.model(ridge=0.5, bounded=False), case.inputs()


@pytest.mark.parametrize("using", BACKENDS)
def test_an_indefinite_matrix_is_named_with_the_ridge_that_it_needs(using: str) -> None:
    model, inputs = indefinite()
    posterior = model.infer(**inputs, using=using)
    result = posterior.ask("mode")
    largest = torch.linalg.matrix_norm(inputs["e"].flatten(2), 2)[0].square()
    assert not result.status.ok
    assert "not positive definite in example 0" in result.status.message
    assert "raise ridge, or leave out `bounded: false`" in result.status.message
    needed = float(result.status.message.split("below the estimated ")[1].split(";")[0])
    assert needed == pytest.approx(float(largest), rel=0.01)
    assert result.value["s"].isnan().all()
    for ask in (lambda: posterior.mode, posterior.map, lambda: posterior.marginals, lambda: posterior.log_partition):
        with pytest.raises(Failed, match=r"ridge 0\.5 is below"):
            ask()
    sound = CASES["potts"].model(ridge=needed * 1.01, bounded=False).infer(**inputs, using=using)
    assert sound.ask("mode").status.ok or "in example 1" in sound.ask("mode").status.message


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("name", ["smooth constant", "smooth edges", "sparse", "dense"])
def test_every_coupling_can_be_indefinite(name: str, using: str) -> None:
    case = CASES[name]
    inputs = {key: -3 * one if key in ("w", "weight", "p") else one for key, one in case.inputs().items()}
    text = case.spec(ridge=0.5, bounded=False).replace("smooth(0.7)", "smooth(0 - 0.7)")
    result = em.compile(text).infer(**inputs, using=using).ask("mode")
    assert not result.status.ok and "raise ridge, or leave out `bounded: false`" in result.status.message


def test_only_the_example_that_failed_is_lost() -> None:
    case = CASES["potts"]
    inputs = case.inputs()
    inputs["e"][1] *= 0.01
    result = case.model(ridge=0.5, bounded=False).infer(**inputs, using="exact").ask("mode")
    assert "example 0" in result.status.message
    assert result.value["s"][0].isnan().all() and result.value["s"][1].isfinite().all()


@pytest.mark.parametrize("using", BACKENDS)
def test_a_ridge_that_is_not_positive(using: str) -> None:
    text = CASES["lowrank"].spec().replace("ridge: 1.5", "ridge: 0 - 1")
    result = em.compile(text).infer(**CASES["lowrank"].inputs(), using=using).ask("mode")
    assert "the ridge is -1; it must be positive" in result.status.message


@pytest.mark.parametrize("using", ["exact", "cg"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(using: str, bad: float) -> None:
    case = CASES["potts and edges"]
    for name, message in (("u", "the unary"), ("e", "a coupling")):
        inputs = case.inputs()
        inputs[name][1, 0, 0, 0] = bad
        result = case.model().infer(**inputs, using=using).ask("mode")
        assert f"{message}" in result.status.message and "not finite in example 1" in result.status.message


@pytest.mark.parametrize("using", BACKENDS)
def test_a_zero_right_hand_side_is_solved_at_once(using: str) -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs()
    inputs["u"][1] = 0
    result = case.model().infer(**inputs, using=using).ask("mode")
    assert result.status.ok and result.value["s"][1].eq(0).all()
    if using != "exact":
        assert result.statistics["iterations"][1] == 0


def test_too_few_iterations_warn_with_causes() -> None:
    case = CASES["smooth edges"]
    inputs = case.inputs(shape=(6, 6))
    inputs["w"] *= 1e4
    posterior = case.model().infer(**inputs, using="cg(iterations: 3)")
    with pytest.warns(UserWarning, match="after 3 iterations in example 0, above the tolerance") as caught:
        values = posterior.mode["s"]
    assert values.isfinite().all() and "raise `iterations`" in str(caught[0].message)


@pytest.mark.parametrize(
    "using",
    [
        "exact",
        "cg(tol: 1e-8)",
        "cg(tol: 1e-8, engine: torch)",
        "cg(tol: 1e-8, engine: torch, preconditioner: transform)",
    ],
)
def test_badly_conditioned_matrices(using: str) -> None:
    """A condition of 1e8: solved in double precision, within the error that the condition allows."""
    case = CASES["smooth edges"]
    inputs = case.inputs(shape=(8, 8))
    inputs["w"] *= 1e8
    posterior = case.model(ridge=1.0).infer(**inputs, using=using)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = posterior.mode["s"]
    q, u = case.reference(inputs, ridge=1.0)
    for b in range(2):
        wanted = torch.linalg.solve(torch.from_numpy(q[b]), torch.from_numpy(u[b]))
        error = (case.to_cells(mode)[b] - wanted).norm() / wanted.norm()
        status = posterior.ask("mode").status
        assert error < 1e-5 or (not status.ok and "badly conditioned" in status.message)


def test_a_singular_matrix_in_single_precision_says_so() -> None:
    case = CASES["smooth edges"]
    inputs = {key: one.float() for key, one in case.inputs().items()}
    inputs["w"] *= 1e12
    result = case.model(ridge=1e-6).infer(**inputs, using="exact").ask("log_partition")
    assert not result.status.ok and "use float64" in result.status.message


def test_bounded_fields_have_an_answer_at_any_scale() -> None:
    case = CASES["potts"]
    for scale in (1e-4, 1.0, 1e4):
        inputs = case.inputs()
        inputs["e"] *= scale
        assert case.model(ridge=1e-3).infer(**inputs, using="exact").ask("mode").status.ok


@pytest.mark.parametrize("query", ["variance", "entropy", "log_partition", "sample"])
def test_estimates_that_did_not_converge_say_so(query: str) -> None:
    text = "dim T\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u, pair: smooth(1000), ridge: 0.01 }"
    posterior = em.compile(text).infer(u=torch.zeros(1, 200), using="cg(iterations: 2)")
    status = posterior.ask(query).status
    assert not status.ok and "after 2 iterations in example 0" in status.message


@pytest.mark.parametrize("pair", ["smooth(c)", "smooth(1e7)", "lowrank(e)"])
def test_direct_methods_in_single_precision_know_their_limits(pair: str) -> None:
    case = CASES["potts"]
    text = case.spec(ridge=1e-4).replace("potts(e)", pair)
    inputs = {"u": case.inputs()["u"].float()}
    if "c" in pair:
        inputs["c"] = torch.full((2, 3, 4), 1e7)
    if "(e)" in pair:
        inputs["e"] = 1e3 * case.inputs()["e"].float()
    posterior = em.compile(text).infer(**inputs, using="exact")
    status = posterior.ask("mode").status
    assert not status.ok and ("use float64" in status.message or "not positive definite" in status.message)
    double = {name: one.double() for name, one in inputs.items()}
    assert em.compile(text).infer(**double, using="exact").ask("mode").status.ok


def test_estimated_determinants_refuse_second_derivatives() -> None:
    case = CASES["smooth edges"]
    inputs = {key: one.requires_grad_() for key, one in case.inputs().items()}
    value = case.model().infer(**inputs, using="cg").log_partition.sum()
    with pytest.raises(em.EnergyError, match="no second derivatives"):
        torch.autograd.grad(value, inputs["w"], create_graph=True)


@pytest.mark.parametrize("using", [*BACKENDS, "exact(engine: torch)"])
@pytest.mark.parametrize("name", ["potts", "smooth constant", "dense"])
def test_scores_beyond_the_range_of_numbers_are_named(name: str, using: str) -> None:
    """Products overflow where their factors do not; the other example keeps its answers, and float64 has them all."""
    case = CASES[name]
    inputs = {key: one.float() if one.is_floating_point() else one for key, one in case.inputs().items()}
    inputs["u"][1] *= 1e30 / inputs["u"][1].abs().max()
    model = case.model().float()
    posterior = model.infer(**inputs, using=using)
    values = {"s": torch.zeros_like(posterior.ask("mode").value["s"])}
    asked = [posterior.ask("log_partition"), posterior.ask("log_prob", answer=values), posterior.ask("sample")]
    if "output" in case.spec():
        asked.append(posterior.ask("map"))
    for result in asked:
        assert result.status.is_useless
        message = result.status.message
        assert "its scores leave the range of float32 in example 1: unary and observed values reach 1e+30" in message
        assert message.endswith("; scale them down, raise ridge, or use float64")
    assert asked[0].value[0].isfinite()
    with pytest.raises(Failed, match="leave the range of float32"):
        _ = posterior.log_partition
    wide = {key: one.double() if one.is_floating_point() else one for key, one in inputs.items()}
    assert case.model().double().infer(**wide, using="exact").ask("log_partition").status.ok


def test_sums_that_overflow_do_not_blame_the_couplings() -> None:
    """Numbers near the end of the range are finite, also where their sum is not."""
    case = CASES["dense"]
    inputs = {key: one.float() if one.is_floating_point() else one for key, one in case.inputs().items()}
    inputs["u"][1] = 3e38
    result = case.model().float().infer(**inputs, using="exact").ask("mode")
    assert result.status.ok or "leave the range" in result.status.message


# ----------------------------------------------------------------------------------------------- pseudo-likelihood


@pytest.mark.parametrize("using", BACKENDS)
def test_pseudo_likelihood_tells_where_there_is_no_distribution(using: str) -> None:
    """Each cell has a density given the others, by the diagonal; all together have none, by the eigenvalues."""
    case, inputs = CASES["potts"], CASES["potts"].inputs()
    model, values = case.model(ridge=0.5, bounded=False), torch.randn_like(inputs["u"])
    matrices, linear = (torch.as_tensor(np.stack(one)) for one in case.reference(inputs, 0.5, bounded=False))
    own = matrices.diagonal(dim1=1, dim2=2)
    assert (own > 0).all() and (torch.linalg.eigvalsh(matrices)[:, 0] < 0).all()
    with pytest.warns(UserWarning, match=r"`pseudo_likelihood` is that of no distribution: `s`: its matrix is not pos"):
        loss = model.loss(**inputs, s=values, objective="pseudo_likelihood", using=using, reduction="none")
    cells = case.to_cells(values)
    others = (matrices @ cells.unsqueeze(2)).squeeze(2) - own * cells
    wanted = torch.distributions.Normal((linear - others) / own, own.rsqrt()).log_prob(cells)
    torch.testing.assert_close(loss, -wanted.sum(1))
    with pytest.raises(Failed, match="not positive definite"):
        model.loss(**inputs, s=values, objective="nll", using=using)


@pytest.mark.parametrize("using", BACKENDS)
def test_pseudo_likelihood_of_definite_matrices_says_nothing(using: str) -> None:
    for case, ridge, bounded in ((CASES["potts"], 0.5, True), (CASES["smooth edges"], 0.5, False)):
        inputs = case.inputs()
        values = torch.randn_like(inputs["u"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss = case.model(ridge, bounded).loss(**inputs, s=values, objective="pseudo_likelihood", using=using)
        assert loss.isfinite()


@pytest.mark.parametrize("weight", [-1.0, -0.25])
def test_pseudo_likelihood_needs_positive_precisions(weight: float) -> None:
    """Of two neighbours each has the precision ridge + weight given the other: below 0 in one, 0 in the other."""
    text = "dim T\ninput u : real[T]\ninput w : real\nfield s : real[T]\n"
    text += "gaussian s { unary: u, pair: smooth(w), ridge: 0.25, bounded: false }\n"
    model, u = em.compile(text).double(), torch.ones(2, 2, dtype=torch.float64)
    w = torch.tensor([0.5, weight], dtype=torch.float64)
    with pytest.raises(Failed) as failure:
        model.loss(u=u, w=w, s=u, objective="pseudo_likelihood")
    assert f"not positive in example 1 (its smallest entry is {0.25 + weight:.3g})" in str(failure.value)
    assert "raise ridge, or leave out `bounded: false`" in str(failure.value)

    def loss(u: Tensor, w: Tensor) -> Tensor:
        return model.loss(u=u[None], w=w[None], s=u[None], objective="pseudo_likelihood")

    found = torch.func.vmap(loss)(u, w)
    assert found[0].isfinite() and found[1].isnan()

"""Fields under the transforms of `torch.func`: what autograd gives, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jvp, vmap

import energyml as em
from energyml.backends.gaussian.bases import inverse_of
from energyml.diagnostics import QueryRefused
from tests.gaussian.cases import CASES

LOADING = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")


def asked(name: str, using: str = "exact") -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A number that depends on all that can be asked of a field, and the inputs [B, ...] of a case."""
    model, inputs = CASES[name].model(), CASES[name].inputs()
    real = {key: one.double() for key, one in inputs.items() if one.is_floating_point()}
    fixed = {key: one for key, one in inputs.items() if key not in real}

    def number(*given: Tensor) -> Tensor:
        tensors = dict(zip(real, given, strict=True)) | {key: one[0] for key, one in fixed.items()}
        posterior = model.infer(**{key: one.unsqueeze(0) for key, one in tensors.items()}, using=using)
        parts = [posterior.mode["s"].square(), posterior.variance["s"], posterior.log_partition, posterior.entropy]
        return sum((one.sum() for one in parts), torch.zeros((), dtype=torch.float64))

    return number, list(real.values())


@LOADING
@pytest.mark.parametrize("name", CASES)
def test_transforms_equal_autograd(name: str) -> None:
    number, inputs = asked(name)
    every = tuple(range(len(inputs)))
    one = [tensor[0].clone().requires_grad_() for tensor in inputs]
    value = number(*one)
    wanted = torch.autograd.grad(value, one, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(grad(number, every)(*(tensor.detach() for tensor in one)), wanted)
    torch.testing.assert_close(vmap(number)(*inputs)[0], value.detach())
    torch.testing.assert_close(tuple(each[0] for each in vmap(grad(number, every))(*inputs)), wanted)
    torch.testing.assert_close(jacfwd(number, every)(*(tensor.detach() for tensor in one)), wanted)


@LOADING
@pytest.mark.parametrize("name", CASES)
def test_hessians_equal_those_of_autograd(name: str) -> None:
    """Forward over backward against backward over backward, along one direction."""
    number, inputs = asked(name)
    every = tuple(range(len(inputs)))
    given = tuple(tensor[0] for tensor in inputs)
    generator = torch.Generator().manual_seed(0)
    along = tuple(torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in given)
    found = jvp(grad(number, every), given, along)[1]
    one = [tensor.clone().requires_grad_() for tensor in given]
    slopes = torch.autograd.grad(number(*one), one, create_graph=True, allow_unused=True, materialize_grads=True)
    total = sum(((slope * way).sum() for slope, way in zip(slopes, along, strict=True)), torch.zeros(()).double())
    wanted = torch.autograd.grad(total, one, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, wanted)


@LOADING
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_inverses_have_the_forward_derivatives_of_differences(batch: int, size: int) -> None:
    """As many matrices as rows, among others: torch takes the identity for vectors then, unless it is told."""
    generator = torch.Generator().manual_seed(0)
    given, along = torch.randn(2, batch, size, size + 2, generator=generator, dtype=torch.float64)

    def inverse(values: Tensor) -> Tensor:
        eye = torch.eye(size, dtype=values.dtype)
        return inverse_of(torch.linalg.cholesky(values @ values.transpose(1, 2) + eye))

    step = 1e-6
    wanted = (inverse(given + step * along) - inverse(given - step * along)) / (2 * step)
    torch.testing.assert_close(jvp(inverse, (given,), (along,))[1], wanted, rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_are_not_followed() -> None:
    number, inputs = asked("potts", "cg")
    with pytest.raises(QueryRefused, match="conjugate gradients are not followed"):
        grad(number)(*(tensor[0] for tensor in inputs))


def test_an_example_without_an_answer_is_nan_under_vmap() -> None:
    text = (
        CASES["smooth edges"].spec().replace("ridge: 1.5", "ridge: 1.5 - r").replace("field", "input r : real\nfield")
    )
    model, inputs = em.compile(text), CASES["smooth edges"].inputs()
    shared = {key: one[:1] for key, one in inputs.items() if key != "u"}

    def mode(u: Tensor, r: Tensor) -> Tensor:
        return model.infer(u=u.unsqueeze(0), r=r.unsqueeze(0), **shared).mode["s"]

    found = vmap(mode)(inputs["u"], torch.tensor([0.0, 100.0]).to(inputs["u"].dtype))
    assert found[0].isfinite().all()
    assert found[1].isnan().all()

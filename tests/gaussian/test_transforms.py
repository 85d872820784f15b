"""Fields under the transforms of `torch.func`: what autograd gives, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, vmap

import energyml as em
from energyml.backend import QueryRefused
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
    try:
        found = jacfwd(number, every)(*(tensor.detach() for tensor in one))
    except QueryRefused as refusal:
        assert "forward differentiation does not go through the Woodbury identity" in str(refusal)
    else:
        torch.testing.assert_close(found, wanted)


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

"""Detects that the weights or the inputs behind a posterior have changed since it was made."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from energyml.diagnostics import EnergyError

# The name of a tensor for messages, and the tensor.
Named: TypeAlias = tuple[str, Tensor]


class PosteriorOutdated(EnergyError):
    """A query on a posterior whose weights or inputs have changed since `infer`."""


class Snapshot:
    """The versions of all tensors that a posterior is computed from.

    Torch counts the in-place changes of a tensor; a parameter that is replaced, or given other storage, is noticed by
    identity and address.  Inference tensors have no version, so their values are copied and compared.  Not noticed: a
    write through `tensor.data` or through memory that is shared with NumPy.

    Args:
        module: the bound model.  Modules under `infer` are left out: they belong to backends, not to the energy.
        given: the tensors of the call.

    Cost: linear in the number of tensors, not in their sizes; the host is never synchronised.
    """

    __slots__ = ("_given", "_marks", "_modes", "_module", "_weights")

    def __init__(self, module: nn.Module, given: Sequence[Named] = ()) -> None:
        self._module, self._given = module, given
        self._weights, self._modes = _state(module)
        self._marks = [_mark(one) for one in self._weights] + [_mark(one) for _, one in given]

    def insist(self) -> None:
        """Raise `PosteriorOutdated` where something has changed."""
        weights, modes = _state(self._module)
        same = len(weights) == len(self._weights)
        same = same and all(map(operator.is_, weights, self._weights))
        if not same or not all(map(_fits, weights, self._marks)):
            raise PosteriorOutdated("the weights have changed; infer again")
        self.insist_on_given()
        if modes != self._modes:
            raise PosteriorOutdated("the model was switched between `train()` and `eval()`; infer again")

    def insist_on_given(self) -> None:
        """Raise `PosteriorOutdated` where a tensor of the call has changed."""
        for (name, one), mark in zip(self._given, self._marks[len(self._weights) :], strict=True):
            if not _fits(one, mark):
                raise PosteriorOutdated(f"{name} has changed; infer again")


_Mark: TypeAlias = "tuple[int, int] | Tensor"


def _mark(tensor: Tensor) -> _Mark:
    return tensor.detach().clone() if tensor.is_inference() else (tensor._version, tensor.data_ptr())


def _fits(tensor: Tensor, mark: _Mark) -> bool:
    if isinstance(mark, Tensor):
        return torch.equal(tensor, mark)
    return mark == (tensor._version, tensor.data_ptr())


def _state(module: nn.Module) -> tuple[list[Tensor], list[bool]]:
    """Parameters, fixed inputs and the buffers that no forward pass updates; and the mode of each network."""
    tensors, modes = list(_present(module._parameters)), []
    tensors += _present(module._buffers)
    left = [one for name, one in module._modules.items() if one is not None and name != "infer"]
    while left:
        one = left.pop()
        modes.append(one.training)
        tensors += _present(one._parameters)
        if not one.training:  # in training mode a forward pass updates buffers, such as running means
            tensors += _present(one._buffers)
        left += [inner for inner in one._modules.values() if inner is not None]
    return tensors, modes


def _present(tensors: Mapping[str, Tensor | None]) -> Iterator[Tensor]:
    return (one for one in tensors.values() if one is not None)


__all__ = ["Named", "PosteriorOutdated", "Snapshot"]

"""A note about inputs that look padded where nothing says how long the examples are."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from energyml.bind.inputs import Wanted
from energyml.execution import is_host_readable

MOST_CALLS = 1024


class PaddingNote:
    """Warns, once, where examples end in zeros and neither lengths nor a mask were given: the answers sum over those.

    A position is empty where every input over the dim is zero there: all features of reals, the label 0 or -1.  Some
    examples of the batch must begin with another position and end in empty ones, some must not end so, and nowhere may
    another position follow an empty one: data that has such positions of its own is left alone.

    It looks on the host alone, at calls 1, 2, 4, 8 and so on, and is done after 1024: many calls pay nothing.

    Args:
        wanted: what each input must look like.
        dims: those along which lengths or a mask would tell the padding.
    """

    def __init__(self, wanted: Mapping[str, Wanted], dims: Iterable[str]) -> None:
        self.calls = 0
        self.over: dict[str, list[str]] = {}
        for dim in dims:
            names = [n for n, one in wanted.items() if one.axes and one.axes[0].dim == dim and not one.axes[0].offset]
            if any(not wanted[name].integral and len(wanted[name].axes) > 1 for name in names):
                self.over[dim] = names
        self.done = not self.over

    def look(self, tensors: Mapping[str, Tensor], size: int) -> None:
        """Look at the inputs [B, T, ...] of a call without lengths and without a mask; B is `size`."""
        if torch.compiler.is_compiling() or size < 2:
            return
        self.calls += 1
        self.done = self.calls >= MOST_CALLS
        if self.calls & (self.calls - 1):
            return
        for dim, names in self.over.items():
            given = [tensors[name] for name in names if name in tensors]
            count = _padded(given, size) if all(map(is_host_readable, given)) else 0
            if count:
                self.done = True
                warnings.warn(
                    f"{count} of {size} examples end in zeros along `{dim}`, and neither `lengths` nor `mask` was "
                    "given: if that is padding, the answers sum over it. Pass `lengths=` or `mask=` to leave it out",
                    stacklevel=6,
                )
                return


def _padded(given: list[Tensor], size: int) -> int:
    """How many examples end in empty positions, where some do, some do not, and no other position is empty."""
    numbers = sum(one[0, :1].numel() for one in given if one.is_floating_point())
    if numbers < 2 or given[0].shape[1] < 2:
        return 0
    if not 0 < int(_empty([one[:, -1:] for one in given]).sum()) < size:
        return 0
    empty = _empty(given)
    if bool((empty[:, :-1] & ~empty[:, 1:]).any()):
        return 0
    return int((empty[:, -1] & ~empty[:, 0]).sum())  # an example without any number says nothing


def _empty(given: list[Tensor]) -> Tensor:
    """[B, T]: where all inputs are zero, or -1 as a label."""
    plain = [one.detach().flatten(2) if one.dim() > 2 else one.detach().unsqueeze(-1) for one in given]
    each = [(one == 0 if one.is_floating_point() else one <= 0).all(2) for one in plain]
    return torch.stack(each).all(0)


__all__ = ["PaddingNote"]

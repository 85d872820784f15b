"""Calls that say what the last one said: loops ask the same of other parameters, or another question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.transforms import recorded

if TYPE_CHECKING:
    from energyml.backend import Evidence

Labels = Mapping[str, Tensor]


class LastCall:
    """The batch and the evidence of the last call that gave labels as evidence and nothing else.

    The next one that gives equal labels is given the same two: nothing is checked again, and backends find what they
    keep with the batch.  Labels are compared, with a copy, so that writing into a tensor is noticed however it is done.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], Labels, tuple[Batch, Evidence]] | None = None

    def made(
        self,
        evidence: Labels,
        fixed: Mapping[str, Tensor | None],
        reference: Tensor | None,
        make: Callable[[Labels], tuple[Batch, Evidence]],
    ) -> tuple[Batch, Evidence]:
        """The batch and the evidence of a call.

        Args:
            evidence: labels by variable.
            fixed: the inputs that hold for every example.
            reference: a parameter that tells device and dtype.
            make: checks a call that is not the last one again.
        """
        if not _comparable(evidence):
            return make(evidence)
        around = _around(fixed, reference)
        if self._last is not None:
            before, labels, made = self._last
            same = before == around and labels.keys() == evidence.keys()
            if same and all(_equal(labels[name], one) for name, one in evidence.items()):
                return made
            made[0].kept = None  # it will not come again
        copies = {name: one.clone() for name, one in evidence.items()}
        made = make(copies)
        self._last = None
        if around is not None:
            made[0].kept = {}
            self._last = around, copies, made
        return made


def _comparable(evidence: Labels) -> bool:
    """Whether all is labels on the CPU, and nothing follows what is done with them."""
    return not recorded() and all(
        isinstance(one, Tensor) and one.device.type == "cpu" and not one.is_floating_point()
        for one in evidence.values()
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _around(fixed: Mapping[str, Tensor | None], reference: Tensor | None) -> tuple[object, ...] | None:
    """What a batch depends on beside the arguments of a call; `None` where changes could not be told."""
    found: list[object] = [torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    if reference is not None:
        found += (reference.device, reference.dtype)
    for name, one in fixed.items():
        if one is not None:
            if one.is_inference():
                return None  # it has no version
            found += (name, id(one), one._version)
    return tuple(found)

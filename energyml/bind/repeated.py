"""Calls that say what the last one said: loops ask the same of other parameters, or another question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.bind.batch import Batch

if TYPE_CHECKING:
    from energyml.backend import Evidence

Labels = Mapping[str, Tensor]

# By their names: short calls ask often.
_default_dtype, _in_inference_mode, _equal = torch.get_default_dtype, torch.is_inference_mode_enabled, torch.equal


class LastCall:
    """The batch and the evidence of the last call that gave labels as evidence and nothing else.

    Not for calls that are recorded.  The next one that gives equal labels is given the same two: nothing is checked
    again, and backends find what they keep with the batch.  Labels are compared, with a copy, so that writing into a
    tensor is noticed however it is done.
    """

    def __init__(self) -> None:
        self._last: _Said | None = None

    def made(
        self,
        evidence: Labels,
        fixed: Mapping[str, Tensor | None],
        reference: Tensor | None,
        make: Callable[[Labels, Labels], tuple[Batch, Evidence]],
    ) -> tuple[Batch, Evidence]:
        """The batch and the evidence of a call.

        Args:
            evidence: labels by variable.
            fixed: the inputs that hold for every example.
            reference: a parameter that tells device and dtype.
            make: checks a call that is not the last one again: what is known, and what tells sizes.
        """
        last = self._last
        if last is not None and last.again(evidence, fixed, reference):
            return last.made
        if not _comparable(evidence):
            return make(evidence, evidence)
        if last is not None:
            last.made[0].kept = None  # it will not come again
        copies = {name: one.clone() for name, one in evidence.items()}
        made = make(copies, copies)
        self._last = None
        # A tensor that was made in inference mode has no version that would tell of changes.
        if not any(one is not None and one.is_inference() for one in fixed.values()):
            made[0].kept = {}
            self._last = _Said(copies, fixed, reference, made)
        return made


class _Said:
    """All that a batch and its evidence were made from, and the two.

    Args:
        labels: copies of what the caller gave, by variable.
        fixed: the inputs that hold for every example.
        reference: a parameter that tells device and dtype.
        made: the batch and the evidence.
    """

    def __init__(
        self,
        labels: Labels,
        fixed: Mapping[str, Tensor | None],
        reference: Tensor | None,
        made: tuple[Batch, Evidence],
    ) -> None:
        self.made = made
        self._labels = [(name, one, one.dtype) for name, one in labels.items()]
        self._fixed = [(name, one, 0 if one is None else one._version) for name, one in fixed.items()]
        self._dtype, self._inference = _default_dtype(), _in_inference_mode()
        self._like = None if reference is None else (reference.dtype, reference.device)

    def again(self, evidence: Labels, fixed: Mapping[str, Tensor | None], reference: Tensor | None) -> bool:
        """Whether a call says the same."""
        if _default_dtype() is not self._dtype or _in_inference_mode() is not self._inference:
            return False
        if self._like != (None if reference is None else (reference.dtype, reference.device)):
            return False
        if len(evidence) != len(self._labels) or len(fixed) != len(self._fixed):
            return False
        for name, own, version in self._fixed:
            if fixed.get(name, self) is not own or (own is not None and own._version != version):
                return False
        for name, own, dtype in self._labels:
            one = evidence.get(name)
            if not isinstance(one, Tensor) or one.dtype is not dtype or not one.is_cpu or not _equal(own, one):
                return False
        return True


def _comparable(evidence: Labels) -> bool:
    """Whether all is labels on the CPU."""
    return all(isinstance(one, Tensor) and one.is_cpu and not one.is_floating_point() for one in evidence.values())

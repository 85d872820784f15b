"""Calls that say what the last one said: loops ask the same of other parameters, or another question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.transforms import recorded

if TYPE_CHECKING:
    from energyml.backend import Backend, Evidence, Kept
    from energyml.plan.planner import Verdict

Labels = Mapping[str, Tensor]
Inputs: TypeAlias = Mapping[str, "Tensor | None"]
# What a call gave as native code keeps it (labels, fixed inputs, the first parameter), `None` where it cannot; and
# whether another call says the same (labels, fixed inputs, parameters), `None` where it cannot tell.
Keep: TypeAlias = Callable[[Labels, Inputs, Tensor], "object | None"]
Compare: TypeAlias = Callable[[object, "Labels | None", Inputs, Inputs], "bool | None"]

# By their names: short calls ask often.
_default_dtype, _in_inference_mode, _equal = torch.get_default_dtype, torch.is_inference_mode_enabled, torch.equal


_native: tuple[Keep, Compare] = (lambda *_: None, lambda *_: None)


def compare_by(keep: Keep, compare: Compare) -> None:
    """Compare calls by native code, in a quarter of the time: for whoever has it, when it is loaded."""
    global _native
    _native = keep, compare


@dataclass(frozen=True, slots=True)
class Recall:
    """What serves calls that say the same and ask the same backend.

    Attributes:
        kept: what the backend keeps of the batch.
        said: the batch, and what is known about its answer.
        verdict: about the backend.
        backend: who answers.
    """

    kept: Kept
    said: tuple[Batch, Evidence]
    verdict: Verdict
    backend: Backend


class LastCall:
    """The batch and the evidence of the last call that gave labels as evidence and nothing else.

    Not for calls that are recorded.  The next one that gives equal labels is given the same two: nothing is checked
    again, and backends find what they keep with the batch.  Labels are compared, with a copy, so that writing into a
    tensor is noticed however it is done.
    """

    def __init__(self) -> None:
        self._last: _Said | None = None

    def recall(self, using: object, evidence: Labels | None, fixed: Inputs, parameters: Inputs) -> Recall | None:
        """What serves a call that says what the last one said, and asks a backend that was asked then; else `None`.

        Args:
            using: the backend, in the words of the call.
            evidence: labels by variable.
            fixed: the inputs that hold for every example.
            parameters: those of the model; without any, or without native code, nothing is recalled here.
        """
        if recorded():  # first: compiled code must not look at what calls have left
            return None
        last = self._last
        if last is None or not (using.__class__ is str or using is None):
            return None
        found = last.recalls.get(using)
        if found is None or _default_dtype() is not last.dtype or _in_inference_mode() is not last.inference:
            return None
        return found if last.compare(last.call, evidence, fixed, parameters) else None

    def remember(self, using: object, recall: Recall) -> None:
        """Keep what served the last call, if it still is that."""
        last = self._last
        if last is not None and last.made is recall.said and last.call is not None and isinstance(using, str | None):
            last.recalls[using] = recall

    def made(
        self,
        evidence: Labels,
        fixed: Inputs,
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
        fixed: Inputs,
        reference: Tensor | None,
        made: tuple[Batch, Evidence],
    ) -> None:
        self.made = made
        self._labels = [(name, one, one.dtype) for name, one in labels.items()]
        self._fixed = [(name, one, 0 if one is None else one._version) for name, one in fixed.items()]
        self.dtype, self.inference = _default_dtype(), _in_inference_mode()
        self._like = None if reference is None else (reference.dtype, reference.device)
        self.recalls: dict[object, Recall] = {}  # by the words of a call; none without native code
        keep, self.compare = _native
        self.call = None if reference is None else keep(dict(labels), fixed, reference)

    def again(self, evidence: Labels, fixed: Inputs, reference: Tensor | None) -> bool:
        """Whether a call says the same."""
        if _default_dtype() is not self.dtype or _in_inference_mode() is not self.inference:
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

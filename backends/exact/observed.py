"""Evidence as elimination programs see it: cells whose label is known are taken out of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from energyml.bind.problem import Evidence
from energyml.execution import as_numpy
from energyml.grounded.grounding import Sources


@dataclass(frozen=True, eq=False)
class Observed:
    """What is known about the cells of a batch.

    Attributes:
        labels: [B, cells] int64: the labels of observed cells, 0 for others.
        cells: [B, cells] bool: which cells evidence leaves one label; `None` where nobody looked.
        settled: whether evidence says nothing but the labels of cells that are observed in all examples: what programs
            know already, so that no table has to rule labels out.
    """

    labels: Tensor
    cells: np.ndarray | None
    settled: bool

    def known(self, rows: np.ndarray) -> np.ndarray | None:
        """[cells] bool: the cells that are observed in all of these examples; `None` where there are none."""
        if self.cells is None:
            return None
        own = self.cells if len(rows) == len(self.cells) else self.cells[rows]
        common = own[0] if len(own) == 1 else np.logical_and.reduce(own, 0)
        return common if common.any() else None


def observed(evidence: Evidence, sources: Sources) -> Observed:
    """What evidence tells about the cells of a batch.  Cost: one pass over what is known.

    On an accelerator, in compiled code, and where `vmap` maps over evidence or lengths, nobody looks: what is ruled out
    has the score -inf there.
    """
    if sources.traced:
        return Observed(torch.zeros(0, 0, dtype=torch.long), None, not evidence.allowed)
    if not torch.is_inference_mode_enabled():
        return _observed(evidence, sources)
    with torch.inference_mode(False):  # labels are indices where gradients are taken, also inside of inference mode
        return _observed(evidence, sources)


def _observed(evidence: Evidence, sources: Sources) -> Observed:
    batch = sources.batch
    found = _looked_at(evidence, sources) if evidence.allowed and batch.device.type == "cpu" else None
    if found is not None:
        return found
    nothing = torch.zeros(batch.size, sources.cells.count, dtype=torch.long, device=batch.device)
    return Observed(nothing, None, not evidence.allowed)


def _looked_at(evidence: Evidence, sources: Sources) -> Observed | None:
    """What can be seen on the host; `None` where `vmap` hides it."""
    cells, size = sources.cells, sources.batch.size
    labels, found = np.zeros((size, cells.count), dtype=np.int64), np.zeros((size, cells.count), dtype=bool)
    for name in evidence.allowed:
        span, count = cells.span(name), prod(cells.shapes[name])
        clamped = evidence.labels.get(name)
        seen = as_numpy(evidence.allowed[name] if clamped is None else clamped)
        if seen is None:
            return None
        if clamped is not None:
            own = seen.reshape(size, count)
            np.greater_equal(own, 0, out=found[:, span])
            np.maximum(own, 0, out=labels[:, span])
        else:
            each = seen.reshape(size, count, seen.shape[-1])
            found[:, span] = np.count_nonzero(each, -1) == 1
            labels[:, span] = each.argmax(-1)
    if not sources.batch.whole and sources.fixed and not _leave_out_absent(evidence, sources, labels, found):
        return None
    alike = size == 1 or bool((found.any(0) == found.all(0)).all())
    return Observed(torch.from_numpy(labels), found, alike and len(evidence.labels) == len(evidence.allowed))


def _leave_out_absent(evidence: Evidence, sources: Sources, labels: np.ndarray, found: np.ndarray) -> bool:
    """Cells that do not exist have the label 0; those of a variable that evidence is about count as observed.

    Whether it could be seen which cells exist.
    """
    for variable in sources.graph.discrete:
        exists = sources.batch.cells(variable.name, variable.dims)
        if exists is None:
            continue
        seen = as_numpy(exists)
        if seen is None:
            return False
        span = sources.cells.span(variable.name)
        there = seen.reshape(labels[:, span].shape)
        labels[:, span] *= there
        if variable.name in evidence.allowed:
            found[:, span] |= ~there
    return True

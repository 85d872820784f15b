"""Elimination programs on the CPU: torch tensors around the native kernel, which works in double precision."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from energyml.native import elimination as kernels
from energyml.native.planning import Steps
from energyml.plan.elimination import Program

# Entries of all cliques of a batch below which a second thread costs more than it brings.
WORTH_A_THREAD = 1_000_000


@dataclass(frozen=True)
class Layout:
    """Where the factors of a program stand in their tables.

    Attributes:
        sources: [factors] int64: which table.
        elements: [factors] int64: which element of that table's index set.
        shapes: of each table without its batch axis; `None` where there is none.
        domains: the sizes of the index set of each table.
        arities: how many cells the scopes of each table have.
    """

    sources: np.ndarray
    elements: np.ndarray
    shapes: tuple[tuple[int, ...] | None, ...]
    domains: tuple[tuple[int, ...], ...]
    arities: tuple[int, ...]


class Encoded:
    """A program as the kernel holds it, for tables of given shapes.

    Args:
        program: the kernel's own object.
        cells: how many cells there are.
        steps: how many eliminations there are.
        known: int64: the known cells, in the order of their labels.
    """

    def __init__(self, program: object, cells: int, steps: int, known: np.ndarray) -> None:
        self.program, self.cells, self.steps, self.known = program, cells, steps, known

    def labels_of_known(self, labels: Tensor) -> Tensor:
        """[R, known]: those of the labels [R, cells] that the kernel reads."""
        return labels.index_select(1, torch.from_numpy(self.known))


def encoded(program: Program, layout: Layout) -> Encoded:
    """A program that native code made, for tables of given shapes.  Cost: linear in the scopes of all inputs."""
    assert kernels is not None
    steps = program.steps
    assert isinstance(steps, Steps)
    known = np.array(sorted(program.known), dtype=np.int64)
    made = kernels.read_program(
        *steps.graph, layout.sources, layout.elements, layout.shapes, layout.domains, layout.arities, known,
        len(known), steps.numbers,
    )  # fmt: skip
    return Encoded(made, len(program.sizes), len(steps), known)


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        total: [R] log Z, or the best score.
        entropy: [R], where gradients of a sum were asked for.
        labels: [R, draws, cells] of best answers or draws; 0 for cells that were not walked to.
    """

    total: Tensor
    entropy: Tensor | None
    labels: Tensor | None


def run(
    code: Encoded,
    rows: np.ndarray,
    tables: Sequence[Tensor | None],
    labels: Tensor,
    *,
    maximise: bool = False,
    products: bool = False,
    first: int = 0,
    weights: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (),
    draws: int = 0,
    uniforms: Tensor | None = None,
    threads: int = 1,
) -> Outcome:
    """Run a program on some examples of a batch.

    Args:
        code: the program.
        rows: [R] the examples.
        tables: float64, contiguous, [B or 1, ...] each; `None` for a table of zeros.
        labels: [R, known] int64: the labels of the known cells.
        maximise: the best answer in place of the sum over all.
        products: sum in exp space where no product can vanish: faster, but without entropies.
        first: how many steps sum out cells that are no part of an answer: they are summed when maximising too, and do
            not count for the entropy.
        weights: [R] float64: weights of the gradients; without them there are none.
        gradients: one for each table, of its shape or `None`: shares of the probability are added, or best scores
            (maximising) put in where they are higher.
        draws: how many answers are walked back to: 1 for the best one.
        uniforms: [R, draws, steps] float64 in [0, 1) for draws.
        threads: at most so many.

    Cost: one pass over the entries of all cliques, two with gradients; memory for the messages only.
    """
    assert kernels is not None
    count = len(rows)
    threads = max(1, min(threads, count))
    total = torch.empty(count, dtype=torch.float64, device="cpu")
    # Of tables: where they are and their strides over examples; of gradients the same, and their strides over threads.
    each = len(tables)
    places = array("q", bytes(5 * 8 * each))
    copies: list[tuple[Tensor, Tensor]] = []
    for number, table in enumerate(tables):
        if table is None:
            continue
        example = table.stride(0) if table.shape[0] > 1 else 0
        places[number], places[each + number] = table.data_ptr(), example
        gradient = gradients[number] if weights is not None else None
        if gradient is not None:
            places[3 * each + number] = example
            if not example and threads > 1:  # a table for all examples: each thread adds up its own
                copy = gradient.repeat(threads, *([1] * (gradient.dim() - 1)))
                copies.append((gradient, copy))
                gradient, places[4 * each + number] = copy, copy.stride(0)
            places[2 * each + number] = gradient.data_ptr()
    start, row = places.buffer_info()[0], 8 * each
    entropy = (
        torch.empty(count, dtype=torch.float64, device="cpu")
        if weights is not None and not (maximise or products)
        else None
    )
    drawn = torch.zeros(count, draws, code.cells, dtype=torch.int64, device="cpu") if draws else None
    examples, known = np.ascontiguousarray(rows, dtype=np.int64), labels.contiguous()
    kernels.eliminate(
        int(maximise), int(products), first if maximise else code.steps, first, code.program, examples,
        count, start, start + row, len(tables), known.data_ptr(), total.data_ptr(), _pointer(weights), start + 2 * row,
        start + 3 * row, start + 4 * row, _pointer(entropy), _pointer(uniforms), _pointer(drawn), draws, threads,
    )  # fmt: skip
    for gradient, copy in copies:
        if maximise:
            torch.amax(copy, 0, keepdim=True, out=gradient)
        else:
            gradient += (copy - gradient).sum(0, keepdim=True)
    return Outcome(total, entropy, drawn)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

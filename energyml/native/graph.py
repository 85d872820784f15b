"""Elimination programs on the CPU: torch tensors around the native kernel, which works in double precision."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from energyml.native import elimination as kernels
from energyml.native.planning import METHODS, Steps
from energyml.plan.elimination import WORTH_SEARCHING, Program, trials

_EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)
if kernels is not None:
    kernels.introduce(
        Tensor, torch.nn.Parameter, torch.empty_like, torch.get_num_threads, torch.float32, torch.float64, torch.int64,
        _EXCHANGE,
    )  # fmt: skip
# Whether questions can be asked: this torch lets native code look into its tensors.
ASKS = kernels is not None and _EXCHANGE is not None

AskedVariable: TypeAlias = tuple[tuple[int, ...], int, Tensor | None]
AskedTerm: TypeAlias = tuple[Tensor, Tensor | None, tuple[int, ...], tuple[int, ...]]

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


class Question:
    """What is asked again and again of parameters that are tables as they are: nothing is made of them in between.

    Args:
        question: the kernel's own object.
        variables: whose marginals are asked for; empty where log Z is.
    """

    def __init__(self, question: object, variables: tuple[str, ...]) -> None:
        assert kernels is not None
        self._ask, self._question, self._variables = kernels.ask, question, variables

    @staticmethod
    def of(
        code: Encoded,
        labels: Tensor,
        parameters: Mapping[str, tuple[int, ...]],
        marginals: Mapping[str, tuple[int, ...]],
    ) -> Question:
        """The question that a program answers.

        Args:
            code: the program; its tables are the parameters, and behind them zeros for the cells of each variable.
            labels: [1, cells] int64: the labels of the known cells.
            parameters: names and shapes.
            marginals: by variable the shape of its marginals; empty where log Z is asked for.
        """
        assert kernels is not None
        made = kernels.make_question(
            code.program, labels.contiguous().data_ptr(), code.known, tuple(parameters), tuple(parameters.values()),
            tuple(marginals.values()),
        )  # fmt: skip
        return Question(made, tuple(marginals))

    @staticmethod
    def planned(
        cells: int,
        budget: float,
        variables: tuple[AskedVariable, ...],
        terms: tuple[AskedTerm, ...],
        parameters: tuple[str, ...],
        marginals: Mapping[str, tuple[int, ...]],
        like: Question | None = None,
    ) -> Question | None:
        """The same without a plan: from labels and scopes, where simple searches find an order that fits.

        Args:
            cells: how many there are.
            budget: bytes that the program may take.
            variables: their shapes, how many labels they have, and what is known: int64 [1, *shape] with -1.
            terms: the parameters that are their tables, the edges [1, E, ends] that are their elements (`None`: each
                cell of the variable is one), at which end each cell of the scope stands, and of which variable it is.
            parameters: the names of the parameters.
            marginals: as in `of`.
            like: another question about the same graph and cells: its order is taken.

        Cost: as many searches as `cheapest` makes for a program that is not worth opt_einsum's.
        """
        assert kernels is not None
        alike = len({labels for _, labels, _ in variables}) == 1
        tried = [(METHODS[method], ties, worth) for method, ties, worth in trials(cells, alike)]
        made = kernels.plan_question(
            (*tried,), float(WORTH_SEARCHING), budget, variables, terms, parameters, tuple(marginals.values()),
            None if like is None else like._question,
        )  # fmt: skip
        return None if made is None else Question(made, tuple(marginals))

    def ask(self, parameters: Mapping[str, Tensor | None]) -> Any:
        """Answer without a tape: log Z [1], or marginals by variable; `None` where parameters are of another shape."""
        found = self._ask(self._question, parameters)
        return dict(zip(self._variables, found, strict=True)) if self._variables and found is not None else found


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

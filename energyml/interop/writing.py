"""Writing a model as a UAI file: the tables of one example, grounded."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Overflow
from itertools import combinations
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from energyml.bind.inputs import data_error
from energyml.bind.maker import LengthsLike, MaskLike
from energyml.bind.problem import Problem
from energyml.bind.views import TableView
from energyml.diagnostics import EnergyError
from energyml.driver import SpecFileError
from energyml.energy_model import EnergyModel
from energyml.interop.imported import ImportedModel
from energyml.interop.numbers import Floats, Integers
from energyml.ir.ground import Cell
from energyml.queries import View

# Weights in this range are exp(score) of doubles to full precision; others are written with larger exponents.
_LEAST, _MOST = -700.0, 700.0
# Scores of millions have weights with exponents of millions, which decimal numbers have only when asked.
_WIDE = Context(Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Overflow])


def write_uai(
    model: EnergyModel,
    target: str | Path | IO[str],
    *,
    lengths: LengthsLike | None = None,
    mask: MaskLike | None = None,
    evidence: Mapping[str, Tensor] | None = None,
    **inputs: Tensor,
) -> tuple[Cell, ...]:
    """Write a model of tables as a UAI `MARKOV` file.

    Weights have 17 digits, so reading the file gives the same scores.  Those that no double holds, of scores beyond
    700, are written with larger exponents; `read_uai` reads them, other programs may take them for 0 or infinity.

    Args:
        model: all of its terms have tables; latents become variables like the others.
        target: a path, or an open text file.
        lengths: as in `infer`, for one example.
        mask: as in `infer`.
        evidence: as in `infer`; what it does not allow gets the weight 0.
        **inputs: as in `infer`.

    Returns:
        The cells in the order of the file's variables; for a model that was read, the order of its own file.

    Cost: linear in the tables.
    """
    _check_terms(model)
    problem = model.problem(lengths=lengths, mask=mask, evidence=evidence, **inputs)
    if problem.env.batch.size != 1:
        raise EnergyError(f"a file holds one example, found a batch of {problem.env.batch.size}")
    with torch.no_grad():
        cells, text = _Writer(problem, model.cells if isinstance(model, ImportedModel) else None).run()
    if isinstance(target, str | Path):
        try:
            Path(target).write_text(text, encoding="ascii")
        except OSError as problem_of_file:
            reason = (problem_of_file.strerror or str(problem_of_file)).lower()
            raise SpecFileError(f"{target}: {reason}") from problem_of_file
    else:
        target.write(text)
    return cells


def _check_terms(model: EnergyModel) -> None:
    """Refuse what has no tables."""

    def refuse(span: object, name: str, reason: str) -> EnergyError:
        return data_error(model.compiled.source, "E0710", span, name=name, reason=reason)  # type: ignore[arg-type]

    for variable in model.graph.variables.values():
        if variable.kind == "field":
            raise refuse(variable.span, variable.name, "it is continuous")
        free = [dim for dim in variable.dims if model.graph.dims[dim].kind == "free"]
        if free:
            raise refuse(variable.span, variable.name, f"its length along `{free[0]}` is part of the answer")
    for term in model.terms:
        if View.TABLE not in term.views:
            raise refuse(term.term.span, term.term.name, "it has no tables")


class _Writer:
    """Turns one example into text; variables are numbered in the order of `order`, else variable by variable."""

    def __init__(self, problem: Problem, order: tuple[tuple[str, int], ...] | None) -> None:
        self.problem, self.batch = problem, problem.env.batch
        self.numbers: dict[str, Tensor] = {}  # by variable: [*dims] the number of each cell, -1 for none
        self.cells: list[Cell] = []
        for variable in problem.graph.discrete:
            exists = self.batch.cells_exist(variable.dims, variable.name)[0]
            here = exists.nonzero()
            numbers = torch.full(exists.shape, -1)
            numbers[exists.cpu()] = torch.arange(len(here)) + len(self.cells)
            self.numbers[variable.name] = numbers
            self.cells += [Cell(variable.name, tuple(row), variable.type.element) for row in here.tolist()]
        if order is not None:
            places = torch.tensor([int(self.numbers[name][position]) for name, position in order])
            self.cells = [self.cells[place] for place in places.tolist()]
            back = torch.argsort(places)
            self.numbers = {name: back[numbers] for name, numbers in self.numbers.items()}

    def run(self) -> tuple[tuple[Cell, ...], str]:
        """The cells and the text of the file."""
        if not self.cells:
            raise EnergyError("there is nothing to write: this example has no cell")
        scopes, tables = io.StringIO(), io.StringIO()
        count = 0
        for numbers, logs in self._factors():
            count += len(numbers)
            scopes.writelines(f"{' '.join(map(str, (len(row), *row)))}\n" for row in numbers.tolist())
            size = math.prod(logs.shape[1:])
            tables.writelines(f"\n{size}\n{' '.join(row)}\n" for row in _weights(logs.reshape(len(numbers), size)))
        cards = " ".join(str(self.problem.label_count(cell.variable)) for cell in self.cells)
        text = f"MARKOV\n{len(self.cells)}\n{cards}\n{count}\n{scopes.getvalue()}{tables.getvalue()}"
        return tuple(self.cells), text

    def _factors(self) -> Iterator[tuple[Integers, Floats]]:
        """Factors in groups: [n, arity] the variables of each, and [n, *labels] its scores."""
        for term in self.problem.tables():
            yield from _each_cell_once(*self._grounded(term))
        for name, allowed in self.problem.evidence.allowed.items():
            numbers = self.numbers[name].reshape(-1, 1).numpy()
            logs = torch.where(allowed[0], 0.0, -math.inf).flatten(0, -2).double().cpu().numpy()
            present = numbers[:, 0] >= 0
            yield numbers[present], logs[present]

    def _grounded(self, term: TableView) -> tuple[Integers, Floats]:
        """The elements of a term's index set that exist: their cells [n, arity] and their scores [n, *labels]."""
        batch, rank = self.batch, term.rank
        domain = term.domain_sizes(batch) or (1,)  # a term without indices has one element

        def over_domain(tensor: Tensor, beyond: int = 0) -> Tensor:
            one = tensor[0].cpu() if rank else tensor.cpu()
            return one.expand(*domain, *one.shape[one.dim() - beyond :])

        valid = term.valid(batch)
        exists = torch.ones(domain, dtype=torch.bool) if valid is None else over_domain(valid)
        chosen = exists.nonzero(as_tuple=True)
        scope = [
            self.numbers[ref.variable][tuple(over_domain(place)[chosen] for place in term.cells(batch, number))]
            for number, ref in enumerate(term.term.scope)
        ]
        numbers = torch.stack([cells.expand(len(chosen[0])) for cells in scope], 1)
        logs = over_domain(term.table(self.problem.env), len(scope))[chosen]
        return numbers.numpy(), logs.double().numpy()


def _each_cell_once(numbers: Integers, logs: Floats) -> Iterator[tuple[Integers, Floats]]:
    """Factors in groups; one that touches a cell twice has the diagonal of its table instead."""
    for first, second in combinations(range(numbers.shape[1]), 2):
        same = numbers[:, first] == numbers[:, second]
        if same.any():
            yield from _each_cell_once(numbers[~same], logs[~same])
            diagonal = np.moveaxis(np.diagonal(logs[same], axis1=1 + first, axis2=1 + second), -1, 1 + first)
            yield from _each_cell_once(np.delete(numbers[same], second, 1), diagonal)
            return
    yield numbers, logs


def _weights(logs: Floats) -> Iterator[list[str]]:
    """Weights of scores [n, size] as decimal numbers; their logarithms are these scores, where a double allows it."""
    inside = np.clip(logs, _LEAST, _MOST)
    weights = _exact_exp(inside)
    beyond = inside != logs
    for number, (values, odd) in enumerate(zip(weights.tolist(), beyond.any(1).tolist(), strict=True)):
        texts = [f"{value:.17g}" for value in values]
        if odd:
            for place in np.flatnonzero(beyond[number]).tolist():
                texts[place] = _extreme(float(logs[number, place]))
        yield texts


def _exact_exp(logs: Floats) -> Floats:
    """Doubles whose logarithms are the given ones, or as near as doubles allow: exp alone is off by some units."""
    weights = np.exp(logs)
    weights += weights * (logs - np.log(weights))  # Newton's step
    for towards in (0.0, np.inf):
        other = np.nextafter(weights, towards)
        nearer = np.abs(np.log(other) - logs) < np.abs(np.log(weights) - logs)
        weights = np.where(nearer, other, weights)
    return weights


def _extreme(log: float) -> str:
    """The exponential of a score whose weight no double holds."""
    if log == -math.inf:
        return "0"
    try:
        return f"{Decimal(log).exp(_WIDE):.17e}"
    except Overflow:
        raise EnergyError(f"a score of {log:g} has no weight that a file could hold") from None

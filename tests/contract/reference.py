"""A slow, independent reference.

It grounds a model, fills the table of every ground factor entry by entry from the term's expression, enumerates all
assignments and adds up.  The score of an assignment and the difference of two are sums that are rounded once, so that
small scores beside huge ones count.  Networks run on one example at a time, on tensors cut down to what exists, so that
they meet no padding.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.energy_model import EnergyModel
from energyml.ir.graph import Forbidden, SchemeRule, Stepwise, Table, Term
from energyml.ir.ground import GroundFactor, GroundGraph, ground
from energyml.model import schemes
from energyml.model.expression import (
    Affine,
    Apply,
    At,
    Combine,
    Constant,
    Expression,
    Potential,
    Reference,
)
from energyml.model.types import Axis
from tests.contract.cases import Case
from tests.contract.reference_wholes import Whole

Array = np.ndarray[Any, np.dtype[np.float64]]
NINF = float("-inf")


# Without ENERGYML_FUZZ a test draws the same cases for every backend: their answers are listed once.
_LISTED: OrderedDict[object, list[Example]] = OrderedDict()
_MOST = 1024


def examples(case: Case) -> list[Example]:
    """The reference of every example of a case; cases of the same text and numbers share it."""
    key = _content(case)
    found = _LISTED.pop(key, None)
    if found is None:
        model = copy.deepcopy(case.model).double().eval()
        found = [Example(case, b, model) for b in range(case.batch)]
    _LISTED[key] = found
    if len(_LISTED) > _MOST:
        _LISTED.popitem(last=False)
    return found


def _content(case: Case) -> object:
    """All that a case's reference depends on, as something to look up."""
    named = {part: getattr(case, part) for part in ("inputs", "lengths", "masks", "evidence")}
    named["weights"] = {name: one for name, one in case.model.named_parameters() if not name.startswith("infer.")}
    tensors = tuple(
        (part, name, one.dtype, tuple(one.shape), one.detach().contiguous().numpy().tobytes())
        for part, tensors in named.items()
        for name, one in tensors.items()
    )
    return case.text, case.dtype, case.magnitude, case.batch, tuple(case.sizes.items()), tensors


class Example:
    """All answers of one example of a case, with their scores.

    Attributes:
        labels: by variable: int [N, *dims] at the caller's positions, -1 where there is no cell.
        score: [N].
        level: [N]: the scores less the best one, rounded after the subtraction.
        size: [N]: the magnitudes of each answer's scores, added up.
        ceiling: an upper bound of log Z: the largest score of each factor by itself.
        parts: one (ground graph, slice of the answers) for each choice of free lengths.
    """

    def __init__(self, case: Case, b: int, model: EnergyModel | None = None) -> None:
        self.case, self.b = case, b
        self.model = copy.deepcopy(case.model).double().eval() if model is None else model
        self.graph = self.model.graph
        self.counts = {v.name: len(self.graph.label_sets[v.type.element].labels or ()) for v in self.graph.discrete}
        self.variables = list(self.graph.discrete)
        self.labels: dict[str, np.ndarray[Any, Any]] = {}
        self.parts: list[tuple[GroundGraph, slice]] = []
        self._enumerate()

    def shape(self, variable: str) -> tuple[int, ...]:
        """The padded shape of a variable."""
        dims = self.graph.variables[variable].dims
        return tuple(self.case.sizes.get(d, self.graph.dims[d].size or 0) for d in dims)

    # ----------------------------------------------------------------------------------------------------- enumeration

    def _enumerate(self) -> None:
        free = [name for name, dim in self.graph.dims.items() if dim.kind == "free"]
        sums, labels = [], {v.name: [] for v in self.variables}
        start = 0
        for lengths in itertools.product(*(range(1, (self.graph.dims[d].size or 0) + 1) for d in free)):
            chosen = dict(zip(free, lengths, strict=True))
            made = ground(self.graph, self.case.instance(self.b, chosen))
            rows = self._rows(made, chosen)
            here = self._spread(made, rows)
            sums.append(self._scores(made, rows, here, chosen))
            for name, one in here.items():
                labels[name].append(one)
            self.parts.append((made, slice(start, start + len(rows))))
            start += len(rows)
        self.labels = {name: np.concatenate(ones) for name, ones in labels.items()}
        summed = Sums(sums)
        self._sums, self.size, self.score, self.ceiling = summed, summed.size, summed.score, summed.ceiling
        allowed = self._allowed(self.case.evidence)
        self.score = np.where(allowed, self.score, NINF)
        self.level = np.where(allowed, summed.less(int(self.score.argmax())), NINF)
        while self.level.max(initial=NINF) > 0:  # rounded scores may tie where exact ones do not
            self.level = np.where(allowed, summed.less(int(self.level.argmax())), NINF)

    def _rows(self, made: GroundGraph, lengths: Mapping[str, int]) -> np.ndarray[Any, Any]:
        ends = self._ends()
        options = []
        for cell in made.cells:
            every = range(self.counts[cell.variable])
            if cell.variable in ends:
                dim = self.graph.variables[cell.variable].dims[0]
                last = cell.position[0] == lengths[dim] - 1
                options.append([label for label in every if (label == ends[cell.variable]) == last])
            else:
                options.append(list(every))
        rows = list(itertools.product(*options))
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(made.cells))

    def _ends(self) -> dict[str, int]:
        found = {}
        for term in self.graph.terms:
            if isinstance(term.body, Stepwise) and term.body.end is not None:
                variable = self.graph.variables[term.body.variable]
                if self.graph.dims[variable.dims[0]].kind == "free":
                    names = self.graph.label_sets[variable.type.element].labels or ()
                    found[variable.name] = names.index(term.body.end)
        return found

    def _spread(self, made: GroundGraph, rows: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        here = {v.name: np.full((len(rows), *self.shape(v.name)), -1, dtype=np.int64) for v in self.variables}
        for column, cell in enumerate(made.cells):
            here[cell.variable][(slice(None), *cell.position)] = rows[:, column]
        return here

    def _allowed(self, known: Mapping[str, Tensor]) -> np.ndarray[Any, Any]:
        """[N]: which answers agree with labels (-1 for any) or allowed labels."""
        fine = np.ones(len(self.score), dtype=bool)
        for name, one in known.items():
            labels = self.labels[name]
            if one.dtype == torch.bool:
                table = one[self.b].numpy()
                picked = np.take_along_axis(np.broadcast_to(table, (*labels.shape, table.shape[-1])),
                                            np.maximum(labels, 0)[..., None], -1)[..., 0]  # fmt: skip
            else:
                wanted = one[self.b].numpy()
                picked = (labels == wanted) | (wanted < 0)
            agrees = picked | (labels < 0)
            fine &= agrees.reshape(len(labels), -1).all(1)
        return fine

    def allowed(self, variable: str) -> np.ndarray[Any, Any]:
        """[*dims, labels]: which labels evidence leaves each position of a variable."""
        shape = (*self.shape(variable), self.counts[variable])
        known = self.case.evidence.get(variable)
        if known is None:
            return np.ones(shape, dtype=bool)
        if known.dtype == torch.bool:
            return known[self.b].numpy()
        labels = known[self.b].numpy()[..., None]
        return (labels == np.arange(shape[-1])) | (labels < 0)

    # ---------------------------------------------------------------------------------------------------------- scores

    def _scores(
        self,
        made: GroundGraph,
        rows: np.ndarray[Any, Any],
        here: Mapping[str, np.ndarray[Any, Any]],
        lengths: Mapping[str, int],
    ) -> Array:
        """[N, factors]: the scores of each answer, to be added up."""
        found = [np.zeros(len(rows))]
        for factor in made.factors:
            table = self.table(self.graph.term(factor.term), factor)
            found.append(table[tuple(rows[:, cell] for cell in factor.cells)])
        whole = [term for term in self.graph.terms if not isinstance(term.body, Table | Forbidden | SchemeRule)]
        found += [Whole(self, lengths).score(term, here) for term in whole]
        return np.stack(found, 1)

    def table(self, term: Term, factor: GroundFactor) -> Array:
        """The table of one ground factor, its axes in the order of the scope."""
        sets = [
            self.graph.label_sets[self.graph.variables[ref.variable].type.element].labels or () for ref in term.scope
        ]
        table = np.zeros([len(labels) for labels in sets])
        values = None
        if isinstance(term.body, Table):
            values = self.value(term.body.value, factor)
        for entry in itertools.product(*(range(len(labels)) for labels in sets)):
            names = tuple(labels[i] for labels, i in zip(sets, entry, strict=True))
            table[entry] = self._entry(term, entry, names, values)
        return table

    def _entry(self, term: Term, entry: tuple[int, ...], names: tuple[str, ...], values: Any) -> float:
        body = term.body
        if isinstance(body, Table):
            if isinstance(body.value, Potential):
                return float(values) if entry[0] == entry[1] else 0.0
            index = [0] * len(entry)
            for cell, axis in enumerate(body.order):
                index[axis] = entry[cell]
            return float(values[tuple(index)])
        if isinstance(body, Forbidden):
            return NINF if self._holds(term, body, names) else 0.0
        assert isinstance(body, SchemeRule)
        scheme = schemes.SCHEMES[body.scheme]
        rule = {"first": schemes.may_start, "last": schemes.may_end, "next": schemes.may_follow}[body.part]
        return 0.0 if rule(scheme, *names) else NINF  # type: ignore[operator]

    def _holds(self, term: Term, body: Forbidden, names: tuple[str, ...]) -> bool:
        label = {(ref.variable, ref.indices): name for ref, name in zip(term.scope, names, strict=True)}
        for condition in body.conditions:
            own = label[condition.cell.variable, condition.cell.indices]
            if condition.other is not None:
                same = own == label[condition.other.variable, condition.other.indices]
                holds = same if condition.operator == "=" else not same
            else:
                holds = condition.matches(own)
            if not holds:
                return False
        return True

    # ----------------------------------------------------------------------------------------------------- expressions

    def value(self, value: Expression, factor: GroundFactor | None) -> Any:
        """An expression at one element of an index set, as an array over its remaining axes."""
        match value:
            case Constant(value=number):
                return np.float64(number)
            case Reference():
                return self._reference(value)
            case Potential(arguments=arguments):
                return self.value(arguments[0], factor)
            case Combine(operands=operands, operators=operators):
                total = self.value(operands[0], factor)
                for operator, operand in zip(operators, operands[1:], strict=True):
                    other = self.value(operand, factor)
                    total = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[operator](total, other)
                return total
            case At(base=base, indices=indices):
                array = self.value(base, factor)
                axes: list[Axis] = list(base.type.axes)
                for affine, axis in zip(indices, base.type.index_axes, strict=False):
                    place = self._fixed(affine, axis) if factor is None else factor.places[affine, axis.extent]
                    if place is None:
                        array = np.zeros(np.delete(array.shape, axes.index(axis)))
                    else:
                        array = np.take(array, place, axis=axes.index(axis))
                    axes.remove(axis)
                return array
            case Apply(net=net, arguments=arguments):
                made = self._apply(net, [(self.value(a, factor), a, factor) for a in arguments])
                return self._padded(made, value.type.axes)
        raise AssertionError(f"the reference does not know {type(value).__name__}")

    def _fixed(self, affine: Affine, axis: Axis) -> int | None:
        """A constant position outside of any term counts what exists; `None` where there is none."""
        size = self.case.size(axis.extent.name, self.b) + axis.extent.offset
        place = affine.offset if affine.offset >= 0 else size + affine.offset
        return place if 0 <= place < size else None

    def _reference(self, value: Reference) -> Any:
        if value.kind == "let":
            return self.value(self.graph.lets[value.name].value, None)
        if value.kind == "param":
            parameter = self.model._parameters[value.name]
            assert parameter is not None
            return parameter.detach().numpy()
        tensor = self.case.inputs[value.name][self.b]
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()

    def _apply(self, net: str, arguments: list[tuple[Any, Expression, GroundFactor | None]]) -> Any:
        module = self.model._modules[net]
        assert module is not None
        tensors = [torch.as_tensor(self.cut(array, a.type.axes)).unsqueeze(0) for array, a, _ in arguments]
        options = {}
        if "masks" in inspect.signature(module.forward).parameters:
            options["masks"] = self._nested_masks(arguments)
        with torch.no_grad():
            return module(*tensors, **options).squeeze(0).numpy()

    def _padded(self, array: Any, axes: tuple[Axis, ...]) -> Any:
        """What a network gives for the positions that exist, and nothing (NaN) for the others."""
        missing = [(0, 0)] * array.ndim
        for number, axis in enumerate(axes):
            if axis.extent.kind == "dim" and self.graph.dims[axis.extent.name].kind not in ("nested", "fixed"):
                size = max(0, self.case.sizes[axis.extent.name] + axis.extent.offset)
                missing[number] = (0, size - array.shape[number])
        return np.pad(array, missing, constant_values=np.nan)

    def _nested_masks(self, arguments: list[tuple[Any, Expression, GroundFactor | None]]) -> dict[str, Tensor]:
        """Only nested dims need masks here; where the outer position is fixed by an index, so is their size."""
        masks = {}
        for _, argument, factor in arguments:
            for axis in argument.type.index_axes:
                dim = self.graph.dims[axis.extent.name]
                if dim.kind != "nested":
                    continue
                sizes = self.case.nested_sizes(dim.name, self.b)
                steps = torch.arange(self.case.sizes[dim.name])
                if isinstance(argument, At) and factor is not None:
                    place = factor.places[argument.indices[0], argument.base.type.index_axes[0].extent]
                    masks[dim.name] = (steps < sizes[place]).unsqueeze(0)
                else:
                    seen = self.case.seen_size(str(dim.within), self.b)
                    masks[dim.name] = (steps < torch.tensor(sizes[:seen]).reshape(-1, 1)).unsqueeze(0)
        return masks

    def cut(self, array: Any, axes: tuple[Axis, ...]) -> Any:
        """An array without the padding of its dims."""
        for number, axis in enumerate(axes):
            extent = axis.extent
            if extent.kind == "dim" and self.graph.dims[extent.name].kind not in ("nested", "fixed"):
                size = max(0, self.case.seen_size(extent.name, self.b) + extent.offset)
                array = np.take(array, range(min(size, array.shape[number])), axis=number)
        return array

    # ---------------------------------------------------------------------------------------------------------- answers

    def outputs(self) -> tuple[list[int], Array]:
        """For each output part the first answer that has it, and the log of its summed exp(score)."""
        first, scores, _ = self._outputs
        return first, scores

    @cached_property
    def peak(self) -> float:
        """The best score."""
        best = float(self.score.max())
        return 0.0 if best == NINF else best

    @cached_property
    def _outputs(self) -> tuple[list[int], Array, Array]:
        outs = [v.name for v in self.variables if v.kind != "latent"]
        groups: dict[tuple[bytes, ...], list[int]] = {}
        for n in range(len(self.score)):
            groups.setdefault(tuple(self.labels[name][n].tobytes() for name in outs), []).append(n)
        scores, levels = (np.array([lse(one[rows]) for rows in groups.values()]) for one in (self.score, self.level))
        return [rows[0] for rows in groups.values()], scores, levels

    @cached_property
    def log_partition(self) -> float:
        return self.peak + lse(self.level)

    @cached_property
    def log_probabilities(self) -> Array:
        total = lse(self.level)
        return self.level if total == NINF else self.level - total

    @cached_property
    def probabilities(self) -> Array:
        return np.exp(self.log_probabilities)

    def marginals(self, variable: str) -> Array:
        p, labels = self.probabilities, self.labels[variable]
        return np.stack(
            [np.tensordot(p, (labels == label).astype(float), 1) for label in range(self.counts[variable])], -1
        )

    def max_marginals(self, variable: str) -> Array:
        first, scores = self.outputs()
        labels = self.labels[variable][first]
        found = np.full((*labels.shape[1:], self.counts[variable]), NINF)
        for place in np.ndindex(*found.shape):
            here = labels[(slice(None), *place[:-1])] == place[-1]
            found[place] = scores[here].max(initial=NINF)
        return found

    def factor_marginals(self, term: Term, domain: tuple[int, ...]) -> Array:
        sizes = [self.counts[ref.variable] for ref in term.scope]
        found = np.zeros((*domain, *sizes))
        p = self.probabilities
        for made, part in self.parts:
            for factor in made.factors:
                if factor.term != term.name:
                    continue
                cells = [made.cells[cell] for cell in factor.cells]
                labels = [self.labels[c.variable][(part, *c.position)] for c in cells]
                for entry in itertools.product(*(range(size) for size in sizes)):
                    agrees = np.logical_and.reduce([one == label for one, label in zip(labels, entry, strict=True)])
                    found[(*factor.element, *entry)] += p[part][agrees].sum()
        return found

    @property
    def entropy(self) -> float:
        _, _, levels = self._outputs
        total = lse(levels)
        if total == NINF:
            return 0.0
        p = np.exp(levels - total)
        return float(-(p[p > 0] * (levels[p > 0] - total)).sum())

    def n_best(self, count: int) -> Array:
        _, scores = self.outputs()
        best = np.sort(scores)[::-1][:count]
        return np.concatenate([best, np.full(count - len(best), NINF)])

    def log_prob(self, answer: Mapping[str, Tensor]) -> float:
        return lse(np.where(self._allowed(answer), self.log_probabilities, NINF))

    def max_with_cost(self, cost: Mapping[str, Tensor]) -> float:
        first, scores = self.outputs()
        return float((scores + self._costs(cost)[first]).max())

    def log_prob_with_cost(self, answer: Mapping[str, Tensor], cost: Mapping[str, Tensor]) -> float:
        level = self.level + self._costs(cost)
        clamped = lse(np.where(self._allowed(answer), level, NINF))
        return NINF if clamped == NINF else clamped - lse(level)

    def _costs(self, cost: Mapping[str, Tensor]) -> Array:
        """What each answer costs."""
        total = np.zeros(len(self.score))
        for name, one in cost.items():
            table, labels = one[self.b].double().numpy(), self.labels[name]
            picked = np.take_along_axis(np.broadcast_to(table, (*labels.shape, table.shape[-1])),
                                        np.maximum(labels, 0)[..., None], -1)[..., 0]  # fmt: skip
            total = total + np.where(labels >= 0, picked, 0).reshape(len(labels), -1).sum(1)
        return total

    def levels_of(self, answers: Sequence[Mapping[str, Any]]) -> Array:
        """The scores of full answers less the best of them, rounded after the subtraction; -inf for what is none."""
        rows = [self._row(answer) for answer in answers]
        scores = [NINF if row is None else self.score[row] for row in rows]
        best = rows[int(np.argmax(scores))]
        if best is None or max(scores) == NINF:
            return np.full(len(rows), NINF)
        known = [best if row is None else row for row in rows]
        less = np.where(np.isneginf(scores), NINF, self._sums.less(best, known))
        while less.max() > 0:
            less = np.where(np.isneginf(scores), NINF, self._sums.less(known[int(less.argmax())], known))
        return less

    def _row(self, answer: Mapping[str, Any]) -> int | None:
        """The place of a full answer; `None` when it is none of the answers."""
        agrees = np.ones(len(self.score), dtype=bool)
        for name, labels in self.labels.items():
            same = (labels == np.asarray(answer[name])) | (labels < 0)
            agrees &= same.reshape(len(labels), -1).all(1)
        found = agrees.nonzero()[0]
        return int(found[0]) if len(found) else None


class Sums:
    """Sums of scores, each rounded once.

    Args:
        parts: [N, factors] for each choice of free lengths, -inf allowed.

    Attributes:
        score: [N].
        size: [N]: the sum of the magnitudes of the finite scores.
        ceiling: the log of N and the largest score of each factor, added up; the largest of all parts.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        self._rows = [row for part in parts for row in np.where(np.isneginf(part), 0.0, part).tolist()]
        self._gone = np.concatenate([np.isneginf(part).any(1) for part in parts])
        self.size = np.array([math.fsum(map(abs, row)) for row in self._rows])
        self.score = np.where(self._gone, NINF, [math.fsum(row) for row in self._rows])
        self.ceiling = math.log(len(self._rows)) + max(math.fsum(part.max(0)) for part in parts)

    def less(self, base: int, rows: Sequence[int] | None = None) -> Array:
        """The scores of all answers, or of some, less that of one answer, which may be -inf: then all are."""
        chosen = range(len(self._rows)) if rows is None else rows
        minus = [-one for one in self._rows[base]]
        gone = self._gone[list(chosen)] | self._gone[base]
        return np.where(gone, NINF, [math.fsum([*self._rows[row], *minus]) for row in chosen])


def lse(scores: Array) -> float:
    """log of the sum of exp."""
    peak = scores.max(initial=NINF)
    return NINF if peak == NINF else float(peak + np.log(np.exp(scores - peak).sum()))

"""The log-partition of first-order chains in scaled exp space: matrix products, and no tape.

Forward and backward vectors are products of exponentials, scaled on the way (Rabiner 1989).  Exponentials of scores
that lie far apart underflow, and a path that looks hopeless may turn out to be the only one.  So the smallest factors
and the smallest forward entry of each example are measured: while their product is a normal number, no product on the
way has lost anything, and only true zeros are zeros.  Examples that fail are repeated in float64, and in log space when
they fail again.  That reads a flag back, which is why only the CPU takes this road.

The backward vectors need no such care.  They take the scale of the forward ones, so that the two always weigh 1
together: what underflows among them is a probability that does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from energyml.backends.exact.scan import Blocks, borders, borders_behind, cut, disagreement, matrices
from energyml.backends.exact.unscaled import LogSpace, cleared

# How many steps go between two scalings: what the range of numbers of ordinary scores allows.
EVERY = {torch.float32: 4, torch.float64: 16}
# How far apart the scores of a batch may lie to be measured from one number instead of the best of each cell.
LEVEL = {torch.float32: 12.0, torch.float64: 48.0}


class Tables:
    """The exponentiated pair scores of chains that are cut into blocks.

    The K B rows (block, example) of a step fall into G groups that share a table.

    Attributes:
        factors: [L or 1, G, C, C], the largest of each table being 1.
        shift: [B or 1, T-1 or 1, 1, 1], the logarithm that was taken out of each.
        smallest: [B or 1], or one number for all, the logarithm of the smallest factor that is not 0.
        groups: G.
        per_step: whether each step has tables of its own.
    """

    def __init__(self, steps: Tensor, blocks: Blocks, number: int) -> None:
        self._shape, self._blocks, self._steps = steps.shape, blocks, number
        self.per_step = steps.shape[1] > 1
        self.shift = steps.amax((2, 3), keepdim=True)
        centred = steps - self.shift
        self.smallest: Tensor | float = float(centred.amin())
        if not math.isfinite(self.smallest):
            self.shift = self.shift.masked_fill(self.shift.isneginf(), 0)
            centred = steps - self.shift
            self.smallest = _lowest(centred)
        if self.per_step:
            self.factors = blocks.rows(centred).exp_()
        else:
            self.factors = centred.exp_().transpose(0, 1)
            if steps.shape[0] > 1 and blocks.number > 1:
                self.factors = self.factors.repeat(1, blocks.number, 1, 1)
        self.groups = self.factors.shape[1]

    def of(self, step: int) -> Tensor:
        """[G, C, C], or [C, C] when all rows share it."""
        table = self.factors[step if self.per_step else 0]
        return table[0] if self.groups == 1 else table

    def grouped(self, rows: Tensor) -> Tensor:
        """Rows [L, K B, C] as what is multiplied with the tables of each step: [L, G, K B / G, C], or as they are."""
        return rows if self.groups == 1 else rows.view(rows.shape[0], self.groups, -1, rows.shape[-1])

    def times(self, rows: Tensor, step: int, out: Tensor) -> Tensor:
        """Rows [K B, C, C] times the tables of a step, into a buffer."""
        labels = rows.shape[-1]
        if self.groups == 1:
            torch.mm(rows.view(-1, labels), self.of(step), out=out.view(-1, labels))
        else:
            torch.bmm(rows.view(self.groups, -1, labels), self.of(step), out=out.view(self.groups, -1, labels))
        return out

    def gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """The gradient by the steps: the sum of outer products of rows [L, K B, C] that share a table, times it."""
        if self.per_step:
            outer = self.grouped(left).mT @ self.grouped(right)
            return self._in_order(outer.view(self.factors.shape).mul_(self.factors))
        if self.groups == 1:
            outer = left.flatten(0, 1).t() @ right.flatten(0, 1)
        else:
            # All steps and blocks of an example side by side: [B, C, L K].
            left, right = (
                one.unflatten(1, (self._blocks.number, -1)).permute(2, 3, 0, 1).flatten(2) for one in (left, right)
            )
            outer = left @ right.mT
        outer = outer * self.factors[0, : self._shape[0]]
        return outer.view(self._shape)

    def joint(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, T-1, C, C]: the same for each step of each example."""
        outer = left.unsqueeze(-1) * right.unsqueeze(-2)
        outer.view(left.shape[0], self.groups, -1, *self._shape[2:]).mul_(self.factors.unsqueeze(2))
        return self._in_order(outer)

    def _in_order(self, outer: Tensor) -> Tensor:
        """[L, K B, ...] as [B, T-1, ...]."""
        return self._blocks.in_order(outer)[:, : self._steps]


def _lowest(centred: Tensor) -> Tensor:
    """[B]: the lowest finite score of each example, none of which lies above 0; NaN where there is one."""
    return centred.masked_fill(centred.isneginf(), 0).flatten(1).amin(1)


class Pass:
    """One pass forward over chains, and one back when asked for.

    Attributes:
        log_z: [B] the log-partitions, in float64.
        unsafe: [B] where a product on the way may have lost something, to be dropped; `None` where nowhere.
    """

    def __init__(self, scores: Tensor, steps: Tensor, exists: Tensor | None, blocks: Blocks, keep: bool) -> None:
        self._blocks, self._batch, self._steps = blocks, scores.shape[0], scores.shape[1] - 1
        self._tables = Tables(steps, blocks, self._steps)
        # Where there is no cell the recursion runs on with harmless numbers that nobody reads.
        low, peak = torch.aminmax(scores)
        spread: Tensor | float = float(low) - float(peak)
        if spread >= -LEVEL[scores.dtype]:
            centred = scores - peak
        else:
            scores = cleared(scores, exists)
            peak = scores.amax(-1, keepdim=True)
            peak = peak.masked_fill(peak.isneginf(), 0)
            centred = scores - peak
            spread = _lowest(centred)
        start = centred[:, 0].exp()
        self._emission = blocks.rows(centred[:, 1:]).exp_()
        self._exists = self._steps_that_exist(exists)
        self._products: Tensor | None = None
        self._weight: Tensor | None = None
        self._here = None if exists is None else exists[:, 0]
        first = start.sum(-1, keepdim=True)
        self._forward(start / first)
        smallest = self._weigh(keep)
        self.log_z = self._total(peak, first, exists)
        smallest = smallest + self._tables.smallest + spread
        # 16 C keeps the backward vectors, which are at most C / smallest, from overflowing.
        safe = smallest >= math.log(16 * scores.shape[2] * torch.finfo(scores.dtype).tiny)
        if self._products is not None:
            last = None if self._exists is None else self._by_block(self._exists[-1:])[0]
            ends = self._states[:1], self._states[-1:] / self._states[-1:].sum(-1, keepdim=True)
            before, after = (self._by_block(one)[0] for one in ends)
            safe = ~(disagreement(before, after, last) | self.log_z.isneginf()) & safe
        self.unsafe: Tensor | None = None
        if safe is False:
            self.unsafe = torch.ones_like(self.log_z, dtype=torch.bool)
        elif safe is not True and not bool(safe.all()):
            self.unsafe = (~safe).expand(self._batch)  # steps that are shared may lose something for all

    def _by_block(self, rows: Tensor) -> Tensor:
        """[.., K B, ..] as [.., K, B, ..]."""
        return rows.view(rows.shape[0], self._blocks.number, self._batch, *rows.shape[2:])

    def _steps_that_exist(self, exists: Tensor | None) -> Tensor | None:
        """[L, K B]: which steps of the blocks exist; `None` when all do."""
        if exists is None:
            if self._blocks.number * self._blocks.length == self._steps:
                return None
            exists = self._emission.new_ones(self._batch, self._steps + 1, dtype=torch.bool)
        return self._blocks.rows(exists[:, 1:])

    def _forward(self, first: Tensor) -> None:
        """Fill the states [L+1, K B, C]: those before the first step of each block, and after each step."""
        length, rows, labels = self._emission.shape
        tables, every = self._tables, EVERY[first.dtype]
        if self._blocks.number > 1:
            products = matrices(self._emission, tables.times, self._exists, every)
            self._products = products.view(self._blocks.number, self._batch, labels, labels)
            first = borders(first, self._products).flatten(0, 1)
        self._states = first.new_empty(length + 1, rows, labels)
        self._states[0] = first
        scale = []
        states = tables.grouped(self._states).unbind(0)
        self._factors = emission = tables.grouped(self._emission).unbind(0)
        multiply = torch.mm if tables.groups == 1 else torch.bmm
        table = tables.of(0)
        for step in range(length):
            after = states[step + 1]
            multiply(states[step], tables.of(step) if tables.per_step else table, out=after)
            after.mul_(emission[step])
            if step % every == every - 1:
                scale.append(after.sum(-1, keepdim=True))
                after.div_(scale[-1])
        # What was taken out of every few states.
        self._scale = torch.stack(scale).view(-1, rows, 1) if scale else first.new_empty(0, rows, 1)

    def _weigh(self, keep: bool) -> Tensor | float:
        """Sum up the states, and clear those that are none; [B], or for all: the logarithm of the smallest entry."""
        states, smallest = self._states, float(self._states.amin())
        self._partly = not smallest > 0
        if not self._partly and not keep:
            return math.log(smallest)
        self._weight = weight = states.sum(-1, keepdim=True)
        if not self._partly:
            return math.log(smallest) - math.log(max(1, float(weight.amax())))
        # Some entry is 0, or no number behind a state that has none but zeros.
        self._live = live = weight > 0
        if self._exists is not None:
            live[1:] &= self._exists.unsqueeze(-1)
        if self._here is not None:
            live[0, : self._batch] &= self._here.unsqueeze(-1)
        weight.masked_fill_(~live, 1)
        states.masked_fill_(~live, 0)
        lowest = states.masked_fill(states == 0, 1).amin((0, 2)).log() - weight.amax((0, 2)).log().clamp(min=0)
        return lowest.view(self._blocks.number, self._batch).amin(0)

    def _total(self, peak: Tensor, first: Tensor, exists: Tensor | None) -> Tensor:
        """[B]: the log-partitions from the weights of the states, and from what was taken out of the scores."""
        begun = first[:, 0].double().log()
        log = self._scale.squeeze(-1).double().log()
        rows = self._states if self._weight is None else self._weight
        if self._exists is None:
            total, last, gained = self._taken_out(peak, exists, None) + begun, rows[-1], log.sum(0)
        else:
            # Up to the last step that exists in each block.
            count = self._exists.sum(0)
            total = self._taken_out(peak, exists, count) + (begun if self._here is None else begun * self._here)
            last = rows.gather(0, count.view(1, -1, 1).expand(1, -1, rows.shape[-1]))[0]
            scaled = torch.arange(1, len(log) + 1, device=count.device).unsqueeze(1) * EVERY[first.dtype]
            gained = log.masked_fill_(scaled > count, 0).sum(0)
        gained = gained + last.sum(-1).double().log_()
        total = total + gained.view(-1, self._batch).sum(0)
        if self._partly:
            stuck = ~self._live[1:, :, 0]
            if self._exists is not None:
                stuck &= self._exists
            stuck = self._by_block(stuck).any(0).any(0)
            stuck |= begun.isneginf() if exists is None else begun.isneginf() & exists[:, 0]
            self.drop(stuck)
            total = total.masked_fill(stuck, float("-inf"))
        return total

    def _taken_out(self, peak: Tensor, exists: Tensor | None, count: Tensor | None) -> Tensor:
        """[B], or [1] when it is the same for all: the sum of what was taken out of scores and steps.

        `count` is how many steps each block of an example has.
        """
        shift = self._tables.shift.double().flatten(1)
        steps = self._steps if exists is None or count is None else count.view(-1, self._batch).sum(0)
        if not self._tables.per_step:
            pairs = shift[:, 0] * steps
        else:
            pairs = shift.sum(1) if exists is None else (shift * exists[:, 1:]).sum(1)
        if peak.dim():
            return pairs + peak.sum((1, 2), dtype=torch.float64)
        return pairs + peak.double() * (steps + (1 if self._here is None else self._here.double()))

    def drop(self, examples: Tensor) -> None:
        """Leave examples [B] out of the moments."""
        self._by_block(self._states).masked_fill_(examples.view(1, 1, -1, 1), 0)
        self._partly = True

    def moments(self, weight: Tensor, pairs: bool, each: bool) -> tuple[Tensor, Tensor | None]:
        """The gradients of the weighted sum of log-partitions, of cells [B, T, C] and of steps; uses the pass up."""
        assert self._weight is not None
        states, right = self._states.div_(self._weight), self._emission
        share = self._weight[:-1] / self._weight[1:]
        share[EVERY[right.dtype] - 1 :: EVERY[right.dtype]] /= self._scale
        if self._exists is not None:
            share *= self._exists.unsqueeze(-1)
        right.mul_(share)
        if self._partly:
            right.masked_fill_(states[1:] == 0, 0)
        cells = self._backward(right).mul_(states)
        total = cells.sum(-1, keepdim=True)
        weight = weight.to(states.dtype)
        if self._blocks.number > 1:
            weight = weight.repeat(self._blocks.number)
        factor = weight.unsqueeze(-1) / total
        if self._partly:
            factor.masked_fill_(total == 0, 0)
        if self._exists is not None:
            factor[1:] *= self._exists.unsqueeze(-1)
        if self._here is not None:
            factor[0, : self._batch] *= self._here.unsqueeze(-1)
        collect = self._tables.joint if each else self._tables.gradient
        by_pair = collect(states[:-1].mul_(factor[:-1]), right) if pairs else None
        return self._in_order(cells.mul_(factor)), by_pair

    def _in_order(self, states: Tensor) -> Tensor:
        """What belongs to the states [L+1, K B, C] as what belongs to the cells [B, T, C]."""
        if self._blocks.number == 1:
            return states.transpose(0, 1)
        first, behind = states[0, : self._batch].unsqueeze(1), self._blocks.in_order(states[1:])
        return torch.cat([first, behind[:, : self._steps]], 1)

    def beginnings(self) -> Tensor:
        """[B, T, C]: the logarithms of the forward vectors, those of each cell up to a constant."""
        return self._in_order(self._states).log()

    def _backward(self, right: Tensor) -> Tensor:
        """[L+1, K B, C]: the backward vectors beside the states; `right` is multiplied by those behind each step."""
        length, tables = right.shape[0], self._tables
        behind = torch.empty_like(self._states)
        if self._products is None:
            behind[-1] = 1
        else:
            behind[-1] = borders_behind(self._by_block(self._states[:1])[0], self._products).flatten(0, 1)
        vectors, factors = tables.grouped(behind).unbind(0), self._factors
        table = tables.of(0).mT
        if self._exists is None:
            multiply = torch.mm if tables.groups == 1 else torch.bmm
            for step in range(length - 1, -1, -1):
                factors[step].mul_(vectors[step + 1])
                multiply(factors[step], tables.of(step).mT if tables.per_step else table, out=vectors[step])
            return behind
        # Behind the end of a chain all entries are 1: there `right` is 0.
        add = torch.addmm if tables.groups == 1 else torch.baddbmm
        ended = tables.grouped((~self._exists).to(right.dtype).unsqueeze(-1)).unbind(0)
        for step in range(length - 1, -1, -1):
            factors[step].mul_(vectors[step + 1])
            add(ended[step], factors[step], tables.of(step).mT if tables.per_step else table, out=vectors[step])
        return behind


class Scaled:
    """Forward-backward over chains of at least two cells.  O(B T C²) time, O(B T C) memory beside the pair tables.

    Args:
        scores: [B, T, C] in float32 or float64.
        steps: [B or 1, T-1 or 1, C, C] of the same type.
        exists: [B, T] which cells exist; `None` when all do.
        keep: whether the moments will be asked for.

    Attributes:
        log_z: [B] the log-partitions, in float64.
    """

    def __init__(self, scores: Tensor, steps: Tensor, exists: Tensor | None, keep: bool = True) -> None:
        batch, size, labels = scores.shape
        blocks = cut(batch, size - 1, labels, steps.shape[:2] == (1, 1))
        self._pass = Pass(scores, steps, exists, blocks, keep)
        narrow = scores.dtype != torch.float64
        if self._pass.unsafe is not None and blocks.number > 1 and not narrow:
            self._pass = Pass(scores, steps, exists, Blocks(1, size - 1), keep)
        self.log_z = self._pass.log_z
        self._rest: tuple[Tensor, Scaled | LogSpace] | None = None
        lost = self._pass.unsafe
        if lost is not None:
            self._pass.drop(lost)
            some = scores[lost], steps[lost] if steps.shape[0] > 1 else steps, None if exists is None else exists[lost]
            again = Scaled(some[0].double(), some[1].double(), some[2], keep) if narrow else LogSpace(*some)
            self.log_z[lost] = again.log_z
            self._rest = lost, again

    def beginnings(self) -> Tensor:
        """[B, T, C]: the log-partitions of what comes before each label of each cell, up to a constant for each cell.

        Anything where there is no cell, and where every answer is forbidden.
        """
        found = self._pass.beginnings()
        if self._rest is not None:
            lost, again = self._rest
            found = found.double()
            found[lost] = again.beginnings().double()
        return found

    def moments(self, weight: Tensor, pairs: bool = True, each: bool = False) -> tuple[Tensor, Tensor | None]:
        """The gradients of the weighted sum of log-partitions, of cells [B, T, C] and of steps; can be asked for once.

        They are zero where every answer is forbidden.  Steps are those that were given, or `each` one [B, T-1, C, C].
        """
        if self._rest is None:
            return self._pass.moments(weight, pairs, each)
        lost, again = self._rest
        cells, steps = again.moments(weight[lost], pairs, each)
        if cells.shape[0] == weight.shape[0]:
            return cells, steps  # nothing of the first pass is left
        by_cell, by_pair = self._pass.moments(weight, pairs, each)
        by_cell[lost] = cells.to(by_cell.dtype)
        if by_pair is not None and steps is not None:
            if by_pair.shape[0] > 1:
                by_pair[lost] = steps.to(by_pair.dtype)
            else:
                by_pair += steps.to(by_pair.dtype)
        return by_cell, by_pair

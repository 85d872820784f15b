"""Gradient ascent of the score in relaxed labels (Tu & Gimpel 2019, eq. 1).

The variables are logits z; the score is looked at where p = softmax(z), cell by cell.  With g the gradient of the score
(and, where it is weighed, of the entropy) in p, the logits move along

    sgd            the gradient in z, p (g - E[g]), with heavy-ball momentum: v <- mu v + d, z <- z + lr v;
    adam           the same gradient, divided by a running mean of its magnitude (Kingma & Ba 2015);
    exponentiated  g itself: mirror ascent on the simplex, p <- p exp(lr g) / Z (Kivinen & Warmuth 1997).

Every row, an answer of an example, has its own convergence and, where the step size is sought, its own step size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from energyml.backends.relaxed.card import SEARCH
from energyml.backends.relaxed.space import Space, Vectors, chosen, per_row
from energyml.bind.bound import Softened
from energyml.cards.card import Selection
from energyml.cards.options import Annealed

# Adam's memory of squared gradients, and what keeps its quotient finite.
_SECOND, _EPSILON = 0.999, 1e-8
# A step that helps makes the next one this much longer, one that hurts is taken back and halved.
_LONGER, _SHORTER = 1.5, 0.5
# Steps from one look at the changes to the next, where the step size is given.
_BETWEEN = 4
_FIRST_STEP, _LONGEST, _SHORTEST = 1.0, 1e6, 1e-9


@dataclass(frozen=True)
class Method:
    """The options of the ascent; see the card.

    Attributes:
        steps: most gradient steps.
        lr: step size; `None` when it is sought.
        momentum: share of the last step that is made again.
        optimizer: `sgd`, `adam` or `exponentiated`.
        entropy: the weight of the entropy at the first and at the last step.
        tol: change of the relaxed labels that ends a row; 0 makes all steps.
    """

    steps: int
    lr: float | None
    momentum: float
    optimizer: str
    entropy: tuple[float, float]
    tol: float

    @staticmethod
    def of(selection: Selection) -> Method:
        """The options of a choice of `relaxed`."""
        weight, lr = selection["entropy"], selection["lr"]
        ends = (weight.first, weight.last) if isinstance(weight, Annealed) else (float(weight), float(weight))
        return Method(
            int(selection["steps"]), None if lr == SEARCH else float(lr), float(selection["momentum"]),
            str(selection["optimizer"]), ends, float(selection["tol"]),
        )  # fmt: skip

    def weight(self, step: int) -> float:
        """The weight of the entropy at a step."""
        first, last = self.entropy
        return last if self.steps == 1 else first + (last - first) * min(1.0, step / (self.steps - 1))

    @property
    def settles(self) -> bool:
        """Whether a row may end before the last step: not while what is maximised still changes."""
        return self.tol > 0 and self.entropy[0] == self.entropy[1]


@dataclass(eq=False)
class Ascended:
    """Where an ascent has led.

    Attributes:
        logits: by variable [R, *dims, labels].
        p: the relaxed labels.
        steps: [R] how many steps each row made.
        converged: [R] whether it ended before the last one.
        snapshots: the relaxed labels after some numbers of steps, where they were asked for.
    """

    logits: Vectors
    p: Vectors
    steps: Tensor
    converged: Tensor
    snapshots: dict[int, Vectors] = field(default_factory=dict)


class Ascent:
    """Gradient ascent in one batch.

    Args:
        space: the relaxed labels of all copies.
        score: their score.
        method: how they move.
        tracked: whether gradients of the answer are wanted, so that every step stays in memory.
    """

    def __init__(self, space: Space, score: Softened, method: Method, tracked: bool) -> None:
        self.space, self.score, self.method, self.tracked = space, score, method, tracked
        self.looks = space.device.type == "cpu"

    def run(self, logits: Vectors, snapshots: Sequence[int] = ()) -> Ascended:
        """Move logits [R, *dims, labels]; `snapshots` are numbers of steps after which relaxed labels are kept."""
        if not self.space.rows or not logits:
            steps = torch.zeros(self.space.rows, device=self.space.device)
            p = self.space.probabilities(logits)
            return Ascended(logits, p, steps, torch.ones_like(steps).bool(), dict.fromkeys(snapshots, p))
        move = self._searched if self.method.lr is None else self._moved
        with torch.set_grad_enabled(self.tracked):
            return move(logits, set(snapshots))

    # -------------------------------------------------------------------------------------------------------- gradients

    def slopes(self, p: Vectors, weight: float) -> tuple[Tensor, Vectors]:
        """[R]: what is maximised, and its gradient in the relaxed labels."""
        with torch.enable_grad():
            at = {name: one if one.requires_grad else one.detach().requires_grad_() for name, one in p.items()}
            value = self.score(at)
            if weight:
                value = value + weight * self.space.entropy(at)
            total = value.sum()
            if not total.requires_grad:  # no term reads a label
                return value, {name: torch.zeros_like(one) for name, one in p.items()}
            found = torch.autograd.grad(total, list(at.values()), create_graph=self.tracked, materialize_grads=True)
        return value if self.tracked else value.detach(), dict(zip(at, found, strict=True))

    def _direction(self, p: Vectors, slopes: Vectors) -> Vectors:
        along = self.space.natural if self.method.optimizer == "exponentiated" else self.space.tangent
        return along(p, slopes)

    # ------------------------------------------------------------------------------------------------------------ steps

    def _moved(self, logits: Vectors, kept: set[int]) -> Ascended:
        """Steps of a given size."""
        space, method = self.space, self.method
        assert method.lr is not None
        z = dict(logits) if self.tracked else {name: one.clone() for name, one in logits.items()}
        p = space.probabilities(z)
        done = torch.zeros(space.rows, dtype=torch.bool, device=space.device)
        steps = torch.zeros(space.rows, device=space.device)
        memory = _Memory(method)
        snapshots = {0: p} if 0 in kept else {}
        some_done = False
        for step in range(method.steps):
            _, slopes = self.slopes(p, method.weight(step))
            update = memory.update(self._direction(p, slopes), step)
            if some_done:
                update = {name: torch.where(per_row(done, one), 0, one) for name, one in update.items()}
            for name, one in z.items():
                z[name] = one + method.lr * update[name] if self.tracked else one.add_(update[name], alpha=method.lr)
            before, p = p, space.probabilities(z)
            steps = steps + ~done
            if step + 1 in kept:
                snapshots[step + 1] = p
            if method.settles and step % _BETWEEN == _BETWEEN - 1:
                with torch.no_grad():
                    done = done | (space.change(p, before) <= method.tol)
                if self.looks and bool(done.all()):
                    break
                some_done = not self.looks or bool(done.any())
        for number in kept - snapshots.keys():
            snapshots[number] = p
        return Ascended(z, p, steps, done, snapshots)

    def _searched(self, logits: Vectors, kept: set[int]) -> Ascended:
        """Steps whose size each row seeks for itself: one that lowers what is maximised is taken back and halved.

        Cost: one gradient for each trial, and every trial counts as a step.
        """
        space, method = self.space, self.method
        z, p = logits, space.probabilities(logits)
        value, slopes = self.slopes(p, method.weight(0))
        direction = self._direction(p, slopes)
        velocity = {name: torch.zeros_like(one) for name, one in z.items()}
        size = torch.full((space.rows,), _FIRST_STEP, device=space.device, dtype=space.dtype)
        done = torch.zeros(space.rows, dtype=torch.bool, device=space.device)
        steps = torch.zeros(space.rows, device=space.device)
        snapshots = {0: p} if 0 in kept else {}
        for step in range(method.steps):
            weight = method.weight(step)
            if step and method.entropy[0] != method.entropy[1]:  # what is maximised has changed
                value, slopes = self.slopes(p, weight)
                direction = self._direction(p, slopes)
            ahead = {name: method.momentum * velocity[name] + one for name, one in direction.items()}
            trial = {name: one + per_row(size, one) * ahead[name] for name, one in z.items()}
            new = space.probabilities(trial)
            there, slopes = self.slopes(new, weight)
            further = self._direction(new, slopes)
            with torch.no_grad():
                better = (there >= value) & ~done
                small = space.change(new, p) <= method.tol
                steps = steps + ~done
            z, direction = chosen(better, trial, z), chosen(better, further, direction)
            velocity = {name: torch.where(per_row(better, one), one, 0) for name, one in ahead.items()}
            value, p = torch.where(better, there, value), chosen(better, new, p)
            if method.settles:
                done = done | (better & small) | (size < _SHORTEST)
            size = torch.where(better, (size * _LONGER).clamp(max=_LONGEST), size * _SHORTER)
            if step + 1 in kept:
                snapshots[step + 1] = p
            if self.looks and method.settles and bool(done.all()):
                break
        for number in kept - snapshots.keys():
            snapshots[number] = p
        return Ascended(z, p, steps, done, snapshots)


class _Memory:
    """What the optimiser remembers of the steps before."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.mean: Vectors = {}
        self.square: Vectors = {}

    def update(self, direction: Mapping[str, Tensor], step: int) -> Vectors:
        """The update before its step size; it is remembered, and nobody may write into it."""
        mu = self.method.momentum
        if self.method.optimizer != "adam":
            for name, one in direction.items():
                self.mean[name] = one if name not in self.mean else torch.add(one, self.mean[name], alpha=mu)
            return self.mean
        made = {}
        for name, one in direction.items():
            mean, square = (1 - mu) * one, (1 - _SECOND) * one * one
            if step:
                mean, square = mean + mu * self.mean[name], square + _SECOND * self.square[name]
            self.mean[name], self.square[name] = mean, square
            # The epsilon stands under the root: the gradient of a root at zero is infinite.
            scale = (square / (1 - _SECOND ** (step + 1)) + _EPSILON**2).sqrt()
            made[name] = mean / (1 - mu ** (step + 1)) / scale
        return made


__all__ = ["Ascended", "Ascent", "Method"]

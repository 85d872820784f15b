"""Derives every query from the one recursion of a structure.

Marginals, expectations and best answers are gradients of totals under a reduction; evidence and costs change scores of
cells; log-probabilities, entropies and divergences are differences of totals and expectations.  Everything is
differentiable to any order that the recursion is, also under the transforms of `torch.func`.  Sums are taken in the
widest floating-point type of the device, and answers are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from energyml.bind.batch import wide
from energyml.diagnostics import EnergyError
from energyml.execution import gradients, is_functional
from energyml.grounded.logspace import difference
from energyml.inference.reductions import Reduce, drawing, log_sum, maximum
from energyml.inference.structure import Axes, Structure, Weights

_NINF = float("-inf")


class SupportsDiffer(EnergyError):
    """Two structures have different answers, so that a cross-entropy would need their product."""


class LatentsSummedOut(EnergyError):
    """A query that would mix up maxima and sums: some variables are summed out."""


class Derived:
    """Every query of one structure at some scores.

    Args:
        structure: the answers of a batch.
        weights: their scores, in one floating-point type, which the answers have too.
    """

    def __init__(self, structure: Structure, weights: Weights) -> None:
        some = next(iter((*weights.cells.values(), *weights.parts.values())))
        self.structure, self.dtype, self.device = structure, some.dtype, some.device
        with torch.inference_mode(False):  # a tensor of inference mode cannot be kept for a gradient
            self.weights = Weights(
                {name: self._prepared(one, structure.cells[name]) for name, one in weights.cells.items()},
                {name: self._prepared(one, structure.parts[name]) for name, one in weights.parts.items()},
            )

    def _prepared(self, scores: Tensor, axes: Axes) -> Tensor:
        """Scores in the wide type, 0 where nothing exists: NaN and -inf of padding would reach gradients."""
        if not is_functional() and scores.is_inference():
            scores = scores.clone()
        scores = scores.to(wide(scores.device))
        full = scores.shape[1 : 1 + len(axes.sizes)] == torch.Size(axes.sizes)
        if axes.exists is None or not full:  # what is shared has no entry for padding
            return scores
        return torch.where(_behind(axes.exists, scores), scores, 0)

    def _changed(self, cells: Mapping[str, Tensor], structure: Structure | None = None) -> Self:
        """The same with other scores of cells."""
        made = object.__new__(type(self))
        made.structure, made.dtype, made.device = structure or self.structure, self.dtype, self.device
        made.weights = Weights({**self.weights.cells, **cells}, self.weights.parts)
        return made

    def _detached(self) -> Self:
        made = self._changed({name: one.detach() for name, one in self.weights.cells.items()})
        made.weights = Weights(made.weights.cells, {name: one.detach() for name, one in self.weights.parts.items()})
        return made

    # -------------------------------------------------------------------------------------------- evidence and costs

    def given(self, allowed: Mapping[str, Tensor]) -> Self:
        """The same answers with the labels that are allowed.

        Args:
            allowed: by variable: bool [B or 1, *dims, labels].
        """
        cells = {}
        for name, one in allowed.items():
            out = ~one & _behind(self._exists(name), one)
            cells[name] = self._full(self.weights.cells[name], self.structure.cells[name]).masked_fill(out, _NINF)
        return self._changed(cells, self.structure.restricted(allowed))

    def known(self, labels: Mapping[str, Tensor]) -> Self:
        """The same answers with known labels [B, *dims] by variable; -1 leaves a cell free."""
        allowed = {}
        for name, one in labels.items():
            every = torch.arange(self.structure.cells[name].labels[0], device=one.device)
            allowed[name] = (one.unsqueeze(-1) == every) | (one < 0).unsqueeze(-1)
        return self.given(allowed)

    def with_cost(self, cost: Mapping[str, Tensor]) -> Self:
        """The same answers with costs [B or 1, *dims, labels] by variable, added to the scores."""
        return self._changed({
            name: self.weights.cells[name] + torch.where(_behind(self._exists(name), one), one.to(wide(self.device)), 0)
            for name, one in cost.items()
        })  # fmt: skip

    # ------------------------------------------------------------------------------------------------- probabilities

    def log_partition(self) -> Tensor:
        """[B]: log Z; -inf where there is no answer.  Cost: one recursion."""
        return self._total().to(self.dtype)

    def marginals(self) -> dict[str, Tensor]:
        """By variable [B, *dims, labels]: the probability of each label; 0 where there is no cell or no answer.

        Cost: one recursion and its gradient.
        """
        return self._rounded(self._cell_slopes(log_sum))

    def part_marginals(self, shared: bool = False) -> dict[str, Tensor]:
        """By kind of part [B, *domain, *labels]: the probability of each joint label.  Cost: as `marginals`.

        Args:
            shared: whether those of shared scores are added up, which needs memory for one of them alone.
        """
        sizes = {
            name: (one.shape[1 : 1 + len(axes.sizes)] if shared else axes.sizes)
            for (name, axes), one in zip(self.structure.parts.items(), self.weights.parts.values(), strict=True)
        }
        zeros = {name: self._zeros(*sizes[name], *axes.labels) for name, axes in self.structure.parts.items()}
        found = self._slopes(lambda *d: self._moved({}, dict(zip(zeros, d, strict=True))), list(zeros.values()))
        return self._rounded(dict(zip(zeros, found, strict=True)))

    def expectation(self, values: Weights) -> Tensor:
        """[B]: the expected sum of functions of cells and parts, shaped like scores; 0 where there is no answer.

        -inf where an answer of positive probability meets -inf.  Cost: as `marginals`, whose tensors are not made.
        """
        return self._expected(values).to(self.dtype)

    def entropy(self) -> Tensor:
        """[B]: the entropy in nats; 0 where there is no answer.  Cost: two recursions and a gradient."""
        return self._entropy().to(self.dtype)

    def cross_entropy(self, other: Derived) -> Tensor:
        """[B]: -E[log q] of a second model q; inf where it rules out what this one does not.

        Raises `SupportsDiffer` where q's structure lacks answers of this one: both together would be needed.
        """
        return self._cross_entropy(other).to(self.dtype)

    def kl(self, other: Derived) -> Tensor:
        """[B]: the divergence KL(p, q) of a second model q; as `cross_entropy`."""
        cross = self._cross_entropy(other)
        return torch.where(cross.isposinf(), cross, cross - self._entropy()).to(self.dtype)

    def log_prob(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[B]: the log-probability of full or partial answers [B, *dims], -1 for any label.  Cost: two recursions."""
        return difference(self.known(labels)._total(), self._total()).to(self.dtype)

    def log_prob_allowed(self, allowed: Mapping[str, Tensor]) -> Tensor:
        """[B]: the log-probability that a constraint holds: that all labels are allowed ones.  As in `given`."""
        return difference(self.given(allowed)._total(), self._total()).to(self.dtype)

    # -------------------------------------------------------------------------------------------------------- answers

    def best(self) -> tuple[dict[str, Tensor], Tensor]:
        """The best answer: labels [B, *dims] by variable, -1 where there is none, and its score [B], differentiable.

        Cost: two recursions, of which one has its gradient taken.
        """
        self._refuse_latents("the best answer")
        labels = _labels(self._detached()._cell_slopes(maximum))
        return labels, self._total(reduce=maximum).to(self.dtype)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Exact draws: labels [count, B, *dims] by variable, -1 where there is no cell or no answer.

        Cost: `count` recursions and their gradients, side by side.
        """
        base = self._detached()
        each = torch.func.vmap(lambda _: base._cell_slopes(drawing(generator)), randomness="different")
        return _labels(each(torch.zeros(count, device=self.device)))

    # ---------------------------------------------------------------------------------------------------------- parts

    def _total(self, weights: Weights | None = None, reduce: Reduce = log_sum) -> Tensor:
        return self.structure.total(self.weights if weights is None else weights, reduce)

    def _expected(self, values: Weights) -> Tensor:
        """E[f] = d/dt log Z(w + t f) at t = 0; a second scalar finds the probability of meeting -inf."""
        given = [
            (names, name, one.to(wide(self.device))) for names, of in enumerate(values) for name, one in of.items()
        ]

        def moved(t: Tensor, u: Tensor) -> Weights:
            found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
            for kind, name, one in given:
                own, endless = self.weights[kind][name], one.isinf()
                by_t, by_u = (_behind(scale, one) for scale in (t, u))
                # What has no probability counts for nothing, whatever its value.
                step = by_t * one.masked_fill(endless, 0) + by_u * endless
                found[kind][name] = torch.where(own.isneginf(), 0, step)
            return self._moved(*found)

        zeros = [self._zeros(), self._zeros()]
        mean, forbidden = self._slopes(moved, zeros, beside=[one for _, _, one in given])
        return torch.where(forbidden > 0, _NINF, mean)

    def _entropy(self) -> Tensor:
        """Log Z less the expected score, both of scores less each cell's largest one: large ones would cancel."""
        self._refuse_latents("the entropy")
        lower = {}
        for name, one in self.weights.cells.items():
            peak = one.detach().amax(-1, keepdim=True)
            lower[name] = one - torch.where(peak.isfinite(), peak, 0)
        shifted = self._changed(lower)
        total = shifted._total()
        gone = total.isneginf()
        return torch.where(gone, 0, total.masked_fill(gone, 0) - shifted._expected(shifted.weights))

    def _cross_entropy(self, other: Derived) -> Tensor:
        self._refuse_latents("a comparison of two models")
        if not other.structure.covers(self.structure):
            raise SupportsDiffer(
                "the second model does not have all answers of the first, so that they cannot be compared part by "
                "part; `enumerate` compares any two models of few answers"
            )
        score, total = self._expected(other.weights), other._total()
        gone = score.isneginf() | total.isneginf()
        found = (total.masked_fill(gone, 0) - score.masked_fill(gone, 0)).masked_fill(gone, float("inf"))
        return torch.where(self._total().isneginf(), 0, found)

    def _cell_slopes(self, reduce: Reduce) -> dict[str, Tensor]:
        """By variable [B, *dims, labels]: the gradient of the total by each cell's scores."""
        zeros = {name: self._zeros(*axes.sizes, *axes.labels) for name, axes in self.structure.cells.items()}
        found = self._slopes(lambda *d: self._moved(dict(zip(zeros, d, strict=True)), {}), list(zeros.values()), reduce)
        return dict(zip(zeros, found, strict=True))

    def _slopes(
        self,
        moved: Callable[..., Weights],
        zeros: Sequence[Tensor],
        reduce: Reduce = log_sum,
        beside: Sequence[Tensor] = (),
    ) -> Sequence[Tensor]:
        """Gradients of finite totals by zeros that `moved` adds to the weights.

        Args:
            moved: the weights, moved by the zeros.
            zeros: where gradients are taken.
            reduce: the reduction.
            beside: what `moved` reads beside the weights, which gradients are wanted for too.
        """

        def number(*leaves: Tensor) -> Tensor:
            total = self._total(moved(*leaves), reduce)
            return total.masked_fill(total.isneginf(), 0).sum()

        if is_functional():
            return gradients(number, zeros)
        read = [*self.weights.cells.values(), *self.weights.parts.values(), *beside]
        again = torch.is_grad_enabled() and any(one.requires_grad for one in read)
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [one.clone().requires_grad_() for one in zeros]
            return torch.autograd.grad(number(*leaves), leaves, create_graph=again, materialize_grads=True)

    def _moved(self, cells: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> Weights:
        return Weights(
            {name: one + cells[name] if name in cells else one for name, one in self.weights.cells.items()},
            {name: one + parts[name] if name in parts else one for name, one in self.weights.parts.items()},
        )

    def _zeros(self, *sizes: int) -> Tensor:
        with torch.inference_mode(False):
            return torch.zeros(self.structure.batch, *sizes, dtype=wide(self.device), device=self.device)

    def _full(self, scores: Tensor, axes: Axes) -> Tensor:
        return scores.expand(self.structure.batch, *axes.sizes, *axes.labels)

    def _exists(self, name: str) -> Tensor:
        axes = self.structure.cells[name]
        if axes.exists is not None:
            return axes.exists
        return torch.ones(1, *[1] * len(axes.sizes), dtype=torch.bool, device=self.device)

    def _rounded(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: one.to(self.dtype) for name, one in found.items()}

    def _refuse_latents(self, what: str) -> None:
        if self.structure.latent:
            names = ", ".join(f"`{name}`" for name in sorted(self.structure.latent))
            raise LatentsSummedOut(f"{what} does not follow from the recursion where {names} is summed out")


def _labels(hot: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Labels from gradients that are 1 at one label of each cell; -1 where there is none."""
    return {name: torch.where(one.sum(-1) > 0.5, one.argmax(-1), -1) for name, one in hot.items()}


def _behind(values: Tensor, like: Tensor) -> Tensor:
    """Values with axes of size 1 behind, to meet a tensor of more axes."""
    return values.reshape(*values.shape, *[1] * (like.dim() - values.dim()))

"""The draws of chains, and what is known about how they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan, prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.inference.convergence import HIGHEST, LEAST, effective, share_error, split, split_rhat

# Cells whose labels are looked at for convergence at once: memory of a sort over all draws.
CELLS = 4096
# Half chains need four sweeps each before anything can be said about how draws hang together.
FEWEST = 8


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: sweeps made, burn-in included.
        total: sweeps to make.
        burning: whether these are still thrown away.
        acceptance: the share of moves accepted in the last sweep.
        energy: the mean energy of all chains.
    """

    done: int
    total: int
    burning: bool
    acceptance: float
    energy: float


@dataclass(eq=False)
class Trace:
    """Kept draws.

    Attributes:
        labels: by variable: [S, C, B, *dims], S sweeps of C chains; -1 where there is no cell.  The smallest type
            of whole numbers that holds them.
        score: [S, C, B]; -inf where a chain never found a possible answer.
        counts: how many labels each variable's cells may take.
        names: the labels' names.
        dims: the dims of each variable or field, or the names of its axes.
        latent: the variables that are summed out of answers.
        fields: by field: [S, C, B, *axes].
        acceptance: [C, B]: the share of proposed moves that were accepted.
        novel: [C, B]: the share of proposed moves that changed the answer.
        burn_in: how many sweeps were thrown away.
        sampler: the backend with its options.
        warning: what is wrong with the sampler itself; `None` when its draws are the model's.
        valid: whether the chains tend to the model's distribution.
        apart: [B]: whether chains began at different answers, or there is but one; `None` where that is not known.
        impossible: [B]: the examples that have no possible answer by what is known of single factors; `None` for none.
    """

    labels: Mapping[str, Tensor]
    score: Tensor
    counts: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]
    dims: Mapping[str, tuple[str, ...]]
    acceptance: Tensor
    novel: Tensor
    burn_in: int = 0
    latent: frozenset[str] = frozenset()
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    sampler: str = ""
    warning: str | None = None
    valid: bool = True
    apart: Tensor | None = None
    impossible: Tensor | None = None

    @property
    def energy(self) -> Tensor:
        """[S, C, B]: minus the score."""
        return -self.score

    @cached_property
    def rhat_energy(self) -> Tensor:
        """[B]: split R-hat of the energy; inf where some chain has no possible answer, 1 where there is none."""
        finite = self.score.isfinite().all(0).all(0)
        found = torch.where(finite, split_rhat(torch.where(self.score.isfinite(), self.score, 0)), float("inf"))
        return found if self.impossible is None else found.masked_fill(self.impossible, 1.0)

    @property
    def rhat_cells(self) -> float:
        """The largest split R-hat of "this cell has its most frequent label", of labels, or of a field's values."""
        return self._worst_cell[0]

    @cached_property
    def _worst_cell(self) -> tuple[float, Tensor | None]:
        """The largest split R-hat of a cell, and what it was computed from, [S, C]."""
        worst, series = 1.0, None
        for values in self._cell_values():
            found = split_rhat(values)
            if found.numel() and float(found.max()) > worst:
                worst, series = float(found.max()), values[..., int(found.argmax())]
        return worst, series

    @cached_property
    def ess_energy(self) -> Tensor:
        """[B]: the effective number of draws of the energy."""
        return effective(torch.where(self.score.isfinite(), self.score, 0))

    @cached_property
    def ess_cells(self) -> float:
        """The smallest effective number of draws of any cell."""
        least = float(self.score.shape[0] * self.score.shape[1])
        for values in self._cell_values():
            found = effective(values)
            least = min(least, float(found.min())) if found.numel() else least
        return least

    def _cell_values(self) -> Iterator[Tensor]:
        """[S, C, n] piece by piece: whether cells have their most frequent label; labels; values of fields."""
        for name, labels in self.labels.items():
            flat = self._possible(labels).flatten(2)
            for first in range(0, flat.shape[2], CELLS):
                piece = flat[:, :, first : first + CELLS]
                usual = piece.flatten(0, 1).to(torch.int64)
                # The most frequent label: `mode` sorts, and is the same for all chains.
                yield (piece == usual.mode(0).values.to(piece.dtype)).double()
                if self.counts[name] > 2:  # chains may differ in other labels than the most frequent one
                    yield piece.double()
        for values in self.fields.values():
            flat = values.flatten(2)
            for first in range(0, flat.shape[2], CELLS):
                yield flat[:, :, first : first + CELLS]

    def _possible(self, values: Tensor) -> Tensor:
        """Values [S, C, B, ...] of the examples that may have an answer."""
        return values if self.impossible is None else values[:, :, ~self.impossible]

    @property
    def mixed(self) -> bool:
        """Whether nothing speaks against the chains having mixed."""
        return bool((self.rhat_energy <= HIGHEST).all()) and self.rhat_cells <= HIGHEST

    def one_hot(self, name: str) -> Tensor:
        """[S, C, B, *dims, labels]: a variable's draws; zero where there is no cell or no possible answer."""
        labels = self.labels[name].long()
        made = F.one_hot(labels.clamp(min=0), self.counts[name]).to(self.score.dtype)
        fine = self.score.isfinite().reshape(*self.score.shape, *([1] * (labels.dim() - 3)))
        return made * ((labels >= 0) & fine).unsqueeze(-1)

    def marginals(self, name: str) -> Tensor:
        """[B, *dims, labels]: the share of draws with each label; zero where there is no answer."""
        labels = self.labels[name]
        kept = self.score.isfinite().sum((0, 1)).clamp(min=1)
        total = torch.zeros(*labels.shape[2:], self.counts[name], device=labels.device, dtype=self.score.dtype)
        for chain in range(labels.shape[1]):
            for first in range(0, labels.shape[0], 64):  # one-hot vectors of a few sweeps at a time
                piece = self._piece(name, slice(first, first + 64), chain)
                total = total + piece
        return total / kept.reshape(-1, *([1] * (total.dim() - 1)))

    def _piece(self, name: str, sweeps: slice, chain: int) -> Tensor:
        labels = self.labels[name][sweeps, chain].long()
        fine = self.score[sweeps, chain].isfinite().reshape(*labels.shape[:2], *([1] * (labels.dim() - 2)))
        weight = ((labels >= 0) & fine).unsqueeze(-1).to(self.score.dtype)
        return (F.one_hot(labels.clamp(min=0), self.counts[name]).to(self.score.dtype) * weight).sum(0)

    def marginal_errors(self, name: str) -> Tensor:
        """[B, *dims, labels]: the Monte Carlo standard errors of `marginals`; zero where there is no cell."""
        labels = self.labels[name]
        flat = labels.flatten(2)
        cells = prod(labels.shape[3:])
        constant, exists = self._worth.repeat_interleave(cells), (flat >= 0).any(0).any(0)
        parts = []
        for label in range(self.counts[name]):
            pieces = [
                share_error((flat[:, :, first : first + CELLS] == label).double(), constant[first : first + CELLS])
                for first in range(0, flat.shape[2], CELLS)
            ]
            parts.append(torch.cat(pieces) * exists if pieces else torch.zeros(0, dtype=torch.float64))
        return torch.stack(parts, -1).reshape(*labels.shape[2:], self.counts[name]).to(self.score.dtype)

    @property
    def _worth(self) -> Tensor:
        """[B]: the effective number of draws of the energy; that of chains where draws cannot tell."""
        known = self._moves & (self.score.shape[0] >= FEWEST)
        return torch.where(known, self.ess_energy, float(self.score.shape[1]))

    @property
    def moved(self) -> bool:
        """Whether any chain ever changed its answer."""
        return bool(self._moves.any()) if self.novel.numel() else True

    @cached_property
    def _moves(self) -> Tensor:
        """[B]: whether some chain changed its answer, by a move or by an exchange of temperatures."""
        moves = self.novel.sum(0) > 0
        for one in self.labels.values():
            moves = moves | (one != one[:1]).transpose(0, 2).flatten(1).any(1)
        return moves

    @property
    def untold(self) -> str | None:
        """Why nothing can be said about how many independent draws these are worth; `None` where it can."""
        sweeps = self.score.shape[0]
        if not self.moved:
            return "no chain ever moved"
        if sweeps < FEWEST:
            return f"{sweeps} sweeps are too few to tell ({FEWEST} at least)"
        if not (bool(self.rhat_energy.isfinite().all()) and isfinite(self.rhat_cells)):
            return "some chains stayed where others never were"
        return None

    @property
    def ess(self) -> float:
        """The smallest effective number of draws, of the energy or any cell; NaN where it cannot be told."""
        return nan if self.untold is not None else min(float(self.ess_energy.min()), self.ess_cells)

    def worth(self) -> str:
        """How many independent draws these are worth, in words."""
        if self.untold is not None:
            return f"unknown: {self.untold}"
        total = self.score.shape[0] * self.score.shape[1]
        return f"energy {_short(self.ess_energy.min())}, worst cell {_short(self.ess_cells)} of {total}"

    def summary(self) -> str:
        """A few lines: rates, energies, convergence, and plainly whether the chains have mixed."""
        sweeps, chains, examples = self.score.shape
        energy = self.energy
        lines = [
            f"sampler           {self.sampler}",
            f"draws             {chains} chains x {sweeps} sweeps for {examples} "
            f"example{'s' if examples != 1 else ''}, after {self.burn_in} sweeps of burn-in",
        ]
        if self.score.numel():
            lines += [
                f"energy            mean {_short(energy.mean())}, lowest {_short(energy.min())}, "
                f"highest {_short(energy.max())}",
                f"acceptance        {float(self.acceptance.mean()):.3f}",
                f"novel transitions {float(self.novel.mean()):.3f}",
                f"split R-hat       energy {_short(self.rhat_energy.max())}, worst cell {_short(self.rhat_cells)}",
                f"effective draws   {self.worth()}",
            ]
        if self.warning is not None:
            lines.append(f"WARNING           {self.warning}")
        lines.append(self.verdict())
        return "\n".join(lines)

    @property
    def lost(self) -> Tensor:
        """[B]: whether no chain ever found a possible answer, though nothing shows that there is none."""
        lost = ~self.score.isfinite().any(0).any(0)
        return lost if self.impossible is None else lost & ~self.impossible

    def trouble(self) -> tuple[bool, str] | None:
        """The problem with the draws: (whether they are useless, message); `None` where nothing shows."""
        if not self.score.numel():
            return None
        broken = (self.score.isposinf() | self.score.isnan()).any(0).any(0)
        useless = bool((self.lost | broken).any())
        fine = self.mixed and self._enough and self._tested
        return None if fine and not useless else (useless, self.verdict())

    @property
    def _enough(self) -> bool:
        """Whether the draws are worth enough independent ones for R-hat and standard errors to hold."""
        return not self.moved or self.ess >= LEAST

    @property
    def _tested(self) -> bool:
        """Whether chains that agree show anything: they do when they came from different answers."""
        return self.moved if self.apart is None else bool(self.apart.all())

    def verdict(self) -> str:
        """One line on convergence."""
        if not self.score.numel():
            return "there are no draws"
        if bool(self.score.isnan().any()):
            return "SOME SCORES ARE NOT NUMBERS (NaN): do not use these draws; look for NaN in weights and inputs"
        if bool(self.score.isposinf().any()):
            name = str(self.score.dtype).removeprefix("torch.")
            return f"SOME SCORES ARE LARGER THAN {name} HOLDS: do not use these draws; use smaller scores or float64"
        if bool(self.lost.any()):
            return no_answer(self.lost)
        if not bool(self._possible(self.score).isfinite().all()):
            return (
                "SOME CHAINS FOUND NO POSSIBLE ANSWER: evidence or constraints may rule out all of them; if not, raise "
                "`chains` and `burn_in`"
            )
        if self.apart is not None and not self._tested:
            return (
                "ALL CHAINS BEGAN AT THE SAME ANSWER, the only possible one that was found, so that they cannot show "
                "whether they miss others: constraints leave few answers; use `exact` or `enumerate`, or raise "
                "`chains` and `sweeps`"
            )
        if not self.moved and self.mixed:
            if self.apart is not None:
                return "no chain moved after burn-in: all came to the same answer from different ones"
            return (
                "NO CHAIN EVER MOVED, and all have the same answer: either it is the only possible one, or the sampler "
                "cannot leave it; raise `sweeps`, or choose another sampler"
            )
        if self.mixed and self._enough:
            return "nothing speaks against the chains having mixed"
        if self.mixed:
            return (
                f"TOO FEW DRAWS: they are worth {_short(self.ess)} independent ones, and convergence and standard "
                f"errors need {_short(LEAST)}; raise `sweeps`, or choose another sampler"
            )
        if not self.moved:
            few = self.score.shape[0] < FEWEST  # by chance alone chains that can move may not have yet
            more = f"raise `sweeps` ({self.score.shape[0]} are too few to show whether they can), " if few else ""
            return (
                "THE CHAINS DID NOT MOVE, so they HAVE NOT MIXED: every one still has the answer that it started from; "
                f"do not use these draws as a sample; {more}choose another sampler, or other proposals"
            )
        worst = max(float(self.rhat_energy.max()), self.rhat_cells)
        found = f"split R-hat {_short(worst)} is above {HIGHEST}"
        if self.score.shape[0] < FEWEST:
            found = f"{self.score.shape[0]} sweeps are too few to show that they have"
        return (
            f"THE CHAINS HAVE NOT MIXED ({found}){self._cause()}: do not use these draws as a sample; raise `sweeps` "
            "and `burn_in`, or choose another sampler, such as `tempering`"
        )

    def _cause(self) -> str:
        """Why chains differ: each stays where it is, or they drift."""
        if self.score.shape[0] < FEWEST:
            return ""
        energy = self.score[:, :, int(self.rhat_energy.argmax())]
        series = self._worst_cell[1] if self.rhat_cells > float(self.rhat_energy.max()) else energy
        if series is None or not bool(series.isfinite().all()):
            return ""
        first, second = split(series.double()).mean(0).chunk(2)
        # Independent draws would make both sides alike.
        if float(((first + second) / 2).var()) > float((first - second).square().mean()):
            return (
                "; each stays in a region of its own, so that the scores have several modes, or the constraints leave "
                "parts that moves do not join"
            )
        return "; they drift, or move slowly"


def no_answer(lost: Tensor) -> str:
    """An approximation found no answer of positive weight for some examples [B]; only an exact one may say why."""
    return (
        f"FOUND NO POSSIBLE ANSWER (none of positive weight) for {int(lost.sum())} of {lost.numel()} examples, which "
        "does not show that there is none: evidence or constraints may rule out all of them, which `exact` or "
        "`enumerate` can tell; if they do not, raise `chains` and `burn_in`"
    )


@runtime_checkable
class Sampled(Protocol):
    """A session that keeps a trace."""

    def trace(self) -> Trace:
        """The draws, made when they are first asked for."""
        ...


def _short(value: Tensor | float) -> str:
    return f"{float(value):.4g}"


__all__ = ["Progress", "Sampled", "Trace", "no_answer"]

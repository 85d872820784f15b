"""Metropolis-Hastings with masked conditionals as proposals, and two procedures beside it that are no samplers.

Source: Goyal 2021 (thesis), section 6.4.  Algorithm 4 there prints the ratio of energies where that of exp(-energy) is
meant; the latter is used here.  In a block move the proposal's probability is taken over all cells of the block, not
over those that happen to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Current, Kernel, accepted
from energyml.backends.mcmc.proposals import evaluate, narrowed
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import ScoreTarget
from energyml.cards.options import Annealed

# The lowest temperature of an annealed energy: lowered by a constant at each sweep, it would turn negative.
COLDEST = 0.05
Block = Sequence[tuple[str, int]]


class Proposing(Kernel):
    """What kernels with masked proposals share: cells in some order, and proposals kept from the last look.

    Args:
        target: what is sampled.
        temperature: of the proposals.
        nucleus: the mass of the proposals that is kept.
        mixture: the share of proposals from before the nucleus was cut out.
        order: `sequential` or `random`, without replacement within a sweep.

    Attributes:
        open: by variable: [B, 1, cells], which cells may change.
    """

    target: ScoreTarget

    def __init__(
        self,
        target: ScoreTarget,
        temperature: float = 1.0,
        nucleus: float = 1.0,
        mixture: float = 0.0,
        order: str = "sequential",
    ) -> None:
        super().__init__(target)
        self.temperature, self.nucleus, self.mixture, self.order = temperature, nucleus, mixture, order
        self.open = {name: ~target.fixed(name) for name in target.cells}
        # Cells that no example may change are left out: a move would cost a pass and lead nowhere.
        self.moving = [
            (name, cell) for name, one in self.open.items() for cell in one.any(0).any(0).nonzero().flatten().tolist()
        ]

    def cells(self, random: Randomness) -> Block:
        """All cells that some example may change, in the order of this sweep."""
        every = self.moving
        return [every[place] for place in random.permutation(len(every))] if self.order == "random" else every

    def proposals(self, current: Current) -> dict[str, Tensor]:
        """[B, C, cells, labels]: of the current labels, computed where the last move did not leave them."""
        if not all(name in current.cache for name in current.labels):
            current.cache = dict(evaluate(self.target, current.labels).proposals)
        return current.cache

    def narrowed(self, scores: Tensor) -> Tensor:
        """[..., labels]: the log-probabilities that labels are proposed with."""
        return narrowed(scores, self.temperature, self.nucleus, self.mixture)


class Metropolis(Proposing):
    """Blocks of cells are proposed from masked conditionals, and accepted or rejected.

    Cost of a move: one look at all proposals, which gives the score of the proposed answer too.

    Args:
        target: what is sampled.
        block: cells proposed together: a number, or one that moves from first to last during all `sweeps`.
        sweeps: how many sweeps there will be, for schedules.
        anneal: by how much the energy's temperature falls with each sweep, down to 0.05; 0 leaves it at 1.
        forced: sweeps at the beginning in which everything possible is accepted.
        hide: `one`: each cell of a block is proposed given the old labels of all others, itself masked; `some`: all of
            a block are hidden together, as in the thesis.  That takes another pass for each move of several cells.
        options: as `Proposing`.
    """

    def __init__(
        self,
        target: ScoreTarget,
        *,
        block: int | Annealed = 1,
        sweeps: int = 1,
        anneal: float = 0.0,
        forced: int = 0,
        hide: str = "one",
        temperature: float = 1.0,
        nucleus: float = 1.0,
        mixture: float = 0.0,
        order: str = "sequential",
    ) -> None:
        super().__init__(target, temperature, nucleus, mixture, order)
        self.block, self.sweeps, self.anneal, self.forced, self.hide = block, sweeps, anneal, forced, hide
        self.valid = anneal == 0
        self.masked_alone = len(target.problem.masked()) == len(target.problem.terms)

    @property
    def warning(self) -> str | None:
        """Where chains may not reach all answers, or are no samples."""
        if self.anneal:
            return "the energy's temperature is lowered with each sweep: these are answers near modes, no samples"
        if self.nucleus < 1 and self.mixture == 0:
            return (
                "the chain is not irreducible: a label outside the nucleus can never be proposed back, so moves away "
                "from it are rejected; a `mixture` above 0 reaches all answers"
            )
        return None

    def plan(self, current: Current, random: Randomness) -> Iterable[Block]:
        """All cells once, in blocks."""
        cells, size = self.cells(random), self._block_size(current)
        return [cells[first : first + size] for first in range(0, len(cells), size)]

    def _block_size(self, current: Current) -> int:
        if not isinstance(self.block, Annealed):
            return int(self.block)
        share = min(1.0, float(current.sweep) / max(1, self.sweeps - 1))
        return max(1, round(self.block.first + share * (self.block.last - self.block.first)))

    def move(self, current: Current, move: Block, random: Randomness) -> None:
        """Propose all cells of a block at once from the current labels, and accept or reject them together."""
        chosen: dict[str, list[int]] = {}
        for name, cell in move:
            chosen.setdefault(name, []).append(cell)
        # On the device: a list of numbers would become a tensor of the host each time that it is used.
        by_name = {name: torch.tensor(cells, device=current.score.device) for name, cells in chosen.items()}
        hidden = self._hidden(current, by_name) if self.hide == "some" and len(move) > 1 else None
        before = self.proposals(current)  # kept with the answer, also where they are not what is proposed from
        if hidden is not None:
            before = evaluate(self.target, current.labels, hidden).proposals
        labels = {name: one.clone() for name, one in current.labels.items()}
        ahead = {name: self.narrowed(before[name][:, :, cells]) for name, cells in by_name.items()}
        for name, cells in by_name.items():
            labels[name][:, :, cells] = random.categorical(ahead[name])
        found = evaluate(self.target, labels)
        behind = found.proposals
        if hidden is not None:  # tables and step networks read labels of the block all the same
            behind = before if self.masked_alone else evaluate(self.target, labels, hidden).proposals
        forward, backward = torch.zeros_like(current.score), torch.zeros_like(current.score)
        for name, cells in by_name.items():
            back = self.narrowed(behind[name][:, :, cells])
            old, new = current.labels[name][:, :, cells], labels[name][:, :, cells]
            forward = forward + self.log_proposal(ahead[name], old, new)
            backward = backward + self.log_proposal(back, new, old)
        ratio = self._beta(current) * (found.score - current.score) + backward - forward
        if self.forced:
            ratio = torch.where(current.sweep < self.forced, torch.where(found.score.isneginf(), ratio, 0.0), ratio)
        taken = accepted(ratio, random)
        self._take(current, labels, found.score, found.proposals, taken, by_name)

    def _hidden(self, current: Current, by_name: dict[str, Tensor]) -> dict[str, Tensor]:
        """[B, C, cells] by variable: which cells a block hides, of those that may change."""
        hidden = {}
        for name, labels in current.labels.items():
            here = torch.zeros_like(labels, dtype=torch.bool)
            if name in by_name:
                here[:, :, by_name[name]] = True
            hidden[name] = here & self.open[name]
        return hidden

    def log_proposal(self, log_q: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """[B, C]: the log-probability of proposing a block's labels `end` from `start`: over all of its cells.

        Args:
            log_q: [B, C, cells of the block, labels], at the answer with `start`.
            start: [B, C, cells of the block].
            end: [B, C, cells of the block]; a cell that keeps its label was proposed all the same.
        """
        return log_q.gather(-1, end.unsqueeze(-1)).squeeze(-1).sum(-1)

    def _beta(self, current: Current) -> Tensor:
        if not self.anneal:
            return current.beta
        return current.beta / (1 - self.anneal * current.sweep).clamp(min=COLDEST)

    def _take(
        self,
        current: Current,
        labels: dict[str, Tensor],
        score: Tensor,
        proposals: dict[str, Tensor],
        taken: Tensor,
        by_name: dict[str, Tensor],
    ) -> None:
        """Go where the move was accepted; elsewhere the old labels stay, with their score and proposals."""
        changed, present = torch.zeros_like(taken), torch.zeros_like(taken)
        for name, cells in by_name.items():
            present = present | self.open[name][:, :, cells].any(-1)
            changed = changed | (labels[name] != current.labels[name]).any(-1)
        kind = current.score.dtype
        current.count(present.to(kind), (taken & present).to(kind), (taken & changed).to(kind))
        for name, one in labels.items():
            current.labels[name] = torch.where(taken.unsqueeze(-1), one, current.labels[name])
            current.cache[name] = torch.where(taken[..., None, None], proposals[name], current.cache[name])
        current.score = torch.where(taken, score, current.score)


class DegenerateGibbs(Proposing):
    """Cells are drawn from masked conditionals as if they were the model's own.

    The conditionals of a masked network need not belong to any joint distribution (section 6.2.1), so that what these
    chains tend to is no distribution of the model, and depends on the order of cells.
    """

    valid = False

    @property
    def warning(self) -> str | None:
        """Always."""
        return "masked conditionals are not the model's own: these draws have another distribution than the model's"

    def plan(self, current: Current, random: Randomness) -> Iterable[tuple[str, int]]:
        """All cells once."""
        return self.cells(random)

    def move(self, current: Current, move: tuple[str, int], random: Randomness) -> None:
        """Draw one cell."""
        name, cell = move
        log_q = self.narrowed(self.proposals(current)[name][:, :, cell])
        old = current.labels[name][:, :, cell].clone()
        new = random.categorical(log_q)
        current.labels[name][:, :, cell] = new
        found = evaluate(self.target, current.labels)
        current.score, current.cache = found.score, dict(found.proposals)
        present = self.open[name][:, :, cell].expand_as(old).to(current.score.dtype)
        current.count(present, present, (new != old).to(present.dtype))


class MaskPredict(Proposing):
    """Predict all cells at once, then again those that the network is least sure of, fewer with each round.

    Source: Ghazvininejad et al. 2019.  With `hide: some`, as there: the cells of a round are hidden together, all of
    them in the first, and a cell is as sure as it was when it was last predicted; the start does not matter.  With
    `hide: one` a cell is predicted given the labels of all others, itself masked, for networks that never learned to do
    without several labels; a cell is as sure as it is now.  Round r of R predicts a share of 1 - r / R of the cells
    that evidence leaves open.  A decoder, not a sampler.

    Args:
        target: what is decoded.
        rounds: how many times cells are predicted.
        pick: `confidence`: the cells whose labels are least likely are predicted again; `random`: any.
        hide: `one` or `some`.
    """

    valid = False

    def __init__(self, target: ScoreTarget, rounds: int, pick: str, hide: str = "one") -> None:
        super().__init__(target)
        self.rounds, self.pick, self.hide = rounds, pick, hide
        self.sure: dict[str, Tensor] = {}  # of the labels that the rounds of this sweep have predicted

    @property
    def warning(self) -> str | None:
        """Always."""
        return "mask-predict decodes one answer: no sample"

    def plan(self, current: Current, random: Randomness) -> Iterable[int]:
        """The rounds."""
        return range(self.rounds)

    def advance(self, current: Current, random: Randomness) -> None:
        """All rounds; the answer is scored behind the last."""
        self.sure = {}
        super().advance(current, random)
        found = evaluate(self.target, current.labels)
        current.score, current.cache = found.score, dict(found.proposals)

    def move(self, current: Current, move: int, random: Randomness) -> None:
        """Predict the share of cells of this round, in each variable."""
        if self.hide == "one":
            proposals = evaluate(self.target, current.labels).proposals if move else self.proposals(current)
            for name, scores in proposals.items():
                held = scores.log_softmax(-1).gather(-1, current.labels[name].unsqueeze(-1)).squeeze(-1)
                again = self._again(name, held, move, random)
                current.labels[name] = torch.where(again, scores.argmax(-1), current.labels[name])
        else:
            nothing = {name: torch.zeros_like(one, dtype=current.score.dtype) for name, one in current.labels.items()}
            hidden = {name: self._again(name, held, move, random) for name, held in (self.sure or nothing).items()}
            for name, scores in evaluate(self.target, current.labels, hidden).proposals.items():
                best = scores.log_softmax(-1).max(-1)
                current.labels[name] = torch.where(hidden[name], best.indices, current.labels[name])
                self.sure[name] = torch.where(hidden[name], best.values, self.sure.get(name, best.values))
        one = torch.ones_like(current.score)
        current.count(one, one, one)

    def _again(self, name: str, held: Tensor, move: int, random: Randomness) -> Tensor:
        """[B, C, cells]: the cells that a round predicts, of the log-probabilities [B, C, cells] of their labels."""
        moving = self.open[name]
        if self.pick == "random":
            cells = held.shape[2]
            held = torch.zeros_like(held)
            held[:, :, random.permutation(cells)] = torch.arange(cells, device=held.device).to(held.dtype)
        rank = held.masked_fill(~moving, float("inf")).argsort(dim=-1, stable=True).argsort(-1)
        count = -(-moving.sum(-1, keepdim=True) * (self.rounds - move) // self.rounds)
        return (rank < count) & moving


__all__ = ["DegenerateGibbs", "MaskPredict", "Metropolis"]

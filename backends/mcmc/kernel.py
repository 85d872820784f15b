"""What a sampler is: `init` and `step` over a state that is plain data.

A step is a *sweep*: a plan of moves, carried out one after the other.  Each move of a valid kernel leaves the target
invariant by itself (most are in detailed balance with it); a sweep then does too, though it need not be reversible.
Many chains run in one batch: tensors are [B, C, ...] for B examples with C chains each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import Labels, Target


@dataclass(frozen=True, eq=False)
class State:
    """Where the chains stand; saving and loading `tensors` resumes them bit by bit.

    Attributes:
        labels: by variable: [B, C, cells], in the order of the target's cells.
        score: [B, C]: the target's score of the labels.
        beta: [C]: the inverse temperature that each chain samples at; 1 is the target itself.
        sweep: how many sweeps were made, a whole number without axes.
        random: the state of the random generator, bytes.
        cache: what a kernel may compute again from the labels and keeps only for speed; it is not saved.
    """

    labels: Mapping[str, Tensor]
    score: Tensor
    beta: Tensor
    sweep: Tensor
    random: Tensor
    cache: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def tensors(self) -> dict[str, Tensor]:
        """The state as tensors by name, for any format that holds tensors."""
        plain = {"score": self.score, "beta": self.beta, "sweep": self.sweep, "random": self.random}
        return {**plain, **{f"labels.{name}": one for name, one in self.labels.items()}}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> State:
        """The state that `tensors` gave."""
        labels = {name.removeprefix("labels."): one for name, one in tensors.items() if name.startswith("labels.")}
        return State(labels, tensors["score"], tensors["beta"], tensors["sweep"], tensors["random"])


@dataclass(frozen=True, eq=False)
class Info:
    """What a sweep did.

    Attributes:
        proposed: [B, C]: how many moves were proposed.
        accepted: [B, C]: how many of them were accepted; draws from exact conditionals always are.
        novel: [B, C]: how many of them changed the answer.
    """

    proposed: Tensor
    accepted: Tensor
    novel: Tensor

    def __add__(self, other: Info) -> Info:
        """What two sweeps did together."""
        return Info(self.proposed + other.proposed, self.accepted + other.accepted, self.novel + other.novel)


class Current:
    """The chains during a sweep: what moves read and write.

    `labels` are the sweep's own copies, and may be written in place, unless the state's own are asked for.
    """

    def __init__(self, state: State, copied: bool = True) -> None:
        self.labels: dict[str, Tensor] = {name: one.clone() if copied else one for name, one in state.labels.items()}
        self.score, self.beta, self.sweep = state.score, state.beta, state.sweep
        self.cache = dict(state.cache)
        self.proposed = torch.zeros_like(state.score)
        self.accepted = torch.zeros_like(state.score)
        self.novel = torch.zeros_like(state.score)

    def count(self, proposed: Tensor, accepted: Tensor, novel: Tensor) -> None:
        """Add up what moves did, [B, C] each."""
        self.proposed = self.proposed + proposed
        self.accepted = self.accepted + accepted
        self.novel = self.novel + novel

    def after(self, state: State, random: Randomness, sweeps: int = 1) -> tuple[State, Info]:
        """The state that sweeps lead to, and what they did."""
        made = replace(
            state,
            labels=self.labels,
            score=self.score,
            sweep=state.sweep + sweeps,
            random=random.state,
            cache=self.cache,
        )
        return made, Info(self.proposed, self.accepted, self.novel)


class Kernel(ABC):
    """A sampler of one target.

    Args:
        target: what is sampled.
    """

    #: Whether its stationary distribution is the target's.
    valid: bool = True

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def warning(self) -> str | None:
        """What its user should know before trusting the draws; `None` when there is nothing."""
        return None

    def init(self, generator: torch.Generator, beta: Tensor | None = None, labels: Labels | None = None) -> State:
        """Chains at their starting points.

        Args:
            generator: all chance comes from it, and its state is part of the chains' state.
            beta: [C] inverse temperatures; all 1 when left out.
            labels: where to start, [B, C, cells] by variable; spread out and possible when left out.
        """
        target = self.target
        random = Randomness(generator)
        ones = torch.ones(target.chains, device=target.device, dtype=target.dtype)
        with torch.no_grad():
            labels = target.start(random) if labels is None else labels
            score = target.score(labels)
        sweep = torch.zeros((), dtype=torch.long, device=target.device)
        return State(dict(labels), score, ones if beta is None else beta, sweep, random.state)

    def step(self, state: State) -> tuple[State, Info]:
        """One sweep; the same state always gives the same next one."""
        random = Randomness.resumed(state.random, self.target.device)
        current = Current(state)
        with torch.no_grad():
            self.advance(current, random)
        return current.after(state, random)

    def run(self, state: State, count: int) -> tuple[State, Info]:
        """Some sweeps, and what they did together; the same as one after another."""
        total = Info(*(torch.zeros_like(state.score) for _ in range(3)))
        for _ in range(count):
            state, info = self.step(state)
            total = total + info
        return state, total

    def advance(self, current: Current, random: Randomness) -> None:
        """Carry out the plan of one sweep."""
        for move in self.plan(current, random):
            self.move(current, move, random)

    @abstractmethod
    def plan(self, current: Current, random: Randomness) -> Iterable[Any]:
        """The moves of a sweep."""

    @abstractmethod
    def move(self, current: Current, move: Any, random: Randomness) -> None:
        """Make one move, in every chain."""


def accepted(log_ratio: Tensor, random: Randomness) -> Tensor:
    """[...]: accept with probability min(1, exp(log_ratio)); NaN, which is -inf less -inf, is rejected."""
    return random.chance(log_ratio.nan_to_num(nan=float("-inf"), neginf=float("-inf")).clamp(max=0).exp())


__all__ = ["Current", "Info", "Kernel", "State", "accepted"]

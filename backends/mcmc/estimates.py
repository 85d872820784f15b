"""Estimates of log Z from chains, with their errors: annealed importance sampling and bridge sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Kernel
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.starts import COLD_SWEEPS, COLDEST
from energyml.backends.mcmc.target import Labels, Target
from energyml.backends.mcmc.tempering import Tempering
from energyml.inference.convergence import HIGHEST, effective, error_between_chains, split_rhat, standard_error
from energyml.inference.trace import no_answer

# Rounds of the equation of the optimal bridge; it contracts quickly.
ROUNDS = 200
# The error of log Z above which an estimate warns.
LARGEST_ERROR = 0.5
# How many standard errors, and units in the last place, an estimate may be outside of its bounds by chance.
BEYOND, ROUNDINGS = 3.0, 64


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate of log Z, within the bounds that are known: the best answer seen, and `Target.ceiling`.

    Attributes:
        log_z: [B]; -inf where no answer of positive weight was found.
        error: [B]: its standard error, and at least what the bounds show to be missing; inf where nothing is known.
        worth: [B]: the effective number of chains (importance sampling) or of draws (bridge).
        rhat: [B]: split R-hat of what the estimate is made of; 1 for independent chains.
        missed: [B]: by how much the estimate was outside of the bounds, beyond chance and rounding; else 0.
        impossible: [B]: the examples that have no possible answer by what is known of single factors.
    """

    log_z: Tensor
    error: Tensor
    worth: Tensor
    rhat: Tensor
    missed: Tensor
    impossible: Tensor

    @staticmethod
    def bounded(target: Target, log_z: Tensor, error: Tensor, worth: Tensor, rhat: Tensor, best: Tensor) -> Estimate:
        """An estimate [B] held to its bounds.

        Args:
            target: what was sampled.
            log_z: the estimate.
            error: its standard error.
            worth: the effective number of draws.
            rhat: split R-hat.
            best: the best score that was seen, of the model.
        """
        impossible = target.impossible()
        found = log_z.maximum(best).minimum(target.ceiling().maximum(best))
        gap = torch.where(found == log_z, 0, (found - log_z).abs())
        rounding = ROUNDINGS * torch.finfo(log_z.dtype).eps * (1 + found.abs())
        missed = torch.where(gap > BEYOND * error + rounding, gap, 0)
        found, gap = found.masked_fill(impossible, float("-inf")), gap.masked_fill(impossible, 0)
        error = torch.where(impossible, 0, error.maximum(gap))
        missed, rhat = missed.masked_fill(impossible, 0), rhat.masked_fill(impossible, 1)
        return Estimate(found, error, worth, rhat, missed, impossible)

    def trouble(self) -> tuple[bool, str] | None:
        """The problem with the estimate: (whether it is useless, message); `None` where nothing shows."""
        lost = self.log_z.isneginf() & ~self.impossible
        if bool(self.log_z.isposinf().any()):
            name = str(self.log_z.dtype).removeprefix("torch.")
            return True, f"log Z is larger than {name} holds: use smaller scores or float64"
        if bool(lost.any()):
            return True, no_answer(lost)
        if bool((self.missed > 0).any()):
            return False, (
                f"the estimate of log Z was {float(self.missed.max()):.2g} nats below the score of an answer that was "
                "seen, or above the sum of the largest scores, so that its draws missed most of the likely answers; "
                "the bound is given instead; raise `steps` or `rungs`, and `chains`"
            )
        if bool((self.error > LARGEST_ERROR).any()):
            return False, (
                f"the standard error of log Z is {float(self.error.max()):.2g} nats; raise `chains`, and `steps` or "
                "`rungs`"
            )
        if bool((self.rhat > HIGHEST).any()):
            return False, (
                f"the chains have not mixed (split R-hat {float(self.rhat.max()):.4g} is above {HIGHEST}), so that log "
                "Z and its error are unsure: the scores have several modes, or the chains are slow; raise `sweeps`, "
                "`rungs` and `hottest`"
            )
        return None


def annealed_importance(kernel: Kernel, betas: Sequence[float], generator: torch.Generator) -> Estimate:
    """Annealed importance sampling from uniform labels to the model.  Source: Neal 2001.

    Each chain starts from uniform labels, where log Z is known, and is moved by one sweep at each inverse temperature.
    The mean of its weights is an unbiased estimate of Z, so that log Z is underestimated on average.  Its error is the
    larger of what the spread of the weights says, and what it would be if they were log-normal, which many small steps
    make them: of heavy tails the weights themselves show nothing until one is met.

    Args:
        kernel: leaves the tempered distributions invariant; its target has the chains.
        betas: from 0 to 1.
        generator: where chance comes from.
    """
    target = kernel.target
    with torch.no_grad():
        labels = target.random_labels(Randomness(generator))
    state = kernel.init(generator, labels=labels)
    weight = torch.zeros_like(state.score)
    for low, high in pairwise(betas):
        weight = weight + (high - low) * state.score
        if high < 1:
            state = replace(state, beta=torch.full_like(state.beta, high))
            state, _ = kernel.step(state)
    count = weight.shape[1]
    found = weight.isfinite()
    top = weight.amax(1, keepdim=True)
    scaled = (weight - top.masked_fill(top.isneginf(), 0)).exp()
    mean = scaled.mean(1)
    log_z = target.log_states() + mean.log() + top.squeeze(1).masked_fill(top.squeeze(1).isneginf(), 0)
    worth = scaled.sum(1) ** 2 / (scaled**2).sum(1).clamp(min=1e-300)
    relative = scaled.var(1) / (mean**2 * count)
    # Of n log-normal weights with a variance v of the logs: v / n for the mean of the logs, and v^2 / 2 (n - 1) for the
    # half variance, plus what the share of weights that are not zero adds.
    many = found.sum(1).clamp(min=2)
    logs = torch.where(found, weight, 0)
    spread = torch.where(found, logs - (logs.sum(1) / many).unsqueeze(1), 0).square().sum(1) / (many - 1)
    share = found.to(mean.dtype).mean(1).clamp(min=1 / count)
    normal = spread / many + spread**2 / (2 * (many - 1)) + (1 - share) / (share * count)
    # One weight tells nothing of the others.
    lonely = (found.sum(1) < 2) & (count > found.sum(1))
    error = torch.where(lonely, float("inf"), _few(relative.maximum(normal).sqrt(), worth))
    best = _best(target, state.labels, state.score)
    # A search for modes when all is done: log Z is not below the score of any answer.
    cold, _ = kernel.run(replace(state, beta=torch.full_like(state.beta, COLDEST)), COLD_SWEEPS)
    best = best.maximum(_best(target, cold.labels, cold.score))
    made = Estimate.bounded(target, log_z, error, worth, torch.ones_like(log_z), best)
    return _held_up(kernel, made, generator)


def _few(error: Tensor, worth: Tensor) -> Tensor:
    """Standard errors that few weights show, widened as Student's t is."""
    return error * (1 + 2 / worth.clamp(min=1))


def _best(target: Target, labels: Labels, score: Tensor) -> Tensor:
    """[B]: the best score of answers [B, C, cells], which log Z is not below."""
    return (score + target.auxiliary(labels)).amax(1)


def bridge(kernel: Tempering, sweeps: int, burn_in: int, generator: torch.Generator) -> Estimate:
    """Bridge sampling along a ladder of temperatures, from uniform labels, where log Z is known.

    Between neighbouring rungs the optimal bridge of Meng & Wong 1996 (Bennett 1976) joins the draws of both.  The error
    is that of the mean of what each sweep of each ladder adds to log Z, to first order (Fruehwirth-Schnatter 2004): the
    bridges of a ladder share draws and exchange answers, so that their errors do not simply add up.
    """
    target, rungs = kernel.target, kernel.rungs
    state = kernel.init(generator)
    state, _ = kernel.run(state, burn_in)
    kept = []
    best = torch.full((target.size,), float("-inf"), device=target.device, dtype=target.dtype)
    for _ in range(sweeps):
        state, _ = kernel.step(state)
        kept.append(state.score)
        best = best.maximum(_best(target, state.labels, state.score))
    scores = torch.stack(kept).reshape(sweeps, target.size, -1, rungs).movedim(1, 2)  # [S, chains, B, rungs]
    uniform = []
    random = Randomness(Randomness.resumed(state.random, target.device).generator)
    with torch.no_grad():
        for _ in range(sweeps):
            score = target.score(target.random_labels(random))
            uniform.append(score.reshape(target.size, -1, rungs)[:, :, 0])
    ground = torch.stack(uniform).movedim(1, 2)  # [S, chains, B]
    betas = [*reversed(kernel.betas.tolist())]
    draws = [ground, *(scores[..., rung] for rung in reversed(range(rungs)))]
    log_z, added = target.log_states(), torch.zeros_like(ground)
    for low, high, below, above in zip([0.0, *betas[:-1]], betas, draws[:-1], draws[1:], strict=True):
        ratio, influence = _bridged((high - low) * below, (high - low) * above)
        log_z, added = log_z + ratio, added + influence
    # Where some bridge met no possible answer, nothing is known of its error.
    error = torch.where(log_z.isfinite(), standard_error(added).to(log_z.dtype), float("inf"))
    rhat = split_rhat(added).maximum(split_rhat(_finite(scores[..., 0])))
    # Where answers do not mix, such as behind walls of -inf, ladders count as one draw each.
    error = torch.where(rhat > HIGHEST, error.maximum(error_between_chains(added.double()).to(error.dtype)), error)
    made = Estimate.bounded(target, log_z, error, effective(added), rhat.to(log_z.dtype), best)
    return _held_up(kernel, made, random.generator)


def _finite(values: Tensor) -> Tensor:
    return torch.where(values.isfinite(), values, 0)


def _held_up(kernel: Kernel, estimate: Estimate, generator: torch.Generator) -> Estimate:
    """Where constraints ruled out all labels that were drawn, log Z is at least the score of any answer.

    -inf then only stands where no possible answer is found at all; the error of such a bound is inf.
    """
    lost = ~estimate.log_z.isfinite() & ~estimate.impossible
    if not bool(lost.any()):
        return estimate
    target = kernel.target
    with torch.no_grad():
        labels = target.start(Randomness(generator))
        best = _best(target, labels, target.score(labels))
    error = torch.where(lost, float("inf"), estimate.error)
    log_z = torch.where(lost, best, estimate.log_z)
    return replace(estimate, log_z=log_z, error=error, worth=torch.where(lost, 0, estimate.worth))


def _bridged(below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """[B]: log of the ratio of two normalisers; [S, C, B]: what each sweep adds to it, to first order.

    Args:
        below: [S, C, B]: the log-ratio of unnormalised densities at draws from the lower rung.
        above: the same at draws from the upper rung.
    """
    few = [effective(_finite(one)).clamp(min=1).to(one.dtype) for one in (below, above)]
    share = [(one / (few[0] + few[1])).log() for one in few]
    ratio = torch.zeros_like(few[0])
    count = log(below.shape[0] * below.shape[1])
    for _ in range(ROUNDS):
        top, bottom = _weights(below, above, share, ratio)
        new = torch.logsumexp(top.flatten(0, 1), 0) - torch.logsumexp(bottom.flatten(0, 1), 0)
        done = bool(((new - ratio).abs() < 1e-9).all())
        ratio = new
        if done:
            break
    top, bottom = ((one - torch.logsumexp(one.flatten(0, 1), 0) + count).exp()
                   for one in _weights(below, above, share, ratio))  # fmt: skip
    return ratio, top - bottom


def _weights(below: Tensor, above: Tensor, share: list[Tensor], ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The logs of both sides of the optimal bridge, at draws from below and from above."""
    top = below - torch.logaddexp(share[1] + below, (share[0] + ratio).expand_as(below))
    bottom = -torch.logaddexp(share[1] + above, (share[0] + ratio).expand_as(above))
    return top, bottom


__all__ = ["Estimate", "annealed_importance", "bridge"]

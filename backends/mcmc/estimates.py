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
from energyml.backends.mcmc.tempering import Tempering
from energyml.sampling.convergence import effective

# Rounds of the equation of the optimal bridge; it contracts quickly.
ROUNDS = 200


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate of log Z.

    Attributes:
        log_z: [B].
        error: [B]: its standard error, to first order; inf where nothing is known.
        worth: [B]: the effective number of chains (importance sampling) or the worst of draws (bridge).
    """

    log_z: Tensor
    error: Tensor
    worth: Tensor


def annealed_importance(kernel: Kernel, betas: Sequence[float], generator: torch.Generator) -> Estimate:
    """Annealed importance sampling from uniform labels to the model.  Source: Neal 2001.

    Each chain starts from uniform labels, where log Z is known, and is moved by one sweep at each inverse temperature.
    The mean of its weights is an unbiased estimate of Z, so that log Z is underestimated on average.

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
    top = weight.amax(1, keepdim=True)
    scaled = (weight - top.masked_fill(top.isneginf(), 0)).exp()
    mean = scaled.mean(1)
    log_z = target.log_states() + mean.log() + top.squeeze(1).masked_fill(top.squeeze(1).isneginf(), 0)
    spread = scaled.std(1) if count > 1 else torch.full_like(mean, float("inf"))
    error = torch.where(mean > 0, spread / (mean * count**0.5), float("inf"))
    worth = scaled.sum(1) ** 2 / (scaled**2).sum(1).clamp(min=1e-300)
    return _held_up(kernel, Estimate(log_z, error, worth), generator)


def bridge(kernel: Tempering, sweeps: int, burn_in: int, generator: torch.Generator) -> Estimate:
    """Bridge sampling along a ladder of temperatures, from uniform labels, where log Z is known.

    Between neighbouring rungs the optimal bridge of Meng & Wong 1996 (Bennett 1976) joins the draws of both; errors add
    up as of Fruehwirth-Schnatter 2004, with the effective numbers of draws.
    """
    target, rungs = kernel.target, kernel.rungs
    state = kernel.init(generator)
    kept = []
    for sweep in range(burn_in + sweeps):
        state, _ = kernel.step(state)
        if sweep >= burn_in:
            kept.append(state.score)
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
    log_z, variance = target.log_states(), torch.zeros(target.size, device=target.device, dtype=target.dtype)
    worth = torch.full_like(variance, float("inf"))
    for low, high, below, above in zip([0.0, *betas[:-1]], betas, draws[:-1], draws[1:], strict=True):
        ratio, error, least = _bridged((high - low) * below, (high - low) * above)
        log_z, variance, worth = log_z + ratio, variance + error, torch.minimum(worth, least)
    return _held_up(kernel, Estimate(log_z, variance.sqrt(), worth), random.generator)


def _held_up(kernel: Kernel, estimate: Estimate, generator: torch.Generator) -> Estimate:
    """Where constraints ruled out all uniform labels that were drawn, log Z is at least the score of any answer.

    -inf then only stands where no possible answer is found at all; the error of such a bound is inf.
    """
    lost = ~estimate.log_z.isfinite()
    if not bool(lost.any()):
        return estimate
    target = kernel.target
    with torch.no_grad():
        labels = target.start(Randomness(generator))
        best = (target.score(labels) + target.auxiliary(labels)).amax(1)
    error = torch.where(lost, float("inf"), estimate.error)
    return Estimate(torch.where(lost, best, estimate.log_z), error, torch.where(lost, 0, estimate.worth))


def _bridged(below: Tensor, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B] three times: log of the ratio of two normalisers, its variance, the smaller effective number of draws.

    Args:
        below: [S, C, B]: the log-ratio of unnormalised densities at draws from the lower rung.
        above: the same at draws from the upper rung.
    """
    few = [effective(torch.where(one.isfinite(), one, 0)).clamp(min=1).to(one.dtype) for one in (below, above)]
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
    top, bottom = _weights(below, above, share, ratio)
    variance = torch.zeros_like(ratio)
    for one, worth in zip((top, bottom), few, strict=True):
        log_mean = torch.logsumexp(one.flatten(0, 1), 0) - count
        relative = (one - log_mean).exp()
        variance = variance + relative.flatten(0, 1).var(0) / worth
    return ratio, variance, torch.minimum(*few)


def _weights(below: Tensor, above: Tensor, share: list[Tensor], ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The logs of both sides of the optimal bridge, at draws from below and from above."""
    top = below - torch.logaddexp(share[1] + below, (share[0] + ratio).expand_as(below))
    bottom = -torch.logaddexp(share[1] + above, (share[0] + ratio).expand_as(above))
    return top, bottom


__all__ = ["Estimate", "annealed_importance", "bridge"]

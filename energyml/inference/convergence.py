"""Whether chains have mixed, and how much their draws are worth.

Source: Vehtari, Gelman, Simpson, Carpenter & Buerkner 2021 (split R-hat of ranks, effective sample size); Geyer 1992
(the initial monotone sequence).  The same quantities as ArviZ's, without it.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

# Above this the chains have not mixed.
HIGHEST = 1.05
# The 97.5% quantile of Student's t with 1, 2, ... degrees of freedom, over that of the normal distribution.
STUDENT = (6.48, 2.20, 1.62, 1.42, 1.31, 1.25, 1.21, 1.18, 1.15, 1.14)
# Below this many effective draws neither R-hat nor standard errors can be trusted.
LEAST = 100.0


def split(draws: Tensor) -> Tensor:
    """[S / 2, 2 C, ...]: each chain of draws [S, C, ...] as two, so that a drift within it shows."""
    half = draws.shape[0] // 2
    return torch.cat([draws[:half], draws[draws.shape[0] - half :]], 1)


def plain_rhat(chains: Tensor) -> Tensor:
    """[...]: sqrt of the pooled over the within-chain variance of chains [S, C, ...].

    Constant chains that agree give 1, constant chains that differ give inf.
    """
    count = chains.shape[0]
    if count < 2:
        return torch.full(chains.shape[2:], float("inf"), dtype=chains.dtype, device=chains.device)
    within = chains.var(0).mean(0)
    between = chains.mean(0).var(0) if chains.shape[1] > 1 else torch.zeros_like(within)
    ratio = torch.sqrt((within * (count - 1) / count + between) / within)
    # Draws that never change have a variance of rounding errors.
    still = within <= 1e-12 * (1 + chains.abs().amax((0, 1)) ** 2)
    moved = between > 1e-12 * (1 + chains.abs().amax((0, 1)) ** 2)
    return torch.where(still, torch.where(moved, float("inf"), 1.0), ratio)


def split_rhat(draws: Tensor) -> Tensor:
    """[...]: the larger of R-hat of the ranks, and of the ranks of distances from the median, of draws [S, C, ...].

    Cost: two sorts of all draws.
    """
    draws = draws.double()
    if draws.shape[0] < 4:
        return torch.full(draws.shape[2:], float("inf"), dtype=draws.dtype, device=draws.device)
    halves = split(draws)
    median = halves.flatten(0, 1).median(0).values
    return torch.maximum(plain_rhat(_normal_scores(halves)), plain_rhat(_normal_scores((halves - median).abs())))


def _normal_scores(draws: Tensor) -> Tensor:
    """Normal quantiles of the average ranks of draws [S, C, ...], over all chains."""
    flat = draws.flatten(0, 1)
    count = flat.shape[0]
    ordered = flat.sort(0).values.movedim(0, -1).contiguous()
    wanted = flat.movedim(0, -1).contiguous()
    low, high = torch.searchsorted(ordered, wanted), torch.searchsorted(ordered, wanted, right=True)
    rank = ((low + 1 + high).double() / 2).movedim(-1, 0)
    scores: Tensor = torch.special.ndtri((rank - 0.375) / (count + 0.25)).reshape(draws.shape)
    return scores


def effective(draws: Tensor) -> Tensor:
    """[...]: the effective number of independent draws in draws [S, C, ...], by split chains.

    Constant draws count as they are.  Cost: a Fourier transform of each chain.
    """
    chains = split(draws.double())
    count, many = chains.shape[:2]
    total = float(count * many)
    if count < 4:
        return torch.full(chains.shape[2:], total, dtype=chains.dtype, device=chains.device)
    centred = chains - chains.mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=0)
    power = spectrum.real**2 + spectrum.imag**2
    covariance = torch.fft.irfft(power, n=2 * count, dim=0)[:count] / count
    mean_covariance = covariance.mean(1)
    within = mean_covariance[0] * count / (count - 1)
    pooled = mean_covariance[0] + (chains.mean(0).var(0) if many > 1 else 0)
    still = pooled <= 1e-300
    rho = 1 - (within - mean_covariance) / torch.where(still, 1.0, pooled)
    rho[0] = 1
    even = count - count % 2
    pairs = rho[:even].reshape(even // 2, 2, *rho.shape[1:]).sum(1)
    alive = (pairs > 0).cumprod(0).bool()
    falling = torch.where(alive, pairs, 0).cummin(0).values
    time = (2 * falling.sum(0) - 1).clamp(min=1 / torch.log10(torch.tensor(max(total, 10.0))).item())
    return torch.where(still, total, total / time)


def standard_error(draws: Tensor) -> Tensor:
    """[...]: the Monte Carlo standard error of the mean of draws [S, C, ...].

    The larger of what the effective number of draws says, and what the means of chains say: they show what hangs
    together for longer than a correlogram can tell.
    """
    draws = draws.double()
    worth = effective(draws).clamp(min=1)
    error = draws.flatten(0, 1).std(0, correction=0) / worth.sqrt()
    return _widened(torch.maximum(error, _by_chains(draws)), worth)


def _by_chains(draws: Tensor) -> Tensor:
    """[...]: the standard error of the mean of draws [S, C, ...] that the means of their chains show.

    Where chains have not mixed, each counts as one draw, so that it is widened as Student's t is.
    """
    apart = error_between_chains(draws)
    return torch.where(plain_rhat(split(draws)) > HIGHEST, apart, apart / _student(draws.shape[1]))


def error_between_chains(draws: Tensor) -> Tensor:
    """[...]: the standard error of the mean of draws [S, C, ...] where each chain counts as one draw; 0 for one chain.

    Widened as Student's t is.
    """
    chains = draws.shape[1]
    if chains < 2:
        return torch.zeros_like(draws[0, 0])
    found: Tensor = _student(chains) * draws.mean(0).std(0) / chains**0.5
    return found


def _student(chains: int) -> float:
    return STUDENT[chains - 2] if 0 <= chains - 2 < len(STUDENT) else 1.0


def share_error(hits: Tensor, constant: Tensor) -> Tensor:
    """[...]: the Monte Carlo standard error of the share of hits, draws [S, C, ...] of zeros and ones.

    As `standard_error`, but two hits and two misses are added to what was seen (Agresti & Coull 1998), so that the
    error of a label that was never drawn is not zero.

    Args:
        hits: the draws.
        constant: [...]: how many independent draws they are worth where all are alike, which they do not tell.
    """
    share = hits.double().mean((0, 1))
    worth = torch.where((share > 0) & (share < 1), effective(hits), constant).clamp(min=1)
    smooth = (share * worth + 2) / (worth + 4)
    return _widened(torch.maximum((smooth * (1 - smooth) / worth).sqrt(), _by_chains(hits.double())), worth)


def _widened(error: Tensor, worth: Tensor) -> Tensor:
    """Standard errors estimated from few effective draws, so that 1.96 of them hold as much as Student's t does."""
    return error * (1 + 2 / worth.clamp(min=1))


def total_variation_bound(states: int, count: float, chance: float = 1e-6) -> float:
    """What the total variation between a distribution and `count` independent draws of it exceeds with chance.

    The expected distance is at most sqrt(states / count) / 2, and one draw moves it by 1 / count (McDiarmid 1989).
    """
    return sqrt(states / count) / 2 + sqrt(torch.tensor(1 / chance).log().item() / (2 * count))


__all__ = [
    "HIGHEST", "LEAST", "effective", "plain_rhat", "share_error", "split", "split_rhat", "standard_error",
    "total_variation_bound",
]  # fmt: skip

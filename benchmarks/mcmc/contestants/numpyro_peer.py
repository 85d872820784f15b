"""numpyro: `DiscreteHMCGibbs`, its own Gibbs sampler for discrete sites, chains by its vectorized method.

It wants a continuous site for the Hamiltonian part: one normal that nothing depends on, moved by a single step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import torch
from numpyro.infer import HMC, MCMC, DiscreteHMCGibbs
from torch import Tensor

from benchmarks.mcmc.cases import Case, Chain, Ising
from benchmarks.mcmc.contestants import Prepared


class Numpyro:
    """Models with `numpyro.factor` for what joins neighbours."""

    name = "numpyro"

    def __init__(self) -> None:
        self.chains: dict[str, tuple[int, ...]] = {"ising": (8,), "chain": (16,)}
        self.sweeps = {"ising": 1, "chain": 2}

    def prepare(self, case: Case, chains: int) -> Prepared:
        """Compile a sweep with and without what is kept."""
        model, score = _ising(case) if isinstance(case, Ising) else _chain(case)
        kernel = DiscreteHMCGibbs(HMC(model, num_steps=1, adapt_step_size=False))
        # One sampler for all calls, so that it is compiled once: as many calls as sweeps.
        sampler = MCMC(
            kernel, num_warmup=0, num_samples=1, num_chains=chains, chain_method=jax.vmap, progress_bar=False
        )
        sampler.run(jax.random.key(0))

        def sampled(count: int) -> Any:
            kept = []
            for _ in range(count):
                sampler.post_warmup_state = sampler.last_state
                sampler.run(sampler.last_state.rng_key)
                kept.append(jax.block_until_ready(sampler.get_samples(group_by_chain=True)["y"]))
            return jnp.concatenate(kept, 1)

        def draw(count: int) -> np.ndarray:
            found = sampled(count)
            return np.asarray(jnp.stack([jax.vmap(jax.vmap(score))(found), found.mean(-1)], -1))

        def labels() -> Tensor:
            return torch.from_numpy(np.array(sampler.last_state.z["y"]).reshape(chains, case.cells))

        return Prepared(chains, sampled, draw, labels, case.cells)


def _ising(case: Ising) -> tuple[Any, Any]:
    bias, side = jnp.asarray(case.bias.flatten().numpy()), case.side

    def pairs(y: Any) -> Any:
        grid = y.reshape(side, side)
        return case.coupling * ((grid[1:] == grid[:-1]).sum() + (grid[:, 1:] == grid[:, :-1]).sum())

    def model() -> None:
        numpyro.sample("x", dist.Normal(0, 1))
        with numpyro.plate("cells", case.cells):
            y = numpyro.sample("y", dist.Bernoulli(logits=bias))
        numpyro.factor("pairs", pairs(y))

    return model, lambda y: (y * bias).sum() + pairs(y)


def _chain(case: Chain) -> tuple[Any, Any]:
    unary, pair = jnp.asarray(case.unary.numpy()), jnp.asarray(case.pair.numpy())

    def pairs(y: Any) -> Any:
        return pair[y[:-1], y[1:]].sum()

    def model() -> None:
        numpyro.sample("x", dist.Normal(0, 1))
        with numpyro.plate("cells", case.length):
            y = numpyro.sample("y", dist.Categorical(logits=unary))
        numpyro.factor("pairs", pairs(y))

    return model, lambda y: unary[jnp.arange(case.length), y].sum() + pairs(y)

"""thrml: block Gibbs sampling in JAX, two colours, chains by `vmap`, all sweeps in one compiled scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import thrml
import torch
from thrml.block_sampling import BlockGibbsSpec, sample_blocks
from thrml.factor import FactorSamplingProgram
from thrml.models import (
    CategoricalGibbsConditional,
    IsingEBM,
    IsingSamplingProgram,
    SquareCategoricalEBMFactor,
)
from torch import Tensor

from benchmarks.mcmc.cases import Case, Chain, Ising
from benchmarks.mcmc.contestants import Prepared

BURN_IN = 20


class Thrml:
    """Its own programs: `IsingSamplingProgram`, and categorical factors."""

    name = "thrml"

    def __init__(self) -> None:
        self.chains: dict[str, tuple[int, ...]] = {"ising": (8, 16, 32, 128), "chain": (8, 32, 128)}
        self.sweeps = {"ising": 10, "chain": 5}

    def prepare(self, case: Case, chains: int) -> Prepared:
        """Compile, start at random and burn in."""
        program, start, score, colours = _ising(case) if isinstance(case, Ising) else _chain(case)

        def one(state: list[Any], key: Any) -> list[Any]:
            made, _ = sample_blocks(key, list(state), [], program, [None] * len(program.gibbs_spec.free_blocks))
            return made

        def seen(state: list[Any]) -> Any:
            whole = jnp.zeros(case.cells, dtype=jnp.int32)
            for cells, block in zip(colours, state, strict=True):
                whole = whole.at[cells].set(block.astype(jnp.int32))
            return whole

        def swept(state: list[Any], keys: Any) -> list[Any]:
            return jax.lax.scan(lambda now, key: (one(now, key), None), state, keys)[0]

        def drawn(state: list[Any], keys: Any) -> Any:
            def body(now: list[Any], key: Any) -> Any:
                now = one(now, key)
                whole = seen(now)
                return now, jnp.stack([score(whole), whole.mean()])

            return jax.lax.scan(body, state, keys)

        sweep_all, draw_all = jax.jit(jax.vmap(swept)), jax.jit(jax.vmap(drawn))
        held: list[Any] = [start(jax.random.key(0), chains), jax.random.key(1)]

        def keys(count: int) -> Any:
            held[1], own = jax.random.split(held[1])
            return jax.random.split(own, (chains, count))

        def sweep(count: int) -> None:
            held[0] = jax.block_until_ready(sweep_all(held[0], keys(count)))

        def draw(count: int) -> np.ndarray:
            held[0], made = jax.block_until_ready(draw_all(held[0], keys(count)))
            return np.asarray(made)

        def labels() -> Tensor:
            return torch.from_numpy(np.array(jax.vmap(seen)(held[0])))

        sweep(BURN_IN)
        return Prepared(chains, sweep, draw, labels, case.cells)


Parts = tuple[Any, Callable[[Any, int], list[Any]], Callable[[Any], Any], list[Any]]


def _ising(case: Ising) -> Parts:
    """Energies are of spins +1 and -1: half of what labels 1 and 0 differ by."""
    side = case.side
    nodes = [thrml.SpinNode() for _ in range(case.cells)]
    number = np.arange(case.cells).reshape(side, side)
    ends = np.concatenate(
        [
            np.stack([number[1:].ravel(), number[:-1].ravel()], 1),
            np.stack([number[:, 1:].ravel(), number[:, :-1].ravel()], 1),
        ]
    )
    edges = [(nodes[a], nodes[b]) for a, b in ends.tolist()]
    bias = jnp.asarray(case.bias.flatten().numpy())
    weights = jnp.full(len(edges), case.coupling / 2)
    model = IsingEBM(nodes, edges, bias / 2, weights, jnp.array(1.0))
    odd = (number // side + number % side).ravel() % 2
    colours = [jnp.asarray(np.flatnonzero(odd == parity)) for parity in (0, 1)]
    blocks = [thrml.Block([nodes[cell] for cell in cells.tolist()]) for cells in colours]
    program = IsingSamplingProgram(model, blocks, [])

    def start(key: Any, chains: int) -> list[Any]:
        keys = jax.random.split(key, 2)
        return [jax.random.bernoulli(k, 0.5, (chains, len(c))) for k, c in zip(keys, colours, strict=True)]

    first, second = jnp.asarray(ends[:, 0]), jnp.asarray(ends[:, 1])

    def score(labels: Any) -> Any:
        return (labels * bias).sum() + case.coupling * (labels[first] == labels[second]).sum()

    return program, start, score, colours


def _chain(case: Chain) -> Parts:
    nodes = [thrml.CategoricalNode() for _ in range(case.length)]
    unary, pair = jnp.asarray(case.unary.numpy()), jnp.asarray(case.pair.numpy())
    colours = [jnp.arange(0, case.length, 2), jnp.arange(1, case.length, 2)]
    blocks = [thrml.Block([nodes[cell] for cell in cells.tolist()]) for cells in colours]
    kind = {thrml.CategoricalNode: jax.ShapeDtypeStruct((), jnp.uint16)}
    # A square factor has its cells in one group each; from earlier to later, for all pairs of neighbours.
    each = SquareCategoricalEBMFactor([thrml.Block(nodes)], unary)
    joint = jnp.broadcast_to(pair, (case.length - 1, *pair.shape))
    pairs = thrml.models.CategoricalEBMFactor([thrml.Block(nodes[:-1]), thrml.Block(nodes[1:])], joint)
    spec = BlockGibbsSpec(blocks, [], kind)
    samplers = [CategoricalGibbsConditional(case.labels) for _ in blocks]
    program = FactorSamplingProgram(spec, samplers, [each, pairs], [])

    def start(key: Any, chains: int) -> list[Any]:
        keys = jax.random.split(key, 2)
        return [
            jax.random.randint(k, (chains, len(c)), 0, case.labels).astype(jnp.uint16)
            for k, c in zip(keys, colours, strict=True)
        ]

    def score(labels: Any) -> Any:
        return unary[jnp.arange(case.length), labels].sum() + pair[labels[:-1], labels[1:]].sum()

    return program, start, score, colours

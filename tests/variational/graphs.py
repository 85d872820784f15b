"""Small models for the tests of variational backends, and slow references for what they compute."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel

CHAIN = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
input w : real[from: Tag, to: Tag]
output y : Tag[T]
chain y { unary: u, pair: w }
"""
GRID = """\
labels Spin = {a, b, c}
dim H, W
input u : real[H, W, Spin]
input k : real[x: Spin, z: Spin]
output y : Spin[H, W]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor below [i in H-1, j in W] (x: y[i, j], z: y[i+1, j]) = k
factor right [i in H, j in W-1] (x: y[i, j], z: y[i, j+1]) = k
"""
GRAPH = """\
labels Tag = {A, B}
dim N, E
input u : real[N, Tag]
input link : edge(N, N)[E]
input v : real[E, a: Tag, b: Tag]
output y : Tag[N]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = v[e]
"""
TRIPLES = """\
labels Tag = {A, B}
dim T
input u : real[T, Tag]
input v : real[T, a: Tag, b: Tag, c: Tag]
input w : real[T, a: Tag, b: Tag]
output y : Tag[T]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-3] (a: y[t], b: y[t+3]) = w[t]
factor three [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = v[t]
"""
SCHEME = """\
labels Tag = {O, 'B-x', 'I-x'}
dim T
input u : real[T, Tag]
input w : real[from: Tag, to: Tag]
output y : Tag[T]
chain y { unary: u, pair: w }
scheme y bio
"""


def real(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def compiled(text: str) -> EnergyModel:
    """The model in double precision."""
    return em.compile(text).double()


def chain(seed: int = 0, batch: int = 4, size: int = 6, scale: float = 1.0) -> dict[str, Tensor]:
    """Inputs of `CHAIN`."""
    return {"u": real(seed, batch, size, 3), "w": real(seed + 1, batch, 3, 3, scale=scale)}


def tagged(seed: int = 0, batch: int = 4, size: int = 6) -> dict[str, Tensor]:
    """Inputs of `SCHEME`, as a trained tagger gives them: most cells like one label of an allowed answer."""
    generator = torch.Generator().manual_seed(seed)
    gold = torch.zeros(batch, size, dtype=torch.long)
    for t in range(size):
        drawn = torch.randint(0, 3, (batch,), generator=generator)
        gold[:, t] = torch.where((drawn == 2) & (gold[:, t - 1] == 0 if t else drawn >= 0), 0, drawn)
    u = torch.randn(batch, size, 3, generator=generator, dtype=torch.float64)
    return {"u": u + 4 * torch.nn.functional.one_hot(gold, 3), "w": real(seed + 1, 1, 3, 3).expand(batch, 3, 3)}


def grid(seed: int = 0, batch: int = 4, sizes: tuple[int, int] = (3, 3), scale: float = 1.0) -> dict[str, Tensor]:
    """Inputs of `GRID`."""
    return {"u": real(seed, batch, *sizes, 3), "k": real(seed + 1, batch, 3, 3, scale=scale)}


def triples(seed: int = 0, batch: int = 4, size: int = 6, scale: float = 1.0) -> dict[str, Tensor]:
    """Inputs of `TRIPLES`."""
    v, w = real(seed + 1, batch, size, 2, 2, 2, scale=scale), real(seed + 2, batch, size, 2, 2, scale=scale)
    return {"u": real(seed, batch, size, 2), "v": v, "w": w}


def random_graph(
    seed: int = 0, batch: int = 4, nodes: int = 6, edges: int = 8, scale: float = 1.0
) -> dict[str, Tensor]:
    """Inputs of `GRAPH`: another graph for each example, with loops of length 1 and 2 and padding here and there."""
    generator = torch.Generator().manual_seed(seed)
    link = torch.randint(0, nodes, (batch, edges, 2), generator=generator)
    link[torch.rand(batch, edges, generator=generator) < 0.2] = -1
    return {"u": real(seed, batch, nodes, 2), "link": link, "v": real(seed + 1, batch, edges, 2, 2, scale=scale)}


def random_tree(seed: int, batch: int, nodes: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Inputs of `GRAPH`: another tree for each example."""
    generator = torch.Generator().manual_seed(seed)
    link = torch.zeros(batch, nodes - 1, 2, dtype=torch.long)
    for example, node in itertools.product(range(batch), range(1, nodes)):
        ends = torch.tensor([int(torch.randint(0, node, (), generator=generator)), node])
        names = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed + example))
        link[example, node - 1] = names[ends]
    return {"u": real(seed, batch, nodes, 2), "link": link, "v": real(seed + 1, batch, nodes - 1, 2, 2, scale=scale)}

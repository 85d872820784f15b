"""Tiny models of every family, as problems of one example."""

from __future__ import annotations

from typing import Any

import torch

import energyml as em
from energyml.bind.problem import Problem

CHAIN = """
labels Tag = {A, B, C}
dim T = 3
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y { unary: u, pair: W }
"""
PAIR = """
labels Tag = {A, B}
dim T = 2
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y { pair: W }
"""
HARD = CHAIN + "forbid [t in T-1] y[t] = B and y[t+1] = B\n"
GRID = """
labels Spin = {down, up}
dim H = 2, W = 2
input u : real[H, W, Spin]
output y : Spin[H, W]
param J : real = constant(0.7)
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor below [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(J)
factor right [i in H, j in W-1] (y[i, j], y[i, j+1]) = potts(J)
"""
LATENT = """
labels Tag = {A, B}
dim T = 2
input u : real[T, Tag]
output y : Tag[T]
latent z : Tag[T]
param w : real[a: Tag, b: Tag]
param v : real[a: Tag, b: Tag, c: Tag]
factor one [t in T] (y[t]) = u[t]
factor two [t in T] (a: y[t], b: z[t]) = w
factor three [t in T-1] (a: y[t], b: z[t], c: z[t+1]) = v
"""
MASKED = """
labels Tag = {A, B}
dim T = 3
output y : Tag[T]
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, energy: raw }
"""
LOCAL = MASKED.replace("energy: raw", "energy: local")
STEPS = """
labels Tag = {A, B}
dim T = 3
input u : real[T, Tag]
output y : Tag[T]
net d = lstm_decoder(hidden: 3, embed: 2)
sequence y { step: d, normalize: global }
factor one [t in T] (y[t]) = u[t]
"""
FREE = """
labels Tag = {A, B, stop}
dim T free <= 3
output y : Tag[T]
net d = lstm_decoder(hidden: 3, embed: 2)
sequence y { step: d, normalize: global, end: stop }
"""
GLOBAL = """
labels Tag = {A, B}
dim T = 3
output y : Tag[T]
net g = pooled(hidden: 4, embed: 2, activation: tanh)
score all (y) = 2 * g(soft(y))
"""


def problem(text: str, scale: float = 1.0, **more: Any) -> Problem:
    """One example, with parameters of a given scale and random inputs."""
    model = em.compile(text, seed=3).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in ("J",):
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    inputs = {}
    for name, given in model.graph.inputs.items():
        shape = [1, *(_size(model, axis) for axis in given.type.axes)]
        inputs[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return model.problem(**inputs, **more)


def _size(model: em.EnergyModel, axis: Any) -> int:
    if axis.extent.kind == "labels":
        return len(model.graph.label_sets[axis.extent.name].labels or ())
    return int(model.graph.dims[axis.extent.name].size or 0)

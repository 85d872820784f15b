"""Where an ascent starts: random logits, the cells' own scores, or the answer of another backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.backend import Backend
from energyml.backends.relaxed.space import Space, Vectors
from energyml.bind.problem import Problem
from energyml.queries import Query
from energyml.result import Assignment

# An answer's own label gets this share; all labels share the rest, so that it can be left again.
_SURE = 0.9
# The smallest probability that a logit stands for.
_LEAST = 1e-6


def random_logits(space: Space, seed: int, generator: torch.Generator | None) -> Vectors:
    """N(0, 1) for each copy of each example.

    Without a generator, numbers are hashes of the seed and of where they stand, in the batch and in the example
    (SplitMix64; Steele et al. 2014): the same on every device, whatever the padding and the number of copies.
    """
    made = {}
    for number, (name, shape) in enumerate(space.shapes.items()):
        sizes = (space.examples, space.copies, *shape)
        if generator is None:
            u = _hashed((seed, number), sizes, space.device)
        else:
            u = torch.rand(sizes, generator=generator, dtype=torch.float64, device=generator.device).to(space.device)
        normal = torch.erfinv((2 * u - 1).clamp(-1 + 1e-12, 1 - 1e-12)) * 2**0.5
        made[name] = normal.to(space.dtype).reshape(space.rows, *shape)
    return made


def _hashed(seeds: tuple[int, ...], sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers between 0 and 1 of the given sizes, each a function of the seeds and of its own indices."""
    mixed = torch.zeros([1] * len(sizes), dtype=torch.int64, device=device)
    for seed in seeds:
        mixed = _mixed(mixed + seed)
    for axis, size in enumerate(sizes):
        along = [1] * len(sizes)
        along[axis] = size
        mixed = _mixed(mixed + torch.arange(size, device=device).reshape(along))
    return (mixed.bitwise_right_shift(11) & (2**53 - 1)).double() / 2**53


def _mixed(x: Tensor) -> Tensor:
    """One step of SplitMix64, in signed integers that wrap around."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ (x.bitwise_right_shift(30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ (x.bitwise_right_shift(27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return x ^ (x.bitwise_right_shift(31) & (2**33 - 1))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def unary_logits(problem: Problem, space: Space) -> Vectors:
    """The scores of the factors of each cell alone; labels that they forbid are all but excluded."""
    at = {
        name: torch.zeros((space.rows, *shape), device=space.device, dtype=space.dtype, requires_grad=True)
        for name, shape in space.shapes.items()
    }
    alone = [term for term in problem.tables() if len(term.term.scope) == 1]
    with torch.no_grad():
        parts = [term.softened(problem.env, space.copies, -torch.tensor(_LEAST).log().item()) for term in alone]
    if not parts or not space.rows:
        return {name: one.detach() for name, one in at.items()}
    with torch.enable_grad():
        total = torch.stack([part(at).sum() for part in parts]).sum()  # linear: its slopes are the scores
    found = torch.autograd.grad(total, list(at.values()), materialize_grads=True)
    return dict(zip(at, found, strict=True))


def answered_logits(problem: Problem, space: Space, backend: Backend, kind: str) -> Vectors:
    """The logits of another backend's relaxed labels, marginals or best answer, for every copy."""
    with torch.no_grad():
        result = backend.open(problem).ask(Query(kind))
        value = result.value
        vectors = _smoothed(value, problem) if isinstance(value, Assignment) else value
        made = {}
        for name, shape in space.shapes.items():
            found = vectors.get(name)
            if found is None:  # a latent that the answer does not name
                found = torch.full((space.examples, *shape), 1 / shape[-1], device=space.device, dtype=space.dtype)
            made[name] = space.copied(found.clamp(min=_LEAST).log())
    return made


def _smoothed(answer: Assignment, problem: Problem) -> dict[str, Tensor]:
    """Probability vectors near one-hot ones; uniform where there is no answer."""
    dtype = problem.env.batch.dtype
    made = {}
    for name, labels in answer.labels.items():
        count = problem.label_count(name)
        sure = F.one_hot(labels.clamp(min=0), count).to(dtype) * (labels >= 0).unsqueeze(-1)
        made[name] = _SURE * sure + (1 - _SURE * sure.sum(-1, keepdim=True)) / count
    return made


def perturbed(logits: Mapping[str, Tensor], space: Space, noise: Callable[[], Vectors]) -> Vectors:
    """Logits of which the first copy of each example stays as it is, and the others get noise."""
    if space.copies == 1:
        return dict(logits)
    first = torch.arange(space.rows, device=space.device) % space.copies == 0
    drawn = noise()
    return {
        name: torch.where(first.reshape(-1, *([1] * (one.dim() - 1))), one, one + drawn[name])
        for name, one in logits.items()
    }

"""Noise with the covariance of a precision matrix: what perturb-and-solve sampling adds to the right-hand side.

Q is a sum of parts; where each part is positive semi-definite, noise for each part adds up to noise for Q
(Papandreou & Yuille 2010).  Couplings that are negative in some directions are taken together with the ridge, which
makes up for what they lack.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.gaussian.solver import Normal
from energyml.backends.gaussian.woodbury import power
from energyml.bind.lowrank import Vectors, times
from energyml.bind.quadratic import QuadraticForm


class Perturbation:
    """Draws noise [B, M, N] with covariance Q; what all draws share is computed once.

    Args:
        form: the precision matrix.

    Attributes:
        sound: [B] bool, whether the parts of Q allow it.
    """

    def __init__(self, form: QuadraticForm) -> None:
        self.form = form
        self.ridge = form.ridge
        self.dense: Tensor | None = None
        self.diagonal = form.diagonal
        if form.dense is not None:
            values, vectors = torch.linalg.eigh(form.dense)
            lacking = values[:, 0].neg().clamp(min=0)
            self.ridge = form.ridge - lacking
            roots = (values + lacking.unsqueeze(1)).clamp(min=0).sqrt()
            self.dense = roots.unsqueeze(2) * vectors.transpose(1, 2)
        self.sound = (self.ridge > 0).expand(form.sizes.batch)
        mixed = [part for part in form.vectors if part.across]
        self.mixed = _stacked(mixed) if mixed else None
        if self.mixed is not None:
            self.roots = self._roots(self.mixed)
        if form.stencil is not None:
            self.sound = self.sound & (form.stencil.weights >= 0).flatten(1).all(1)
        if form.links is not None:
            # A negative weight has its magnitude twice on the diagonal, and takes it from there.
            taken = 2 * form.links.negative().diagonal(form.sizes.positions)
            self.diagonal = taken if self.diagonal is None else self.diagonal + taken
        if self.diagonal is not None:
            least = -1e-6 * form.ridge.abs().unsqueeze(1)
            self.sound = self.sound & (self.diagonal >= least).all(1)

    def draw(self, normal: Normal) -> Tensor:
        """[B, M, N] noise; costs one product with each part."""
        form = self.form
        noise = normal(form.sizes) * self.ridge.clamp(min=0).sqrt()[:, None, None]
        if self.mixed is not None:
            noise = self._rooted(self.mixed, noise)
        for part in form.vectors:
            if not part.across:
                own = normal((form.sizes.batch, form.sizes.channels, part.values.shape[1]))
                noise = noise + times(own * (part.within * part.strength).sqrt()[:, None, None], part.values)
        if self.dense is not None:
            drawn = normal((form.sizes.batch, 1, self.dense.shape[1]))
            noise = noise + times(drawn, self.dense).reshape(form.sizes)
        if form.stencil is not None:
            noise = noise + self._of_neighbours(normal)
        if form.links is not None:
            noise = noise + self._of_links(normal)
        if self.diagonal is not None:
            noise = noise + normal(form.sizes) * self.diagonal.clamp(min=0).sqrt().unsqueeze(1)
        return noise if form.present is None else torch.where(form.present.unsqueeze(1), noise, 0)

    def _roots(self, part: Vectors) -> tuple[Tensor, Tensor]:
        """[B, K, K] for differences of channels and for their mean: what makes ridge noise that of ridge and part."""
        ridge = torch.where(self.ridge > 0, self.ridge, 1)  # others are not sound
        scale = (part.strength / ridge)[:, None, None]
        gram = (part.values @ part.values.transpose(1, 2)) * scale
        half, back = power(gram, 0.5), power(gram, -0.5)
        eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        found = []
        for factor in (part.within - part.across, part.within + (self.form.sizes.channels - 1) * part.across):
            whole = eye + factor * (half @ half)
            self.sound = self.sound & (torch.linalg.eigvalsh(whole)[:, 0] > 0)
            found.append(back @ (power(whole, 0.5) - eye) @ back * scale)
        return found[0], found[1]

    def _rooted(self, part: Vectors, noise: Tensor) -> Tensor:
        """Noise of the ridge made into noise of ridge I + strength (S ⊗ A Aᵀ)."""
        products = part.products(noise)
        mean = products.mean(1, keepdim=True)
        moved = times(products - mean, self.roots[0]) + times(mean, self.roots[1])
        return noise + times(moved, part.values)

    def _of_neighbours(self, normal: Normal) -> Tensor:
        """One number for each edge of the grid, added at one end and taken away at the other."""
        stencil, sizes = self.form.stencil, self.form.sizes
        assert stencil is not None
        grid = stencil.weights.new_zeros(*sizes[:2], *stencil.shape)
        for number, (first, second) in enumerate(stencil.ends):
            drawn = normal(sizes).reshape(grid.shape)[first] * stencil.weight(number, first).clamp(min=0).sqrt()
            grid[first] += drawn
            grid[second] -= drawn
        return grid.reshape(sizes)

    def _of_links(self, normal: Normal) -> Tensor:
        links, sizes = self.form.links, self.form.sizes
        assert links is not None
        drawn = normal((*sizes[:2], links.weights.shape[1])) * links.weights.abs().sqrt().unsqueeze(1)
        ends = links.ends.unsqueeze(1).expand(*sizes[:2], -1, -1)
        far = -drawn * torch.where(links.weights < 0, -1, 1).unsqueeze(1)
        return drawn.new_zeros(sizes).scatter_add(2, ends[..., 0], drawn).scatter_add(2, ends[..., 1], far)


def _stacked(parts: list[Vectors]) -> Vectors:
    """Couplings of one kind as one."""
    if len(parts) == 1:
        return parts[0]
    scaled = [part.values * part.strength.sqrt()[:, None, None] for part in parts]
    batch = max(one.shape[0] for one in scaled)
    values = torch.cat([one.expand(batch, -1, -1) for one in scaled], 1)
    return Vectors(values, torch.ones_like(parts[0].strength[:1]), parts[0].within, parts[0].across)


__all__ = ["Perturbation"]

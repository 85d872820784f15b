"""Low-rank couplings on top of a matrix that is inverted directly: the Woodbury identity.

Couplings S ⊗ A Aᵀ treat all channels alike, so that the mean over channels and the differences from it are solved
apart, each with a system of K equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import Base, Diagonal, inverse_of, spread
from energyml.backends.gaussian.solver import Normal, Outcome, Solver
from energyml.bind.lowrank import gram, times
from energyml.bind.quadratic import QuadraticForm
from energyml.caching import cached_property


@dataclass(frozen=True)
class _Capacity:
    """The small systems of one subspace: with G = A D⁻¹ Aᵀ and couplings A Σ Aᵀ, what is made of I + Σ G.

    Attributes:
        inverse: [B, K, K], (I + Σ G)⁻¹ Σ.
        factor: [B or 1, K, K], the Cholesky factor of what is similar to I + Σ G.
        definite: [B or 1] bool.
    """

    inverse: Tensor
    factor: Tensor
    definite: Tensor

    @property
    def log_determinant(self) -> Tensor:
        """[B or 1]: that of I + Σ G."""
        return 2 * self.factor.diagonal(dim1=1, dim2=2).log().sum(1)


@dataclass(frozen=True)
class _Symmetric:
    """Σ G made symmetric, so that I plus it has a factor where the matrix is positive definite.

    One weight w for all vectors gives w G; weights of one sign s give s R G R with R² = |Σ|; others give G^½ Σ G^½,
    which takes the eigenvalues of G.
    """

    inner: Tensor
    weight: Tensor | None = None
    sides: tuple[Tensor, Tensor] | None = None
    weights: Tensor | None = None
    half: Tensor | None = None

    def outer(self, inverse: Tensor) -> Tensor:
        """(I + Σ G)⁻¹ Σ from the inverse of I + inner."""
        if self.weight is not None:
            return self.weight * inverse
        if self.sides is not None:
            return self.sides[0] * inverse * self.sides[1]
        assert self.weights is not None and self.half is not None
        spread = self.weights.unsqueeze(2) * self.half
        return torch.diag_embed(self.weights) - spread @ inverse @ spread.transpose(1, 2)


class Woodbury(Solver):
    """(D + Σ strength (S ⊗ A Aᵀ))⁻¹ for all channels: O(N K²) once, then O(M N K) a solve; memory O(N) beside A.

    Args:
        form: its vectors are the low-rank part.
        base: the rest of the form, inverted directly.
    """

    method = "woodbury"

    def __init__(self, form: QuadraticForm, base: Base) -> None:
        super().__init__(form)
        self.base = base

    # ------------------------------------------------------------------------------------------------ small systems

    @cached_property
    def vectors(self) -> Tensor:
        """[B or 1, K, N]: the vectors of all couplings."""
        parts = [part.values for part in self.form.vectors]
        if len(parts) == 1:
            return parts[0]
        batch = max(part.shape[0] for part in parts)
        return torch.cat([part.expand(batch, -1, -1) for part in parts], 1)

    @cached_property
    def _scale(self) -> Tensor | None:
        """[B or 1, 1, 1]: 1 / ridge, where D⁻¹ A is A times this: then it need not be stored."""
        if isinstance(self.base, Diagonal) and self.form.diagonal is None:
            return self.form.ridge.reciprocal()[:, None, None]
        return None

    @cached_property
    def _solved(self) -> Tensor:
        """[B, K, N]: D⁻¹ A."""
        if self._scale is not None:
            return self.vectors * self._scale
        return self.base.solve(self.vectors.expand(self.form.sizes.batch, -1, -1))

    @cached_property
    def _gram(self) -> Tensor:
        """[B or 1, K, K]: A D⁻¹ Aᵀ."""
        if self._scale is not None:
            parts = self.form.vectors
            known = parts[0].products_of_all() if len(parts) == 1 else gram(self.vectors)
            return known * self._scale
        return self._solved @ self.vectors.transpose(1, 2)

    def _weights(self, within: float, across: float) -> tuple[Tensor, bool]:
        """[B or 1, K]: the couplings' strengths in a subspace, and whether they all have one sign."""
        signs = [within * part.within + across * part.across for part in self.form.vectors]
        strengths = [
            (part.strength * sign).unsqueeze(1).expand(-1, part.values.shape[1])
            for part, sign in zip(self.form.vectors, signs, strict=True)
        ]
        batch = max(one.shape[0] for one in strengths)
        one_sign = all(sign >= 0 for sign in signs) or all(sign <= 0 for sign in signs)
        return torch.cat([one.expand(batch, -1) for one in strengths], 1), one_sign

    @cached_property
    def _capacities(self) -> tuple[_Capacity, _Capacity]:
        """Those of differences between channels, and of their mean; factored together."""
        parts = [self._symmetric(1.0, -1.0), self._symmetric(1.0, self.form.sizes.channels - 1.0)]
        eye = torch.eye(parts[0].inner.shape[1], dtype=parts[0].inner.dtype, device=parts[0].inner.device)
        factor, info = torch.linalg.cholesky_ex(torch.cat([part.inner for part in parts]) + eye)
        inverse, definite = inverse_of(factor), info == 0
        half = factor.shape[0] // 2
        found = [
            _Capacity(part.outer(inverse[here]), factor[here], definite[here])
            for part, here in zip(parts, (slice(half), slice(half, None)), strict=True)
        ]
        return found[0], found[1]

    def _symmetric(self, within: float, across: float) -> _Symmetric:
        if len(self.form.vectors) == 1:
            (part,) = self.form.vectors
            weight = (part.strength * (within * part.within + across * part.across))[:, None, None]
            return _Symmetric(weight * self._gram, weight=weight)
        weights, one_sign = self._weights(within, across)
        if one_sign:
            root = weights.abs().sqrt()
            sign = torch.where((weights < 0).any(1), -1.0, 1.0).to(weights.dtype)[:, None, None]
            sides = (root * sign[:, 0]).unsqueeze(2), root.unsqueeze(1)
            return _Symmetric(sides[0] * self._gram * sides[1], sides=sides)
        half = power(self._gram, 0.5)
        return _Symmetric(half @ (weights.unsqueeze(2) * half), weights=weights, half=half)

    def _root(self, weights: Tensor) -> Tensor:
        """[B, K, K]: T with I + Â T Âᵀ the inverse root of I + Â Σ Âᵀ, where Âᵀ Â = G."""
        half = power(self._gram, 0.5)
        eye = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        whole = eye + half @ (weights.unsqueeze(2) * half)
        back = power(self._gram, -0.5)
        return back @ (power(whole, -0.5) - eye) @ back

    # ------------------------------------------------------------------------------------------------------ answers

    @cached_property
    def definite(self) -> Tensor:
        """Whether D and both small systems are positive definite."""
        both = self.base.definite & self._capacities[1].definite
        return both if self.form.sizes.channels == 1 else both & self._capacities[0].definite

    def condition(self) -> Tensor:
        """That of the base, times that of the small systems, which leave 1 wherever no vector reaches.

        Where vectors reach everywhere, D⁻¹ is larger than the inverse of the whole matrix, and as much of it cancels;
        a second solve makes that good where it leaves a digit.
        """
        return self._small * (0.1 * self._cancelled).clamp(min=1)

    @property
    def outcome(self) -> Outcome:
        """How determinants, variances and draws went, which are computed once."""
        return Outcome(self.definite, condition=self._small * self._cancelled)

    @cached_property
    def _small(self) -> Tensor:
        """[B]: the condition number of the base, times that of the small systems."""
        pivots = [one.factor.detach().diagonal(dim1=1, dim2=2) for one in self._capacities]
        small = torch.stack([spread(torch.nn.functional.pad(one, (0, 1), value=1.0)) for one in pivots]).amax(0)
        return self.base.condition() * small.square()

    @cached_property
    def _cancelled(self) -> Tensor:
        """[B]: the smallest eigenvalue of D⁻½ Q D⁻½, at least 1: that of I + Σ G with as many as there are cells."""
        sizes, rank = self.form.sizes, self.vectors.shape[1]
        if self.form.present is None and rank < sizes.positions:
            return self._gram.detach().new_ones(sizes.batch)
        found = self._gram.detach().new_ones(sizes.batch)
        count = torch.full_like(found, sizes.positions).long()
        if self.form.present is not None:
            count = self.form.present.sum(1).expand(sizes.batch)
        last = (rank - count).clamp(0, rank - 1).unsqueeze(1)
        for across in (-1.0, sizes.channels - 1.0) if sizes.channels > 1 else (0.0,):
            inner = torch.nan_to_num(self._symmetric(1.0, across).inner.detach())
            own = (1 + torch.linalg.eigvalsh(inner)).expand(sizes.batch, -1).gather(1, last).squeeze(1)
            found = torch.where(count <= rank, torch.maximum(found, own), found)
        return found

    def solve(self, rhs: Tensor, tol: float | None = None, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """Two products with the vectors, and two small ones; once more for what is left (Higham 2002, chapter 12).

        The first solution is a difference of terms as large as D⁻¹ rhs, whose rounding the second makes good.
        """
        x = self._once(rhs)
        outcome = Outcome(self.definite, condition=self.condition())
        return x + self._once(rhs - self.form.multiply(x)), outcome

    def _once(self, rhs: Tensor) -> Tensor:
        if self._scale is not None:
            # D⁻¹ (rhs - T A D⁻¹ rhs): only fields are written
            inner = self._applied(times(rhs, self.vectors.transpose(1, 2)) * self._scale)
            return self.base.solve(rhs - times(inner, self.vectors))
        y = self.base.solve(rhs)
        return y - times(self._applied(times(y, self.vectors.transpose(1, 2))), self._solved)

    def _applied(self, products: Tensor) -> Tensor:
        """Products [B, M, K] with the vectors, times the small inverse of their subspace."""
        mean = products.mean(1, keepdim=True)
        if self.form.sizes.channels == 1:
            return times(mean, self._capacities[1].inverse)
        return times(products - mean, self._capacities[0].inverse) + times(mean, self._capacities[1].inverse)

    def log_determinant(self) -> tuple[Tensor, Tensor | None]:
        """The base's for each channel, and the small systems'."""
        channels = self.form.sizes.channels
        total = channels * self.base.log_determinant() + self._capacities[1].log_determinant
        if channels > 1:
            total = total + (channels - 1) * self._capacities[0].log_determinant
        return total, None

    def variances(self) -> tuple[Tensor, Tensor | None]:
        """The base's less what the couplings take away."""
        channels = self.form.sizes.channels
        solved = self._solved
        taken = ((self._capacities[1].inverse @ solved) * solved).sum(1) / channels
        if channels > 1:
            taken = taken + ((self._capacities[0].inverse @ solved) * solved).sum(1) * (1 - 1 / channels)
        found = (self.base.variances() - taken).unsqueeze(1)
        return found.expand(*self.form.sizes), None

    def draws(self, count: int, normal: Normal) -> Tensor:
        """R (I + Â T Âᵀ) noise with R the base's root: one product with the vectors each way."""
        batch, channels, positions = self.form.sizes
        y = self.base.root(normal((batch, channels * count, positions)))
        products = times(y, self.vectors.transpose(1, 2)).reshape(batch, channels, -1)
        mean = products.mean(1, keepdim=True)
        rank = self.vectors.shape[1]

        def through(part: Tensor, weights: Tensor) -> Tensor:
            return times(part.reshape(batch, -1, rank), self._root(weights)).reshape(part.shape)

        moved = through(mean, self._weights(1.0, channels - 1.0)[0]).expand(-1, channels, -1)
        if channels > 1:
            moved = moved + through(products - mean, self._weights(1.0, -1.0)[0])
        drawn = y + times(moved.reshape(batch, -1, rank), self._solved)
        return drawn.reshape(batch, channels, count, positions).movedim(2, 0)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of symmetric matrices [B, K, K]; negative ones leave out what is numerically zero."""
    values, vectors = torch.linalg.eigh(matrix)
    floor = values[:, -1:].clamp(min=0) * torch.finfo(matrix.dtype).eps * matrix.shape[1]
    sound = values > floor
    powers = torch.where(sound, torch.where(sound, values, 1) ** exponent, 0)
    found: Tensor = (vectors * powers.unsqueeze(1)) @ vectors.transpose(1, 2)
    return found


class Direct(Solver):
    """A base alone: nothing couples channels."""

    method = "direct"

    def __init__(self, form: QuadraticForm, base: Base, method: str) -> None:
        super().__init__(form)
        self.base = base
        self.method = method  # type: ignore[misc]

    @property
    def definite(self) -> Tensor:
        """That of the base."""
        return self.base.definite

    def condition(self) -> Tensor:
        """That of the base."""
        return self.base.condition()

    def solve(self, rhs: Tensor, tol: float | None = None, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """The base's."""
        return self.base.solve(rhs), self.outcome

    def log_determinant(self) -> tuple[Tensor, Tensor | None]:
        """The base's for each channel."""
        return (self.form.sizes.channels * self.base.log_determinant()).expand(self.form.sizes.batch), None

    def variances(self) -> tuple[Tensor, Tensor | None]:
        """The base's for each channel."""
        return self.base.variances().unsqueeze(1).expand(*self.form.sizes), None

    def draws(self, count: int, normal: Normal) -> Tensor:
        """The base's root."""
        batch, channels, positions = self.form.sizes
        drawn = self.base.root(normal((batch, channels * count, positions)))
        return drawn.reshape(batch, channels, count, positions).movedim(2, 0)


__all__ = ["Direct", "Woodbury", "power"]

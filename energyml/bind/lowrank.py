"""Low-rank couplings of Gaussian fields, by the vectors that they are made of, and what is known of products A Aᵀ.

The K x K products are all that a bound, a determinant or a solve needs to know of N vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from energyml.caching import cached_property
from energyml.execution import is_functional


@dataclass(frozen=True)
class Bound:
    """What keeps a coupling below a share of the ridge: strength = gain / (1 + gain λ / (share · ridge)).

    Attributes:
        gain: the strength of a weak coupling.
        share: of the ridge, which the coupling never uses up.
        ridge: [B or 1].
        graded: whether gradients were wanted where the bound was made; the strength is computed when it is asked for.
    """

    gain: float
    share: float
    ridge: Tensor
    graded: bool = field(default_factory=torch.is_grad_enabled)

    def strength(self, products: Tensor) -> Tensor:
        """[B or 1], for products A Aᵀ [B or 1, K, K]: λ is a bound on their largest eigenvalue."""
        ridge = self.ridge.clamp(min=torch.finfo(self.ridge.dtype).tiny)
        return self.gain / (1 + self.gain * largest(products) / (self.share * ridge))


@dataclass(frozen=True)
class Vectors:
    """A low-rank coupling: strength · (S ⊗ A Aᵀ), S with `within` on its diagonal and `across` elsewhere.

    Attributes:
        given: A as [B or 1, K, N], a vector of K numbers for each position.
        weight: the strength [B or 1], or what bounds it.
        within: the coupling of a channel with itself.
        across: the coupling of different channels.
        known: [B or 1, K, K], A Aᵀ over positions, where it is known already.
    """

    given: Tensor
    weight: Tensor | Bound
    within: float = 1.0
    across: float = 0.0
    known: Tensor | None = None

    @cached_property
    def _bounded(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Vectors, strength and A Aᵀ; of a bound the last is made on the way, and gradients meet in one product."""
        if not isinstance(self.weight, Bound):
            return self.given, self.weight, self.known
        with torch.set_grad_enabled(self.weight.graded):
            values, products = with_gram(self.given)
            return values, self.weight.strength(products), products

    @property
    def values(self) -> Tensor:
        """[B or 1, K, N]: A."""
        return self._bounded[0]

    @property
    def strength(self) -> Tensor:
        """[B or 1]."""
        return self._bounded[1]

    @property
    def gram(self) -> Tensor | None:
        """[B or 1, K, K]: A Aᵀ over positions, where it is known already."""
        return self._bounded[2]

    @property
    def rank(self) -> int:
        """K."""
        return self.given.shape[1]

    def products_of_all(self) -> Tensor:
        """[B or 1, K, K]: the products of the vectors with each other, over positions; O(N K²)."""
        return gram(self.values) if self.gram is None else self.gram

    def mixed(self, products: Tensor) -> Tensor:
        """S times products [B, M, K] with the vectors."""
        own = products * (self.within - self.across)
        return own + self.across * products.sum(1, keepdim=True) if self.across else own

    def products(self, x: Tensor) -> Tensor:
        """[B, M, K]: the products of a field with the vectors; O(M N K)."""
        return times(x, self.values.transpose(1, 2))

    def multiply(self, x: Tensor) -> Tensor:
        """The coupling times a field; O(M N K)."""
        return times(self.mixed(self.products(x)) * self.strength[:, None, None], self.values)

    def diagonal(self) -> Tensor:
        """[B or 1, N]."""
        return self.within * self.strength[:, None] * self.values.square().sum(1)

    def gradient(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of vᵀWx in the vectors and in the strength."""
        both = torch.cat([v, x], 1)
        seen = self.products(both)
        batch, channels = v.shape[:2]
        mixed = self.mixed(seen.reshape(2 * batch, channels, self.rank)).reshape(batch, 2, channels, self.rank)
        strength = (mixed[:, 1] * seen[:, :channels]).sum((1, 2))
        left = mixed.flip(1).flatten(1, 2) * self.strength[:, None, None]
        values: Tensor = left.transpose(1, 2) @ both
        return values.sum_to_size(self.values.shape), strength.sum_to_size(self.strength.shape)


class _WithGram(Function):
    """Vectors [B, K, N] as they are, and A Aᵀ; the gradients of both are added up by the product that makes one."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values)
        ctx.set_materialize_grads(False)
        return values.view_as(values), values @ values.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        (values,), (direct, products) = ctx.saved_tensors, grads
        if products is None:
            return direct
        both = products + products.transpose(1, 2)
        found: Tensor = both @ values if direct is None else torch.baddbmm(direct, both, values)
        return found


def with_gram(values: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [B or 1, K, N], and [B or 1, K, K] their products with each other; O(N K²)."""
    if is_functional():
        return values, values @ values.transpose(1, 2)
    vectors, products = _WithGram.apply(values)  # type: ignore[no-untyped-call]
    return vectors, products


def gram(values: Tensor) -> Tensor:
    """[B or 1, K, K]: the products of vectors [B or 1, K, N] with each other; O(N K²)."""
    return with_gram(values)[1]


def largest(products: Tensor) -> Tensor:
    """[B or 1]: a bound on the largest eigenvalue of products A Aᵀ [B or 1, K, K], at most K^(1/8) times too large.

    The eighth root of the sum of the eigenvalues' eighth powers: smooth, and two small products.
    """
    squares = products.square().sum((1, 2))
    some = squares > 0
    size = torch.where(some, squares, 1).sqrt()
    unit = products / size[:, None, None]
    power = unit @ unit
    power = power @ power
    root = torch.where(some, power.square().sum((1, 2)), 1) ** 0.125
    return torch.where(some, size * root, 0)


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows x [B, R, N] times matrices [B or 1, N, K]; one that is shared is one product of two matrices."""
    if matrix.shape[0] == 1 and x.shape[0] != 1:
        product: Tensor = x.flatten(0, 1) @ matrix[0]
        return product.reshape(*x.shape[:2], matrix.shape[2])
    return x @ matrix


__all__ = ["Bound", "Vectors", "gram", "largest", "times", "with_gram"]

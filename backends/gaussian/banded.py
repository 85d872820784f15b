"""Block Cholesky of sparse precision matrices: grids line by line, lists of edges after a bandwidth-reducing order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import Base, inverse_of, spread
from energyml.bind.quadratic import QuadraticForm
from energyml.diagnostics import QueryRefused
from energyml.execution import unwrapped


@dataclass(frozen=True)
class Blocks:
    """How cells are cut into blocks that only touch the next one.

    Attributes:
        place: [B or 1, N], the new place of each cell.
        size: the cells of a block.
        count: how many blocks.
    """

    place: Tensor
    size: int
    count: int


def grid_blocks(shape: tuple[int, ...], device: torch.device) -> Blocks:
    """The lines (planes) of a grid across its longest dim."""
    longest = max(range(len(shape)), key=lambda axis: shape[axis])
    cells = 1
    for size in shape:
        cells *= size
    moved = torch.arange(cells, device=device).reshape(shape).movedim(longest, 0).flatten()
    return Blocks(torch.argsort(moved).unsqueeze(0), cells // max(1, shape[longest]), shape[longest])


def one_block(count: int, device: torch.device) -> Blocks:
    """All cells together, in their order: whatever the edges are."""
    return Blocks(torch.arange(count, device=device).unsqueeze(0), count, 1)


def list_blocks(ends: Tensor, weights: Tensor, count: int) -> Blocks:
    """Blocks of the bandwidth of each example's edges in reverse Cuthill-McKee order; reads the edges on the host."""
    from networkx import Graph
    from networkx.utils import reverse_cuthill_mckee_ordering

    device, ends, weights = weights.device, ends.cpu(), weights.detach().cpu()
    if unwrapped(ends) is None:
        raise QueryRefused("`vmap` over edges would give each call a graph of its own; put them into the batch axis")
    if unwrapped(weights) is None:
        weights = torch.ones(weights.shape)  # whichever edges count, these are all of them
    places, band = [], 1
    for rows, weight in zip(ends, weights, strict=True):
        graph: Graph[int] = Graph()
        graph.add_nodes_from(range(count))
        graph.add_edges_from(rows[weight != 0].tolist())
        order = torch.tensor(list(reverse_cuthill_mckee_ordering(graph)), dtype=torch.long)
        place = torch.argsort(order)
        apart = (place[rows[:, 0]] - place[rows[:, 1]]).abs()[weight != 0]
        band = max(band, int(apart.max()) if apart.numel() else 1)
        places.append(place)
    return Blocks(torch.stack(places).to(device), band, -(-count // band))


class Banded(Base):
    """Block Cholesky: O(blocks · size³) once, then O(N · size) for each row; memory O(N · size).

    Args:
        form: stencil and edges, perhaps with a diagonal; without vectors and dense parts.
        blocks: how the cells are cut.
    """

    def __init__(self, form: QuadraticForm, blocks: Blocks) -> None:
        self.form, self.blocks = form, blocks
        own, beside = self._assembled()
        self.factors: list[Tensor] = []
        self.couplings: list[Tensor] = []
        failed: Tensor | None = None
        for number in range(blocks.count):
            block = own[:, number]
            if number:
                left = self.couplings[-1]
                block = block - left @ left.transpose(1, 2)
            factor, info = torch.linalg.cholesky_ex(block)
            failed = info if failed is None else failed | info
            self.factors.append(factor)
            if number + 1 < blocks.count:
                # C = E L⁻ᵀ
                self.couplings.append(
                    torch.linalg.solve_triangular(factor.transpose(1, 2), beside[:, number], upper=True, left=False)
                )
        self._failed = failed

    def _assembled(self) -> tuple[Tensor, Tensor]:
        """[B, blocks, size, size]: the blocks on the diagonal, and those below it."""
        form, blocks = self.form, self.blocks
        batch, positions, size = form.sizes.batch, form.sizes.positions, blocks.size
        area = size * size
        own = form.ridge.new_zeros(batch, blocks.count * area)
        beside = form.ridge.new_zeros(batch, max(0, blocks.count - 1) * area)
        every = torch.arange(blocks.count * size, device=own.device)
        place = blocks.place.expand(batch, positions)
        diagonal = form.ridge.new_ones(batch, blocks.count * size)  # padding cells are those of the identity
        diagonal = diagonal.scatter(1, place, form.own().squeeze(1).expand(batch, positions))
        own = own.scatter_add(1, (every * size + every % size).expand(batch, -1), diagonal)
        for ends, weights in self._edges():
            ends, weights = ends.expand(batch, -1, -1), weights.expand(batch, -1)
            first, second = place.gather(1, ends[..., 0]), place.gather(1, ends[..., 1])
            low, high = torch.minimum(first, second), torch.maximum(first, second)
            for at in (low, high):
                own = own.scatter_add(1, at * size + at % size, weights)
            together = low // size == high // size
            inside = torch.where(together, weights, 0)
            for row, column in ((low, high), (high, low)):
                own = own.scatter_add(1, row * size + torch.where(together, column % size, 0), -inside)
            if blocks.count > 1:
                across = torch.where(together, 0, weights)
                at = ((low // size) * size + high % size) * size + low % size
                beside = beside.scatter_add(1, torch.where(together, 0, at), -across)
        shape = (size, size)
        return own.reshape(batch, blocks.count, *shape), beside.reshape(batch, max(0, blocks.count - 1), *shape)

    def _edges(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs of cells [B or 1, E, 2] with weights [B or 1, E]."""
        found: list[tuple[Tensor, Tensor]] = []
        stencil, links = self.form.stencil, self.form.links
        if stencil is not None:
            ends = stencil.edges(stencil.weights.device).flatten(0, 1)
            weights = stencil.weights.expand(-1, -1, self.form.sizes.positions).flatten(1)
            inside = ends[:, 0] >= 0
            found.append((ends.clamp(min=0).unsqueeze(0), torch.where(inside, weights, 0)))
        if links is not None:
            loops = links.ends[..., 0] == links.ends[..., 1]
            found.append((links.ends, links.weights.masked_fill(loops, 0)))
        return found

    @property
    def definite(self) -> Tensor:
        """Whether every block had a factor."""
        batch = self.form.sizes.batch
        if self._failed is None:
            return torch.ones(batch, dtype=torch.bool, device=self.form.ridge.device)
        return self._failed == 0

    def condition(self) -> Tensor:
        """The ratio of the largest pivot to the smallest: at most the condition number, and of its size."""
        if not self.factors:
            return self.form.ridge.new_ones(self.form.sizes.batch)
        pivots = torch.cat([factor.detach().diagonal(dim1=1, dim2=2) for factor in self.factors], 1)
        own = torch.ones_like(pivots[:, : self.form.sizes.positions], dtype=torch.bool)
        present = own if self.form.present is None else own & self.form.present
        place = self.blocks.place.expand(present.shape)
        return spread(pivots, torch.zeros_like(pivots, dtype=torch.bool).scatter(1, place, present)).square()

    def solve(self, rows: Tensor) -> Tensor:
        """Forwards with the factor, backwards with its transpose."""
        parts: list[Tensor] = []
        for number, (part, factor) in enumerate(zip(self._cut(rows), self.factors, strict=True)):
            if number:
                part = part - parts[-1] @ self.couplings[number - 1].transpose(1, 2)
            parts.append(torch.linalg.solve_triangular(factor.transpose(1, 2), part, upper=True, left=False))
        return self._backwards(parts)

    def root(self, rows: Tensor) -> Tensor:
        """Backwards alone: L⁻ᵀ."""
        return self._backwards(self._cut(rows))

    def _backwards(self, parts: list[Tensor]) -> Tensor:
        done: list[Tensor] = []
        for number in reversed(range(len(parts))):
            part = parts[number]
            if done:
                part = part - done[-1] @ self.couplings[number]
            done.append(torch.linalg.solve_triangular(self.factors[number], part, upper=False, left=False))
        return self._joined(done[::-1])

    def log_determinant(self) -> Tensor:
        """Twice the logarithms of the factors' diagonals; rows of missing positions count nothing."""
        if not self.factors:
            return self.form.ridge.new_zeros(self.form.sizes.batch)
        diagonals = torch.stack([factor.diagonal(dim1=1, dim2=2) for factor in self.factors], 1)
        return 2 * diagonals.log().sum((1, 2))

    def variances(self) -> Tensor:
        """The diagonal of the inverse by a backward recursion over blocks (Takahashi's equations)."""
        covariance: Tensor | None = None
        found: list[Tensor] = []
        for number in reversed(range(len(self.factors))):
            factor = self.factors[number]
            own = inverse_of(factor)
            if covariance is not None:
                step = torch.linalg.solve_triangular(factor, self.couplings[number], upper=False, left=False)
                own = own + step.transpose(1, 2) @ covariance @ step
            covariance = own
            found.append(own.diagonal(dim1=1, dim2=2).unsqueeze(1))
        return self._joined(found[::-1]).squeeze(1) if found else self.form.ridge.new_zeros(self.form.sizes.batch, 0)

    def _cut(self, rows: Tensor) -> list[Tensor]:
        """Rows [B, R, N] as blocks [B, R, size]."""
        place = self.blocks.place.unsqueeze(1).expand(rows.shape)
        padded = rows.new_zeros(*rows.shape[:2], self.blocks.count * self.blocks.size).scatter(2, place, rows)
        return list(padded.split(self.blocks.size, 2)) if self.blocks.count else []

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Blocks [B, R, size] as rows [B, R, N]."""
        if not parts:
            return self.form.ridge.new_zeros(self.form.sizes.batch, 1, 0)
        whole = torch.cat(parts, 2)
        place = self.blocks.place.unsqueeze(1).expand(whole.shape[0], whole.shape[1], -1)
        return whole.gather(2, place)


__all__ = ["Banded", "Blocks", "grid_blocks", "list_blocks", "one_block"]

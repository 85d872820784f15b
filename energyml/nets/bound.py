"""What a network is told when it is built: the sizes of its inputs and of its output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BoundType:
    """A tensor type after binding, batch axis left out.

    Attributes:
        classes: the number of labels when the elements are labels (integers), else ``None`` for reals.
        shape: one entry an axis: its size, or ``None`` for a dim that is only known at run time.
        dims: one entry an axis: the name of the dim that it runs over, or ``None`` for a fixed or label axis.
    """

    classes: int | None
    shape: tuple[int | None, ...]
    dims: tuple[str | None, ...]

    @property
    def index_rank(self) -> int:
        """How many leading axes run over dims."""
        return next((i for i, dim in enumerate(self.dims) if dim is None), len(self.dims))

    def feature_size(self) -> int:
        """The product of the fixed axes after the leading dims."""
        size = 1
        for extent in self.shape[self.index_rank :]:
            if extent is None:
                raise ValueError("a feature axis has no size before run time")
            size *= extent
        return size

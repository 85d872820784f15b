"""Images and their masks: two folders, paired by file name, or single files."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energyml.data.problems import BadData
from energyml.data.readers.reader import Example, Field, Reader, Split
from energyml.diagnostics import PackageMissing

if TYPE_CHECKING:
    from PIL.Image import Image

BRIGHTEST = 255
NUMBERED = ("1", "L", "P")  # modes whose pixels are numbers; `I` and `I;16` are too
NUMBERS = "write the number of a pixel's label as its grey, or choose a `threshold`"
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})


class Images(Reader):
    """`image`, [channels, H, W] from 0 to 1, and `mask`, [H, W]: the only input and the only output.

    A mask belongs to the image of the same name, whatever its ending. It is brought to the image's size (masks of the
    Weizmann horses differ from their images in 327 of 328 pairs) and then cut at `threshold`: JPEG leaves greys where
    there was black and white. With `threshold: none` a pixel's value is the number of its label.
    """

    @property
    def fields(self) -> tuple[Field, ...]:
        """The two sides."""
        return (Field("image", "input", 1 / BRIGHTEST), Field("mask", "output"))

    def files(self, split: Split) -> tuple[str, ...] | None:
        """Both folders; the other splits are held out of them."""
        return (self.options["images"], self.options["masks"]) if split == "train" else None

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A pair at a time, by name; that every image has a mask is known before the first is read.

        Where masks are not wanted, `files` may also be single images, in their order.
        """
        masked = wanted is None or "mask" in wanted
        for path, mask in self._paired(*files[:2]) if masked else self._unpaired(files):
            picture = self._of_bytes(self._opened(path), path)
            picture = self._sized(picture.convert("RGB" if self.options["color"] == "rgb" else "L"))
            pixels = np.asarray(picture, dtype=np.uint8)
            pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            values: dict[str, Any] = {"image": np.ascontiguousarray(pixels)}
            if mask is not None:
                values["mask"] = self._labels(mask, picture.size)
            yield Example(values, self.root.shown(path))

    def _paired(self, images: str, masks: str) -> list[tuple[str, str | None]]:
        """The paths of images and of their masks in two folders."""
        pictures, found = _pictures(self.root.files_in(images)), _pictures(self.root.files_in(masks))
        for stem, name in pictures.items():
            if stem not in found:
                facts = {"image": self.root.shown(f"{images}/{name}"), "folder": self.root.shown(masks)}
                raise BadData("E0810", field="mask", stem=stem, **facts)
        return [(f"{images}/{name}", f"{masks}/{found[stem]}") for stem, name in pictures.items()]

    def _unpaired(self, files: Sequence[str]) -> list[tuple[str, str | None]]:
        """The paths of the images in the first folder (a second one is for masks), or of images that are named."""
        if not self.root.is_folder(files[0]):
            return [(one, None) for one in files]
        return [(f"{files[0]}/{name}", None) for name in _pictures(self.root.files_in(files[0])).values()]

    def _labels(self, path: str, size: tuple[int, int]) -> NDArray[Any]:
        """The labels of a mask's pixels; greys are averaged before they are cut, numbers of labels never are."""
        from PIL.Image import Resampling

        threshold = self.options["threshold"]
        mask = self._opened(path)
        if threshold == "none":
            if mask.mode not in NUMBERED and not mask.mode.startswith("I"):
                problem = f"its pixels are colours or reals (mode {mask.mode}), not numbers of labels"
                raise BadData("E0809", path=self.root.shown(path), problem=problem, help=NUMBERS)
            return np.asarray(mask.resize(size, Resampling.NEAREST)).astype(np.int64)
        grey = self._of_bytes(mask, path).convert("L")
        grey = grey if grey.size == size else grey.resize(size, Resampling.BILINEAR)
        cut: NDArray[np.uint8] = (np.asarray(grey) >= threshold).astype(np.uint8)
        return cut

    def _of_bytes(self, picture: Image, path: str) -> Image:
        """An image whose channels are bytes: others would be cut off at 255."""
        if picture.mode.startswith(("I", "F")):
            problem = f"its pixels have more than 8 bits (mode {picture.mode})"
            raise BadData("E0809", path=self.root.shown(path), problem=problem, help="convert it to 8 bits a channel")
        return picture

    def _sized(self, picture: Image) -> Image:
        from PIL.Image import Resampling

        side = self.options["size"]
        return picture if side is None else picture.resize((side, side), Resampling.BILINEAR)

    def _opened(self, path: str) -> Image:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as problem:
            raise PackageMissing("reading images", "pillow", "images") from problem
        try:
            with self.root.binary(path) as stream:
                picture = Image.open(io.BytesIO(stream.read()))
                picture.load()
        except UnidentifiedImageError as problem:
            raise BadData("E0809", path=self.root.shown(path), problem="no format that pillow knows") from problem
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
            raise BadData("E0809", path=self.root.shown(path), problem=str(problem)) from problem
        return picture


def _pictures(names: Sequence[str]) -> dict[str, str]:
    """The names of images by stem."""
    paths = (PurePosixPath(name) for name in names)
    return {path.stem: path.name for path in paths if path.suffix.lower() in ENDINGS}

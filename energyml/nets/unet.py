"""The encoder-decoder of convolutions for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from energyml.execution import is_host_readable
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, check_choice, check_positive, existing, fixed_size


class ConvBlock(nn.Module):
    """Two 3x3 convolutions, each with an optional normalisation and a ReLU; zeros wherever the image does not exist."""

    def __init__(self, below: int, above: int, norm: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(below, above, 3, padding=1), nn.Conv2d(above, above, 3, padding=1)])
        self.norm = norm
        for conv in self.convs:
            # Without normalisation the default initialisation shrinks the signal at each of the many layers.
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")  # type: ignore[arg-type]
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C', H, W]``; mask ``[B, 1, H, W]``, 1 where the image exists."""
        for conv in self.convs:
            x = conv(x)
            if self.norm == "instance":
                x = _instance_norm(x, mask)
            x = x.relu() if mask is None else x.relu() * mask
        return x


class UNet(nn.Module):
    """Scores for each pixel from ``depth`` halvings of the resolution and the way back, with shortcuts.

    Each level has two 3x3 convolutions with ReLU; max pooling goes down, bilinear interpolation up, and a level's
    channels are twice those of the level above. The image is padded at the right and the bottom to a multiple of
    ``2**depth`` and the result is cropped. Outside of an image there are zeros at every level, whether the batch has
    padding there or not, so that an image's scores do not depend on what it is batched with. Source: Ronneberger et al.
    2015, in the variant of Shevchenko and Osokin, section 6.1; their batch normalisation would tie the images of a
    batch together, and is left out (``norm: instance`` normalises over the pixels of each image alone).

    Args:
        inputs: one type of reals: channels (fixed axes), then height and width.
        output: fixed axes, then the same height and width.
        channels: of the first level.
        depth: how often the resolution is halved.
        norm: ``none`` or ``instance``.
    """

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        channels: int = 16,
        depth: int = 3,
        norm: str = "none",
    ) -> None:
        super().__init__()
        if len(inputs) != 1 or inputs[0].classes is not None or inputs[0].dims[-2:] != output.dims[-2:]:
            raise ValueError("unet reads exactly one input, of reals whose last two axes are those of the output")
        check_positive(channels=channels, depth=depth)
        check_choice("norm", norm, ("none", "instance"))
        self.dims = output.dims[-2:]
        self.depth = depth
        self.channels = fixed_size(inputs[0].shape[:-2], "the channels of the input")
        self.fixed = [extent for extent in output.shape[:-2] if extent is not None]
        sizes = [channels * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            ConvBlock(below, above, norm) for below, above in zip([self.channels, *sizes[:-1]], sizes, strict=True)
        )
        self.up = nn.ModuleList(ConvBlock(sizes[i] + sizes[i + 1], sizes[i], norm) for i in reversed(range(depth)))
        self.last = nn.Conv2d(channels, fixed_size(output.shape[:-2], "the channels of the output"), 1)

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Images ``[B, C, H, W]`` to ``[B, *fixed, H, W]``."""
        (image,) = args
        batch, height, width = image.shape[0], image.shape[-2], image.shape[-1]
        x = image.reshape(batch, self.channels, height, width)
        if is_host_readable(x):  # convolutions and pooling are faster with the channels side by side
            x = x.contiguous(memory_format=torch.channels_last)
        levels: list[Tensor | None]
        x, levels = self._prepare(x, masks)
        shortcuts = []
        for level, block in enumerate(self.down):
            if level:
                x = functional.max_pool2d(x, 2)  # no value is below the zeros outside of the image
            x = block(x, levels[level])
            shortcuts.append(x)
        shortcuts.pop()
        for block in self.up:
            shortcut = shortcuts.pop()
            mask = levels[len(shortcuts)]
            x = _double(x) if mask is None else _double(x) * mask
            x = block(torch.cat([shortcut, x], dim=1), mask)
        scores: Tensor = self.last(x)[..., :height, :width]
        return scores.reshape(batch, *self.fixed, height, width)

    def _prepare(self, x: Tensor, masks: Masks) -> tuple[Tensor, list[Tensor | None]]:
        """The padded image, zero outside, and for each level where it exists (``None``: everywhere)."""
        batch, _, height, width = x.shape
        exists = existing(self.dims, masks, (batch, height, width))
        multiple = 2**self.depth
        padding = (0, -width % multiple, 0, -height % multiple)
        if exists is None and not any(padding):
            return x, [None] * (self.depth + 1)
        if exists is None:
            mask = x.new_ones(batch, 1, height, width)
        else:
            exists = exists.expand(batch, height, width).unsqueeze(1)
            x = x.masked_fill(~exists, 0.0)
            mask = exists.to(x.dtype)
        mask = functional.pad(mask, padding)
        levels: list[Tensor | None] = [mask]
        for _ in range(self.depth):
            mask = functional.max_pool2d(mask, 2)
            levels.append(mask)
        return functional.pad(x, padding), levels


def _double(x: Tensor) -> Tensor:
    """Twice the resolution, bilinearly, with zeros around the image (and not its edge repeated)."""
    ringed = functional.pad(x, (1, 1, 1, 1))
    return functional.interpolate(ringed, scale_factor=2, mode="bilinear", align_corners=False)[..., 2:-2, 2:-2]


def _instance_norm(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean 0 and variance 1 for each image and channel, over the pixels that exist."""
    if mask is None:
        mean = x.mean((2, 3), keepdim=True)
        variance = (x - mean).square().mean((2, 3), keepdim=True)
    else:
        count = mask.sum((2, 3), keepdim=True).clamp(min=1.0)
        mean = (x * mask).sum((2, 3), keepdim=True) / count
        variance = ((x - mean).square() * mask).sum((2, 3), keepdim=True) / count
    return (x - mean) * (variance + 1e-5).rsqrt()

"""The convolutional network for small images of single characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from energyml.execution import is_host_readable
from energyml.nets.bound import BoundType
from energyml.nets.features import (
    ACTIVATIONS,
    Masks,
    as_output,
    check_choice,
    check_positive,
    existing,
    fixed_size,
    on_existing,
)

KERNEL = 5
SMALLEST = 32


class LeNet5(nn.Module):
    """Two blocks of convolution (5x5; 10 and 20 filters), ReLU and 2x2 max pooling, then two linear layers.

    An image smaller than 32x32 is padded with zeros around it, because the second convolution has no room on 16x8.
    Source: LeCun et al. 1998, in the variant of Shevchenko and Osokin, "Scaling matters in deep structured-prediction
    models", section 6.1; ``activation: sigmoid`` is the contrast of their section 2. Cost on 32x32: about 0.8 million
    multiplications an image; on the CPU, images that are padding of the batch are skipped.

    Args:
        inputs: one type of reals: index axes, channels, height, width; the last three are fixed.
        output: the same index axes, then fixed axes.
        activation: ``relu`` or ``sigmoid``, after the layer of ``hidden`` units.
        hidden: units of the layer between the convolutions and the output.
    """

    def __init__(
        self, inputs: tuple[BoundType, ...], output: BoundType, *, activation: str = "relu", hidden: int = 140
    ) -> None:
        super().__init__()
        if len(inputs) != 1 or inputs[0].classes is not None or len(inputs[0].shape) < 3:
            raise ValueError("lenet5 reads exactly one input, of reals with axes channels, height and width at the end")
        check_positive(hidden=hidden)
        self.input, self.output = inputs[0], output
        self.index = len(self.input.shape) - 3
        channels, height, width = (fixed_size([extent], "the input") for extent in self.input.shape[-3:])
        (inner_w, outer_w), (inner_h, outer_h) = _around(width), _around(height)
        self.inner, self.outer = (*inner_w, *inner_h), (*outer_w, *outer_h)
        self.conv1 = nn.Conv2d(channels, 10, KERNEL)
        self.conv2 = nn.Conv2d(10, 20, KERNEL)
        self.fc1 = nn.Linear(20 * _after_blocks(height) * _after_blocks(width), hidden)
        self.activation = ACTIVATIONS[check_choice("activation", activation, ("relu", "sigmoid"))]
        self.fc2 = nn.Linear(hidden, fixed_size(output.shape[self.index :], "the output"))

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Images ``[B, *index, C, h, w]`` to ``[B, *index, *fixed]``."""
        (images,) = args
        lead = images.shape[: self.index + 1]
        mask = existing(self.input.dims[: self.index], masks, lead)
        rows = images.reshape(lead.numel(), *images.shape[self.index + 1 :])
        flat = on_existing(self._score, rows, None if mask is None else mask.expand(lead).reshape(-1))
        return as_output(flat.reshape(*lead, flat.shape[-1]), self.output, self.index)

    def _score(self, images: Tensor) -> Tensor:
        """Images ``[N, C, h, w]`` to ``[N, out]``."""
        # Pooling commutes with adding a bias and with a ReLU; doing it first leaves a quarter of their work. And where
        # the first filters see only the zeros around an image, their answer is known: it is put there afterwards.
        x = functional.conv2d(functional.pad(images, self.inner), self.conv1.weight)
        if is_host_readable(x):  # pooling and the second convolution are faster with the channels side by side
            x = x.contiguous(memory_format=torch.channels_last)
        x = functional.max_pool2d(x, 2)
        x = (functional.pad(x, self.outer) + self.conv1.bias.reshape(-1, 1, 1)).relu()  # type: ignore[union-attr]
        x = functional.max_pool2d(self.conv2(x), 2).relu()
        scores: Tensor = self.fc2(self.activation(self.fc1(x.flatten(1))))
        return scores


def _around(extent: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The zeros before and after an axis that bring it to the smallest size, centred.

    Returns:
        Those that go around the image (as many as a filter that touches the image can see, and one more where the
        pooling needs an even place), and those that go around the pooled result of the first convolution instead of
        the rest.
    """
    missing = max(0, SMALLEST - extent)
    before, after = missing // 2, missing - missing // 2
    near, far = min(before, KERNEL - 1), min(after, KERNEL - 1)
    near += (before - near) % 2
    start = before - near
    if far < after:
        far += (start + near + extent + far - KERNEL + 1) % 2
    pooled = (near + extent + far - KERNEL + 1) // 2
    whole = (max(extent, SMALLEST) - KERNEL + 1) // 2
    return (near, far), (start // 2, whole - start // 2 - pooled)


def _after_blocks(extent: int) -> int:
    """The size of a padded axis after both blocks."""
    extent = (max(extent, SMALLEST) - KERNEL + 1) // 2
    return (extent - KERNEL + 1) // 2

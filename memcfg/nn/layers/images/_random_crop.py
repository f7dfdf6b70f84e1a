"""`RandomCrop`: parts of images at random places."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers.images._image_layer import _ImageLayer, floats
from memcfg.nn.loading._resize import resize


class RandomCrop(_ImageLayer):
    """Take a part of images, at the same random place in a batch, on arrays.

    Images that are not larger are cropped to the aspect ratio and resized. Without
    training, images are unchanged.

    Parameters
    ----------
    height, width : int
        The size of the part.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ("height", "width")

    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.height = integer(height, "RandomCrop: height")
        self.width = integer(width, "RandomCrop: width")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> tuple[int, int]:
        """Draw the first row and column."""
        height, width = np.shape(data)[-3:-1]
        if training and height > self.height and width > self.width:
            generator = self._generator(seed)
            top = int(generator.integers(height - self.height + 1))
            return top, int(generator.integers(width - self.width + 1))
        rows = max(min(height, int(width * self.height / self.width)), 1)
        columns = max(min(width, int(height * self.width / self.height)), 1)
        return (height - rows) // 2, (width - columns) // 2

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Crop images."""
        result = floats(images)
        if not training:
            return np.asarray(images)
        top, left = transformation
        part = result[..., top : top + self.height, left : left + self.width, :]
        if part.shape[-3:-1] == (self.height, self.width):
            return part
        return resize(part, (self.height, self.width))

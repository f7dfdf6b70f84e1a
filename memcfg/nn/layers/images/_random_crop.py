"""`RandomCrop`: parts of images at random places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._layer import OPERATIONS
from memcfg.nn.layers.images._center_crop import window
from memcfg.nn.layers.images._image_layer import _ImageLayer, drawn, floats, traced
from memcfg.nn.loading._resize import resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope, SymbolicTensor


class RandomCrop(_ImageLayer):
    """Take a part of images, at the same random place in a batch.

    Images that are not larger are cropped to the aspect ratio and resized. Without
    training, a model does so with all images; arrays are unchanged.

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

    _reads_images: ClassVar[bool] = True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops; a batch has one place, which each step draws."""
        (x,), builder = inputs, scope.builder
        if builder.dtype(x) == "int32":
            (x,) = scope.apply("cast", (x,), {"dtype": "float32"})
        size = self.height, self.width
        _, *lengths, _ = builder.shape(x)
        larger = all(n > own for n, own in zip(lengths, size, strict=True))
        if not (scope.training and larger) or scope.step is None:
            return window(scope, x, size)

        def cropped(images: SymbolicTensor, *places: SymbolicTensor) -> Any:
            for axis, (place, own) in enumerate(zip(places, size, strict=True)):
                most = lengths[axis] - own
                scaled = OPERATIONS["floor"](place[0, 0] * (most + 1))
                begin = OPERATIONS["cast"](OPERATIONS["minimum"](scaled, most), "int32")
                rows = begin + np.arange(own, dtype=np.int32)
                images = OPERATIONS["take"](images, rows, axis=axis + 1)
            return images

        return traced(scope, cropped, (x, *drawn(scope, self._seed, 1, 2)))

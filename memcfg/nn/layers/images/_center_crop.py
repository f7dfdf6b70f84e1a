"""`CenterCrop`: the middle of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._reshape import _crop, resized_along
from memcfg.nn.layers.images._image_layer import _ImageLayer, floats
from memcfg.nn.loading._resize import beside_ratio, cropped_to_ratio, resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from memcfg.nn.layers._layer import Scope


class CenterCrop(_ImageLayer):
    """Take the middle of images.

    Smaller images are cropped to the aspect ratio and enlarged.

    Parameters
    ----------
    height, width : int
        The size of the result.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> image = np.arange(16.0).reshape(4, 4, 1)
    >>> mc.nn.layers.CenterCrop(2, 2)(image)[..., 0]
    array([[ 5.,  6.],
           [ 9., 10.]], dtype=float32)
    """

    __slots__ = ("height", "width")

    def __init__(
        self,
        height: int,
        width: int,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.height = integer(height, "CenterCrop: height")
        self.width = integer(width, "CenterCrop: width")
        self._begin(name, data_format)

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Crop images."""
        del transformation, training
        result = floats(images)
        rows, columns = result.shape[-3] - self.height, result.shape[-2] - self.width
        if rows >= 0 and columns >= 0:
            top, left = rows // 2, columns // 2
            return result[..., top : top + self.height, left : left + self.width, :]
        size = (self.height, self.width)
        return resize(cropped_to_ratio(result, size), size)

    _reads_images: ClassVar[bool] = True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        _, height, width, _ = scope.builder.shape(inputs[0])
        size = (self.height, self.width)
        if height < self.height or width < self.width:
            return window(scope, inputs[0], size)
        around = []
        for given, wanted in ((height, self.height), (width, self.width)):
            before = (given - wanted) // 2
            around.append((before, given - wanted - before))
        return _crop(scope, inputs[0], tuple(around))


def window(scope: Scope, x: int, size: tuple[int, int]) -> int:
    """Append the largest part of images of a size's aspect ratio, in that size."""
    _, height, width, _ = scope.builder.shape(x)
    x = _crop(scope, x, beside_ratio((height, width), size))
    for axis, wanted in enumerate(size, 1):
        if scope.builder.shape(x)[axis] != wanted:
            x = resized_along(scope, x, axis, wanted, "bilinear")
    return x

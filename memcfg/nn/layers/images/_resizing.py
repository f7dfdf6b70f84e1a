"""`Resizing`: images of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg._checks import flag
from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers._reshape import _crop, resized_along
from memcfg.nn.layers.images._image_layer import _ImageLayer
from memcfg.nn.loading._resize import (
    beside_ratio,
    check_interpolation,
    cropped_to_ratio,
    resize,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope

_KNOWN = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5", "area")


class Resizing(_ImageLayer):
    """Resize images, as `tf.image.resize` does.

    In a model an axis is multiplied by a matrix of weights, and results are floats; as
    a step of `Dataset.map`, images keep their dtype.

    Parameters
    ----------
    height, width : int
        The size of the result.
    interpolation : str, default "bilinear"
        How: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"lanczos3"``,
        ``"lanczos5"`` or ``"area"``.
    crop_to_aspect_ratio : bool, default False
        Whether images are cropped to the aspect ratio before.
    pad_to_aspect_ratio : bool, default False
        Whether images are padded to the aspect ratio before.
    fill_mode : str, default "constant"
        Must be ``"constant"``: what is padded has one value.
    fill_value : float, default 0.0
        That value.
    antialias : bool, default False
        Whether an image that is made smaller is smoothed.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, or contradicts another.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> resizing = mc.nn.layers.Resizing(2, 4)
    >>> resizing(np.array([[[0.0], [8.0]]]))[..., 0]
    array([[0., 2., 6., 8.],
           [0., 2., 6., 8.]])
    """

    _reads_images: ClassVar[bool] = True

    __slots__ = (
        "antialias",
        "crop_to_aspect_ratio",
        "fill_mode",
        "fill_value",
        "height",
        "interpolation",
        "pad_to_aspect_ratio",
        "width",
    )

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.height = integer(height, "Resizing: height")
        self.width = integer(width, "Resizing: width")
        self.interpolation = check_interpolation(interpolation, _KNOWN)
        self.crop_to_aspect_ratio = flag(crop_to_aspect_ratio, "crop_to_aspect_ratio")
        self.pad_to_aspect_ratio = flag(pad_to_aspect_ratio, "pad_to_aspect_ratio")
        if self.crop_to_aspect_ratio and self.pad_to_aspect_ratio:
            raise ValueError(
                "Resizing takes crop_to_aspect_ratio or pad_to_aspect_ratio, not both"
            )
        if fill_mode != "constant":
            raise ValueError(f"Resizing: fill_mode is 'constant', not {fill_mode!r}")
        self.fill_mode = fill_mode
        self.fill_value = real(fill_value, "Resizing: fill_value")
        self.antialias = flag(antialias, "antialias")
        self._begin(name, data_format)

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Resize images, which keep their dtype."""
        del transformation, training
        return self._resized(np.asarray(images), self.interpolation)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append products with the weights of both axes."""
        (x,), builder = inputs, scope.builder
        if builder.dtype(x) == "int32":
            (x,) = scope.apply("cast", (x,), {"dtype": "float32"})
        size = (self.height, self.width)
        _, height, width, _ = builder.shape(x)
        if self.crop_to_aspect_ratio:
            x = _crop(scope, x, beside_ratio((height, width), size))
        elif self.pad_to_aspect_ratio:
            around = ((0, 0), *_around((height, width), size), (0, 0))
            begin, end = zip(*around, strict=True)
            attributes = {"before": begin, "after": end, "value": self.fill_value}
            (x,) = scope.apply("pad", (x,), attributes)
        how, smooth = self.interpolation, self.antialias
        for axis, wanted in enumerate(size, 1):
            if builder.shape(x)[axis] != wanted:
                x = resized_along(scope, x, axis, wanted, how, antialias=smooth)
        return x

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        return self._resized(masks, "nearest")

    def _resized(self, images: np.ndarray, interpolation: str) -> np.ndarray:
        size = (self.height, self.width)
        if self.crop_to_aspect_ratio:
            images = cropped_to_ratio(images, size)
        elif self.pad_to_aspect_ratio:
            images = _padded(images, size, self.fill_value)
        result = resize(images, size, interpolation, antialias=self.antialias)
        if images.dtype.kind not in "iu" or result.dtype == images.dtype:
            return result.astype(images.dtype, copy=False)
        limits = np.iinfo(images.dtype)
        return np.clip(np.round(result), limits.min, limits.max).astype(images.dtype)


def _padded(images: np.ndarray, size: tuple[int, int], value: float) -> np.ndarray:
    """Pad images on all sides to an aspect ratio."""
    height, width = images.shape[-3:-1]
    around = [(0, 0)] * (images.ndim - 3)
    around += [*_around((height, width), size), (0, 0)]
    return np.pad(images, around, constant_values=value)


def _around(
    given: tuple[int, int], size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the pixels to add on each side for the aspect ratio of a size."""
    height, width = given
    rows = max(height, int(width * size[0] / size[1]))
    columns = max(width, int(height * size[1] / size[0]))
    top, left = (rows - height) // 2, (columns - width) // 2
    return (top, top), (left, left)

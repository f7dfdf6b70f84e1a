"""The size of the images that Keras's weights of MobileNet are of."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from memcfg._caller import outside
from memcfg.nn.applications._application import IMAGENET

if TYPE_CHECKING:
    from collections.abc import Collection

    from memcfg.nn.applications._application import Arguments

__all__ = ["DEFAULT", "side_of"]

DEFAULT = 224


def side_of(function: str, given: Arguments, sides: Collection[int]) -> int | None:
    """Return the height of images, or that of the weights; None if it is any.

    Warns if there are no weights of the size, and others are read.
    """
    shape = given.input_shape
    if given.input_tensor is not None:
        shape = given.input_tensor.shape[1:]
    if shape is None or len(shape) != 3:
        height = width = DEFAULT if given.include_top else None
    else:
        height, width, _ = shape
    if given.weights != IMAGENET or (height == width and height in sides):
        return height
    if height is not None:
        warnings.warn(
            f"{function}: the weights 'imagenet' are of square images of "
            f"{', '.join(map(str, sides))}, not {height} x {width}: those of {DEFAULT} "
            "are read",
            UserWarning,
            stacklevel=outside(),
        )
    return DEFAULT

"""Keras's functions of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from memcfg._missing import refuse
from memcfg.nn._argument_checks import integer
from memcfg.nn.loading._images import array_to_img, img_to_array, load_img, save_img
from memcfg.nn.loading._resize import (
    INTERPOLATIONS,
    check_interpolation,
    cropped_to_ratio,
    resize,
)

__all__ = ["array_to_img", "img_to_array", "load_img", "save_img", "smart_resize"]


def smart_resize(
    x: Any,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    data_format: str = "channels_last",
) -> np.ndarray:
    """Resize images without distortion: cut their middle in the aspect ratio first.

    Parameters
    ----------
    x : array_like
        An image (height, width, channels), or a batch of them.
    size : (int, int)
        The height and width of the result.
    interpolation : str, default "bilinear"
        How pixels are made, as for the layer `Resizing`.
    data_format : {"channels_last", "channels_first"}, default "channels_last"
        Where the channels are.

    Returns
    -------
    numpy.ndarray
        The images; float32, unless the interpolation is ``"nearest"``.

    Raises
    ------
    ValueError
        If an argument is unknown or has the wrong number of axes.
    """
    images = np.asarray(x)
    if images.ndim not in (3, 4):
        raise ValueError(f"smart_resize takes images, not shape {images.shape}")
    if len(size) != 2:
        raise ValueError(f"smart_resize: size is a pair of integers, not {size!r}")
    height, width = (integer(each, "smart_resize: size") for each in size)
    how = check_interpolation(interpolation, INTERPOLATIONS)
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"smart_resize: unknown data_format {data_format!r}")
    first = data_format == "channels_first"
    if first:
        images = np.moveaxis(images, -3, -1)
    part = cropped_to_ratio(images, (height, width))
    made = resize(part, (height, width), how)
    return np.moveaxis(made, -1, -3) if first else made


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = ": use nn.utils.image_dataset_from_directory, and nn.layers.RandomFlip"
        refuse(__name__, name, why if "Generator" in name else "")

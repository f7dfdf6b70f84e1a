"""Image files and arrays, through Pillow."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.errors import MissingDependencyError
from memcfg.nn._argument_checks import check_channels_last

if TYPE_CHECKING:
    import numpy.typing as npt

MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}
CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
_GRAYS = ("L", "I;16", "I")
_RESAMPLES = {
    "nearest": "NEAREST",
    "bilinear": "BILINEAR",
    "bicubic": "BICUBIC",
    "hamming": "HAMMING",
    "box": "BOX",
    "lanczos": "LANCZOS",
}


def pillow() -> Any:
    """Return Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError(
            "image files are read by Pillow, which is not installed: "
            'pip install "memcfg[images]"'
        ) from None
    return Image


def decoded(path: str, color_mode: str) -> npt.NDArray[np.uint8]:
    """Read an image file as an array (height, width, channels)."""
    with pillow().open(path) as image:
        pixels = np.asarray(image.convert(MODES[color_mode]))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def load_img(
    path: Any,
    color_mode: str = "rgb",
    target_size: tuple[int, int] | None = None,
    interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Any:
    """Read an image file with Pillow.

    Parameters
    ----------
    path : path or io.BytesIO
        The file.
    color_mode : {"rgb", "rgba", "grayscale"}, default "rgb"
        The channels. Gray images of 16 and 32 bits keep their depth.
    target_size : (int, int), optional
        The height and width to which the image is resized.
    interpolation : str, default "nearest"
        How: ``"nearest"``, ``"bilinear"``, ``"bicubic"``, ``"hamming"``, ``"box"`` or
        ``"lanczos"``.
    keep_aspect_ratio : bool, default False
        Whether the image is cropped to the aspect ratio of `target_size` before.

    Returns
    -------
    PIL.Image.Image
        The image.

    Raises
    ------
    MissingDependencyError
        If Pillow is not installed.
    TypeError, ValueError
        If an argument has the wrong type or is unknown.
    OSError
        If the file cannot be read, or is no image.
    """
    module = pillow()
    if color_mode not in MODES:
        raise unknown("color_mode", str(color_mode), MODES)
    if interpolation not in _RESAMPLES:
        raise unknown("interpolation", str(interpolation), _RESAMPLES)
    if not isinstance(path, io.BytesIO | str | bytes | os.PathLike):
        raise TypeError(f"path is a path or io.BytesIO, not {type(path).__name__}")
    source = path if isinstance(path, io.BytesIO) else os.fsdecode(path)
    with module.open(source) as opened:
        mode = MODES[color_mode]
        deep = color_mode == "grayscale" and opened.mode in _GRAYS
        image = opened.copy() if deep else opened.convert(mode)
    if target_size is None:
        return image
    height, width = target_size
    box = None
    if keep_aspect_ratio:
        rows = min(image.height, image.width * height // width)
        columns = min(image.width, image.height * width // height)
        top, left = (image.height - rows) // 2, (image.width - columns) // 2
        box = (left, top, left + columns, top + rows)
    if image.size == (width, height):
        return image
    resample = getattr(module.Resampling, _RESAMPLES[interpolation])
    return image.resize((width, height), resample, box=box)


def img_to_array(
    img: Any, data_format: str | None = None, dtype: Any = None
) -> npt.NDArray[Any]:
    """Convert an image of Pillow's to an array.

    Parameters
    ----------
    img : PIL.Image.Image
        The image.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    dtype : dtype, optional
        The dtype of the array; float32 by default.

    Returns
    -------
    numpy.ndarray
        The pixels, of shape (height, width, channels).

    Raises
    ------
    ValueError
        If it is no image, or `data_format` is another.
    """
    check_channels_last(data_format, "img_to_array")
    pixels = np.array(img, np.float32 if dtype is None else dtype)
    if pixels.ndim not in (2, 3):
        raise ValueError(f"an image has two or three axes, not {pixels.shape}")
    return pixels[..., None] if pixels.ndim == 2 else pixels


def array_to_img(
    x: npt.ArrayLike,
    data_format: str | None = None,
    scale: bool = True,
    dtype: Any = None,
) -> Any:
    """Convert an array to an image of Pillow's.

    Parameters
    ----------
    x : array_like
        The pixels, of shape (height, width, channels) with 1, 3 or 4 channels.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    scale : bool, default True
        Whether the values are scaled to 0 to 255; else they are cut to integers.
    dtype : dtype, optional
        The dtype in which they are scaled; float32 by default.

    Returns
    -------
    PIL.Image.Image
        The image.

    Raises
    ------
    MissingDependencyError
        If Pillow is not installed.
    ValueError
        If the shape or `data_format` is another.
    """
    check_channels_last(data_format, "array_to_img")
    module = pillow()
    pixels = np.array(x, np.float32 if dtype is None else dtype)
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4):
        raise ValueError(
            "an image has the shape (height, width, channels), with 1, 3 or 4 "
            f"channels, not {pixels.shape}"
        )
    if scale:
        pixels = pixels - pixels.min(initial=np.inf)
        most = pixels.max(initial=0)
        pixels = pixels / most * 255 if most else pixels
    if pixels.shape[-1] > 1:
        return module.fromarray(pixels.astype(np.uint8))
    deep = pixels.max(initial=0) > 255
    return module.fromarray(pixels[..., 0].astype(np.int32 if deep else np.uint8))


def save_img(
    path: Any,
    x: Any,
    data_format: str | None = None,
    file_format: str | None = None,
    scale: bool = True,
    **kwargs: Any,
) -> None:
    """Write an array as an image file with Pillow.

    Parameters
    ----------
    path : path or file object
        The file.
    x : array_like
        The pixels, of shape (height, width, channels) with 1, 3 or 4 channels.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    file_format : str, optional
        The format; by default that of the name's ending.
    scale : bool, default True
        Whether the values are scaled to 0 to 255.
    **kwargs
        What the method `save` of Pillow's images takes.

    Raises
    ------
    MissingDependencyError
        If Pillow is not installed.
    ValueError
        If the shape, `data_format` or the format is another.
    OSError
        If the file cannot be written.
    """
    image = array_to_img(x, data_format, scale)
    if image.mode == "RGBA" and file_format in ("jpg", "jpeg"):
        image = image.convert("RGB")
    image.save(path, format="jpeg" if file_format == "jpg" else file_format, **kwargs)

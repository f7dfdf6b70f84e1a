"""`image_dataset_from_directory`: images of a folder, resized and in batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg._checks import flag, unknown
from memcfg.nn._argument_checks import check_channels_last, pair
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.loading._folders import folder
from memcfg.nn.loading._images import MODES, decoded, pillow
from memcfg.nn.loading._resize import (
    INTERPOLATIONS,
    check_interpolation,
    cropped_to_ratio,
    resize,
    resized_with_padding,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


@takes_arguments
def image_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Any = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: Any = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    *,
    verbose: bool = True,
) -> Any:
    """Make a dataset of the images in a folder.

    Parameters
    ----------
    directory : path
        The folder. With inferred labels, it has a folder for each class.
    labels : "inferred", None or list of int, default "inferred"
        The labels of the files, in the order of their sorted paths. None: no labels.
    label_mode : {"int", "categorical", "binary", None}, default "int"
        Labels are int32 numbers, float32 rows with a one, or float32 numbers 0 and 1 of
        shape ``(1,)``. None: no labels.
    class_names : list of str, optional
        The folders of the classes, in their order. None: all folders, sorted.
    color_mode : {"rgb", "rgba", "grayscale"}, default "rgb"
        The channels: 3, 4 or 1.
    batch_size : int or None, default 32
        Images of a batch. None: elements are single images.
    image_size : int or (int, int), default (256, 256)
        The height and width to which images are resized.
    shuffle : bool, default True
        Whether the files are in random order, another one in each pass.
    seed : int, optional
        The seed of the order.
    validation_split : float, optional
        The fraction of the files that is for validation.
    subset : {"training", "validation", "both"}, optional
        The part of the files; ``"both"`` gives a list of two datasets.
    interpolation : str, default "bilinear"
        How images are resized: ``"bilinear"``, ``"nearest"``, ``"bicubic"``,
        ``"area"``, ``"lanczos3"``, ``"lanczos5"``, ``"gaussian"`` or
        ``"mitchellcubic"``.
    follow_links : bool, default False
        Whether links to folders are followed.
    crop_to_aspect_ratio : bool, default False
        Whether images are cropped to the aspect ratio, instead of being distorted.
    pad_to_aspect_ratio : bool, default False
        Whether images are padded with zeros to the aspect ratio instead.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    verbose : bool, default True
        Whether the numbers of files and classes are printed.

    Returns
    -------
    Dataset
        Images (float32, 0 to 255; uint8 for ``"nearest"``), or images and labels. It
        has the attributes `class_names` and `file_paths`.

    Raises
    ------
    MissingDependencyError
        If Pillow, which reads the files, is not installed.
    TypeError, ValueError
        If an argument has the wrong type, is unknown or contradicts another, or there
        are no files.
    OSError
        If the folder cannot be read; during a pass, if a file is no image.
    """
    check_channels_last(data_format, "image_dataset_from_directory")
    pillow()
    if color_mode not in MODES:
        raise unknown("color_mode", str(color_mode), MODES)
    crops = flag(crop_to_aspect_ratio, "crop_to_aspect_ratio")
    pads = flag(pad_to_aspect_ratio, "pad_to_aspect_ratio")
    if crops and pads:
        raise ValueError("give crop_to_aspect_ratio or pad_to_aspect_ratio, not both")
    files = folder(
        directory,
        _FORMATS,
        labels=labels,
        label_mode=label_mode,
        class_names=class_names,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        validation_split=validation_split,
        subset=subset,
        follow_links=follow_links,
        verbose=verbose,
    )
    load = partial(
        _loaded,
        color_mode=color_mode,
        size=pair(image_size, "image_size"),
        interpolation=check_interpolation(interpolation, INTERPOLATIONS),
        crops=crops,
        pads=pads,
    )
    return files.datasets(load, validation_split, subset, "images")


def _loaded(
    path: str,
    *,
    color_mode: str,
    size: tuple[int, int],
    interpolation: str,
    crops: bool,
    pads: bool,
) -> npt.NDArray[Any]:
    image = decoded(path, color_mode)
    if pads:
        return resized_with_padding(image, size, interpolation)
    if crops:
        image = cropped_to_ratio(image, size)
    return resize(image, size, interpolation)

"""Pictures of images with boxes, masks and labels, with Keras's names.

Boxes and their labels are drawn by Pillow, galleries by matplotlib; each is asked for
when it is needed.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.errors import MissingDependencyError
from memcfg.nn._argument_checks import integer, real
from memcfg.nn._keras_names import absent
from memcfg.nn.layers.images._image_layer import scaled, value_range_of
from memcfg.nn.utils.bounding_boxes import convert_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = [
    "draw_bounding_boxes",
    "draw_segmentation_masks",
    "plot_bounding_box_gallery",
    "plot_image_gallery",
    "plot_segmentation_mask_gallery",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_FONT_SIZE = 30.0  # pixels at font_scale 1, where OpenCV's capitals have 22
_PALETTE = (2**25 - 1, 2**15 - 1, 2**21 - 1)  # Keras's, times the class, modulo 255


def _images(given: Any, data_format: str | None, function: str) -> npt.NDArray[Any]:
    """Return images with channels last; ValueError unless there are four axes."""
    if data_format not in (None, "channels_last", "channels_first"):
        raise unknown(
            "data_format", str(data_format), ("channels_last", "channels_first")
        )
    images = np.asarray(given)
    if images.ndim != 4:
        raise ValueError(
            f"{function} takes a batch of images (images, height, width, channels), "
            f"got shape {images.shape}"
        )
    return images.transpose(0, 2, 3, 1) if data_format == "channels_first" else images


def _color(given: Sequence[float]) -> npt.NDArray[np.float32]:
    color = np.asarray(given, np.float32)
    if color.shape != (3,):
        raise ValueError(f"a color is three numbers of 0 to 255, got {given!r}")
    return color


def _pillow() -> tuple[Any, Any, Any]:
    """Return Pillow's modules of images, drawing and fonts."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise MissingDependencyError(
            "the labels of boxes are drawn by Pillow, which is not installed: "
            'pip install "memcfg[images]"'
        ) from None
    return Image, ImageDraw, ImageFont


def draw_bounding_boxes(
    images: Any,
    bounding_boxes: Mapping[str, Any],
    bounding_box_format: str,
    class_mapping: Mapping[int, str] | None = None,
    color: Sequence[float] = (128, 128, 128),
    line_thickness: int = 2,
    text_thickness: int | None = 1,
    font_scale: float = 1.0,
    data_format: str | None = None,
) -> npt.NDArray[np.uint8]:
    """Return images with boxes drawn on them.

    Parameters
    ----------
    images : array_like
        Images ``(images, height, width, channels)``: integers of 0 to 255, or floats of
        0 to 1 or to 255.
    bounding_boxes : dict
        ``"boxes"`` ``(images, boxes, 4)``, ``"labels"`` ``(images, boxes)``, of which
        -1 is no box, and perhaps ``"confidences"`` ``(images, boxes)``.
    bounding_box_format : str
        The format of the boxes, of `memcfg.nn.utils.bounding_boxes.convert_format`.
    class_mapping : dict of int to str, optional
        Names of labels, which are written beside their boxes.
    color : sequence of float, default (128, 128, 128)
        Red, green and blue, of 0 to 255.
    line_thickness : int, default 2
        The width of lines in pixels.
    text_thickness : int, optional
        The width of the strokes of names in pixels; None: that of lines.
    font_scale : float, default 1.0
        The size of names; at 1.0 capitals are 22 pixels high.
    data_format : {"channels_last", "channels_first"}, optional
        The order of the images' axes; None: channels last.

    Returns
    -------
    numpy.ndarray
        The images as uint8, in the order of axes of `images`.

    Raises
    ------
    MissingDependencyError
        If names are written and Pillow is not installed.
    TypeError, ValueError
        If an argument is invalid.

    Notes
    -----
    Keras draws with OpenCV, so single pixels of names and corners differ.
    """
    given = _images(images, data_format, "draw_bounding_boxes")
    if not isinstance(bounding_boxes, dict):
        raise TypeError(
            "bounding_boxes is a dict of boxes and labels, not "
            f"{type(bounding_boxes).__name__}"
        )
    if not {"boxes", "labels"} <= bounding_boxes.keys():
        raise ValueError(
            "bounding_boxes is a dict with 'boxes' and 'labels', got "
            f"{', '.join(map(str, bounding_boxes)) or 'nothing'}"
        )
    width = integer(line_thickness, "line_thickness")
    stroke = integer(text_thickness or width, "text_thickness")
    paint, scale = _color(color), real(font_scale, "font_scale")
    corners = np.asarray(
        convert_format(
            bounding_boxes["boxes"],
            bounding_box_format,
            "xyxy",
            given.shape[1],
            given.shape[2],
        )
    )
    labels = np.asarray(bounding_boxes["labels"]).astype(np.int64)
    shares = bounding_boxes.get("confidences")
    result = _bytes(given)
    for i, image in enumerate(result):
        for j in np.flatnonzero(labels[i] != -1):
            box = [int(each) for each in corners[i, j]]
            _draw_frame(image, box, width, paint)
            name = (class_mapping or {}).get(int(labels[i, j]))
            if name is None:
                continue
            if shares is not None:
                name = f"{name} | {np.asarray(shares)[i, j]:.2f}"
            _draw_name(image, name, box[:2], paint, stroke=stroke, scale=scale)
    if data_format == "channels_first":
        return np.ascontiguousarray(result.transpose(0, 3, 1, 2))
    return result


def _bytes(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a copy of images as uint8; floats up to 1 are parts of 255."""
    if images.dtype.kind == "f" and images.size:
        unit = images.max() <= 1
        images = np.clip(images, 0, 1) * 255 if unit else np.clip(images, 0, 255)
    return np.array(images, np.uint8)


def _draw_frame(
    image: npt.NDArray[np.uint8],
    box: Sequence[int],
    width: int,
    color: npt.NDArray[np.float32],
) -> None:
    """Draw the lines of a box; they are `width` pixels wide around its edges."""
    height, length = image.shape[:2]
    outer, inner = width // 2, (width + 1) // 2
    x1, y1, x2, y2 = box
    rows = np.zeros((2, height), bool)  # of the frame, and of what it surrounds
    columns = np.zeros((2, length), bool)
    for which, out, into in ((0, outer, inner), (1, -inner, -outer)):
        for line, low, high in ((rows, y1, y2), (columns, x1, x2)):
            begin, end = sorted((low, high))
            line[which, max(0, begin - out) : max(0, end + into)] = True
    outside, inside = (rows[i][:, None] & columns[i][None, :] for i in range(2))
    _paint(image, outside & ~inside, color)


def _draw_name(
    image: npt.NDArray[np.uint8],
    name: str,
    corner: Sequence[int],
    color: npt.NDArray[np.float32],
    *,
    stroke: int,
    scale: float,
) -> None:
    """Write a name above a box, or within it where there is no room."""
    module, draw, font = _pillow()
    x, y = corner
    tall = int(scale * 12)
    has_room = y - 8 - 2 * tall > 0
    place = (x, y - 8) if has_room else (x + 3, y + 2 * tall + stroke + 3)
    mask = module.new("L", image.shape[1::-1])
    draw.Draw(mask).text(
        place,
        name,
        fill=255,
        font=font.load_default(_FONT_SIZE * scale),
        anchor="ls",
        stroke_width=stroke - 1,
    )
    _paint(image, np.asarray(mask) >= 128, color)


def _paint(
    image: npt.NDArray[np.uint8],
    where: npt.NDArray[np.bool_],
    color: npt.NDArray[np.float32],
) -> None:
    """Set pixels of an image to a color; of gray images to its first number."""
    channels = min(3, image.shape[-1])
    image[where, :channels] = color[:channels].astype(np.uint8)


def draw_segmentation_masks(
    images: Any,
    segmentation_masks: Any,
    num_classes: int | None = None,
    color_mapping: Mapping[int, Sequence[float]] | None = None,
    alpha: float = 0.8,
    blend: bool = True,
    ignore_index: int = -1,
    data_format: str | None = None,
) -> npt.NDArray[np.uint8]:
    """Return images with the classes of their pixels as colors.

    Parameters
    ----------
    images : array_like
        Images ``(images, height, width, channels)`` with values of 0 to 255.
    segmentation_masks : array_like of int
        The class of each pixel, ``(images, height, width)`` or with a last axis of 1.
    num_classes : int, optional
        The number of classes; None: one more than the largest in the masks. Pixels of
        others are not colored.
    color_mapping : dict of int to sequence of float, optional
        Red, green and blue of classes; those that it lacks are not colored. None:
        colors of a palette, in which class 0 is black.
    alpha : float, default 0.8
        The part of the colors in the result, in ``[0, 1]``.
    blend : bool, default True
        Whether the colors are mixed with the image; if not, they replace it.
    ignore_index : int, default -1
        A class that is not colored.
    data_format : {"channels_last", "channels_first"}, optional
        The order of the images' axes; None: channels last.

    Returns
    -------
    numpy.ndarray
        The images as uint8, ``(images, height, width, channels)``.

    Raises
    ------
    TypeError
        If the masks are not of integers.
    ValueError
        If an argument is invalid.
    """
    given = _images(images, data_format, "draw_segmentation_masks")
    masks = np.asarray(segmentation_masks)
    if data_format == "channels_first" and masks.ndim == 4:
        masks = masks.transpose(0, 2, 3, 1)
    if masks.dtype.kind not in "iu":
        raise TypeError(f"segmentation_masks must be of integers, got {masks.dtype}")
    if masks.ndim == 4 and masks.shape[-1] == 1:
        masks = masks[..., 0]
    if masks.shape != given.shape[:3]:
        raise ValueError(
            f"segmentation_masks of shape {masks.shape} do not fit images of shape "
            f"{given.shape}"
        )
    share = real(alpha, "alpha") if blend else 1.0
    if not 0 <= share <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha!r}")
    count = int(masks.max(initial=-1)) + 1
    if num_classes is not None:
        count = integer(num_classes, "num_classes")
    colors = color_mapping
    if colors is None:
        colors = {i: [i * each % 255 for each in _PALETTE] for i in range(count)}
    before = given.astype(np.float32)
    result = before.copy()
    channels = min(3, given.shape[-1])
    for index, color in colors.items():
        if index in range(count) and index != ignore_index:
            where = masks == index
            painted = _color(color)[:channels]
            mixed = before[where][:, :channels] * np.float32(1 - share)
            result[where, :channels] = mixed + painted * np.float32(share)
    return result.astype(np.uint8)


def _matplotlib() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingDependencyError(
            "galleries are drawn by matplotlib, which is not installed: "
            'pip install "memcfg[plots]"'
        ) from None
    return pyplot


def plot_image_gallery(
    images: Any,
    y_true: Any = None,
    y_pred: Any = None,
    label_map: Mapping[int, str] | None = None,
    rows: int | None = None,
    cols: int | None = None,
    value_range: tuple[float, float] = (0, 255),
    scale: float = 2,
    path: str | os.PathLike[str] | None = None,
    show: bool | None = None,
    transparent: bool = True,
    dpi: int = 60,
    legend_handles: Sequence[Any] | None = None,
    data_format: str | None = None,
) -> None:
    """Show images in rows and columns, or save them as one picture.

    Parameters
    ----------
    images : array_like
        Images ``(images, height, width, channels)``.
    y_true, y_pred : array_like of int, optional
        The class of each image, and the predicted one, which are written above it.
    label_map : dict of int to str, optional
        Names of classes, needed for them.
    rows, cols : int, optional
        Of the gallery; None: as many as show all images, about as many of both.
    value_range : (float, float), default (0, 255)
        The lowest and highest value of pixels.
    scale : float, default 2
        The side of an image in inches.
    path : str or path-like, optional
        The file to write instead of showing the picture, such as ``"images.png"``.
    show : bool, optional
        Whether to show the picture; None: if there is no `path`.
    transparent : bool, default True
        Whether the file has a transparent background.
    dpi : int, default 60
        Pixels of the file an inch.
    legend_handles : sequence of matplotlib.patches.Patch, optional
        What a legend below the images explains.
    data_format : {"channels_last", "channels_first"}, optional
        The order of the images' axes; None: channels last.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    ValueError
        If both `path` and `show` are given, classes have no `label_map`, or another
        argument is invalid.
    OSError
        If the file cannot be written.
    """
    plots = _matplotlib()
    if path is not None and show:
        raise ValueError("give path, or show=True, not both")
    if label_map is None and not (y_true is None and y_pred is None):
        raise ValueError("y_true and y_pred need label_map, the names of the classes")
    given = _images(images, data_format, "plot_image_gallery")
    low_high = value_range_of(value_range, "plot_image_gallery: value_range")
    pixels = scaled(given.astype(np.float32), low_high, (0.0, 255.0))
    count = len(pixels)
    if rows is None:
        rows = math.isqrt(count - 1) + 1 if cols is None else -(-count // cols)
    cols = cols or -(-count // rows)
    size = (cols * scale, rows * scale)
    figure = plots.figure(figsize=size, frameon=False, layout="tight")
    for i, image in enumerate(pixels[: rows * cols].astype(np.uint8)):
        axes = figure.add_subplot(rows, cols, i + 1)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        axes.axis("off")
        title = "  ".join(
            f"{what}: {(label_map or {}).get(int(labels[i]), 'Unknown')}"
            for what, labels in (("Label", y_true), ("Pred", y_pred))
            if labels is not None and i < len(labels)
        )
        axes.set_title(title, fontsize=8)
    if legend_handles is not None:
        figure.legend(handles=legend_handles, loc="lower center")
    try:
        if path is not None:
            figure.savefig(
                os.fspath(path),
                pad_inches=0,
                bbox_inches="tight",
                transparent=transparent,
                dpi=dpi,
            )
        elif show is None or show:
            plots.show()
    finally:
        plots.close(figure)


def plot_bounding_box_gallery(
    images: Any,
    bounding_box_format: str,
    y_true: Mapping[str, Any] | None = None,
    y_pred: Mapping[str, Any] | None = None,
    value_range: tuple[float, float] = (0, 255),
    true_color: Sequence[float] = (0, 188, 212),
    pred_color: Sequence[float] = (255, 235, 59),
    line_thickness: int = 2,
    font_scale: float = 1.0,
    text_thickness: int | None = None,
    class_mapping: Mapping[int, str] | None = None,
    ground_truth_mapping: Mapping[int, str] | None = None,
    prediction_mapping: Mapping[int, str] | None = None,
    legend: bool = False,
    legend_handles: Sequence[Any] | None = None,
    rows: int | None = None,
    cols: int | None = None,
    data_format: str | None = None,
    **kwargs: Any,
) -> None:
    """Show images with the boxes of their objects and the predicted ones.

    Parameters
    ----------
    images : array_like
        Images ``(images, height, width, channels)``.
    bounding_box_format : str
        As of `draw_bounding_boxes`.
    y_true, y_pred : dict, optional
        The boxes, and the predicted ones, as of `draw_bounding_boxes`.
    value_range : (float, float), default (0, 255)
        The lowest and highest value of pixels.
    true_color, pred_color : sequence of float
        The colors of both kinds of boxes.
    line_thickness : int, default 2
        As of `draw_bounding_boxes`.
    font_scale : float, default 1.0
        As of `draw_bounding_boxes`.
    text_thickness : int, optional
        As of `draw_bounding_boxes`.
    class_mapping : dict of int to str, optional
        Names of labels.
    ground_truth_mapping, prediction_mapping : dict of int to str, optional
        Names of labels of one kind of boxes, instead of `class_mapping`.
    legend : bool, default False
        Whether a legend explains the colors.
    legend_handles : sequence of matplotlib.patches.Patch, optional
        What a legend of your own explains.
    rows, cols : int, optional
        As of `plot_image_gallery`.
    data_format : {"channels_last", "channels_first"}, optional
        The order of the images' axes; None: channels last.
    **kwargs
        Other arguments of `plot_image_gallery`.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed, or Pillow is not and names are written.
    TypeError, ValueError
        If an argument is invalid.
    OSError
        If a file cannot be written.
    """
    if legend and legend_handles:
        raise ValueError("give legend=True, or legend_handles, not both")
    given = _images(images, data_format, "plot_bounding_box_gallery")
    low_high = value_range_of(value_range, "plot_bounding_box_gallery: value_range")
    drawn = scaled(given.astype(np.float32), low_high, (0.0, 255.0)).astype(np.uint8)
    kinds = (
        (y_true, true_color, ground_truth_mapping),
        (y_pred, pred_color, prediction_mapping),
    )
    for boxes, color, mapping in kinds:
        if boxes is not None:
            drawn = draw_bounding_boxes(
                drawn,
                boxes,
                bounding_box_format,
                mapping or class_mapping,
                color,
                line_thickness,
                text_thickness,
                font_scale,
            )
    if legend:
        legend_handles = _legend(
            ("Ground Truth", true_color), ("Prediction", pred_color)
        )
    plot_image_gallery(
        drawn, rows=rows, cols=cols, legend_handles=legend_handles, **kwargs
    )


def _legend(*entries: tuple[str, Sequence[float]]) -> list[Any]:
    _matplotlib()
    from matplotlib.patches import Patch

    made = []
    for name, color in entries:
        red, green, blue = (float(each) / 255 for each in _color(color))
        made.append(Patch(color=(red, green, blue), label=name))
    return made


def plot_segmentation_mask_gallery(
    images: Any,
    num_classes: int,
    value_range: tuple[float, float] = (0, 255),
    y_true: Any = None,
    y_pred: Any = None,
    color_mapping: Mapping[int, Sequence[float]] | None = None,
    blend: bool = True,
    alpha: float = 0.8,
    ignore_index: int = -1,
    data_format: str | None = None,
    **kwargs: Any,
) -> None:
    """Show images beside themselves with the classes of their pixels.

    Each row has an image, then it with `y_true`, and with `y_pred`, as given.

    Parameters
    ----------
    images : array_like
        Images ``(images, height, width, channels)``.
    num_classes : int
        As of `draw_segmentation_masks`.
    value_range : (float, float), default (0, 255)
        The lowest and highest value of pixels.
    y_true, y_pred : array_like, optional
        The classes of pixels, and the predicted ones, as of `draw_segmentation_masks`.
    color_mapping : dict of int to sequence of float, optional
        As of `draw_segmentation_masks`.
    blend : bool, default True
        As of `draw_segmentation_masks`.
    alpha : float, default 0.8
        As of `draw_segmentation_masks`.
    ignore_index : int, default -1
        As of `draw_segmentation_masks`.
    data_format : {"channels_last", "channels_first"}, optional
        The order of the images' axes; None: channels last.
    **kwargs
        Other arguments of `plot_image_gallery`.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is invalid.
    OSError
        If a file cannot be written.
    """
    given = _images(images, data_format, "plot_segmentation_mask_gallery")
    low_high = value_range_of(
        value_range, "plot_segmentation_mask_gallery: value_range"
    )
    pixels = scaled(given.astype(np.float32), low_high, (0.0, 255.0)).astype(np.uint8)
    shown = [pixels]
    for masks in (y_true, y_pred):
        if masks is not None:
            classes = np.asarray(masks).astype(np.int32)
            if data_format == "channels_first" and classes.ndim == 4:
                classes = classes.transpose(0, 2, 3, 1)
            settings = (num_classes, color_mapping, alpha, blend, ignore_index)
            shown.append(draw_segmentation_masks(pixels, classes, *settings))
    rows = np.stack(shown, axis=1).reshape(-1, *pixels.shape[1:])
    plot_image_gallery(rows, rows=len(pixels), cols=len(shown), **kwargs)

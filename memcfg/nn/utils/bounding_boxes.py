"""Boxes around the objects of images: formats, changes with images, overlaps.

Each function takes arrays, which NumPy computes, or symbolic tensors of a model or a
function. The last axis of boxes has their four numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn import ops
from memcfg.nn._keras_names import absent
from memcfg.nn.backend import epsilon
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.ops._computing import computing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "affine_transform",
    "clip_to_image_size",
    "compute_ciou",
    "compute_iou",
    "convert_format",
    "crop",
    "decode_deltas_to_boxes",
    "encode_box_to_deltas",
    "pad",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

# What the four numbers of a format are, and whether y comes before x.
_FORMS = {
    "xyxy": ("corners", False),
    "yxyx": ("corners", True),
    "xywh": ("corner and size", False),
    "center_xywh": ("center and size", False),
    "center_yxhw": ("center and size", True),
}
_RELATIVE = ("xyxy", "yxyx", "xywh", "center_xywh")
_FORMATS = (*_FORMS, *(f"rel_{each}" for each in _RELATIVE))


def _boxes(given: Any) -> Any:
    """Return boxes as an array or a tensor; ValueError without four numbers each."""
    boxes = given if isinstance(given, SymbolicTensor) else np.asanyarray(given)
    if not boxes.shape or boxes.shape[-1] != 4:
        raise ValueError(
            f"boxes have four numbers along the last axis, got shape {boxes.shape}"
        )
    return boxes


def _cast(value: Any, dtype: str) -> Any:
    if computing(value) is ops:
        return ops.cast(value, dtype)
    return np.asarray(value).astype(dtype, copy=False)


def _known(name: str, argument: str) -> str:
    found = name.lower()
    if found not in _FORMATS:
        raise unknown(argument, name, _FORMATS)
    return found


def _in_pixels(box_format: str, function: str) -> None:
    """Raise NotImplementedError for another format than ``"xyxy"``, as in Keras."""
    if box_format != "xyxy":
        raise NotImplementedError(
            f"{function} takes boxes in the format 'xyxy', not {box_format!r}: use "
            "convert_format first"
        )


def _size_of(image_shape: Any) -> tuple[Any, Any]:
    """Return the height and width of an image's shape, or None for each."""
    if image_shape is None:
        return None, None
    height, width, _ = image_shape
    return height, width


def convert_format(
    boxes: Any,
    source: str,
    target: str,
    height: Any = None,
    width: Any = None,
    dtype: str = "float32",
) -> Any:
    """Convert boxes from one format to another.

    The formats are ``"xyxy"`` (left, top, right, bottom), ``"yxyx"``, ``"xywh"`` (left,
    top, width, height), ``"center_xywh"`` and ``"center_yxhw"``, and with ``"rel_"``
    before each but the last, in parts of the image's width and height.

    Parameters
    ----------
    boxes : array_like or SymbolicTensor, or dict
        The boxes, of shape ``(..., 4)``; in a dict, its entry ``"boxes"``.
    source, target : str
        The format of the boxes, and that of the result, in any letters.
    height, width : float or array_like, optional
        The size of the images, which conversions between relative and other formats
        need.
    dtype : str, default "float32"
        The dtype of the result.

    Returns
    -------
    numpy.ndarray or SymbolicTensor, or dict
        The boxes; for a dict a new one, with its other entries.

    Raises
    ------
    ValueError
        If a format is unknown, boxes do not have four numbers, or `height` and `width`
        are missing.

    Examples
    --------
    >>> from memcfg.nn.utils.bounding_boxes import convert_format
    >>> convert_format([[10, 20, 30, 60]], source="xyxy", target="center_xywh")
    array([[20., 40., 20., 40.]], dtype=float32)
    """
    if isinstance(boxes, dict):
        made = convert_format(boxes["boxes"], source, target, height, width, dtype)
        return boxes | {"boxes": made}
    boxes = _boxes(boxes)
    source, target = _known(source, "source"), _known(target, "target")
    ends = [each.startswith("rel_") for each in (source, target)]
    if any(ends) and (height is None or width is None):
        raise ValueError(
            f"converting {source!r} to {target!r} needs the height and the width of "
            f"the images, got height={height} and width={width}"
        )
    boxes = _cast(boxes, dtype)
    if source == target:
        return boxes
    size: Any = None
    if ends[0] != ends[1]:
        size = (_cast(width, dtype), _cast(height, dtype))
    x1, y1, x2, y2 = _corners(boxes, source, size if ends[0] else None)
    return _written((x1, y1, x2, y2), target, size if ends[1] else None)


def _corners(boxes: Any, source: str, size: Any) -> Sequence[Any]:
    """Return left, top, right and bottom; in pixels if a size (width, height) is."""
    kind, turned = _FORMS[source.removeprefix("rel_")]
    a, b, c, d = computing(boxes).split(boxes, 4, axis=-1)
    x, y, right, bottom = (b, a, d, c) if turned else (a, b, c, d)
    if kind == "corner and size":
        right, bottom = x + right, y + bottom
    elif kind == "center and size":
        half_width, half_height = right / 2, bottom / 2
        x, y, right, bottom = (
            x - half_width,
            y - half_height,
            x + half_width,
            y + half_height,
        )
    if size is None:
        return x, y, right, bottom
    width, height = size
    return x * width, y * height, right * width, bottom * height


def _written(corners: Sequence[Any], target: str, size: Any) -> Any:
    """Return boxes of corners; in parts of a size (width, height) if there is one."""
    kind, turned = _FORMS[target.removeprefix("rel_")]
    x, y, right, bottom = corners
    if kind != "corners":
        width, height = right - x, bottom - y
        if kind == "center and size":
            x, y = x + width / 2, y + height / 2
        right, bottom = width, height
    if size is not None:
        x, y = x / size[0], y / size[1]
        right, bottom = right / size[0], bottom / size[1]
    several = [y, x, bottom, right] if turned else [x, y, right, bottom]
    return computing(*several).concatenate(several, axis=-1)


def clip_to_image_size(
    bounding_boxes: Mapping[str, Any],
    height: Any = None,
    width: Any = None,
    bounding_box_format: str = "xyxy",
) -> dict[str, Any]:
    """Clip boxes to the image; the labels of boxes without an area become -1.

    Parameters
    ----------
    bounding_boxes : dict
        ``"boxes"`` of shape ``(..., 4)``, and perhaps ``"labels"`` of shape ``(...)``.
    height, width : float, optional
        The size of the images in pixels, which ``"xyxy"`` needs.
    bounding_box_format : {"xyxy", "rel_xyxy"}, default "xyxy"
        The format of the boxes.

    Returns
    -------
    dict
        The clipped boxes and the labels, with the other entries.

    Raises
    ------
    NotImplementedError
        If the format is another one.
    ValueError
        If the size is missing.
    """
    if bounding_box_format not in ("xyxy", "rel_xyxy"):
        raise NotImplementedError(
            "clip_to_image_size takes boxes in the formats 'xyxy' and 'rel_xyxy', not "
            f"{bounding_box_format!r}: use convert_format first"
        )
    if bounding_box_format == "rel_xyxy":
        height = width = 1
    elif height is None or width is None:
        raise ValueError(
            "boxes in the format 'xyxy' are clipped to a height and a width, got "
            f"height={height} and width={width}"
        )
    boxes = _boxes(bounding_boxes["boxes"])
    module = computing(boxes)
    x1, y1, x2, y2 = module.split(boxes, 4, axis=-1)
    x1, x2 = module.clip(x1, 0, width), module.clip(x2, 0, width)
    y1, y2 = module.clip(y1, 0, height), module.clip(y2, 0, height)
    made = module.concatenate([x1, y1, x2, y2], axis=-1)
    result = {**bounding_boxes, "boxes": made}
    labels = bounding_boxes.get("labels")
    if labels is not None:
        areas = module.squeeze((x2 - x1) * (y2 - y1), axis=-1)
        result["labels"] = computing(boxes, labels).where(areas > 0, labels, -1)
    return result


def affine_transform(
    boxes: Any,
    angle: Any,
    translate_x: Any,
    translate_y: Any,
    scale: Any,
    shear_x: Any,
    shear_y: Any,
    height: Any,
    width: Any,
    center_x: Any = None,
    center_y: Any = None,
    bounding_box_format: str = "xyxy",
) -> Any:
    """Turn, shift, scale and shear boxes; the results are the boxes around these.

    Parameters
    ----------
    boxes : array_like or SymbolicTensor
        The boxes of each image, ``(images, boxes, 4)``.
    angle : float, array_like or SymbolicTensor
        The angle in degrees, of all images or of each, as the next five.
    translate_x, translate_y : float, array_like or SymbolicTensor
        The shift in parts of the width and the height less one pixel.
    scale : float, array_like or SymbolicTensor
        The factor of lengths.
    shear_x, shear_y : float, array_like or SymbolicTensor
        The angles of shears in degrees.
    height, width : int
        The size of the images in pixels.
    center_x, center_y : float, optional
        The fixed point in parts of the size less one pixel, by default the middle.
    bounding_box_format : str, default "xyxy"
        Must be ``"xyxy"``.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The boxes, of the same shape.

    Raises
    ------
    NotImplementedError
        If the boxes are in another format.
    ValueError
        If boxes do not have four numbers.
    """
    _in_pixels(bounding_box_format, "affine_transform")
    boxes = _cast(_boxes(boxes), "float32")
    angle, move_x, move_y, scale, shear_x, shear_y = (
        _of_images(each)
        for each in (angle, translate_x, translate_y, scale, shear_x, shear_y)
    )
    module = computing(boxes, angle, move_x, move_y, scale, shear_x, shear_y)
    numbers = computing(angle, shear_x, shear_y)
    x0 = (0.5 if center_x is None else center_x) * (width - 1)
    y0 = (0.5 if center_y is None else center_y) * (height - 1)
    turn, lean_x, lean_y = (
        each * (-math.pi / 180) for each in (angle, shear_x, shear_y)
    )
    a = numbers.cos(turn - lean_y) / numbers.cos(lean_y)
    b = a * numbers.tan(lean_x) + numbers.sin(turn)
    c = -numbers.sin(turn - lean_y) / numbers.cos(lean_y)
    d = numbers.cos(turn) - c * numbers.tan(lean_x)
    right, down = x0 - move_x * (width - 1), y0 - move_y * (height - 1)
    ax, ay, bx, by = d * scale, -b * scale, -c * scale, a * scale
    shift_x = x0 - ax * right - ay * down
    shift_y = y0 - bx * right - by * down
    x1, y1, x2, y2 = module.split(boxes, 4, axis=-1)
    points = [
        (ax * x + ay * y + shift_x, bx * x + by * y + shift_y)
        for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))
    ]
    ends = [
        _all_of(extreme, [point[axis] for point in points])
        for extreme in (module.minimum, module.maximum)
        for axis in (0, 1)
    ]
    return module.concatenate(ends, axis=-1)


def _of_images(value: Any) -> Any:
    """Return a number of all images, or of each with two more axes."""
    if not isinstance(value, SymbolicTensor):
        value = np.asarray(value, np.float32)
    if not value.shape:
        return value
    module = computing(value)
    return module.expand_dims(module.expand_dims(value, -1), -1)


def _all_of(combine: Any, values: Sequence[Any]) -> Any:
    first, *others = values
    for each in others:
        first = combine(first, each)
    return first


def crop(
    boxes: Any,
    top: Any,
    left: Any,
    height: Any,
    width: Any,
    bounding_box_format: str = "xyxy",
) -> Any:
    """Return boxes within a part of the image, clipped to it.

    Parameters
    ----------
    boxes : array_like or SymbolicTensor
        The boxes, of shape ``(..., 4)``, in pixels.
    top, left : float
        Where the part begins.
    height, width : float
        Its size.
    bounding_box_format : str, default "xyxy"
        Must be ``"xyxy"``.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The boxes, of the same shape.

    Raises
    ------
    NotImplementedError
        If the boxes are in another format.
    ValueError
        If boxes do not have four numbers.
    """
    _in_pixels(bounding_box_format, "crop")
    boxes = _boxes(boxes)
    module = computing(boxes)
    x1, y1, x2, y2 = module.split(boxes, 4, axis=-1)
    ends = [
        module.clip(x1 - left, 0, width),
        module.clip(y1 - top, 0, height),
        module.clip(x2 - left, 0, width),
        module.clip(y2 - top, 0, height),
    ]
    return module.concatenate(ends, axis=-1)


def pad(
    boxes: Any,
    top: Any,
    left: Any,
    height: Any = None,
    width: Any = None,
    bounding_box_format: str = "xyxy",
) -> Any:
    """Return boxes within an image that is padded above and on the left.

    Parameters
    ----------
    boxes : array_like or SymbolicTensor
        The boxes, of shape ``(..., 4)``, in pixels.
    top, left : float
        The rows above, and the columns on the left.
    height, width : float, optional
        The size of the padded image, on which the result does not depend.
    bounding_box_format : str, default "xyxy"
        Must be ``"xyxy"``.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The boxes, of the same shape.

    Raises
    ------
    NotImplementedError
        If the boxes are in another format.
    ValueError
        If boxes do not have four numbers.
    """
    del height, width
    _in_pixels(bounding_box_format, "pad")
    boxes = _boxes(boxes)
    module = computing(boxes)
    x1, y1, x2, y2 = module.split(boxes, 4, axis=-1)
    ends = [x1 + left, y1 + top, x2 + left, y2 + top]
    return module.concatenate(ends, axis=-1)


def _variance_of(given: Any) -> Any:
    """Return four factors; None without any."""
    if given is None:
        return None
    variance = np.asarray(given, np.float32)
    if variance.shape[-1:] != (4,):
        raise ValueError(f"variance has 4 numbers, got {given!r}")
    return variance


def _check_code(name: str, argument: str) -> None:
    if name not in ("center_xywh", "center_yxhw"):
        raise unknown(argument, name, ("center_xywh", "center_yxhw"))


def encode_box_to_deltas(
    anchors: Any,
    boxes: Any,
    anchor_format: str,
    box_format: str,
    encoding_format: str = "center_yxhw",
    variance: Any = None,
    image_shape: Any = None,
) -> Any:
    """Return boxes as what a network predicts beside anchors.

    Of centers it is their distance in sizes of the anchor, and of sizes the logarithm
    of their quotient.

    Parameters
    ----------
    anchors : array_like or SymbolicTensor
        The anchors, ``(n, 4)``.
    boxes : array_like or SymbolicTensor
        The box of each anchor, ``(n, 4)`` or ``(images, n, 4)``.
    anchor_format, box_format : str
        Their formats, of `convert_format`.
    encoding_format : {"center_yxhw", "center_xywh"}, default "center_yxhw"
        The order of the result.
    variance : array_like of float, optional
        Four numbers, by which the result is divided.
    image_shape : tuple of int, optional
        The images' height, width and channels, which relative formats need.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        Four numbers for each box.

    Raises
    ------
    ValueError
        If an argument is invalid, or missing for a relative format.

    References
    ----------
    Girshick et al., "Rich feature hierarchies for accurate object detection and
    semantic segmentation", CVPR 2014.
    """
    factors = _variance_of(variance)
    _check_code(encoding_format, "encoding_format")
    size = _size_of(image_shape)
    anchors = convert_format(anchors, anchor_format, encoding_format, *size)
    boxes = convert_format(boxes, box_format, encoding_format, *size)
    module = computing(anchors, boxes)
    of_anchors = computing(anchors).maximum(anchors[..., 2:], epsilon())
    of_boxes = computing(boxes).maximum(boxes[..., 2:], epsilon())
    ends = [
        (boxes[..., :2] - anchors[..., :2]) / of_anchors,
        module.log(of_boxes / of_anchors),
    ]
    result = module.concatenate(ends, axis=-1)
    return result if factors is None else result / factors


def decode_deltas_to_boxes(
    anchors: Any,
    boxes_delta: Any,
    anchor_format: str,
    box_format: str,
    encoded_format: str = "center_yxhw",
    variance: Any = None,
    image_shape: Any = None,
) -> Any:
    """Return the boxes that a network predicts beside anchors.

    Parameters
    ----------
    anchors : array_like or SymbolicTensor, or dict of them
        The anchors, ``(n, 4)``, or those of each level.
    boxes_delta : array_like or SymbolicTensor, or dict of them
        What `encode_box_to_deltas` returns, by the same keys.
    anchor_format, box_format : str
        The formats of the anchors and of the result, of `convert_format`.
    encoded_format : {"center_yxhw", "center_xywh"}, default "center_yxhw"
        The order of `boxes_delta`.
    variance : array_like of float, optional
        Four numbers, by which `boxes_delta` is multiplied before.
    image_shape : tuple of int, optional
        The images' height, width and channels, which relative formats need.

    Returns
    -------
    numpy.ndarray or SymbolicTensor, or dict of them
        The boxes.

    Raises
    ------
    ValueError
        If an argument is invalid, or missing for a relative format.
    """
    if isinstance(anchors, dict) and isinstance(boxes_delta, dict):
        rest = (anchor_format, box_format, encoded_format, variance, image_shape)
        return {
            key: decode_deltas_to_boxes(anchor, boxes_delta[key], *rest)
            for key, anchor in anchors.items()
        }
    factors = _variance_of(variance)
    _check_code(encoded_format, "encoded_format")
    size = _size_of(image_shape)
    anchors = convert_format(anchors, anchor_format, encoded_format, *size)
    deltas = _cast(_boxes(boxes_delta), "float32")
    if factors is not None:
        deltas = deltas * factors
    sizes = anchors[..., 2:]
    ends = [
        deltas[..., :2] * sizes + anchors[..., :2],
        computing(deltas).exp(deltas[..., 2:]) * sizes,
    ]
    boxes = computing(anchors, deltas).concatenate(ends, axis=-1)
    return convert_format(boxes, encoded_format, box_format, *size)


def compute_iou(
    boxes1: Any,
    boxes2: Any,
    bounding_box_format: str,
    use_masking: bool = False,
    mask_val: float = -1,
    image_shape: Any = None,
) -> Any:
    """Return the intersection of each box with each other one, over their union.

    Parameters
    ----------
    boxes1 : array_like or SymbolicTensor
        Boxes ``(m, 4)`` or ``(images, m, 4)``.
    boxes2 : array_like or SymbolicTensor
        Boxes ``(n, 4)`` or ``(images, n, 4)``.
    bounding_box_format : str
        Their format, of `convert_format`.
    use_masking : bool, default False
        Whether the results of boxes with four negative numbers are `mask_val`.
    mask_val : float, default -1
        The result of such boxes.
    image_shape : tuple of int, optional
        The images' height, width and channels, which relative formats need.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        Of shape ``(m, n)`` or ``(images, m, n)``.

    Raises
    ------
    ValueError
        If boxes have another number of axes, or an argument is invalid or missing.

    Examples
    --------
    >>> from memcfg.nn.utils.bounding_boxes import compute_iou
    >>> compute_iou([[0, 0, 2, 2]], [[1, 0, 3, 2]], "xyxy").round(3)
    array([[0.333]], dtype=float32)
    """
    first, second = (
        _pixels(x, bounding_box_format, image_shape, "compute_iou")
        for x in (boxes1, boxes2)
    )
    for name, each in (("boxes1", first), ("boxes2", second)):
        if len(each.shape) not in (2, 3):
            raise ValueError(
                f"compute_iou: {name} must be of shape (n, 4) or (images, n, 4), got "
                f"{each.shape}"
            )
    module = computing(first, second)
    x1, y1, x2, y2 = computing(first).split(first, 4, axis=-1)
    others = computing(second)
    a1, b1, a2, b2 = (
        others.swapaxes(each, -1, -2) for each in others.split(second, 4, axis=-1)
    )
    wide = module.minimum(x2, a2) - module.maximum(x1, a1)
    high = module.minimum(y2, b2) - module.maximum(y1, b1)
    common = module.maximum(wide, 0) * module.maximum(high, 0)
    union = (y2 - y1) * (x2 - x1) + (b2 - b1) * (a2 - a1) - common
    result = common / (union + epsilon())
    if not use_masking:
        return result
    unset = [
        part.max(each, axis=-1, keepdims=True) < 0
        for part, each in ((computing(first), first), (others, second))
    ]
    unset[1] = others.swapaxes(unset[1], -1, -2)
    result = module.where(unset[0], mask_val, result)
    return module.where(unset[1], mask_val, result)


def _pixels(boxes: Any, box_format: str, image_shape: Any, function: str) -> Any:
    """Return boxes as ``"xyxy"``; ValueError for relative ones without a shape."""
    if "rel" in box_format and image_shape is None:
        raise ValueError(
            f"{function}: boxes in the format {box_format!r} need image_shape, the "
            "height, width and channels of the images"
        )
    return convert_format(boxes, box_format, "xyxy", *_size_of(image_shape))


def compute_ciou(
    boxes1: Any, boxes2: Any, bounding_box_format: str, image_shape: Any = None
) -> Any:
    """Return the complete IoU of boxes and others, one by one.

    It is the intersection over the union, less a measure of the distance of the centers
    and one of the difference of the aspect ratios.

    Parameters
    ----------
    boxes1, boxes2 : array_like or SymbolicTensor
        Boxes ``(..., 4)``, of shapes that are broadcast.
    bounding_box_format : str
        Their format, of `convert_format`.
    image_shape : tuple of int, optional
        The images' height, width and channels, which relative formats need.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        Of shape ``(...)``.

    Raises
    ------
    ValueError
        If an argument is invalid or missing.

    References
    ----------
    Zheng et al., "Distance-IoU loss: faster and better learning for bounding box
    regression", AAAI 2020.
    """
    first, second = (
        _pixels(x, bounding_box_format, image_shape, "compute_ciou")
        for x in (boxes1, boxes2)
    )
    module, small = computing(first, second), epsilon()
    x1, y1, x2, y2 = computing(first).split(first, 4, axis=-1)
    a1, b1, a2, b2 = computing(second).split(second, 4, axis=-1)
    widths = x2 - x1, a2 - a1
    heights = y2 - y1 + small, b2 - b1 + small
    wide = module.minimum(x2, a2) - module.maximum(x1, a1)
    high = module.minimum(y2, b2) - module.maximum(y1, b1)
    common = module.maximum(wide, 0) * module.maximum(high, 0)
    union = widths[0] * heights[0] + widths[1] * heights[1] - common + small
    iou = common / (union + small)
    across = module.maximum(x2, a2) - module.minimum(x1, a1)
    down = module.maximum(y2, b2) - module.minimum(y1, b1)
    diagonal = across**2 + down**2 + small
    apart = ((x1 + x2) / 2 - (a1 + a2) / 2) ** 2 + ((y1 + y2) / 2 - (b1 + b2) / 2) ** 2
    angles = (
        computing(first).arctan(widths[0] / heights[0]),
        computing(second).arctan(widths[1] / heights[1]),
    )
    v = (4 / math.pi**2) * (angles[1] - angles[0]) ** 2
    alpha = v / (v - iou + (1 + small))
    return module.squeeze(iou - (apart / diagonal + v * alpha), axis=-1)

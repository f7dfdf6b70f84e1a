"""Boxes of images beside Keras's: values on arrays and on tensors of a model."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
THEIRS, OURS = keras.utils.bounding_boxes, mc.nn.utils.bounding_boxes
FORMATS = (
    *("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw"),
    *("rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"),
)
RANDOM = np.random.default_rng(0)
SHAPE = (50, 70, 3)


def drawn(*shape):
    """Boxes xyxy, some beyond an image of 50 by 70 pixels."""
    corners = RANDOM.uniform(-20, 60, (*shape, 2))
    return np.concatenate(
        [corners, corners + RANDOM.uniform(1, 40, (*shape, 2))], axis=-1
    ).astype(np.float32)


def beside(call, *arrays):
    """Compare a call of arrays, and of tensors with a batch where there is one."""
    tensors = map(keras.ops.convert_to_tensor, arrays)
    wanted = keras.ops.convert_to_numpy(call(THEIRS, *tensors))
    np.testing.assert_allclose(call(OURS, *arrays), wanted, rtol=2e-5, atol=1e-4)
    if all(each.ndim == 3 for each in arrays):
        starts = [mc.nn.Input(each.shape[1:]) for each in arrays]
        model = mc.nn.Model(starts, call(OURS, *starts))
        found = model.predict(list(arrays), verbose=0)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("source", FORMATS)
def test_formats(source):
    boxes = drawn(2, 5)
    for target in FORMATS:
        beside(
            lambda m, x, target=target: m.convert_format(x, source, target, 50, 70),
            boxes,
        )


@pytest.mark.parametrize("shapes", [((4,), (3,)), ((2, 4), (2, 3)), ((2, 4), (3,))])
def test_overlaps(shapes):
    first, second = (drawn(*each) for each in shapes)
    for kind in FORMATS:
        beside(
            lambda m, x, y, kind=kind: m.compute_iou(
                x, y, kind, image_shape=SHAPE if "rel" in kind else None
            ),
            first,
            second,
        )
    if len(shapes[0]) == len(shapes[1]):
        beside(
            lambda m, x, y: m.compute_iou(x, y, "yxyx", use_masking=True),
            np.concatenate([first, -first[..., :1, :] * 0 - 2], axis=-2),
            second,
        )


def test_complete_overlaps():
    first, second = drawn(2, 4), drawn(2, 4)
    for kind in FORMATS[:5]:
        beside(lambda m, x, y, kind=kind: m.compute_ciou(x, y, kind), first, second)


@pytest.mark.parametrize("code", ["center_xywh", "center_yxhw"])
@pytest.mark.parametrize("variance", [None, [0.1, 0.1, 0.2, 0.2]])
def test_codes(code, variance):
    anchors, boxes = drawn(4), drawn(2, 4)
    given = ("xyxy", "rel_xywh", code, variance, SHAPE)
    beside(lambda m, x: m.encode_box_to_deltas(anchors, x, *given), boxes)
    deltas = RANDOM.normal(size=(2, 4, 4)).astype(np.float32)
    given = ("rel_yxyx", "xywh", code, variance, SHAPE)
    beside(lambda m, x: m.decode_deltas_to_boxes(anchors / 50, x, *given), deltas)


def test_changes():
    boxes = drawn(3, 5)
    beside(lambda m, x: m.crop(x, 5, 7, 30, 20), boxes)
    beside(lambda m, x: m.pad(x, 5, 7), boxes)
    labels = np.arange(15, dtype=np.int32).reshape(3, 5)
    for kind in ("xyxy", "rel_xyxy"):
        given = {"boxes": boxes if kind == "xyxy" else boxes / 40, "labels": labels}
        one, other = (m.clip_to_image_size(given, 20, 30, kind) for m in (THEIRS, OURS))
        for key in given:
            wanted = keras.ops.convert_to_numpy(one[key])
            np.testing.assert_array_equal(other[key], wanted)
    angles, scales = (
        RANDOM.uniform(low, high, 3).astype(np.float32)
        for low, high in ((-50, 50), (0.5, 2))
    )
    small = [RANDOM.uniform(-0.3, 0.3, 3).astype(np.float32) for _ in range(2)]
    lean = [RANDOM.uniform(-20, 20, 3).astype(np.float32) for _ in range(2)]
    given = (angles, *small, scales, *lean)
    for center in ((None, None), (0.2, 0.9)):
        wanted = THEIRS.affine_transform(
            keras.ops.convert_to_tensor(boxes),
            *map(keras.ops.convert_to_tensor, given),
            50,
            70,
            *center,
        )
        found = OURS.affine_transform(boxes, *given, 50, 70, *center)
        wanted = keras.ops.convert_to_numpy(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [2, 7])
def test_numbers_of_boxes(count):
    boxes = {"boxes": drawn(2, 4), "labels": RANDOM.integers(0, 9, (2, 4))}
    data = {"images": np.zeros((2, 8, 8, 3), np.float32), "bounding_boxes": boxes}
    wanted, found = (
        each.layers.MaxNumBoundingBoxes(count, bounding_box_format="xyxy")(data)
        for each in (keras, mc.nn)
    )
    wanted, found = wanted["bounding_boxes"], found["bounding_boxes"]
    for key in boxes:
        np.testing.assert_array_equal(
            found[key], keras.ops.convert_to_numpy(wanted[key])
        )


@pytest.mark.parametrize("mapping", [None, {i: (9 * i, 80, 5) for i in range(5)}])
def test_masks_on_images(mapping):
    images = RANDOM.uniform(0, 255, (2, 6, 8, 3)).astype(np.float32)
    masks = RANDOM.integers(-1, 4, (2, 6, 8, 1)).astype(np.int32)
    for options in ({}, {"alpha": 0.3, "ignore_index": 2}):
        wanted, found = (
            each.visualization.draw_segmentation_masks(
                images, masks, 4, mapping, **options
            )
            for each in (keras, mc.nn)
        )
        apart = np.abs(found.astype(int) - np.asarray(wanted).astype(int))
        assert apart.max() <= 1  # where a half is cut off
        assert (apart == 0).mean() > 0.99

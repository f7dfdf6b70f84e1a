"""Boxes of images: formats, overlaps, codes, changes; arrays and tensors alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
boxes_of = nn.utils.bounding_boxes
FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw")
ALL = (*FORMATS, *(f"rel_{each}" for each in FORMATS[:-1]))
HEIGHT, WIDTH = 60, 80


def drawn(seed, *shape):
    """Boxes xyxy with whole numbers within an image of 60 by 80 pixels."""
    random = np.random.default_rng(seed)
    x = np.sort(random.integers(0, WIDTH + 1, (*shape, 2)), axis=-1)
    y = np.sort(random.integers(0, HEIGHT + 1, (*shape, 2)), axis=-1)
    return np.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1).astype(np.float32)


def traced(function, *arrays):
    """What a function returns for tensors with a batch."""
    starts = [nn.Input(each.shape[1:]) for each in arrays]
    return nn.Model(starts, function(*starts)).predict(list(arrays), verbose=0)


def by_hand(box, target):
    """Another writing of the formats, box by box."""
    x1, y1, x2, y2 = map(float, box)
    size = {"x": WIDTH, "y": HEIGHT} if target.startswith("rel_") else {"x": 1, "y": 1}
    numbers = {
        "xyxy": [(x1, "x"), (y1, "y"), (x2, "x"), (y2, "y")],
        "yxyx": [(y1, "y"), (x1, "x"), (y2, "y"), (x2, "x")],
        "xywh": [(x1, "x"), (y1, "y"), (x2 - x1, "x"), (y2 - y1, "y")],
        "center_xywh": [
            ((x1 + x2) / 2, "x"),
            ((y1 + y2) / 2, "y"),
            (x2 - x1, "x"),
            (y2 - y1, "y"),
        ],
        "center_yxhw": [
            ((y1 + y2) / 2, "y"),
            ((x1 + x2) / 2, "x"),
            (y2 - y1, "y"),
            (x2 - x1, "x"),
        ],
    }[target.removeprefix("rel_")]
    return [number / size[axis] for number, axis in numbers]


@given(st.sampled_from(ALL), st.sampled_from(ALL), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_formats(source, target, seed):
    boxes = drawn(seed, 5)
    given_boxes = np.float32([by_hand(box, source) for box in boxes])
    made = boxes_of.convert_format(given_boxes, source, target.upper(), HEIGHT, WIDTH)
    np.testing.assert_allclose(made, [by_hand(b, target) for b in boxes], atol=1e-4)
    assert made.dtype == np.float32


@pytest.mark.parametrize("target", ALL)
def test_formats_of_tensors(target):
    boxes = drawn(0, 2, 3)
    made = traced(
        lambda x: boxes_of.convert_format(x, "xyxy", target, HEIGHT, WIDTH), boxes
    )
    wanted = boxes_of.convert_format(boxes, "xyxy", target, HEIGHT, WIDTH)
    np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_a_dict_stays_as_it_was():
    before = {"boxes": np.float32([[0, 0, 4, 2]]), "labels": [3]}
    made = boxes_of.convert_format(before, "xyxy", "xywh")
    assert made["labels"] == [3]
    assert before["boxes"].tolist() == [[0, 0, 4, 2]]
    half = boxes_of.convert_format([[0, 0, 3, 2]], "xyxy", "rel_xyxy", 4, 4, "float64")
    assert half.dtype == np.float64
    assert half.tolist() == [[0, 0, 0.75, 0.5]]


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (
            lambda: boxes_of.convert_format([[1, 2, 3]], "xyxy", "xywh"),
            ValueError,
            "four",
        ),
        (
            lambda: boxes_of.convert_format([[1] * 4], "xyyx", "xywh"),
            ValueError,
            "'xyyx'",
        ),
        (
            lambda: boxes_of.convert_format([[1] * 4], "xyxy", "rel_xyxy"),
            ValueError,
            "needs the height and the width",
        ),
        (
            lambda: boxes_of.clip_to_image_size({"boxes": [[1] * 4]}),
            ValueError,
            "height=None",
        ),
        (
            lambda: boxes_of.clip_to_image_size({}, 2, 2, "xywh"),
            NotImplementedError,
            "convert_format first",
        ),
        (
            lambda: boxes_of.crop([[1] * 4], 0, 0, 2, 2, "xywh"),
            NotImplementedError,
            "convert_format first",
        ),
        (
            lambda: boxes_of.compute_iou([1] * 4, [[1] * 4], "xyxy"),
            ValueError,
            "boxes1 must be of shape",
        ),
        (
            lambda: boxes_of.compute_ciou([[1] * 4], [[1] * 4], "rel_xyxy"),
            ValueError,
            "need image_shape",
        ),
        (
            lambda: boxes_of.encode_box_to_deltas(
                [[1] * 4], [[1] * 4], "xyxy", "xyxy", variance=[1.0]
            ),
            ValueError,
            "4 numbers",
        ),
        (
            lambda: boxes_of.decode_deltas_to_boxes(
                [[1] * 4], [[1] * 4], "xyxy", "xyxy", "xyxy"
            ),
            ValueError,
            "center_xywh",
        ),
    ],
)
def test_what_is_refused(call, kind, told):
    with pytest.raises(kind, match=told):
        call()


def overlap(a, b):
    """Count the pixels of two boxes of whole numbers."""
    masks = []
    for x1, y1, x2, y2 in (a, b):
        mask = np.zeros((HEIGHT, WIDTH), bool)
        mask[int(y1) : int(y2), int(x1) : int(x2)] = True
        masks.append(mask)
    union = (masks[0] | masks[1]).sum()
    return (masks[0] & masks[1]).sum() / union if union else 0.0


def test_overlaps_are_those_of_pixels():
    first, second = drawn(1, 2, 4), drawn(2, 2, 3)
    made = boxes_of.compute_iou(first, second, "xyxy")
    wanted = [
        [[overlap(a, b) for b in others] for a in some]
        for some, others in zip(first, second, strict=True)
    ]
    np.testing.assert_allclose(made, wanted, atol=1e-6)
    for mine, theirs in ((first, second[0]), (first[1], second), (first[0], second[0])):
        made = boxes_of.compute_iou(mine, theirs, "xyxy")
        each = [np.broadcast_to(x, (2, *x.shape[-2:])) for x in (mine, theirs)]
        same = boxes_of.compute_iou(*each, "xyxy")
        np.testing.assert_array_equal(made, same if made.ndim == 3 else same[0])
    of_tensors = traced(lambda x, y: boxes_of.compute_iou(x, y, "xyxy"), first, second)
    np.testing.assert_allclose(of_tensors, wanted, atol=1e-6)


def test_boxes_without_numbers_are_masked():
    boxes = np.float32([[0, 0, 2, 2], [-1, -1, -1, -1]])
    made = boxes_of.compute_iou(boxes, boxes[:1], "xyxy", use_masking=True, mask_val=-7)
    np.testing.assert_allclose(made, [[1], [-7]], rtol=1e-6)


def test_complete_overlaps():
    boxes = np.float32([[0, 0, 4, 2], [0, 0, 4, 2], [0, 0, 4, 2]])
    others = np.float32([[0, 0, 4, 2], [8, 0, 12, 2], [0, 0, 2, 4]])
    made = boxes_of.compute_ciou(boxes, others, "xyxy")
    v = 4 / math.pi**2 * (math.atan(0.5) - math.atan(2)) ** 2
    iou = 4 / 12
    last = iou - (2 / 32 + v * v / (1 - iou + v))
    np.testing.assert_allclose(made, [1, 0 - 64 / 148, last], rtol=1e-4, atol=1e-4)
    same = traced(lambda x, y: boxes_of.compute_ciou(x, y, "xyxy"), boxes, others)
    np.testing.assert_allclose(same, made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("code", ["center_yxhw", "center_xywh"])
def test_codes_are_read_again(code):
    larger = np.float32([0, 0, 5, 5])
    anchors, boxes = drawn(3, 4) + larger, drawn(4, 2, 4) + larger
    options = {"variance": [0.1, 0.1, 0.2, 0.2], "image_shape": (HEIGHT, WIDTH, 3)}
    made = boxes_of.encode_box_to_deltas(
        anchors, boxes, "xyxy", "xyxy", encoding_format=code, **options
    )
    read = boxes_of.decode_deltas_to_boxes(
        anchors, made, "xyxy", "rel_xyxy", encoded_format=code, **options
    )
    np.testing.assert_allclose(read * [80, 60, 80, 60], boxes, atol=1e-3)
    levels = boxes_of.decode_deltas_to_boxes(
        {"a": anchors}, {"a": made}, "xyxy", "rel_xyxy", code, **options
    )
    np.testing.assert_array_equal(levels["a"], read)

    def both(x):
        coded = boxes_of.encode_box_to_deltas(anchors, x, "xyxy", "xyxy", code)
        return boxes_of.decode_deltas_to_boxes(anchors, coded, "xyxy", "xyxy", code)

    np.testing.assert_allclose(traced(both, boxes), boxes, atol=1e-3)


def test_crop_pad_and_clip():
    box = np.float32([[10, 20, 50, 60], [70, 80, 100, 120]])
    made = boxes_of.crop(box, top=10, left=20, height=40, width=30)
    assert made.tolist() == [[0, 10, 30, 40], [30, 40, 30, 40]]
    assert boxes_of.pad(box[:1], 1, 2).tolist() == [[12, 21, 52, 61]]
    labelled = {"boxes": box[None] - 30, "labels": np.int32([[4, 5]]), "more": 1}
    clipped = boxes_of.clip_to_image_size(labelled, 30, 40)
    assert clipped["boxes"].tolist() == [[[0, 0, 20, 30], [40, 30, 40, 30]]]
    assert clipped["labels"].tolist() == [[4, -1]]
    assert clipped["more"] == 1
    part = boxes_of.clip_to_image_size(
        {"boxes": np.float32([[-0.5, 0.2, 2, 0.5]])}, bounding_box_format="rel_xyxy"
    )
    np.testing.assert_allclose(part["boxes"], [[0, 0.2, 1, 0.5]])

    def changed(x, labels):
        made = boxes_of.clip_to_image_size({"boxes": x, "labels": labels}, 30, 40)
        return [boxes_of.pad(boxes_of.crop(x, 1, 2, 30, 30), 1, 2), made["labels"]]

    places, labels = traced(changed, labelled["boxes"], np.float32([[4, 5]]))
    wanted = boxes_of.pad(boxes_of.crop(labelled["boxes"], 1, 2, 30, 30), 1, 2)
    np.testing.assert_array_equal(places, wanted)
    assert labels.tolist() == [[4, -1]]


def test_a_quarter_turn_and_a_shift():
    box = np.float32([[[0, 0, 4, 2]]])
    turned = boxes_of.affine_transform(box, 90, 0, 0, 1, 0, 0, 11, 11)
    np.testing.assert_allclose(turned, [[[0, 6, 2, 10]]], atol=1e-5)
    moved = boxes_of.affine_transform(box, [0.0], 0.1, -0.2, 1, 0, 0, 11, 11)
    np.testing.assert_allclose(moved, [[[1, -2, 5, 0]]], atol=1e-5)
    angles = np.float32([10, 50])
    boxes = drawn(5, 2, 3)
    made = boxes_of.affine_transform(boxes, angles, 0.1, 0.2, 1.5, 5, 8, 60, 80)
    same = traced(
        lambda x, a: boxes_of.affine_transform(x, a, 0.1, 0.2, 1.5, 5, 8, 60, 80),
        boxes,
        angles,
    )
    np.testing.assert_allclose(same, made, rtol=1e-4, atol=1e-3)


def test_gradients_of_an_overlap():
    """A loss of boxes trains: the overlap grows, in a function and under a tape."""
    box, wanted = np.float32([[0, 0, 4, 4]]), np.float32([[1, 1, 6, 6]])

    def loss(x):
        return nn.ops.sum(1 - boxes_of.compute_ciou(x, wanted, "xyxy"))

    before = box
    for _ in range(20):
        box = box - 2 * mc.grad(loss)(box)
    assert overlap(box[0], wanted[0]) > overlap(before[0], wanted[0])
    with mc.GradientTape() as tape:
        start = nn.ops.convert_to_tensor(before)
        value = loss(start)
    np.testing.assert_allclose(tape.gradient(value, start), mc.grad(loss)(before), 1e-5)


def test_as_many_boxes_for_each_image():
    layer = nn.layers.MaxNumBoundingBoxes(2, fill_value=-3)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    data = {
        "images": images,
        "bounding_boxes": {
            "boxes": drawn(0, 2, 3),
            "labels": np.arange(6).reshape(2, 3),
            "scores": 1,
        },
    }
    made = layer(data)
    found = made["bounding_boxes"]
    assert made["images"] is images
    assert found["labels"].tolist() == [[0, 1], [3, 4]]
    np.testing.assert_array_equal(found["boxes"], drawn(0, 2, 3)[:, :2])
    assert found["scores"] == 1
    one = {"boxes": drawn(1, 1), "labels": np.array([9])}
    wide = nn.layers.MaxNumBoundingBoxes(3)({"bounding_boxes": one})["bounding_boxes"]
    assert wide["labels"].tolist() == [9, -1, -1]
    assert wide["boxes"][1:].tolist() == [[-1] * 4] * 2
    assert layer(images) is images
    again = nn.layers.deserialize(nn.layers.serialize(layer))
    assert (again.max_number, again.fill_value) == (2, -3)
    several = mc.data.Dataset.from_generator(
        lambda: (
            {"bounding_boxes": {"boxes": drawn(n, n), "labels": np.arange(n)}}
            for n in (1, 2, 3)
        )
    )
    batch = next(iter(several.map(nn.layers.MaxNumBoundingBoxes(3)).batch(3)))
    assert batch["bounding_boxes"]["boxes"].shape == (3, 3, 4)
    for wrong in ({"boxes": drawn(0, 2)}, {"boxes": drawn(0, 2), "labels": [1]}):
        with pytest.raises(ValueError, match="takes"):
            layer({"images": images, "bounding_boxes": wrong})

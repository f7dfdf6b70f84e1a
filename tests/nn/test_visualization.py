"""Images with boxes, masks and labels; galleries of them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import memcfg as mc

pictures = mc.nn.visualization
GRAY = np.full((1, 40, 60, 3), 100, np.uint8)
BOX = {"boxes": np.float32([[[10, 5, 30, 25]]]), "labels": np.int32([[1]])}


def changed(before, after):
    return (np.asarray(before) != np.asarray(after)).any(-1)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_frame_is_as_wide_as_is_said(width):
    made = pictures.draw_bounding_boxes(
        GRAY, BOX, "xyxy", color=(255, 0, 10), line_thickness=width
    )
    found = changed(GRAY, made)[0]
    rows, columns = found.any(1).nonzero()[0], found.any(0).nonzero()[0]
    assert (rows[-1] - rows[0], columns[-1] - columns[0]) == (19 + width, 19 + width)
    assert found[15].sum() == 2 * width
    assert found[:, 20].sum() == 2 * width
    assert {5, 25} <= {*found[:, 20].nonzero()[0]}
    assert (made[0][found] == [255, 0, 10]).all()
    assert (GRAY == 100).all()


def test_boxes_beyond_the_image_and_without_a_label():
    several = {
        "boxes": np.float32([[[-5, -5, 100, 100], [1, 1, 9, 9], [50, 30, 90, 90]]]),
        "labels": np.int32([[0, -1, 3]]),
    }
    made = pictures.draw_bounding_boxes(GRAY, several, "xyxy", line_thickness=1)
    found = changed(GRAY, made)[0]
    assert found[30, 50:].all()
    assert found[30:, 50].all()
    assert found.sum() == 10 + 10 - 1
    relative = {
        "boxes": np.float32([[[5 / 40, 10 / 60, 25 / 40, 30 / 60]]]),
        "labels": [[1]],
    }
    np.testing.assert_array_equal(
        pictures.draw_bounding_boxes(GRAY, relative, "rel_yxyx"),
        pictures.draw_bounding_boxes(GRAY, BOX, "xyxy"),
    )


def test_kinds_of_images():
    wanted = pictures.draw_bounding_boxes(GRAY, BOX, "xyxy")
    floats = GRAY.astype(np.float32)
    for given in (floats, floats / 255):
        np.testing.assert_array_equal(
            pictures.draw_bounding_boxes(given, BOX, "xyxy"), wanted
        )
    first = GRAY.transpose(0, 3, 1, 2)
    made = pictures.draw_bounding_boxes(
        first, BOX, "xyxy", data_format="channels_first"
    )
    np.testing.assert_array_equal(made, wanted.transpose(0, 3, 1, 2))
    one = pictures.draw_bounding_boxes(GRAY[..., :1], BOX, "xyxy", color=(7, 8, 9))
    assert {*one.ravel()} == {100, 7}


def test_names_are_written_where_there_is_room():
    low = {"boxes": np.float32([[[10, 60, 40, 90]]]), "labels": [[4]]}
    high = {"boxes": np.float32([[[10, 5, 40, 35]]]), "labels": [[4]]}
    image = np.zeros((1, 100, 120, 3), np.uint8)
    given = {"class_mapping": {4: "cat"}, "font_scale": 0.5, "color": (9, 9, 9)}
    above = pictures.draw_bounding_boxes(image, low, "xyxy", **given)
    assert above[0, 40:57].any()
    assert not above[0, :35].any()
    within = pictures.draw_bounding_boxes(image, high, "xyxy", **given)
    assert within[0, 8:33, 13:37].any()
    assert {*above.ravel()} == {0, 9}
    bare = pictures.draw_bounding_boxes(image, low, "xyxy", color=(9, 9, 9))
    assert not bare[0, 40:57].any()
    sure = pictures.draw_bounding_boxes(
        image, {**low, "confidences": [[0.913]]}, "xyxy", **given
    )
    assert (sure > 0).sum() > (above > 0).sum()
    thick = pictures.draw_bounding_boxes(image, low, "xyxy", text_thickness=3, **given)
    assert (thick > 0).sum() > (above > 0).sum()


def test_masks_are_mixed_with_the_image():
    masks = np.zeros((1, 40, 60), np.int32)
    masks[0, :10] = 1
    masks[0, 10:20] = 2
    colors = {1: (200, 0, 50), 2: (0, 100, 255)}
    made = pictures.draw_segmentation_masks(
        GRAY, masks, color_mapping=colors, alpha=0.25
    )
    assert (made[0, :10] == [125, 75, 87]).all()
    assert (made[0, 10:20] == [75, 100, 138]).all()
    assert (made[0, 20:] == 100).all()
    whole = pictures.draw_segmentation_masks(
        GRAY, masks[..., None], color_mapping=colors, blend=False, ignore_index=2
    )
    assert (whole[0, :10] == [200, 0, 50]).all()
    assert (whole[0, 10:] == 100).all()
    known = pictures.draw_segmentation_masks(GRAY, masks, 2, blend=False)
    assert (
        known[0, :10] == [each % 255 for each in (2**25 - 1, 2**15 - 1, 2**21 - 1)]
    ).all()
    assert (known[0, 10:20] == 100).all()
    assert (known[0, 20:] == 0).all()


def test_galleries(tmp_path):
    from PIL import Image

    images = np.stack([np.full((8, 8, 3), value, np.float32) for value in (0, 0.4, 1)])
    path = tmp_path / "images.png"
    pictures.plot_image_gallery(
        images,
        y_true=[0, 1, 0],
        y_pred=[1, 1, 5],
        label_map={0: "a", 1: "b"},
        value_range=(0, 1),
        path=path,
        rows=1,
        transparent=False,
    )
    pixels = np.asarray(Image.open(path).convert("L"))
    assert pixels.shape[1] > 2 * pixels.shape[0]
    assert (pixels == 102).sum() > 1000
    assert (pixels == 0).sum() > 1000
    boxes = tmp_path / "boxes.png"
    pictures.plot_bounding_box_gallery(
        GRAY, "xyxy", BOX, BOX, path=boxes, legend=True, class_mapping={1: "x"}, scale=4
    )
    colors = {*map(tuple, np.asarray(Image.open(boxes).convert("RGB")).reshape(-1, 3))}
    assert {(100, 100, 100), (255, 235, 59)} <= colors
    masks = tmp_path / "masks.png"
    pictures.plot_segmentation_mask_gallery(
        GRAY,
        2,
        y_true=np.ones((1, 40, 60, 1)),
        y_pred=np.zeros((1, 40, 60, 1)),
        path=masks,
        blend=False,
    )
    found = np.asarray(Image.open(masks).convert("RGB"))
    assert found.shape[1] > 2 * found.shape[0]
    colors = {*map(tuple, found.reshape(-1, 3))}
    assert {(100, 100, 100), (0, 0, 0), (2**25 % 255 - 1, 127, 31)} <= colors


def test_all_images_are_shown(monkeypatch):
    from matplotlib import pyplot

    seen = []
    monkeypatch.setattr(pyplot, "show", lambda: seen.append(pyplot.gcf()))
    for count, rows, cols in (
        (5, None, None),
        (5, 2, None),
        (6, None, 6),
        (1, None, None),
    ):
        pictures.plot_image_gallery(np.zeros((count, 4, 4, 3)), rows=rows, cols=cols)
        assert len(seen[-1].axes) == count
    pictures.plot_image_gallery(np.zeros((4, 4, 4, 1)), rows=1, cols=2, show=True)
    assert len(seen[-1].axes) == 2
    pictures.plot_image_gallery(np.zeros((1, 4, 4, 3)), show=False)
    assert len(seen) == 5
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (
            lambda: pictures.draw_bounding_boxes(GRAY[0], BOX, "xyxy"),
            ValueError,
            "a batch",
        ),
        (
            lambda: pictures.draw_bounding_boxes(GRAY, [], "xyxy"),
            TypeError,
            "is a dict",
        ),
        (
            lambda: pictures.draw_bounding_boxes(GRAY, {"boxes": 1}, "xyxy"),
            ValueError,
            "labels",
        ),
        (
            lambda: pictures.draw_bounding_boxes(GRAY, BOX, "xyxy", color=3),
            ValueError,
            "three numbers",
        ),
        (
            lambda: pictures.draw_segmentation_masks(GRAY, np.zeros((1, 40, 60))),
            TypeError,
            "integers",
        ),
        (
            lambda: pictures.draw_segmentation_masks(GRAY, np.zeros((1, 4, 6), int)),
            ValueError,
            "do not fit",
        ),
        (lambda: pictures.plot_image_gallery(GRAY, [1]), ValueError, "label_map"),
        (
            lambda: pictures.plot_image_gallery(GRAY, path="x.png", show=True),
            ValueError,
            "not both",
        ),
        (
            lambda: pictures.plot_bounding_box_gallery(
                GRAY, "xyxy", legend=True, legend_handles=[1]
            ),
            ValueError,
            "not both",
        ),
    ],
)
def test_what_is_refused(call, kind, told):
    with pytest.raises(kind, match=told):
        call()


def test_without_the_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(mc.errors.MissingDependencyError, match=r"memcfg\[images\]"):
        pictures.draw_bounding_boxes(GRAY, BOX, "xyxy", {1: "a"})
    assert pictures.draw_bounding_boxes(GRAY, BOX, "xyxy").any()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(mc.errors.MissingDependencyError, match=r"memcfg\[plots\]"):
        pictures.plot_image_gallery(GRAY)

"""Ops of `nn.ops.image` beside NumPy, on arrays, in models and with gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
image = nn.ops.image


def numbers(*shape):
    return np.random.default_rng(0).random(shape).astype(np.float32)


def patches(x, window, steps, dilation):
    """The patches at each place, by loops."""
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
    lengths = x.shape[1:-1]
    counts = [(n - r) // s + 1 for n, r, s in zip(lengths, reach, steps, strict=True)]
    result = np.empty((len(x), *counts, int(np.prod(window)) * x.shape[-1]), x.dtype)
    for place in itertools.product(*map(range, counts)):
        key = tuple(
            slice(p * s, p * s + r, d)
            for p, s, r, d in zip(place, steps, reach, dilation, strict=True)
        )
        result[(slice(None), *place)] = x[(slice(None), *key)].reshape(len(x), -1)
    return result


@given(st.data(), st.sampled_from([2, 3]))
@settings(max_examples=25, deadline=None)
def test_patches_are_those_of_loops(data, rank):
    few = st.integers(1, 3)
    window, steps = (
        data.draw(st.tuples(*[few] * rank), label) for label in ("window", "steps")
    )
    alike = data.draw(st.booleans())
    steps, dilation = (window, (1,) * rank) if alike else (steps, (2,) * rank)
    x = numbers(2, *data.draw(st.tuples(*[st.integers(5, 7)] * rank)), 2)
    op = image.extract_patches if rank == 2 else image.extract_patches_3d
    found = op(x, window, strides=steps, dilation_rate=dilation)
    np.testing.assert_array_equal(found, patches(x, window, steps, dilation))


def test_patches_train_what_is_before_them():
    model = nn.Sequential([nn.Input((5, 5, 1)), nn.Conv2D(1, 1, use_bias=False)])
    model.add(nn.Lambda(lambda x: image.extract_patches(x, 3, 1, padding="same")))
    assert model.output_shape == (None, 5, 5, 9)
    x, (kernel,) = numbers(2, 5, 5, 1), model.get_weights()
    model.compile(nn.SGD(1.0), "mse")
    model.fit(x, np.zeros((2, 5, 5, 9)), verbose=0)
    times = np.convolve(np.ones(5), np.ones(3), "same")  # a pixel is in so many
    times = np.outer(times, times)[..., None]
    slope = 2 * (kernel * x * x * times).sum() / (x.size * 9)
    np.testing.assert_allclose(model.get_weights()[0], kernel - slope, rtol=1e-5)


def test_one_image_is_that_of_a_batch():
    x = numbers(2, 13, 12, 3)
    for op in (
        lambda x: image.resize(x, (5, 20)),
        lambda x: image.crop_images(x, 1, 2, 3, 4),
        lambda x: image.pad_images(x, 1, 2, 3, 4),
        lambda x: image.extract_patches(x, (3, 4), padding="same"),
        lambda x: image.gaussian_blur(x, 5, 2.0),
        image.sobel_edges,
        image.rgb_to_hsv,
        lambda x: image.ssim(x, x * x),
    ):
        np.testing.assert_allclose(op(x[1]), op(x)[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: image.crop_images(x, 1, 1, 1), "exactly two of left_cropping"),
        (lambda x: image.crop_images(x, 9, 1, 1, 1), "do not fit the length 6"),
        (lambda x: image.pad_images(x, 1, 1, 1, 1, 9), "exactly two of both paddings"),
        (lambda x: image.pad_images(x, 1, 1, None, 1, 5), "a padding of the height"),
        (lambda x: image.extract_patches(x, 9), "do not fit"),
        (lambda x: image.extract_patches(x, 2, data_format="channels_first"), "last"),
        (lambda x: image.gaussian_blur(x, 4), "must be odd"),
        (lambda x: image.rgb_to_hsv(x[..., :2]), "three channels"),
        (lambda x: image.sobel_edges(x[0, 0]), "height, width, channels"),
    ],
)
def test_what_cannot_be_is_told(call, words):
    with pytest.raises(ValueError, match=words):
        call(numbers(1, 6, 6, 3))


def test_namespaces_of_keras_are_here():
    ops = nn.ops
    assert ops.nn.relu is ops.numpy.relu is ops.linalg.relu is ops.relu
    with pytest.raises(AttributeError, match="no attribute"):
        image.none_such  # noqa: B018


def at(x, place, order, fill_mode, fill_value):
    """An element of an array at a place between others, one by one."""

    def element(index):
        inside = []
        for i, n in zip(index, x.shape, strict=True):
            if fill_mode == "constant" and not 0 <= i < n:
                return fill_value
            row = list(range(n))
            if fill_mode == "mirror":
                row = row + row[-2:0:-1]
            elif fill_mode == "reflect":
                row = row + row[::-1]
            wraps = fill_mode in ("wrap", "mirror", "reflect")
            inside.append(row[i % len(row)] if wraps else min(max(i, 0), n - 1))
        return x[tuple(inside)]

    if order == 0:
        return element([int(np.rint(p)) for p in place])
    total = 0.0
    for corner in itertools.product((0, 1), repeat=len(place)):
        lower = [int(np.floor(p)) for p in place]
        shares = [
            p - low if up else 1 - (p - low)
            for p, low, up in zip(place, lower, corner, strict=True)
        ]
        index = [low + up for low, up in zip(lower, corner, strict=True)]
        total += np.prod(shares) * element(index)
    return total


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "fill_mode", ["constant", "nearest", "wrap", "mirror", "reflect"]
)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 4, 3)])
def test_arrays_at_places_between_elements(shape, fill_mode, order):
    x = numbers(*shape)
    rng = np.random.default_rng(1)
    places = rng.uniform(-9, 9, (len(shape), 2, 5)).astype(np.float32)
    found = image.map_coordinates(x, places, order, fill_mode, 0.5)
    expected = [
        at(x, p, order, fill_mode, 0.5) for p in places.reshape(len(shape), -1).T
    ]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-4, atol=1e-5)


def test_images_are_read_where_an_affine_map_says():
    x = numbers(2, 6, 7, 3)
    shift = np.array([1, 0, 2, 0, 1, -1, 0, 0], np.float32)  # x + 2, y - 1
    stretch = np.array([0.5, 0, 0, 0, 1, 0, 0, 0.25], np.float32)
    found = image.affine_transform(x, np.stack([shift, stretch]), fill_value=9.0)
    expected = np.full_like(x[0], 9.0)
    expected[1:, :5] = x[0][:5, 2:]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    for row, column in ((0, 0), (2, 4), (5, 6)):
        depth = 0.25 * row + 1
        place = row / depth, 0.5 * column / depth
        wanted = [at(x[1][..., c], place, 1, "constant", 9.0) for c in range(3)]
        np.testing.assert_allclose(found[1][row, column], wanted, rtol=1e-4)
    np.testing.assert_array_equal(
        found[0], image.affine_transform(x[0], shift, fill_value=9.0)
    )


def test_four_points_of_images_are_moved():
    """A column and a row are swapped by a turn of the corners."""
    x = numbers(1, 5, 5, 2)
    corners = np.array([[0, 0], [4, 0], [0, 4], [4, 4]], np.float32)
    turned = corners[[2, 0, 3, 1]]  # by a quarter
    found = image.perspective_transform(x, corners, turned)
    np.testing.assert_allclose(found[0], np.rot90(x[0], 1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["linear", "cubic", "lanczos3", "lanczos5"])
def test_axes_are_scaled_and_moved(method):
    x = numbers(2, 6, 5, 3)
    scale, move = np.ones(2, np.float32), np.array([2, -1], np.float32)
    found = image.scale_and_translate(x, x.shape, scale, move, (1, 2), method)
    expected = np.zeros_like(x)
    expected[:, 2:, :4] = x[:, :4, 1:]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    ones = np.ones((1, 8, 1), np.float32)
    half = image.scale_and_translate(
        ones, (1, 4, 1), np.array([0.5]), np.zeros(1), (1,), method
    )
    np.testing.assert_allclose(half, 1.0, rtol=1e-5)  # weights sum to 1


def test_gradients_pass_through_places():
    """A slope by images and by the numbers of a map, against differences."""
    x = numbers(1, 5, 5, 1)
    row = np.array([[0.931, 0.117, 0.373, -0.109, 1.087, 0.243, 0, 0]], np.float32)

    def loss(x, row):
        moved = image.affine_transform(x, row, fill_mode="nearest")
        return nn.ops.sum(moved * moved)

    of_x, of_row = mc.grad(loss, (0, 1))(x, row)
    both = mc.function(loss)
    for value, slope, place in ((x, of_x, (0, 2, 3, 0)), (row, of_row, (0, 2))):
        ends = []
        for change in (2e-3, -2e-3):
            value[place] += change
            ends.append(both(x, row))
            value[place] -= change
        assert abs((ends[0] - ends[1]) / 4e-3 - slope[place]) < 2e-2 * (
            1 + abs(slope[place])
        )


def test_images_are_bent_by_smooth_noise():
    x = np.mgrid[:16, :16].transpose(1, 2, 0)[None].astype(np.float32)
    found = image.elastic_transform(x, 4.0, 2.0, fill_mode="nearest", seed=3)
    again = image.elastic_transform(x, 4.0, 2.0, fill_mode="nearest", seed=3)
    np.testing.assert_array_equal(found, again)
    moves = (found - x)[0, 4:12, 4:12]
    assert 0.1 < np.abs(moves).mean() < 8
    assert np.abs(np.diff(moves, axis=0)).mean() < 0.5 * np.abs(moves).mean()
    same = image.elastic_transform(x[0], 0.0, 2.0)
    np.testing.assert_allclose(same, x[0], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: image.affine_transform(x, np.ones(7)), r"transform must have shape"),
        (lambda x: image.affine_transform(x, np.ones(8), "cubic"), "interpolation"),
        (lambda x: image.map_coordinates(x, np.ones((2, 3)), 1), "each axis"),
        (
            lambda x: image.map_coordinates(x, np.ones((4, 3)), 2),
            "order must be 0 or 1",
        ),
        (
            lambda x: image.scale_and_translate(
                x, (1, 2), [1.0], [0.0], (1,), "linear"
            ),
            "do not fit",
        ),
        (
            lambda x: image.scale_and_translate(x, x.shape, [1.0], [0.0], (1,), "odd"),
            "unknown method",
        ),
    ],
)
def test_places_that_cannot_be_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(numbers(1, 6, 6, 3))

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
    with pytest.raises(AttributeError, match="layers such as RandomZoom"):
        image.map_coordinates  # noqa: B018

"""Layers over volumes, against loops of NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
BATCH = 2


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def predicted(layer, x):
    start = nn.Input(x.shape[1:])
    model = nn.Model(start, layer(start))
    weights = [samples(*w.shape, seed=i + 1) for i, w in enumerate(model.get_weights())]
    model.set_weights(weights)
    y = model.predict(x, verbose=0)
    model.close()
    return y, weights


def around(size, window, stride, padding, dilation=1):
    """Zeros before and after an axis, by TensorFlow's rule."""
    if padding == "valid":
        return 0, 0
    reach = (window - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


def windows_of(x, size, strides, padding, dilation=(1, 1, 1), value=0.0):
    """Each place of the output with its window, [N, KD, KH, KW, C]."""
    pads = [
        around(*each[:3], padding, each[3])
        for each in zip(x.shape[1:4], size, strides, dilation, strict=True)
    ]
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=value)
    counts = [
        (length - (k - 1) * d - 1) // s + 1
        for length, k, s, d in zip(x.shape[1:4], size, strides, dilation, strict=True)
    ]
    found = np.empty((len(x), *counts, *size, x.shape[-1]), x.dtype)
    for place in product(*map(range, counts)):
        cut = tuple(
            slice(i * s, i * s + (k - 1) * d + 1, d)
            for i, s, k, d in zip(place, strides, size, dilation, strict=True)
        )
        found[(slice(None), *place)] = x[(slice(None), *cut)]
    return found


THREE = st.tuples(*[st.integers(1, 3)] * 3)
SIZES = st.tuples(*[st.integers(3, 6)] * 3)
PADDINGS = st.sampled_from(["valid", "same"])


@given(size=SIZES, window=THREE, strides=THREE, padding=PADDINGS, groups=st.booleans())
@settings(max_examples=25, deadline=None)
def test_convolutions(size, window, strides, padding, groups):
    x = samples(BATCH, *size, 4)
    count = 2 if groups else 1
    layer = nn.Conv3D(6, window, strides, padding, groups=count)
    y, (kernel, bias) = predicted(layer, x)
    patches = windows_of(x, window, strides, padding)
    parts = [
        np.einsum(
            "ndhwijkc,ijkco->ndhwo",
            patches[..., g * 4 // count : (g + 1) * 4 // count],
            kernel[..., g * 6 // count : (g + 1) * 6 // count],
        )
        for g in range(count)
    ]
    wanted = np.concatenate(parts, -1) + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


def test_dilated_windows_and_numbers_of_zeros():
    x = samples(BATCH, 7, 6, 8, 3)
    y, (kernel, bias) = predicted(nn.Conv3D(4, 2, dilation_rate=(3, 1, 2)), x)
    patches = windows_of(x, (2, 2, 2), (1, 1, 1), "valid", (3, 1, 2))
    wanted = np.einsum("ndhwijkc,ijkco->ndhwo", patches, kernel) + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    sides = ((1, 0), (2, 1), (0, 3))
    y, (kernel, bias) = predicted(nn.Conv3D(4, 2, padding=sides), x)
    padded, _ = predicted(nn.ZeroPadding3D(sides), x)
    np.testing.assert_array_equal(padded, np.pad(x, [(0, 0), *sides, (0, 0)]))
    patches = windows_of(padded, (2, 2, 2), (1, 1, 1), "valid")
    wanted = np.einsum("ndhwijkc,ijkco->ndhwo", patches, kernel) + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


@given(size=SIZES, window=THREE, strides=THREE, padding=PADDINGS)
@settings(max_examples=15, deadline=None)
def test_transposed_convolutions_are_adjoint(size, window, strides, padding):
    """<conv(x), y> = <x, conv_transpose(y)> for one kernel."""
    y = samples(BATCH, *size, 3)
    layer = nn.Conv3DTranspose(4, window, strides, padding, use_bias=False)
    found, (kernel,) = predicted(layer, y)
    x = samples(*found.shape, seed=9)
    patches = windows_of(x, window, strides, padding)
    ahead = np.einsum("ndhwijkc,ijkco->ndhwo", patches, kernel)
    assert ahead.shape == y.shape
    np.testing.assert_allclose(
        np.vdot(ahead, y), np.vdot(x, found), rtol=1e-3, atol=1e-2
    )


@given(size=SIZES, window=THREE, strides=THREE, padding=PADDINGS)
@settings(max_examples=25, deadline=None)
def test_pooling(size, window, strides, padding):
    x = samples(BATCH, *size, 3)
    most, _ = predicted(nn.MaxPooling3D(window, strides, padding), x)
    patches = windows_of(x, window, strides, padding, value=-np.inf)
    np.testing.assert_array_equal(most, patches.max((4, 5, 6)))
    mean, _ = predicted(nn.AveragePooling3D(window, strides, padding), x)
    patches = windows_of(x, window, strides, padding, value=np.nan)
    wanted = np.nanmean(patches, (4, 5, 6))
    np.testing.assert_allclose(mean, wanted, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_maximum_goes_to_the_first_of_equals():
    """In the order of depth, height and width."""
    x = nn.Input((2, 2, 2, 1))
    factor = nn.PReLU(alpha_initializer="ones")  # x * alpha for negative x
    model = nn.Model(x, nn.Flatten()(nn.MaxPooling3D()(factor(x))))
    model.compile(nn.SGD(1.0), nn.losses.MeanAbsoluteError())
    values = -np.ones((1, 2, 2, 2, 1), np.float32)
    values[0, 0, 0] = -2  # equal maxima from (0, 1, 0) on
    model.train_on_batch(values, np.float32([[-9]]))
    moved = np.argwhere(model.get_weights()[0] != 1)
    np.testing.assert_array_equal(moved, [[0, 1, 0, 0]])


def test_layers_that_move_elements():
    x = samples(BATCH, 4, 3, 5, 2)
    for layer, wanted in (
        (nn.GlobalMaxPooling3D(), x.max((1, 2, 3))),
        (nn.GlobalAveragePooling3D(keepdims=True), x.mean((1, 2, 3), keepdims=True)),
        (nn.Cropping3D(), x[:, 1:-1, 1:-1, 1:-1]),
        (nn.Cropping3D((1, 0, (2, 1))), x[:, 1:-1, :, 2:-1]),
        (nn.UpSampling3D((1, 2, 3)), x.repeat(2, 2).repeat(3, 3)),
        (nn.AdaptiveMaxPooling3D((2, 3, 1)), None),
    ):
        y, _ = predicted(layer, x)
        if wanted is None:
            wanted = x.reshape(BATCH, 2, 2, 3, 5, 2).max((2, 4))[:, :, :, None]
        np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


def test_whole_channels_of_volumes_are_dropped():
    x = np.ones((BATCH, 3, 2, 4, 16), np.float32)
    start = nn.Input(x.shape[1:])
    y = nn.SpatialDropout3D(0.5, seed=1)(start, training=True)
    found = nn.Model(start, y).predict(x, verbose=0)
    assert set(np.unique(found)) == {0, 2}
    assert (found == found[:, :1, :1, :1]).all()


def net():
    nn.set_random_seed(2)
    layers = [
        nn.Conv3D(6, 3, padding="same", activation="relu"),
        nn.MaxPooling3D(),
        nn.Conv3D(8, 3, padding="same", activation="relu"),
        nn.AveragePooling3D((1, 2, 1)),
        nn.Conv3DTranspose(4, 2, strides=2),
        nn.GlobalAveragePooling3D(),
        nn.Dense(3),
    ]
    return nn.Sequential([nn.Input((8, 8, 6, 2)), *layers])


@pytest.mark.parametrize("policy", ["share", "sqrt_checkpoint", "auto"])
def test_policies_have_the_same_bits_and_the_peak_that_they_say(policy):
    x, y = samples(4, 8, 8, 6, 2), samples(4, 3, seed=1)
    found = []
    for each in ("keep_all", policy):
        model = net()
        model.compile("adam", "mse", memory=each)
        for _ in range(3):
            model.train_on_batch(x, y)
        report = model.memory_report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        found.append(model.get_weights())
        model.close()
    assert all(map(np.array_equal, *found))


def test_a_net_of_volumes_trains_within_a_limit():
    x, y = samples(8, 8, 8, 6, 2), samples(8, 3, seed=1)
    model = net()
    model.compile("adam", "mse")
    graph = model.graph(8)
    limit = -(-mc.plan.sqrt_checkpoint()(graph).peak_bytes // 4096) * 4096
    assert limit < mc.plan.share()(graph).peak_bytes
    mc.config.set_memory_limit("CPU:0", limit)
    losses = model.fit(x, y, batch_size=8, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Conv3D(2, (2, 2)), "kernel_size must be one integer or three"),
        (lambda: nn.Conv3D(2, 2)(nn.Input((4, 4, 1))), r"expects volumes \(None, dep"),
        (lambda: nn.MaxPooling3D()(nn.Input((4, 4, 1))), r"expects volumes \(None, d"),
        (lambda: nn.Cropping3D(2)(nn.Input((4, 5, 5, 1))), "removes all of an input"),
        (lambda: nn.UpSampling3D()(nn.Input((4, 4, 1))), r"expects volumes \(None, d"),
        (lambda: nn.Conv3D(2, 5)(nn.Input((4, 9, 9, 1))), "a window of 5 does not fit"),
        (lambda: nn.Conv3D(2, 2, padding="causal"), "padding must be 'valid' or 's"),
    ],
)
def test_what_does_not_fit_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Convolutions, pooling and normalisation against plain loops of NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn


def predicted(layer, x, weights=None):
    """What a layer makes of samples, with random weights unless some are given."""
    model = nn.Model(start := nn.Input(x.shape[1:]), layer(start))
    if weights is None:
        rng = np.random.default_rng(1)
        weights = [
            rng.normal(size=w.shape).astype(np.float32) for w in model.get_weights()
        ]
    model.set_weights(weights)
    found = model.predict(x, verbose=0)
    model.close()
    return found, weights


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def strided(size, window, stride, padding):
    """Places of windows: (place of the output, place of the input, of the window)."""
    if padding == "same":
        places = -(-size // stride)
        before = max((places - 1) * stride + window - size, 0) // 2
    else:
        places, before = (size - window) // stride + 1, 0
    if padding == "causal":
        places, before = -(-size // stride), window - 1
    for out, k in product(range(places), range(window)):
        if 0 <= (at := out * stride + k - before) < size:
            yield out, at, k


EXPLICIT = {
    "Conv2D": lambda **more: nn.Conv2D(4, 3, 2, **more),
    "DepthwiseConv2D": lambda **more: nn.DepthwiseConv2D(3, 2, **more),
    "SeparableConv2D": lambda **more: nn.SeparableConv2D(4, 3, 2, **more),
}


@pytest.mark.parametrize("kind", EXPLICIT)
@pytest.mark.parametrize("padding", [0, 2, (1, 2), ((1, 0), (0, 3))])
def test_numbers_pad_a_convolution_as_zeros_around_it(kind, padding):
    x = images(2, 5, 6, 3)
    found, weights = predicted(EXPLICIT[kind](padding=padding), x)
    apart = nn.Sequential([nn.ZeroPadding2D(padding), EXPLICIT[kind]()])
    wanted, _ = predicted(apart, x, weights)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("padding", [1, (2, 3)])
def test_numbers_pad_a_convolution_of_sequences(padding):
    x = images(2, 5, 3)
    found, weights = predicted(nn.Conv1D(4, 3, 2, padding), x)
    apart = nn.Sequential([nn.ZeroPadding1D(padding), nn.Conv1D(4, 3, 2)])
    wanted, _ = predicted(apart, x, weights)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def test_numbers_pad_pooling_by_what_does_not_count():
    x, sides = images(2, 5, 6, 3), ((1, 0), (0, 2))
    around = np.pad(x, ((0, 0), *sides, (0, 0)), constant_values=np.nan)
    windows = [
        [around[:, i : i + 3, j : j + 3] for j in range(0, 6, 2)] for i in (0, 2)
    ]
    for kind, reduce in ((nn.MaxPooling2D, np.nanmax), (nn.AvgPool2D, np.nanmean)):
        found, _ = predicted(kind(3, (2, 2), sides), x)
        wanted = [[reduce(each, axis=(1, 2)) for each in row] for row in windows]
        wanted = np.moveaxis(np.array(wanted), 2, 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "strides", "padding"),
    [(2, None, "valid"), (2, 2, ((0, 1), (0, 1))), (3, 2, 1), (3, 1, "same")],
)
def test_unpooling_puts_elements_where_maxima_were(size, strides, padding):
    x = images(2, 5, 7, 3)
    start, scale = nn.Input(x.shape[1:]), 10.0
    same = {"strides": strides, "padding": padding}
    y, places = nn.MaxPooling2D(size, return_indices=True, **same)(start)
    assert places.dtype == "uint8"
    again = nn.MaxUnpooling2D(size, output_size=(5, 7), **same)([y * scale, places])
    model = nn.Model(start, [y, again])
    maxima, found = model.predict(x, verbose=0)
    model.close()
    wanted = np.zeros_like(x)  # all numbers differ: a maximum's place is known
    for n, c in np.ndindex(2, 3):
        for each in maxima[n, :, :, c].ravel():
            wanted[n, :, :, c][x[n, :, :, c] == each] += scale * each
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_unpooling_needs_the_places_of_its_windows():
    x, y = nn.Input((8, 8, 3)), nn.Input((3, 4, 3))
    pooled, places = nn.MaxPooling2D(return_indices=True)(x)
    assert nn.MaxUnpooling2D()([pooled, places]).shape == (None, 8, 8, 3)
    assert nn.MaxPooling2D(return_indices=False)(x).shape == (None, 4, 4, 3)
    with pytest.raises(ValueError, match="not those of windows over"):
        nn.MaxUnpooling2D()([y, places])
    with pytest.raises(ValueError, match="not those of windows over"):
        nn.MaxUnpooling2D(output_size=(11, 8))([pooled, places])
    with pytest.raises(ValueError, match="output_size is required"):
        nn.MaxUnpooling2D(padding="same")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Conv2D(2, 3, padding=-1), ValueError, "zero or more"),
        (lambda: nn.Conv2D(2, 3, padding=(1, 2, 3)), ValueError, "must have 2 entries"),
        (lambda: nn.Conv2D(2, 3, padding=1.5), ValueError, "padding must be 'valid'"),
        (lambda: nn.Conv2D(2, 3, padding=True), TypeError, "an integer"),
        (lambda: nn.Conv2DTranspose(2, 3, padding=1), ValueError, "padding must be"),
        (
            lambda: nn.MaxPooling2D(2, padding=2)(nn.Input((4, 4, 1))),
            ValueError,
            "in the padding alone",
        ),
    ],
)
def test_padding_that_cannot_be_honoured(make, error, message):
    with pytest.raises(error, match=message):
        make()


cases = st.tuples(
    st.integers(4, 7), st.integers(1, 3), st.integers(1, 3), st.booleans()
)


@settings(max_examples=15, deadline=None)
@given(cases, st.sampled_from(["valid", "same", "causal"]))
def test_convolution_of_sequences(case, padding):
    size, window, stride, use_bias = case
    x = images(2, size, 3)
    layer = nn.Conv1D(4, window, stride, padding, use_bias=use_bias)
    found, (kernel, *bias) = predicted(layer, x)
    wanted = np.zeros(found.shape)
    for out, at, k in strided(size, window, stride, padding):
        wanted[:, out] += x[:, at] @ kernel[k]
    np.testing.assert_allclose(found, wanted + sum(bias), rtol=2e-5, atol=2e-5)


@settings(max_examples=15, deadline=None)
@given(cases, st.sampled_from(["valid", "same"]), st.integers(1, 2))
def test_convolution_of_each_channel(case, padding, multiplier):
    size, window, stride, use_bias = case
    x = images(2, size, size, 3)
    layer = nn.DepthwiseConv2D(
        window, stride, padding, depth_multiplier=multiplier, use_bias=use_bias
    )
    found, (kernel, *bias) = predicted(layer, x)
    wanted = np.zeros((*found.shape[:3], 3, multiplier))
    places = list(strided(size, window, stride, padding))
    for (i, y, k), (j, z, m) in product(places, places):
        wanted[:, i, j] += x[:, y, z, :, None] * kernel[k, m]
    wanted = wanted.reshape(found.shape) + sum(bias)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    separable = nn.SeparableConv2D(
        5, window, stride, padding, depth_multiplier=multiplier, use_bias=False
    )
    point = images(1, 1, 3 * multiplier, 5)
    mixed, _ = predicted(separable, x, [kernel, point])
    expected = (wanted - sum(bias)) @ point[0, 0]
    np.testing.assert_allclose(mixed, expected, rtol=5e-5, atol=5e-5)


@settings(max_examples=15, deadline=None)
@given(cases, st.sampled_from(["valid", "same"]))
def test_transposed_convolution(case, padding):
    """Each input pixel adds its kernel to the output: where a convolution read."""
    size, window, stride, use_bias = case
    x = images(2, size, size, 3)
    layer = nn.Conv2DTranspose(4, window, stride, padding, use_bias=use_bias)
    found, (kernel, *bias) = predicted(layer, x)
    out = found.shape[1]
    assert out == size * stride + (max(window - stride, 0) if padding == "valid" else 0)
    wanted = np.zeros(found.shape)
    places = list(strided(out, window, stride, padding))
    for (i, y, k), (j, z, m) in product(places, places):
        wanted[:, y, z] += x[:, i, j] @ kernel[k, m].T
    np.testing.assert_allclose(found, wanted + sum(bias), rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("kind", "total"), [("Max", np.max), ("Average", np.mean)])
def test_pooling_of_sequences(kind, total, padding):
    x = images(2, 7, 3)
    found, _ = predicted(getattr(nn, f"{kind}Pooling1D")(3, 2, padding), x)
    windows = {}
    for out, at, _k in strided(7, 3, 2, padding):
        windows.setdefault(out, []).append(x[:, at])
    wanted = np.stack([total(windows[i], axis=0) for i in sorted(windows)], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(("kind", "total"), [("Max", np.max), ("Average", np.mean)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_global_pooling(kind, total, keepdims):
    for rank, shape in ((1, (2, 7, 3)), (2, (2, 5, 4, 3))):
        x = images(*shape)
        layer = getattr(nn, f"Global{kind}Pooling{rank}D")(keepdims=keepdims)
        found, _ = predicted(layer, x)
        wanted = total(x, axis=tuple(range(1, rank + 1)), keepdims=keepdims)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 6, -1])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_group_normalization(groups, center, scale):
    x = 3 * images(2, 4, 5, 6) + 1
    layer = nn.GroupNormalization(groups, center=center, scale=scale)
    found, weights = predicted(layer, x)
    parts = x.reshape(2, 20, 6 if groups == -1 else groups, -1)
    mean = parts.mean(axis=(1, 3), keepdims=True)
    variance = parts.var(axis=(1, 3), keepdims=True)
    wanted = ((parts - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape)
    if scale:
        wanted = wanted * weights.pop(0)
    if center:
        wanted = wanted + weights.pop(0)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("stride", [2, 3])
def test_gradients_of_windows_that_leave_pixels_out(channels, stride):
    """Of few channels, oneDNN's are wrong."""
    for shape in ((8, 6), (16, 12), (7, 5)):
        x = images(3, *shape, channels)
        start = nn.Input(x.shape[1:])
        layer = nn.Conv2D(3, 1, stride, use_bias=False)
        model = nn.Model(start, layer(start))
        model.compile(nn.SGD(1.0), "mse")
        before, y = model.get_weights()[0], model.predict(x, verbose=0)
        target = images(*y.shape)
        model.train_on_batch(x, target)
        seen, slope = x[:, ::stride, ::stride], 2 * (y - target) / y.size
        wanted = np.einsum("nhwc,nhwo->co", seen, slope)[None, None]
        found = before - model.get_weights()[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        model.close()


@pytest.mark.parametrize("axis", [-1, 3, [3], (-2, -1), [2, 3], (1, -1, -2)])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_layer_normalization(axis, center, scale):
    x = 3 * images(2, 4, 5, 6) + 1
    layer = nn.LayerNormalization(axis, center=center, scale=scale)
    found, weights = predicted(layer, x)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    wanted = (x - mean) / np.sqrt(variance + 1e-3)
    assert {each.shape for each in weights} <= {x.shape[-len(axes) :]}
    if scale:
        wanted = wanted * weights.pop(0)
    if center:
        wanted = wanted + weights.pop(0)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("radius", [0, 1, 2, 9])
def test_local_response_normalization(radius):
    x = images(2, 3, 4, 7)
    layer = nn.LocalResponseNormalization(radius, 2.0, 0.5, 0.75)
    found, _ = predicted(layer, x)
    sums = np.zeros(x.shape)
    for i, j in product(range(7), repeat=2):
        if abs(i - j) <= radius:
            sums[..., i] += x[..., j].astype(float) ** 2
    wanted = x / (2 + 0.5 * sums) ** 0.75
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("layer", ["BatchNormalization", "LayerNormalization"])
def test_without_gamma_and_beta_there_are_no_weights_of_them(layer):
    made = getattr(nn, layer)(center=False, scale=False)
    made(nn.Input((4, 3)))
    names = [spec.name for spec in made.weight_specs]
    moving = ["moving_mean", "moving_variance"]
    assert names == (moving if layer.startswith("Batch") else [])


def network():
    x = nn.Input((8, 8, 4))
    h = nn.SeparableConv2D(6, 3, padding="same", activation="gelu")(x)
    h = nn.MaxPooling2D()(nn.GroupNormalization(2)(h))
    h = nn.DepthwiseConv2D(3, padding="same", activation="silu")(h)
    h = nn.Conv2DTranspose(4, 3, 2, "same")(h)
    h = nn.PReLU(shared_axes=[1, 2])(nn.LocalResponseNormalization(2)(h))
    h = nn.LayerNormalization([1, 2, 3])(nn.BatchNormalization(scale=False)(h))
    h = nn.Add()([nn.Conv2D(4, 1)(x), h])
    top = nn.GlobalMaxPooling2D()(h)
    rows = nn.Conv1D(4, 3, padding="causal", activation="elu")(nn.Reshape((64, 4))(h))
    rows = nn.GlobalAveragePooling1D()(nn.AveragePooling1D()(rows))
    return nn.Model(x, nn.Dense(3)(nn.Concatenate()([top, rows])))


def trained(**options):
    nn.set_random_seed(2)
    model = network()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.01), loss, **options)
    x, y = images(12, 8, 8, 4), np.arange(12) % 3
    losses = [model.train_on_batch(x, y) for _ in range(4)]
    return model, losses


def test_bits_are_the_same_under_every_policy_and_mode():
    model, expected = trained(memory="keep_all")
    weights = model.get_weights()
    assert expected[-1] < expected[0]
    for policy in ("share", "sqrt_checkpoint", "auto"):
        other, losses = trained(memory=policy)
        assert losses == expected
        assert all(map(np.array_equal, other.get_weights(), weights))
        report = other.memory_report(verify=True)
        assert report.measured_peak_bytes == other.memory_plan.peak_bytes
        other.close()
    for mode in ("none", "single", "separate"):
        other, losses = trained(training_workspace_mode=mode)
        assert losses == expected
        assert all(map(np.array_equal, other.get_weights(), weights))
        other.close()

"""Normalisation along any axes, enlargements and noise, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
SHAPE = (5, 4, 2, 6)


def draw(*shape):
    return np.float32(np.random.default_rng(1).normal(size=shape, loc=0.5))


def centred(x, axes):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-3)


def along(numbers, axes):
    return numbers.reshape([n if i in axes else 1 for i, n in enumerate(SHAPE)])


@given(axes=st.sets(st.integers(1, 3), min_size=1))
@settings(max_examples=8, deadline=None)
def test_layer_normalization(axes):
    x, axes = draw(*SHAPE), tuple(sorted(axes))
    layer = nn.LayerNormalization(axis=list(axes))
    layer(x)
    gamma, beta = (draw(*w.shape) for w in layer.weights)
    assert gamma.shape == tuple(SHAPE[i] for i in axes)
    layer.set_weights([gamma, beta])
    wanted = centred(x, axes) * along(gamma, axes) + along(beta, axes)
    np.testing.assert_allclose(layer(x), wanted, rtol=1e-3, atol=1e-4)
    one = nn.layers.Softmax(axis=axes)(x)
    total = np.exp(x).sum(axes, keepdims=True)
    np.testing.assert_allclose(one, np.exp(x) / total, rtol=1e-4)


@pytest.mark.parametrize("axis", [1, 2, 3, -2])
def test_batch_and_group_normalization(axis):
    x = draw(*SHAPE)
    place = axis % 4
    others = tuple(i for i in range(4) if i != place)
    layer = nn.BatchNormalization(axis=axis, momentum=0.5)
    found = layer(x, training=True)
    np.testing.assert_allclose(found, centred(x, others), rtol=1e-3, atol=1e-4)
    groups = nn.GroupNormalization(2, axis=axis)(x)
    moved = np.moveaxis(x, place, 1).reshape(SHAPE[0], 2, -1)
    wanted = centred(moved, (2,)).reshape(np.moveaxis(x, place, 1).shape)
    np.testing.assert_allclose(
        groups, np.moveaxis(wanted, 1, place), rtol=1e-3, atol=1e-4
    )


def test_a_mask_marks_steps_and_no_channels():
    x = nn.Masking()(nn.Input((4, 3)))
    with pytest.raises(ValueError, match="axis=1 is that of the steps"):
        nn.Model(x.node.inputs[0], nn.BatchNormalization(axis=1)(x)).predict(
            draw(2, 4, 3), verbose=0
        )


@pytest.mark.parametrize("how", ["bicubic", "lanczos3", "lanczos5"])
@pytest.mark.parametrize("size", [2, (1, 3)])
def test_enlargements_are_those_of_resizing(how, size):
    x = draw(2, 4, 5, 3)
    found = nn.UpSampling2D(size, interpolation=how)(x)
    rows, columns = (size, size) if isinstance(size, int) else size
    wanted = nn.layers.Resizing(4 * rows, 5 * columns, how)(x)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    first = nn.UpSampling2D(size, "channels_first", how)
    turned = first(np.moveaxis(x, -1, 1))
    np.testing.assert_allclose(turned, np.moveaxis(wanted, -1, 1), atol=1e-5)


def test_dropout_of_a_shape():
    x = np.ones((6, 5, 40), np.float32)
    found = nn.Dropout(0.5, noise_shape=(None, 1, None), seed=1)(x, training=True)
    assert set(np.unique(found)) == {0.0, 2.0}
    assert (found == found[:, :1]).all()
    share = (found[:, 0] == 0).mean()
    assert 0.3 < share < 0.7
    for shape in ((None, 2, None), (None, 1)):
        with pytest.raises(ValueError, match="cannot be broadcast"):
            nn.Dropout(0.5, noise_shape=shape)(x, training=True)
    with pytest.raises(TypeError, match="noise_shape must be a tuple"):
        nn.Dropout(0.5, noise_shape=3)


def test_alpha_dropout_keeps_mean_and_variance():
    x = np.float32(np.random.default_rng(0).normal(size=(200, 300)))
    layer = nn.layers.AlphaDropout(0.3, seed=2)
    found = layer(x, training=True)
    limit = -1.0507009873554805 * 1.6732632423543772
    scale = (0.7 * (1 + 0.3 * limit**2)) ** -0.5
    low = scale * limit * 0.7
    dropped = np.isclose(found, low, atol=1e-5)
    assert abs(dropped.mean() - 0.3) < 0.01
    kept = scale * x - scale * limit * 0.3
    np.testing.assert_allclose(found[~dropped], kept[~dropped], atol=1e-5)
    assert abs(found.mean()) < 0.02
    assert abs(found.std() - 1) < 0.02
    np.testing.assert_array_equal(layer(x), x)


def test_a_penalty_on_what_passes():
    x = draw(8, 3)
    layer = nn.layers.ActivityRegularization(0.5, 0.25)
    model = nn.Sequential([nn.Input((3,)), layer])
    model.compile("sgd", "mse")
    found = model.evaluate(x, x, batch_size=8, verbose=0)
    wanted = (0.5 * np.abs(x).sum() + 0.25 * (x**2).sum()) / 8
    assert found == pytest.approx(wanted, rel=1e-5)
    assert nn.layers.ActivityRegularization.from_config(layer.get_config()).l2 == 0.25

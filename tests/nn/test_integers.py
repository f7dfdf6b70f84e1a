"""Integers beyond the 24 bits of float32: NumPy is the oracle of what stays exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
LEAST = -(2**31)
BIG = 2**24 + 1  # the first integer that float32 does not hold
X = np.array(
    [[BIG, 3, LEAST], [5, -BIG, 2**24 + 3], [2**31 - 1, 2**31 - 2, LEAST + 1]],
    np.int32,
)
Y = X[::-1].copy()
IDS = np.array([1, 0, 1], np.int32)
KEPT = {
    "where": (lambda x, y: ops.where(x > 0, x, BIG), np.where(X > 0, X, BIG)),
    "where_other": (lambda x, y: ops.where(y > 0, 7, x), np.where(Y > 0, 7, X)),
    "select": (lambda x, y: ops.select([x > 4], [y], BIG), np.where(X > 4, Y, BIG)),
    "ones_like": (lambda x, y: ops.ones_like(x), np.ones_like(X)),
    "full_like": (lambda x, y: ops.full_like(x, -BIG), np.full_like(X, -BIG)),
    "full_like_least": (lambda x, y: ops.full_like(x, LEAST), np.full_like(X, LEAST)),
    "relu": (lambda x, y: nn.activations.relu(x), np.maximum(X, 0)),
    "nan_to_num": (lambda x, y: ops.nan_to_num(x), X),
    "fmax": (lambda x, y: ops.fmax(x, y), np.maximum(X, Y)),
    "fmin": (lambda x, y: ops.fmin(x, y), np.minimum(X, Y)),
    "nansum": (lambda x, y: ops.nansum(x, 1), X.sum(1, dtype=np.int32)),
    "nanprod": (lambda x, y: ops.nanprod(x, 1), X.prod(1, dtype=np.int32)),
    "nanmax": (lambda x, y: ops.nanmax(x, 1), X.max(1)),
    "nanmin": (lambda x, y: ops.nanmin(x, 1), X.min(1)),
    "diagonal": (lambda x, y: ops.diagonal(x), np.diagonal(X)),
    "diag": (lambda x, y: ops.diag(x[0]), np.diag(X[0])),
    "diagflat": (lambda x, y: ops.diagflat(x), np.diagflat(X)),
    "trace": (lambda x, y: ops.trace(x), np.trace(X, dtype=np.int32)),
    "einsum": (lambda x, y: ops.einsum("ii->i", x), np.diagonal(X)),
    "segment_sum": (
        lambda x, y: ops.segment_sum(x, IDS, 3),
        np.stack([X[1], X[0] + X[2], 0 * X[0]]),
    ),
    "segment_max": (
        lambda x, y: ops.segment_max(x, IDS, 3),
        np.stack([X[1], np.maximum(X[0], X[2]), 0 * X[0] + LEAST]),
    ),
    "segment_min": (
        lambda x, y: ops.segment_min(x, IDS, 2),
        np.stack([X[1], np.minimum(X[0], X[2])]),
    ),
    "scatter": (
        lambda x, y: ops.scatter(np.array([[2], [0], [2]]), x, (3, 3)),
        np.stack([X[1], 0 * X[0], X[0] + X[2]]),
    ),
    "scatter_update": (
        lambda x, y: ops.scatter_update(x, np.array([[0], [2]]), y[:2]),
        np.stack([Y[0], X[1], Y[1]]),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_integers_stay_exact_in_a_function_and_on_arrays(name):
    compute, wanted = KEPT[name]
    with np.errstate(over="ignore"):
        for found in (mc.function(compute)(X, Y), compute(X, Y)):
            assert np.asarray(found).dtype == np.int32
            np.testing.assert_array_equal(found, wanted)


def test_what_computes_floats_converts_integers_before_they_wrap_around():
    x = np.array([[2**31 - 1, LEAST, 5], [2**20, 2**20, 2**20]], np.int32)
    wide = x.astype(np.float64)
    for q in (0.25, 0.5, 0.9):
        found = mc.function(lambda x, q=q: ops.quantile(x, q, axis=1))(x)
        np.testing.assert_allclose(found, np.quantile(wide, q, axis=1), 1e-6)
    np.testing.assert_allclose(
        mc.function(ops.trapezoid)(x), np.trapezoid(wide), rtol=1e-6
    )
    norm = np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(nn.layers.UnitNormalization()(x), wide / norm, 1e-6)
    np.testing.assert_allclose(
        nn.layers.RMSNormalization()(x), wide / norm * np.sqrt(3), rtol=1e-6
    )


INTEGERS = st.integers(LEAST, 2**31 - 1)


@given(st.data())
def test_products_of_matrices_keep_the_lower_bits(data):
    m, k, n, batch = (data.draw(st.integers(1, 4)) for _ in range(4))
    a = data.draw(arrays(np.int32, (batch, m, k), elements=INTEGERS))
    shape = data.draw(st.sampled_from([(batch, k, n), (k, n)]))
    b = data.draw(arrays(np.int32, shape, elements=INTEGERS))
    found = ops.matmul(a, b)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("length", [255, 256, 257, 600])
def test_long_products_of_extreme_integers_are_exact(length):
    rng = np.random.default_rng(length)
    for a, b in (
        (np.full((2, length), -1, np.int32), np.full((length, 3), LEAST, np.int32)),
        (np.full((2, length), -1, np.int32), np.full((length, 3), -1, np.int32)),
        [
            rng.integers(LEAST, 2**31, shape, dtype=np.int32)
            for shape in ((2, length), (length, 3))
        ],
    ):
        wanted = a @ b
        np.testing.assert_array_equal(ops.matmul(a, b), wanted)
        np.testing.assert_array_equal(mc.function(ops.dot)(a, b), wanted)
        np.testing.assert_array_equal(ops.einsum("ij,jk->ki", a, b), wanted.T)
        np.testing.assert_array_equal(ops.tensordot(a, b, 1), wanted)
    wanted = (a * a).sum(1, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(nn.layers.Dot(1)([a, a]), wanted)


def test_a_model_multiplies_integers_in_bfloat16_as_in_float32():
    x = np.array([[[257, -70001], [3, BIG]]], np.int32)
    start = nn.Input((2, 2), dtype="int32")
    for policy in ("float32", "mixed_bfloat16"):
        model = nn.Model(start, ops.matmul(start, start), dtype=policy)
        np.testing.assert_array_equal(model.predict(x, verbose=0), x @ x)
    small = np.array([[1, -2], [3, 4]], np.int32)
    found = ops.matmul(small, small.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, small @ small)


def test_updates_take_the_dtype_of_what_they_update():
    table, new = np.arange(6, dtype=np.int32).reshape(2, 3), np.float32([7.5])
    for found in (
        ops.scatter_update(table, np.array([[0, 1]]), new),
        ops.slice_update(table, [0, 1], new[None]),
    ):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, [[0, 7, 2], [3, 4, 5]])
    found = ops.correlate(np.array([1, 2, 3]), np.array([0, 1]))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [2, 3])


def test_scatter_takes_arrays_of_indices_and_of_values():
    places, values = np.array([[1], [3]]), np.float32([2, 5])
    np.testing.assert_array_equal(ops.scatter(places, values, (4,)), [0, 2, 0, 5])
    found = ops.scatter_update(np.ones(4, np.float32), places, values)
    np.testing.assert_array_equal(found, [1, 2, 1, 5])


LAYERS = {
    "Dropout": (lambda k: k.Dropout(0.5, seed=1), (6,)),
    "SpatialDropout1D": (lambda k: k.SpatialDropout1D(0.5, seed=1), (4, 3)),
    "AlphaDropout": (lambda k: k.AlphaDropout(0.5, seed=1), (6,)),
    "GaussianNoise": (lambda k: k.GaussianNoise(0.5, seed=1), (6,)),
    "GaussianDropout": (lambda k: k.GaussianDropout(0.5, seed=1), (6,)),
    "MaxPooling2D": (lambda k: k.MaxPooling2D(), (4, 4, 2)),
    "MaxPooling1D": (lambda k: k.MaxPooling1D(), (4, 2)),
    "AveragePooling2D": (lambda k: k.AveragePooling2D(2), (4, 4, 2)),
    "BatchNormalization": (lambda k: k.BatchNormalization(), (5,)),
    "GroupNormalization": (lambda k: k.GroupNormalization(1), (4, 2)),
    "Dense": (lambda k: k.Dense(3, activity_regularizer="l2"), (5,)),
    "ActivityRegularization": (lambda k: k.ActivityRegularization(0.1, 0.2), (5,)),
    "ReLU": (lambda k: k.ReLU(), (5,)),
    "ZeroPadding2D": (lambda k: k.ZeroPadding2D(), (2, 2, 1)),
    "Softmax": (lambda k: k.Softmax(), (5,)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers_compute_integers_as_the_floats_that_they_are(name):
    make, shape = LAYERS[name]
    x = np.random.default_rng(5).integers(-9, 9, (8, *shape), np.int32)
    found = []
    for dtype in ("int32", "float32"):
        nn.set_random_seed(3)
        start = nn.Input(shape, dtype=dtype)
        model = nn.Model(start, make(nn.layers)(start))
        data = x.astype(dtype)
        predicted = model.predict(data, verbose=0)
        model.compile("sgd", "mse")
        history = model.fit(
            data, np.ones_like(predicted, "f4"), epochs=2, verbose=0, shuffle=False
        )
        found.append((predicted, history.history["loss"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_regularizers_of_integers_are_floats():
    x = np.array([[1, -2], [3, 4]], np.int32)
    for make, wanted in (
        (nn.regularizers.L1(0.1), 1.0),
        (nn.regularizers.L2(0.1), 3.0),
        (nn.regularizers.L1L2(0.1, 0.1), 4.0),
    ):
        assert float(make(x)) == pytest.approx(wanted)

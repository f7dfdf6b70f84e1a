"""`ops.custom_gradient`: functions that say what their gradients are."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn

ops = nn.ops
X = np.array([1.0, 2.0, 3.0], np.float32)
ROWS = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)


@ops.custom_gradient
def reversed_gradient(x):
    return x, lambda upstream: -upstream


@ops.custom_gradient
def log1pexp(x):
    """The example of TensorFlow's documentation, in the form of Keras's."""
    e = ops.exp(x)

    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return upstream * (1 - 1 / (1 + e))

    return ops.log(1 + e), grad


@ops.custom_gradient
def both(a, b):
    return (a * b, a + b), lambda of_product, of_sum: (10.0 * of_product + of_sum, None)


def slope(function, x=X):
    return mc.grad(lambda x: ops.sum(function(x)))(x)


def test_values_and_gradients():
    np.testing.assert_array_equal(reversed_gradient(X), X)
    np.testing.assert_array_equal(slope(reversed_gradient), [-1, -1, -1])
    np.testing.assert_allclose(log1pexp(X), np.log1p(np.exp(X)), rtol=1e-6)
    np.testing.assert_allclose(slope(log1pexp), 1 / (1 + np.exp(-X)), rtol=1e-6)


def test_a_gradient_that_would_be_nan_is_not():
    x = np.full(3, 100, np.float32)  # e overflows
    assert np.isnan(slope(lambda x: ops.log(1 + ops.exp(x)), x)).all()
    np.testing.assert_array_equal(slope(log1pexp, x), [1, 1, 1])


def test_several_results_and_arguments():
    product, total = both(X, 2 * X)
    np.testing.assert_array_equal(product, 2 * X * X)
    np.testing.assert_array_equal(total, 3 * X)
    np.testing.assert_array_equal(slope(lambda x: both(x, X)[1]), [1, 1, 1])
    np.testing.assert_array_equal(slope(lambda x: both(x, X)[0]), [10, 10, 10])
    np.testing.assert_array_equal(slope(lambda x: sum(both(x, X))), [11, 11, 11])
    np.testing.assert_array_equal(slope(lambda x: both(X, x)[0]), [0, 0, 0])
    np.testing.assert_array_equal(slope(lambda x: both(x, 2.0 * x)[1]), [1, 1, 1])


def test_the_gradient_can_be_differentiated():
    expected = np.exp(-X) / (1 + np.exp(-X)) ** 2
    second = slope(lambda x: mc.grad(lambda x: ops.sum(log1pexp(x)))(x))
    np.testing.assert_allclose(second, expected, rtol=1e-5)


def test_inside_of_another_one():
    @ops.custom_gradient
    def outer(x):
        return 2.0 * reversed_gradient(x), lambda upstream: 5.0 * upstream

    np.testing.assert_array_equal(slope(outer), [5, 5, 5])
    np.testing.assert_array_equal(
        slope(lambda x: reversed_gradient(outer(x))), [-5] * 3
    )


class Reversed(nn.Layer):
    def call(self, x):
        return reversed_gradient(x)


def made(*middle):
    nn.set_random_seed(4)
    layers = [nn.Dense(4, activation="tanh"), *middle, nn.Dense(1)]
    model = nn.Sequential([nn.Input((3,)), *layers])
    model.compile(nn.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("memory", ["auto", "sqrt_checkpoint"])
def test_the_built_in_step_of_a_model_uses_it(memory):
    """As in domain-adversarial training (Ganin et al. 2016)."""
    plain, turned = made(), made(Reversed())
    turned.compile(nn.SGD(0.1), "mse", memory=memory)
    turned.set_weights(first := plain.get_weights())
    for model in (plain, turned):
        model.train_on_batch(ROWS, ROWS[:, :1])
    signs = [-1, -1, 1, 1]
    for a, b, before, sign in zip(
        plain.get_weights(), turned.get_weights(), first, signs, strict=True
    ):
        np.testing.assert_allclose(b - before, sign * (a - before), atol=1e-6)


def test_it_keeps_what_the_gradient_reads_within_the_plan():
    function = mc.function(mc.grad(lambda x: ops.sum(log1pexp(x))))
    x = np.ones(4096, np.float32)
    function(x)
    report = function.memory_report(x)
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_a_functional_model_is_saved_with_its_name(tmp_path):
    start = nn.Input((3,))
    model = nn.Model(start, log1pexp(nn.Dense(2)(start)))
    model.save(tmp_path / "model.memcfg")
    known = {"log1pexp": log1pexp}
    again = nn.models.load_model(tmp_path / "model.memcfg", custom_objects=known)
    np.testing.assert_array_equal(
        again.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0)
    )
    with pytest.raises(TypeError, match="was not made by custom_gradient"):
        nn.models.load_model(
            tmp_path / "model.memcfg", custom_objects={"log1pexp": lambda x: x}
        )


layer = nn.Dense(3)


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (lambda x: x, TypeError, "must return its results and a function"),
        (lambda x: (x, 3), TypeError, "must return its results and a function"),
        (lambda x: (x, lambda u: (u, u)), ValueError, "1 arguments, but 2 gradients"),
        (lambda x: (x, lambda u: ops.sum(u)), ValueError, "of that shape or None"),
        (lambda x: (x, lambda u: 3.0), ValueError, "of that shape or None"),
        (lambda x: (layer(x), lambda u: u), TypeError, "is no argument: pass it"),
    ],
)
def test_other_functions_are_refused(function, kind, message):
    layer(ROWS)
    with pytest.raises(kind, match=message):
        slope(ops.custom_gradient(function), ROWS)


def test_tensors_of_the_outside_are_refused():
    def outer(x):
        other = 2.0 * x
        return ops.custom_gradient(lambda x: (x * other, lambda u: u))(x)

    with pytest.raises(TypeError, match="is no argument: pass it as one"):
        slope(outer)
    with pytest.raises(TypeError, match="f must be a function, got 3"):
        ops.custom_gradient(3)

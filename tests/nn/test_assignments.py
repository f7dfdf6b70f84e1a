"""Weights that a layer assigns in `call`, in all the ways that models run."""

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.nn import ops


class Averaging(nn.layers.Layer):
    """Subtracts a moving average of its inputs, and counts its calls."""

    def build(self, shape):
        of = {"initializer": "zeros", "trainable": False}
        self.mean = self.add_weight((shape[-1],), name="mean", **of)
        self.count = self.add_weight((), name="count", **of)

    def call(self, x, training=None):
        self.count.assign_add(1.0)
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(x, axis=0))
        return x - self.mean


X = np.random.default_rng(0).random((8, 3)).astype(np.float32)


def model_of(*layers):
    model = nn.Sequential([nn.Input((3,)), *layers])
    model.compile("sgd", "mse")
    return model


def test_a_layer_counts_and_averages_in_all_modes():
    layer = Averaging()
    model = model_of(layer, nn.layers.Dense(1, kernel_initializer="ones"))
    model.fit(X, X[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0)
    mean = np.zeros(3)
    for begin in (0, 4, 0, 4):
        mean = 0.5 * mean + 0.5 * X[begin : begin + 4].mean(axis=0)
    np.testing.assert_allclose(layer.mean.numpy(), mean, rtol=1e-6)
    assert layer.count.numpy() == 4
    model.evaluate(X, X[:, :1], batch_size=4, verbose=0)
    assert layer.count.numpy() == 6
    model.predict(X, batch_size=8, verbose=0)
    assert layer.count.numpy() == 7
    np.testing.assert_allclose(layer(X), X - mean, rtol=1e-5)
    assert layer.count.numpy() == 8


def test_what_follows_an_assignment_reads_the_new_value():
    class Counted(nn.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight((), "zeros", trainable=False)

        def call(self, x):
            before = x * self.count
            self.count.assign(2.0)
            self.count.assign_add(3.0)
            self.count.assign_sub(1.0)
            return before + x * self.count

    layer, x = Counted(), nn.Input((3,))
    both = nn.Model(x, layer(layer(x)))
    # The first call multiplies by 0 + 4, and the second one by 4 + 4.
    np.testing.assert_allclose(both.predict(X, verbose=0), 32 * X, rtol=1e-6)
    np.testing.assert_allclose(both.predict(X, verbose=0), 64 * X, rtol=1e-6)
    assert layer.count.numpy() == 4


def test_a_layer_assigns_free_variables_and_weights_of_inner_layers():
    class Outer(nn.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Averaging()
            self.seen = nn.Variable(0.0, trainable=False)

        def call(self, x):
            x = self.inner(x)
            self.seen.assign_add(1.0)
            self.inner.count.assign(10.0 * self.seen)
            return x * self.seen

    layer = Outer()
    model = model_of(layer)
    np.testing.assert_allclose(model.predict(X, verbose=0), X)
    np.testing.assert_allclose(model.predict(X, verbose=0), 2 * X)
    assert layer.seen.numpy() == 2
    assert layer.inner.count.numpy() == 20


def test_no_gradient_passes_through_an_assignment():
    class Centred(nn.layers.Layer):
        def build(self, shape):
            self.mean = self.add_weight((shape[-1],), "zeros", trainable=False)

        def call(self, x):
            self.mean.assign(ops.mean(x, axis=0))
            return x - self.mean

    model = model_of(nn.layers.Dense(1, kernel_initializer="ones"), Centred())
    y = np.zeros((8, 1), np.float32)
    model.fit(X, y, batch_size=8, verbose=0)
    h = X.sum(axis=1, keepdims=True)
    gradient = (2 / 8 * (h - h.mean()) * X).sum(axis=0)[:, None]
    np.testing.assert_allclose(model.get_weights()[0], 1 - 0.01 * gradient, rtol=1e-5)


def test_a_batch_with_assignments_is_not_divided():
    layer = Averaging()
    model = nn.Sequential(
        [nn.Input((3,)), layer, nn.layers.Dense(512), nn.layers.Dense(1)]
    )
    model.compile("sgd", "mse", on_oom="micro_batch")
    mc.config.set_memory_limit("CPU:0", 100 * 1024)
    with pytest.raises(mc.errors.InfeasiblePlanError, match="assigns weights"):
        model.fit(np.tile(X, (16, 1)), np.ones((128, 1)), batch_size=128, verbose=0)


def test_files_keep_what_was_assigned(tmp_path):
    model = model_of(Averaging())
    model.predict(X, verbose=0)
    model.save_weights(tmp_path / "m.weights.h5")
    other = model_of(Averaging())
    other.load_weights(tmp_path / "m.weights.h5")
    assert other.layers[-1].count.numpy() == 1


def of_call(call, **options):
    class Own(nn.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight((3,), "zeros", name="w", **options)

        def call(self, x):
            call(self, x)
            return x + self.w

    return Own()(nn.Input((3,)))


@pytest.mark.parametrize(
    ("call", "options", "error", "message"),
    [
        (lambda s, x: s.w.assign(x), {}, ValueError, "has the batch, of any size"),
        (lambda s, x: s.w.assign([1, 2]), {}, ValueError, r"shape \(3,\), got \(2,\)"),
        (
            lambda s, x: s.w.assign(s.w),
            {"trainable": True},
            RuntimeError,
            "training changes it",
        ),
    ],
)
def test_assignments_that_cannot_be(call, options, error, message):
    with pytest.raises(error, match=message):
        of_call(call, **{"trainable": False} | options)


def test_a_model_does_not_assign_its_weights_in_call():
    class Own(nn.Model):
        def __init__(self):
            super().__init__()
            self.layer = Averaging()

        def call(self, x):
            x = self.layer(x)
            self.layer.count.assign(0.0)
            return x

    with pytest.raises(RuntimeError, match="in that of a layer"):
        Own().predict(X, verbose=0)


@pytest.mark.parametrize("axis", [0, (0, 1), (-2,)])
def test_reductions_of_the_batch_are_no_results_of_a_layer(axis):
    class Own(nn.layers.Layer):
        def call(self, x):
            return ops.mean(x, axis=axis)

    with pytest.raises(ValueError, match="reduced along the batch"):
        Own()(nn.Input((3,)))

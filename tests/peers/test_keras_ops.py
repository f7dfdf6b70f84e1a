"""Ops in a layer of a user's beside Keras 3: values and gradients."""

from __future__ import annotations

import beside_keras
import numpy as np
import pytest
from beside_keras import keras
from op_cases import CASES as MORE

import memcfg as mc
from tests.nn.test_ops import CASES

pytestmark = beside_keras.MARKS


# What Keras cannot do on PyTorch: the values are compared with NumPy's alone.
NOT_THERE = {
    "imag": "of complex numbers only",
    "floor_divide": "has no derivative",
    "heaviside": "has no derivative",
    "mod": "has no derivative of the divisor",
    "number mod": "has no derivative of the divisor",
    "ldexp": "takes integer exponents only",
    "count_nonzero": "infers another shape of the symbolic tensor",
    "pad symmetric": "repeats the edge",
    "cross": "takes the first axis of length 3",
    "sparsemax": "gives zeros",
}


def steps_of(name, k, x):
    """The loss and the weights of each step, of the op of scaled inputs."""

    class Own(k.layers.Layer):
        def build(self, input_shape):
            self.by = self.add_weight(shape=input_shape[1:], initializer="ones")

        def call(self, x):
            return CASES[name][0](k.ops, *k.ops.split(x * self.by, 2, axis=-1))

    start = k.layers.Input((3, 8))
    model = k.Model(start, Own()(start))
    y = np.zeros(model.predict(x, verbose=0).shape)
    model.compile(k.optimizers.SGD(0.05), "mse")
    found = []
    for _ in range(2):
        loss = float(np.asarray(model.train_on_batch(x, y)).reshape(-1)[0])
        found += [loss, *model.get_weights()]
    return found


@pytest.mark.parametrize("name", [name for name in MORE if name not in NOT_THERE])
def test_values_and_gradients(name):
    x = np.random.default_rng(5).uniform(0.55, 1.45, (5, 3, 8)).astype("f4")
    for ours, theirs in zip(
        steps_of(name, mc.nn, x), steps_of(name, keras, x), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, 2e-5, 1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name not in MORE])
def test_ten_steps(name):
    random, values, found = np.random.default_rng(5), None, []
    x = random.normal(size=(6, 3, 3)).astype("f4")
    for k in (mc.nn, keras):

        class Own(k.layers.Layer):
            def call(self, x, k=k):
                return CASES[name][0](k.ops, *k.ops.split(x, 2, axis=-1))

        start = k.layers.Input((3, 3))
        above = k.layers.Dense(8, activation="softplus")(start)
        flat = k.layers.Flatten()(Own()(above))
        model = k.Model(start, k.layers.Dense(1)(flat))
        model.compile(k.optimizers.SGD(0.01), "mse")
        if values is None:
            values = [random.normal(size=w.shape) * 0.3 for w in model.get_weights()]
        model.set_weights(values)
        steps = [float(model.train_on_batch(x, np.ones((6, 1)))) for _ in range(10)]
        found.append((steps, *model.get_weights()))
    for pair in zip(*found, strict=True):
        np.testing.assert_allclose(*pair, 1e-4, 1e-5)

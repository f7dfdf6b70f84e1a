"""Ops in a layer of a user's beside Keras 3: values, and gradients of ten steps."""

from __future__ import annotations

import beside_keras
import numpy as np
import pytest
from beside_keras import keras

import memcfg as mc
from tests.nn.test_ops import CASES

pytestmark = beside_keras.MARKS


@pytest.mark.parametrize("name", CASES)
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

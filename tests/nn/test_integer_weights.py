"""Weights of int32: counters, places in a queue, seeds."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
LARGE = 2**24 + 1  # which float32 does not have
X, Y = np.ones((12, 3), np.float32), np.zeros((12, 2), np.float32)


class Counter(nn.Layer):
    """Counts its batches."""

    def build(self, input_shape):
        self.count = self.add_weight(dtype="int32", trainable=False, name="count")

    def call(self, x, training=None):
        if training:
            self.count.assign_add(1)
        return x


def counting():
    model = nn.Sequential([nn.Input((3,)), Counter(), nn.Dense(2)])
    model.compile("sgd", "mse")
    return model


def test_a_layer_counts_beyond_what_floats_hold(tmp_path):
    model = counting()
    model.layers[0].set_weights([LARGE])
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    model.predict(X, verbose=0)
    assert model.layers[0].count.numpy() == LARGE + 6
    assert model.layers[0].count.dtype == "int32"
    assert model.trainable_weights == model.layers[1].weights
    model.save(tmp_path / "counting.memcfg")
    known = {"Counter": Counter}
    again = nn.models.load_model(tmp_path / "counting.memcfg", custom_objects=known)
    assert again.get_weights()[0] == LARGE + 6
    again.set_weights([LARGE, *again.get_weights()[1:]])
    assert again.layers[0].get_weights()[0] == LARGE


def test_a_frozen_layer_counts():
    model = counting()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    assert model.layers[0].count.numpy() == 3


def test_a_variable_of_a_function():
    place = mc.nn.Variable(LARGE, dtype="int32")
    assert not place.trainable
    assert place.numpy() == LARGE

    @mc.function
    def advance(by):
        place.assign((place + by) % (LARGE + 5))
        return place * 2

    assert [int(advance(np.int32(3))) for _ in range(2)] == [2 * LARGE + 6, 2]
    place.assign(2.9)
    assert place.numpy() == 2

    @mc.function
    def scaled(x):
        place.assign(x * 3)  # cut to an integer, as NumPy casts
        return place

    assert scaled(np.float32(1.5)).item() == 4


def test_what_is_no_dtype_of_a_weight():
    for dtype in ("float16", "int64", "bool", "bfloat16", "floot32"):
        with pytest.raises(ValueError, match="a weight is float32 or int32"):
            nn.Variable(1, dtype=dtype)
        with pytest.raises(ValueError, match="a weight is float32 or int32"):
            nn.Layer().add_weight(dtype=dtype)
    assert nn.Variable(1, dtype="float64").dtype == "float32"
    assert nn.Variable("ones", (2,), "int32").numpy().tolist() == [1, 1]


@pytest.mark.parametrize("value", [2**40, np.int64(-(2**40)), 3e9, np.inf, np.nan])
def test_what_an_integer_does_not_hold(value):
    model = counting()
    kernel, bias = model.get_weights()[1:]
    place = nn.Variable(5, dtype="int32")
    for use in (
        lambda: model.layers[0].set_weights([value]),
        lambda: model.set_weights([value, kernel, bias]),
        lambda: place.assign(value),
        lambda: nn.Variable(value, dtype="int32"),
    ):
        with pytest.raises(ValueError, match="int32 holds integers from -2147483648"):
            use()
    assert place.numpy() == 5
    assert model.layers[0].count.numpy() == 0


def test_a_state_tree_keeps_integers():
    model = counting()
    model.layers[0].count.assign(LARGE)
    tree = model.get_state_tree()
    model.layers[0].count.assign(1)
    model.set_state_tree(tree)
    assert model.layers[0].count.numpy() == LARGE

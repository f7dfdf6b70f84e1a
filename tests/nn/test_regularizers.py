"""Penalties against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import interpret

import memcfg as mc
from memcfg.graph import Builder, gradients
from memcfg.nn.regularizers import get_regularizer

regularizers = mc.nn.regularizers


@pytest.mark.parametrize(
    ("regularizer", "l1", "l2"),
    [
        (regularizers.L1(), 0.01, 0),
        (regularizers.L2(0.3), 0, 0.3),
        (regularizers.L1L2(0.1, 0.2), 0.1, 0.2),
        (get_regularizer("l2"), 0, 0.01),
        (get_regularizer("l1"), 0.01, 0),
        (get_regularizer("l1_l2"), 0, 0),
    ],
)
def test_the_penalty_and_its_gradient(regularizer, l1, l2):
    builder = Builder("penalty")
    w = builder.tensor("w", (3, 4), role="parameter")
    penalty = regularizer.trace(builder, w)
    found = gradients(builder, penalty, [w])
    graph = builder.build([penalty, found[w]])
    value = np.random.default_rng(0).normal(size=(3, 4))
    value[0] = 0
    made = interpret(graph, {"w": value})
    expected = l1 * abs(value).sum() + l2 * (value**2).sum()
    assert made[graph.tensors[penalty].name] == pytest.approx(expected)
    slopes = made[graph.tensors[found[w]].name]
    np.testing.assert_allclose(slopes, l1 * np.sign(value) + 2 * l2 * value)


def test_what_regularizers_are():
    assert get_regularizer(None) is None
    penalty = regularizers.L2(0.1)
    assert get_regularizer(penalty) is penalty
    assert repr(penalty) == "L2(l2=0.1)"
    assert repr(regularizers.L1(0.5)) == "L1(l1=0.5)"
    for make, kind, words in (
        (lambda: get_regularizer("l3"), ValueError, "unknown regularizer 'l3'"),
        (lambda: get_regularizer(0.1), TypeError, "a regularizer must be L1"),
        (lambda: regularizers.L2(-1), ValueError, "l2 must be zero or more"),
        (regularizers.OrthogonalRegularizer, ValueError, "not supported: use"),
    ):
        with pytest.raises(kind, match=words):
            make()


def penalized(kind, wrap):
    layer = mc.nn.LSTM if kind == "lstm" else mc.nn.Dense
    more = {"return_sequences": True} if kind == "lstm" else {}
    options = {"kernel_regularizer": "l1", "activity_regularizer": "l2"}
    x = mc.nn.Input((4, 3))
    return mc.nn.Model(x, wrap(layer(2, **more, **options))(x))


def in_a_model(layer):
    return mc.nn.Sequential([mc.nn.Input((4, 3)), layer])


def in_a_layer(layer):
    class Own(mc.nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layer

        def call(self, x):
            return self.inner(x)

    return Own()


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        ("lstm", mc.nn.Bidirectional),
        ("lstm", in_a_model),
        ("dense", mc.nn.TimeDistributed),
        ("dense", in_a_model),
        ("dense", in_a_layer),
        ("dense", lambda layer: in_a_model(mc.nn.TimeDistributed(layer))),
        ("dense", lambda layer: mc.nn.TimeDistributed(in_a_model_of_steps(layer))),
    ],
)
def test_penalties_of_inner_layers_count(kind, wrap):
    model = penalized(kind, wrap)
    model.compile(mc.nn.SGD(0.01), "mse")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 4, 3)).astype("f4")
    y = model.predict(x, verbose=0)
    kernels = [w.numpy() for w in model.weights if w.name.endswith("kernel")]
    kernels = [w for w in kernels if w.shape[0] == 3]  # no recurrent ones
    penalty = 0.01 * sum(abs(w).sum() for w in kernels) + 0.01 * (y**2).sum() / 5
    found = model.evaluate(x, np.zeros_like(y), 5, 0)
    np.testing.assert_allclose(found, (y**2).mean() + penalty, 1e-5)
    assert model.train_on_batch(x, np.zeros_like(y)) == pytest.approx(found)


def in_a_model_of_steps(layer):
    return mc.nn.Sequential([mc.nn.Input((3,)), layer])

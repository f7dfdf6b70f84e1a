"""Penalties against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    mode=st.sampled_from(["rows", "columns"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_penalty_on_angles(rows, columns, mode, seed):
    value = np.random.default_rng(seed).normal(size=(rows, columns))
    value[0] *= seed % 3 / 2  # perhaps no direction

    def wanted(w):
        w = w if mode == "rows" else w.T
        unit = w / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-12)
        cosines = abs(unit @ unit.T)
        return 0.1 * (cosines.sum() - np.trace(cosines)) / max(len(w) * (len(w) - 1), 1)

    builder = Builder("penalty")
    w = builder.tensor("w", value.shape, role="parameter")
    penalty = regularizers.OrthogonalRegularizer(0.1, mode).trace(builder, w)
    found = gradients(builder, penalty, [w])
    graph = builder.build([penalty, found[w]])
    made = interpret(graph, {"w": value})
    number = made[graph.tensors[penalty].name]
    assert number == pytest.approx(wanted(value), abs=1e-12)
    if not seed % 3 or min(rows, columns) < 2:
        return  # cosines of 0 and 1 have bends
    way = np.random.default_rng(seed + 1).normal(size=value.shape)
    slope = (wanted(value + 1e-6 * way) - wanted(value - 1e-6 * way)) / 2e-6
    slopes = made[graph.tensors[found[w]].name]
    assert (slopes * way).sum() == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_a_penalty_on_angles_is_for_matrices():
    dense = mc.nn.Dense(2, bias_regularizer=regularizers.orthogonal_regularizer())
    model = mc.nn.Sequential([mc.nn.Input((3,)), dense])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"is for matrices, and .* shape \(2,\)"):
        model.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0)


def test_other_names_and_classes():
    assert regularizers.l2 is regularizers.L2
    for room, name, kind in (
        (regularizers, "l1_l2", "kernel_regularizer"),
        (mc.nn.constraints, "unit_norm", "kernel_constraint"),
        (mc.nn.initializers, "he_normal", "kernel_initializer"),
    ):
        wanted = getattr(room, name)
        for each in (wanted, name):
            layer = mc.nn.Dense(2, **{kind: each})
            assert layer.get_config()[kind]["class_name"] == wanted.__name__


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
        (lambda: regularizers.OrthogonalRegularizer(mode="x"), ValueError, "mode must"),
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


def test_each_regularizer_is_a_loss_of_its_own():
    x = np.arange(6, dtype="f4").reshape(2, 3)
    layer = mc.nn.Dense(
        2, kernel_regularizer=mc.nn.regularizers.L1(0.1), bias_regularizer="l2"
    )
    model = mc.nn.Model(start := mc.nn.Input((3,)), layer(start))
    layer.set_weights([np.arange(6, dtype="f4").reshape(3, 2), np.array([2, 3], "f4")])

    @mc.function
    def losses(x):
        model(x)
        return model.losses

    found = losses(x)
    np.testing.assert_allclose(found, [0.1 * 15, 0.01 * 13], rtol=1e-6)


def test_a_function_is_a_regularizer(tmp_path):
    def absolute(w):
        return 0.5 * mc.nn.ops.sum(mc.nn.ops.abs(w))

    results = []
    for each in (absolute, mc.nn.regularizers.L1(0.5)):
        mc.nn.set_random_seed(0)
        dense = mc.nn.Dense(2, kernel_regularizer=each)
        model = mc.nn.Sequential([mc.nn.Input((3,)), dense])
        model.compile("sgd", "mse")
        x = np.ones((4, 3), np.float32)
        model.fit(x, x[:, :2], verbose=0)
        results += [model.get_weights()[0], model.evaluate(x, x[:, :2], verbose=0)]
    np.testing.assert_allclose(results[0], results[2], rtol=1e-6)
    assert results[1] == pytest.approx(results[3], rel=1e-6)

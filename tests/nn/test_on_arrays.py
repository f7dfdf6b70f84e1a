"""What is computed on arrays at once, outside of a model and of a function."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn

RULES = {
    "sgd": lambda w, g, state: w - 0.1 * g,
    "adam": lambda w, g, state: _adam(w, g, state),
}


def _adam(w, g, state):
    m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g**2
    t = state["t"] = state.get("t", 0) + 1
    return w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)


@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_updates_weights_by_arrays_and_keeps_its_state(name):
    layer = nn.Dense(3, kernel_initializer="ones")
    layer.build((None, 2))
    optimizer = {"sgd": nn.SGD, "adam": nn.Adam}[name](0.1)
    random, state = np.random.default_rng(3), {}
    w, b = (each.numpy() for each in layer.weights)
    for step in range(4):
        g = random.normal(size=w.shape)
        optimizer.apply([g, None], layer.weights)
        w = RULES[name](w, g, state)
        np.testing.assert_allclose(layer.kernel.numpy(), w, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(layer.bias.numpy(), b)
        assert optimizer.iterations == step + 1


def test_updates_by_arrays_refuse_what_updates_in_a_function_refuse():
    layer = nn.Dense(3)
    layer.build((None, 2))
    before = layer.get_weights()
    with pytest.raises(ValueError, match=r"must have shape \(2, 3\)"):
        nn.SGD(0.1).apply([np.ones((3, 2))], [layer.kernel])
    with pytest.raises(ValueError, match="no weight has a gradient"):
        nn.SGD(0.1).apply([None, None], layer.weights)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_weights_are_excluded_from_decay_by_themselves():
    layer = nn.Dense(3, kernel_initializer="ones", bias_initializer="ones")
    layer.build((None, 2))
    optimizer = nn.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[layer.bias])
    optimizer.apply([np.zeros((2, 3)), np.zeros(3)], layer.weights)
    np.testing.assert_allclose(layer.kernel.numpy(), np.full((2, 3), 0.95), 1e-6)
    np.testing.assert_array_equal(layer.bias.numpy(), np.ones(3))
    with pytest.raises(TypeError, match="pass weights in var_list"):
        nn.SGD(0.1).exclude_from_weight_decay(var_list=["bias"])


def test_the_value_of_a_learning_rate():
    assert nn.SGD(0.5).learning_rate.value == np.float32(0.5)


def test_a_regularizer_is_a_function():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
    l1, l2 = np.abs(x).sum(), (x**2).sum()
    for regularizer, wanted in (
        (nn.regularizers.L1(0.1), 0.1 * l1),
        (nn.regularizers.L2(0.2), 0.2 * l2),
        (nn.regularizers.L1L2(0.1, 0.2), 0.1 * l1 + 0.2 * l2),
    ):
        np.testing.assert_allclose(regularizer(x), wanted, rtol=1e-5)
    with pytest.raises(TypeError, match="pass it to a layer"):
        nn.regularizers.L2(0.1)(nn.Input((3,)))


class SumOfSquares(nn.Regularizer):
    """A regularizer of a user's."""

    def __call__(self, x):
        return nn.ops.sum(x * x) * 0.5


def test_a_regularizer_of_ones_own_defines_its_call():
    model = nn.Sequential(
        [nn.Input((3,)), nn.Dense(2, kernel_regularizer=SumOfSquares())]
    )
    model.compile("sgd", "mse")
    x, y = np.random.default_rng(1).normal(size=(2, 4, 3)).astype("f4")
    w = model.get_weights()[0]
    wanted = ((x @ w - y[:, :2]) ** 2).mean() + 0.5 * (w**2).sum()
    found = model.evaluate(x, y[:, :2], verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(SumOfSquares()(w), 0.5 * (w**2).sum(), rtol=1e-5)
    with pytest.raises(NotImplementedError, match="must define __call__"):
        nn.Regularizer()(w)


def test_a_constraint_is_a_function():
    x = np.array([[3.0, 0.0], [4.0, 0.5]], "f4")
    made = nn.constraints.MaxNorm(1.0)(x)
    np.testing.assert_allclose(made, [[0.6, 0.0], [0.8, 0.5]], rtol=1e-5)
    np.testing.assert_array_equal(nn.constraints.NonNeg()(-x), np.zeros((2, 2)))
    assert nn.Constraint()(x) is x


def test_an_initializer_draws_arrays():
    start = nn.initializers.RandomNormal(stddev=2.0, seed=5)
    made = start((1000,))
    np.testing.assert_array_equal(made, start.draw((1000,), 5))
    own = nn.initializers.RandomNormal()
    np.testing.assert_array_equal(own((5,)), own((5,), dtype="float32"))
    assert not np.array_equal(own((5,)), nn.initializers.RandomNormal()((5,)))
    np.testing.assert_array_equal(nn.initializers.Ones()((2, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="draws float32"):
        own((5,), dtype="float16")


def test_integers_and_floats_meet_in_float32():
    whole, part = np.array([1, 2, 4]), np.array([0.5, 1.5, -2.0], "f4")
    for name in ("add", "multiply", "subtract", "maximum", "power", "less"):
        made = getattr(nn.ops, name)(whole, part)
        assert made.dtype == np.float32
        wanted = getattr(np, name)(whole, part)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
    for name in ("sqrt", "exp", "log", "cos", "tanh", "mean"):
        made = getattr(nn.ops, name)(whole)
        np.testing.assert_allclose(made, getattr(np, name)(whole), rtol=1e-6)


def test_integers_stay_integers_of_all_32_bits():
    """Beside NumPy, whose integers wrap around as well."""
    random = np.random.default_rng(0)
    x, y = random.integers(-(2**31), 2**31, (2, 3, 5)).astype(np.int32)
    x[0, :2] = -(2**31), 2**31 - 1
    y[0, 0] = 0

    def check(name, *args, dtype=np.int32, **options):
        found = getattr(nn.ops, name)(*args, **options)
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(*args, **options)
        np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.int32))
        assert np.asarray(found).dtype == dtype

    for name in ("add", "subtract", "multiply", "maximum", "floor_divide", "mod"):
        check(name, x, y)
        check(name, x, 70000)
        check(name, -3, x)
    check("power", x, np.abs(y) % 9)
    for name in ("less", "less_equal", "equal", "not_equal", "greater"):
        check(name, x, y, dtype=np.float32)
        check(name, x, int(x[1, 1]), dtype=np.float32)
    for name in ("negative", "absolute", "sign", "square", "trunc", "round"):
        check(name, x)
    for name in ("sum", "max", "min", "prod", "argmax", "argmin", "cumsum", "ptp"):
        for axis in (0, 1):
            check(name, x, axis=axis)
        check(name, x)
    for name in ("sort", "argsort"):
        check(name, np.where(y > 0, x, 7), axis=1)
    check("where", y > 0, x, y)
    check("tril", x)
    check("take", x, np.array([2, 0]), axis=1)
    check("clip", x, -3, 5)
    assert nn.ops.add(x, 2.0).dtype == nn.ops.mean(x).dtype == np.float32
    with pytest.raises(ValueError, match="integers are computed in int32"):
        nn.ops.add(x, np.array([2**31]))


def test_arrays_are_numbers_where_an_op_needs_them():
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    places = np.array([0, 1, 2])
    np.testing.assert_array_equal(
        nn.ops.slice(x, places, np.array([1, 2, 2])), x[:, 1:3, 2:]
    )
    np.testing.assert_array_equal(nn.ops.reshape(x, np.array([2, 8])).shape, (2, 8))
    np.testing.assert_array_equal(nn.ops.reshape(x, 16), x.reshape(-1))
    quarter = nn.ops.quantile(x, np.array([0.25, 0.5]))
    np.testing.assert_allclose(quarter, np.quantile(x, [0.25, 0.5]), rtol=1e-6)
    assert nn.ops.argmax(x, keepdims=True).shape == (1, 1, 1)
    blocks = nn.ops.depth_to_space(x.reshape(1, 2, 2, 4), 2)
    np.testing.assert_array_equal(blocks[0, :2, :2, 0], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(
        nn.ops.space_to_depth(blocks, 2), x.reshape(1, 2, 2, 4)
    )
    whole = np.array([[1, 2], [3, 4]])
    np.testing.assert_allclose(nn.ops.matmul(whole, x[0, :2]), whole @ x[0, :2])
    np.testing.assert_allclose(nn.ops.logical_and(x, True), x != 0)


def test_a_softmax_along_several_axes():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("f4")
    for axis in ((1, 3), [-1, 2], None):
        axes = None if axis is None else tuple(axis)
        wanted = np.exp(x) / np.exp(x).sum(axes, keepdims=True)
        found = nn.ops.softmax(x, axis=axis)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        found = nn.activations.log_softmax(x, axis=axis)
        np.testing.assert_allclose(found, np.log(wanted), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="axes must be different ones"):
        nn.ops.softmax(x, axis=(1, -3))
    model = nn.Model(start := nn.Input((3, 4)), nn.ops.softmax(start, (1, 2)))
    found = model.predict(x[..., 0], verbose=0).sum((1, 2))
    np.testing.assert_allclose(found, [1, 1], rtol=1e-6)


def test_ops_take_numbers_and_lists():
    np.testing.assert_allclose(nn.ops.exp([0.0, 1.0]), np.exp([0.0, 1.0]), rtol=1e-6)
    assert nn.ops.sqrt(4.0) == 2
    assert nn.ops.add(1.0, 2.0) == 3
    np.testing.assert_array_equal(
        nn.ops.reshape([1, 2, 3, 4], (2, 2)), [[1, 2], [3, 4]]
    )


def test_losses_take_integers_and_a_column_of_weights():
    y_true, y_pred = np.array([[1, 9], [2, 5]]), np.array([[4, 8], [12, 3]])
    weights = np.array([[1.2], [3.4]])
    rows = np.abs(y_true - y_pred).mean(-1)
    found = nn.losses.MeanAbsoluteError()(y_true, y_pred)
    np.testing.assert_allclose(found, rows.mean(), rtol=1e-6)
    found = nn.losses.MeanAbsoluteError()(y_true, y_pred, sample_weight=weights)
    np.testing.assert_allclose(found, (rows * weights[:, 0]).mean(), rtol=1e-6)
    found = nn.losses.MeanAbsoluteError()(
        y_true, y_pred, sample_weight=np.array([1, 0])
    )
    np.testing.assert_allclose(found, rows[0] / 2, rtol=1e-6)


def test_layers_take_weights_for_inputs():
    held = nn.Dense(2, kernel_initializer="ones")
    held.build((None, 3))
    np.testing.assert_array_equal(nn.ReLU()(held.kernel), np.ones((3, 2)))


def test_in_a_function_regularizers_and_constraints_are_parts_of_it():
    @mc.function
    def both(x):
        return nn.regularizers.L2(0.5)(x), nn.constraints.UnitNorm()(x)

    x = np.array([[3.0], [4.0]], "f4")
    penalty, unit = both(x)
    np.testing.assert_allclose(penalty, 12.5, rtol=1e-6)
    np.testing.assert_allclose(unit, [[0.6], [0.8]], rtol=1e-5)


def test_a_model_computes_on_arrays_as_in_training():
    nn.set_random_seed(0)
    model = nn.Sequential(
        [nn.Input((4,)), nn.Dense(3), nn.BatchNormalization(), nn.Dropout(0.5)]
    )
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    before = model.get_weights()
    first, second = model(x, training=True), model(x, training=True)
    assert 0.3 < np.mean(first == 0) < 0.7
    assert not np.array_equal(first, second)  # other numbers are drawn
    assert np.all(model(x) != 0)
    changed = [
        not np.array_equal(a, b)
        for a, b in zip(before, model.get_weights(), strict=True)
    ]
    assert changed == [False, False, False, False, True, True]  # the moving averages


def test_a_loss_that_keeps_the_numbers_of_samples():
    generator = np.random.default_rng(1)
    y, p = generator.random((2, 3, 4, 2)).astype(np.float32)
    expected = np.square(y - p).mean(-1)
    weights = np.array([1, 2, 3], np.float32)
    for none in ("none", None):
        loss = nn.losses.MeanSquaredError(reduction=none)
        np.testing.assert_allclose(loss(y, p), expected, rtol=1e-5)
        np.testing.assert_allclose(
            loss(y, p, weights), expected * weights[:, None], rtol=1e-5
        )
        model = nn.Sequential([nn.Input((2,)), nn.Dense(2)])
        with pytest.raises(ValueError, match="minimises a single number"):
            model.compile("sgd", loss)


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_states_are_kept_between_calls(kind):
    """Two halves of a sequence are the whole one."""
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("f4")
    layer = getattr(nn, kind)(3, stateful=True)
    first = layer(x[:, :3])
    second = layer(x[:, 3:])
    layer.reset_state()
    np.testing.assert_allclose(layer(x[:, :3]), first, rtol=1e-6)
    whole = getattr(nn, kind)(3, return_sequences=True)
    whole.build(x.shape)
    whole.set_weights(layer.get_weights()[:3])
    np.testing.assert_allclose(whole(x)[:, -1], second, rtol=1e-5, atol=1e-6)


def test_attention_is_called_in_several_ways():
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("f4")
    layer = nn.layers.MultiHeadAttention(2, 3)
    layer.build(query_shape=x.shape, value_shape=x.shape, key_shape=x.shape)
    plain = layer(x, x)
    values, scores = layer(x, x, return_attention_scores=True)
    np.testing.assert_allclose(values, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores.sum(-1), np.ones((2, 2, 5)), rtol=1e-5)
    causal = layer(x, x, use_causal_mask=True)
    mask = np.tril(np.ones((2, 5, 5), "f4"))
    masked = layer(x, x, attention_mask=mask)
    np.testing.assert_allclose(causal, masked, rtol=1e-5, atol=1e-6)
    assert layer(nn.Input((5, 4)), nn.Input((5, 4))).shape == (None, 5, 4)
    assert layer.compute_output_shape((2, 5, 4), (2, 3, 4), None) == (2, 5, 4)
    wide = nn.layers.MultiHeadAttention(2, 3, output_shape=(2, 3))
    flat = nn.layers.MultiHeadAttention(2, 3, output_shape=6)
    assert wide(x, x).shape == (2, 5, 2, 3)
    flat.build(x.shape, x.shape)
    flat.set_weights(
        [
            w.reshape(v.shape)
            for w, v in zip(wide.get_weights(), flat.weights, strict=True)
        ]
    )
    np.testing.assert_allclose(wide(x, x).reshape(2, 5, 6), flat(x, x), rtol=1e-5)


def test_a_call_may_take_rows_of_arrays():
    """A layer of graphs, whose first axis is that of the nodes, as in Keras's guide."""

    class Neighbours(nn.Layer):
        def build(self, shapes):
            self.kernel = self.add_weight((shapes[0][-1], 2), name="kernel")

        def call(self, inputs):
            nodes, edges = inputs
            made = nn.ops.matmul(nodes, self.kernel)
            rows = nn.ops.take(made, edges[:, 1], axis=0)
            return nn.ops.segment_sum(rows, edges[:, 0], num_segments=4)

    random = np.random.default_rng(0)
    nodes = random.normal(size=(4, 3)).astype("f")
    edges = np.array([[0, 1], [0, 2], [2, 0], [3, 3], [1, 0]], np.int32)
    layer = Neighbours()
    found = layer([nodes, edges])
    (kernel,) = layer.get_weights()
    expected = np.zeros((4, 2), "f")
    np.add.at(expected, edges[:, 0], (nodes @ kernel)[edges[:, 1]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="axis 0 is the batch"):
        Neighbours()([nn.Input((3,)), nn.Input((2,), dtype="int32")])


def test_a_call_may_return_a_weight_that_it_assigns():
    """The first layer of Keras's guide that has a state."""

    class Summed(nn.Layer):
        def __init__(self, length):
            super().__init__()
            self.total = self.add_weight((length,), "zeros", trainable=False)

        def call(self, inputs):
            self.total.assign_add(nn.ops.sum(inputs, axis=0))
            return self.total

    layer, x = Summed(2), np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(layer(x), [3, 3])
    np.testing.assert_array_equal(layer(x), [6, 6])
    np.testing.assert_array_equal(layer.total.numpy(), [6, 6])

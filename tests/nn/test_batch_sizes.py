"""The size of the batch in a `call`: a length of shapes, and a number of tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
ops = nn.ops
X = np.random.default_rng(0).normal(size=(6, 4, 8)).astype("f")
W = np.linspace(-1, 1, 8).astype("f")


class Own(nn.Layer):
    """A layer with a weight, whose `call` is a function of ops."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, input_shape):
        self.w = self.add_weight((8,), nn.initializers.Constant(1.0), name="w")

    def call(self, x):
        return self.function(x, self.w)


def heads(x, w):
    b, t, d = ops.shape(x)
    y = ops.transpose(ops.reshape(x, (b, t, 2, d // 2)), (0, 2, 1, 3))
    y = ops.reshape(y, (b * 2, t, d // 2))
    y = ops.matmul(y, ops.transpose(y, (0, 2, 1)))
    return ops.reshape(y, (b, 2, t, t)) * w[0]


def heads_by_numpy(x, w):
    y = x.reshape(len(x), 4, 2, 4).transpose(0, 2, 1, 3)
    return y @ y.transpose(0, 1, 3, 2) * w[0]


def class_token(x, w):
    b = ops.shape(x)[0]
    return ops.concatenate([ops.broadcast_to(w, (b, 1, 8)), x], axis=1)


def tiled_token(x, w):
    token = ops.tile(ops.reshape(w, (1, 1, 8)), [ops.shape(x)[0], 1, 1])
    return ops.concatenate([token, x], axis=1)


def repeated_token(x, w):
    token = ops.repeat(ops.reshape(w, (1, 1, 8)), ops.shape(x)[0], axis=0)
    return ops.concatenate([token, x], axis=1)


def with_token(x, w):
    token = np.broadcast_to(w, (len(x), 1, 8))
    return np.concatenate([token, x], axis=1)


def causal(x, w):
    """The mask of Keras's guides to transformers."""
    b, t, _ = ops.shape(x)
    i, j = ops.arange(t)[:, None], ops.arange(t)
    mask = ops.reshape(ops.cast(i >= j, "int32"), (1, t, t))
    more = ops.concatenate([ops.expand_dims(b, -1), ops.convert_to_tensor([1, 1])], 0)
    return ops.matmul(ops.cast(ops.tile(mask, more), "float32"), x) * w


def quantized(x, w):
    """The nearest of two rows, in rows of all samples: a codebook's lookup."""
    codes = ops.stack([w, -w])
    flat = ops.reshape(x, (-1, 8))
    apart = ops.sum(flat**2, axis=1, keepdims=True) - 2 * ops.matmul(
        flat, ops.transpose(codes)
    )
    rows = ops.one_hot(ops.argmin(apart, axis=1), 2)
    return ops.reshape(ops.matmul(rows, codes), ops.shape(x))


def quantized_by_numpy(x, w):
    codes = np.stack([w, -w])
    flat = x.reshape(-1, 8)
    apart = (flat**2).sum(1, keepdims=True) - 2 * flat @ codes.T
    return codes[apart.argmin(1)].reshape(x.shape)


def numbered(x, w):
    b = ops.shape(x)[0]
    return x * w + ops.reshape(ops.cast(ops.arange(b), "float32"), (-1, 1, 1))


def windows(x, w):
    """Two rows of each sample, by rows of zeros, ones and a number of the batch."""
    b = ops.shape(x)[0]
    more = (
        ops.zeros((2 * b, 2, 8))
        + ops.ones((b * 2, 1, 1))
        + ops.full((2 * b, 1, 1), 3.0)
    )
    return ops.reshape(ops.reshape(x, (2 * b, 2, 8)) + more * w, (b, 4, 8))


def divided(x, w):
    b = ops.shape(x)[0]
    return x * w + ops.sum(x, axis=0) / b - ops.mean(x) * ops.cast(b, "float32")


CASES = {
    "heads": (heads, heads_by_numpy),
    "broadcast_to": (class_token, with_token),
    "tile": (tiled_token, with_token),
    "repeat": (repeated_token, with_token),
    "causal": (causal, lambda x, w: np.tril(np.ones((4, 4), "f")) @ x * w),
    "quantized": (quantized, quantized_by_numpy),
    "arange": (
        numbered,
        lambda x, w: x * w + np.arange(len(x), dtype="f")[:, None, None],
    ),
    "filled": (windows, lambda x, w: x + 4 * w),
    "number": (divided, lambda x, w: x * w + x.mean(0) - x.mean() * len(x)),
    "rest": (
        lambda x, w: ops.reshape(x * w, (ops.shape(x)[0], -1)),
        lambda x, w: (x * w).reshape(len(x), -1),
    ),
    "size": (
        lambda x, w: ops.reshape(
            x * w, (ops.shape(x)[0], ops.size(x) // ops.shape(x)[0])
        ),
        lambda x, w: (x * w).reshape(len(x), -1),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 6])
def test_values_are_numpys(case, size):
    function, expected = CASES[case]
    layer, x = Own(function), X[:size]
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(layer(x), expected(x, np.ones(8, "f")), **close)
    start = nn.Input((4, 8))
    model = nn.Model(start, layer(start))
    layer.set_weights([W])
    np.testing.assert_allclose(model.predict(x, verbose=0), expected(x, W), **close)


@pytest.mark.parametrize("case", ["heads", "broadcast_to", "filled", "number"])
def test_gradients_are_those_of_a_function_of_whole_arrays(case):
    layer, start = Own(CASES[case][0]), nn.Input((4, 8))
    model = nn.Sequential([start, layer, nn.layers.Flatten(), nn.Dense(1)])
    model.compile(nn.optimizers.SGD(1.0), lambda y, p: ops.mean(p**2, axis=-1))
    layer.set_weights([W])
    kernel, bias = model.layers[-1].get_weights()

    @mc.function
    def loss(w):
        made = layer.function(ops.convert_to_tensor(X), w)
        flat = ops.reshape(made, (6, -1))
        return ops.mean((ops.matmul(flat, kernel) + bias) ** 2)

    expected = W - mc.grad(loss)(W)
    model.fit(X, np.zeros((6, 1)), batch_size=6, verbose=0)
    np.testing.assert_allclose(layer.get_weights()[0], expected, rtol=1e-3, atol=1e-4)


@given(
    st.sampled_from([(2, 3), (4, 2), (6,), (1, 6), (3, 2, 1)]),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 6, 12, 24]),
)
@settings(max_examples=40, deadline=None)
def test_rows_go_there_and_back(shape, size, length):
    """A reshape to rows of any length that divides a sample, and back to samples."""
    count = int(np.prod(shape))
    x = np.arange(size * count, dtype="f").reshape(size, *shape)

    class There(nn.Layer):
        def call(self, x):
            rows = ops.reshape(x, (-1, length))
            return ops.reshape(ops.cumsum(rows, axis=1), ops.shape(x))

    if (size * count) % length:
        with pytest.raises(ValueError, match="numbers of elements differ"):
            There()(nn.Input(shape))
        return
    expected = np.cumsum(x.reshape(-1, length), axis=1).reshape(x.shape)
    np.testing.assert_array_equal(There()(x), expected)
    if count % length:  # rows of several samples
        with pytest.raises(ValueError, match="numbers of elements differ"):
            There()(nn.Input(shape))
        return
    start = nn.Input(shape)
    model = nn.Model(start, There()(start))
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


def test_models_between_tensors_may_have_rows(tmp_path):
    start = nn.Input((4, 8))
    rows = nn.Dense(5)(ops.reshape(start, (-1, 8)))
    assert rows.shape == (None, 5)
    model = nn.Model(start, ops.reshape(rows, (-1, 4, 5)))
    kernel, bias = model.get_weights()
    expected = model.predict(X, verbose=0)
    np.testing.assert_allclose(expected, X @ kernel + bias, rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "rows.memcfg")
    again = nn.models.load_model(tmp_path / "rows.memcfg")
    np.testing.assert_array_equal(again.predict(X, verbose=0), expected)
    with pytest.raises(ValueError, match="has 4 rows for each sample"):
        nn.Model(start, rows)
    with pytest.raises(ValueError, match="whose first axes have"):
        rows + nn.Dense(5)(nn.layers.Flatten()(start))


def test_a_loss_has_the_size_of_the_batch():
    def by_size(y, p):
        size = ops.cast(ops.shape(p)[0], "float32")
        return ops.sum(ops.square(ops.reshape(y, (-1,)) - ops.reshape(p, (-1,)))) / size

    def of_rows(y, p):
        return ops.square(ops.reshape(y, (-1,)) - ops.reshape(p, (-1,)))

    x, y = X[:, 0], X[:, 1, :2]
    model = nn.Sequential([nn.Input((8,)), nn.Dense(2)])
    for loss, whole in (
        (by_size, lambda e: (e**2).sum() / 6),
        (of_rows, lambda e: (e**2).mean()),
    ):
        model.compile("sgd", loss)
        error = y - model.predict(x, verbose=0)
        assert model.evaluate(x, y, verbose=0) == pytest.approx(whole(error), rel=1e-5)


def test_samples_that_are_combined_do_not_run_in_parts():
    class Centred(nn.Layer):
        def call(self, x):
            return x - ops.mean(x, axis=0)

    x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")
    model = nn.Sequential([nn.Input((8,)), Centred(), nn.Dense(256), nn.Dense(1)])
    model.compile("sgd", "mse", on_oom=["micro_batch"])
    plan = model.plan(64)
    np.testing.assert_allclose(
        nn.Sequential([nn.Input((8,)), Centred()]).predict(x, batch_size=64, verbose=0),
        x - x.mean(0),
        rtol=1e-5,
        atol=1e-6,
    )
    with (
        mc.budget(plan.peak_bytes * 3 // 5),
        pytest.raises(mc.errors.ResourceExhaustedError, match="with the whole batch"),
    ):
        model.fit(x, x[:, :1], batch_size=64, verbose=0)


@pytest.mark.parametrize(
    "of_sample",
    [
        lambda p: 1 / ops.cast(ops.shape(p)[0], "float32"),
        lambda p: ops.cast(ops.arange(ops.shape(p)[0]) < 32, "float32"),
        lambda p: ops.cast(p[:, 0] > ops.mean(p[:, 0], axis=0), "float32"),
    ],
)
def test_losses_of_samples_with_the_batch_do_not_run_in_parts(of_sample):
    def loss(y, p):
        return ops.sum((y - p) ** 2, -1) * of_sample(p)

    x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")
    model = nn.Sequential([nn.Input((8,)), nn.Dense(256), nn.Dense(1)])
    model.compile("sgd", loss, on_oom=["micro_batch"])
    limit = model.plan(64).peak_bytes * 3 // 5
    with (
        mc.budget(limit),
        pytest.raises(
            mc.errors.ResourceExhaustedError, match="compares the samples of a batch"
        ),
    ):
        model.fit(x, x[:, :1], batch_size=64, verbose=0)


class Penalised(nn.Layer):
    """A layer that adds a loss of the whole batch, as a variational encoder does."""

    def call(self, x, training=False):
        self.add_loss(ops.mean(x**2))
        return x - ops.mean(x, axis=0) if training else x


@pytest.mark.parametrize("nested", [False, True])
def test_predict_runs_in_parts_if_only_losses_and_training_read_the_batch(nested):
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")
    layers = [nn.Input((8,)), Penalised(), nn.Dense(256), nn.Dense(1)]
    model = nn.Sequential(layers)
    if nested:
        model = nn.Sequential([nn.Input((8,)), model])
    model.compile("sgd", "mse", on_oom=["micro_batch"])
    expected = model.predict(x, batch_size=64, verbose=0)
    limit = model.plan(64, program="predict").peak_bytes * 3 // 5
    model.close()
    with (
        mc.budget(limit),
        pytest.warns(mc.errors.FallbackWarning, match="runs as"),
    ):
        made = model.predict(x, batch_size=64, verbose=0)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_what_the_size_cannot_do_is_said():
    seen = []

    class Asks(nn.Layer):
        def __init__(self, use):
            super().__init__()
            self.use = use

        def call(self, x):
            seen.append(ops.shape(x)[0])
            self.use(seen[-1])
            return x

    for use in (
        *(int, float, bool, range),
        *(lambda size: size == 4, lambda size: size == np.int64(4)),
        *(lambda size: size < 4, lambda size: size >= 4, lambda size: size > size),
    ):
        with pytest.raises(TypeError, match="not known while a call is traced"):
            Asks(use)(nn.Input((4,)))
    size = seen[-1]
    assert (repr(size), repr(2 * size)) == ("the batch", "2 * the batch")
    assert size == seen[0] != 2 * size
    assert 6 * size // 2 == size * 3
    assert 6 * size // (2 * size) == 3
    assert ops.shape(nn.Input((4,))) == (None, 4)
    with pytest.raises(ValueError, match="first axis is not the batch"):
        Own(lambda x, w: ops.reshape(x, (-1, 8)) * w)(nn.Input((4, 8)))


def test_the_size_is_a_number_of_any_operator():
    def of_numbers(x, w):
        b = ops.shape(x)[0]
        made = [b % 4, 20 % b, b**2, 2**b, -b, b * -1, b * 0, b // -2]
        return x * w + ops.stack([ops.cast(each, "float32") for each in made])

    layer, start = Own(of_numbers), nn.Input((4, 8))
    model = nn.Model(start, layer(start))
    numbers = np.array([2, 2, 36, 64, -6, -6, 0, -3], "f")
    np.testing.assert_allclose(model.predict(X, verbose=0), X + numbers, rtol=1e-6)


def test_the_size_times_an_integer_of_numpy_is_a_length():
    def pairs(x, w):
        rows = ops.shape(x)[0] * np.int64(4)
        rows = ops.reshape(x * w, (np.int32(2) * rows // np.int64(2), 8))
        return ops.reshape(rows, (ops.shape(x)[0], 32))

    start = nn.Input((4, 8))
    model = nn.Model(start, Own(pairs)(start))
    np.testing.assert_array_equal(model.predict(X, verbose=0), X.reshape(6, 32))


def test_rows_beyond_the_integers_of_float32_are_not_numbered():
    class Numbered(nn.Layer):
        def call(self, x):
            return x + ops.reshape(ops.arange(ops.shape(x)[0]), (-1, 1))

    model = nn.Sequential([nn.Input((1,), dtype="int32"), Numbered()])
    with pytest.raises(ValueError, match="numbers 16777217 rows: it numbers at most"):
        model.plan(2**24 + 1, program="predict")


def attention(take):
    """Queries, keys and values that are taken apart behind a transpose."""

    def of(x, w):
        _, t, d = x.shape
        parts = ops.concatenate([x, x * w, x + 1.0], -1)
        parts = ops.reshape(parts, (-1, t, 3, 2, d // 2))
        q, k, v = take(ops.transpose(parts, (2, 0, 3, 1, 4)))
        scores = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))))
        made = ops.transpose(ops.matmul(scores, v), (0, 2, 1, 3))
        return ops.reshape(made, (-1, t, d))

    return of


@pytest.mark.parametrize(
    "take",
    [
        lambda moved: (moved[0], moved[1], moved[-1]),
        lambda moved: moved,
        ops.unstack,
        lambda moved: (moved[:2][0], moved[1:][0], moved[2, :, :]),
        lambda moved: (ops.transpose(moved, (1, 0, 2, 3, 4))[:, i] for i in range(3)),
    ],
)
def test_the_batch_may_be_moved_to_take_parts(take):
    parts = np.concatenate([X, X * W, X + 1], -1).reshape(6, 4, 3, 2, 4)
    q, k, v = parts.transpose(2, 0, 3, 1, 4)
    scores = np.exp(q @ k.transpose(0, 1, 3, 2))
    scores /= scores.sum(-1, keepdims=True)
    expected = (scores @ v).transpose(0, 2, 1, 3).reshape(6, 4, 8)
    start = nn.Input((4, 8))
    layer = Own(attention(take))
    model = nn.Model(start, layer(start))
    layer.set_weights([W])
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, **close)


def test_a_moved_batch_is_no_operand():
    x = nn.Input((4, 8))
    moved = ops.transpose(x, (1, 0, 2))
    assert (moved.shape, len(moved)) == ((4, None, 8), 4)
    assert repr(moved) == "<a tensor of shape (4, None, 8), whose batch is axis 1>"
    assert ops.transpose(moved, (1, 0, 2)).shape == (None, 4, 8)
    assert moved[0].shape == (None, 8)
    for use in (
        lambda: moved + 1.0,
        lambda: x * moved,
        lambda: ops.exp(moved),
        lambda: ops.matmul(x, moved),
        lambda: moved @ moved,
        lambda: moved[None],
        lambda: np.asarray(moved),
    ):
        with pytest.raises(TypeError, match="index the axes before the batch"):
            use()
    with pytest.raises(ValueError, match="are not those of"):
        ops.transpose(x, (1, 0, 3))
    with pytest.raises(TypeError, match="must return one or several symbolic tensors"):
        Own(lambda x, w: ops.transpose(x, (1, 0, 2)))(x)

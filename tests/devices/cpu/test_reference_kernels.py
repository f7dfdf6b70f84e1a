"""The reference against oracles that share nothing with it: loops over scalars, and
float64 central differences for gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg import ops
from memcfg.ops.dropout import keep_mask, philox4x32

CONV = {
    "strides": (2, 1),
    "padding": ((1, 0), (2, 1)),
    "dilation": (1, 2),
    "groups": 2,
}
EPSILON = {"epsilon": 1e-2}
POOL = {"pool_size": (3, 2), "strides": (2, 1), "padding": ((1, 2), (0, 1))}


def run(op_type, attributes, inputs, shapes, dtype=np.float64):
    """Run on outputs full of garbage; integers come out as integers."""
    kinds = [dtype] * len(shapes)
    if op_type == "max_pool2d":
        kinds[1] = np.uint8
    outputs = [
        np.full(shape, 0xEE, kind) for shape, kind in zip(shapes, kinds, strict=True)
    ]
    ops.op_type(op_type).numpy(attributes, list(inputs), outputs)
    return outputs


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def distinct(*shape, seed=0):
    """Values at least 0.1 apart from each other and from 0: no kink is near."""
    size = math.prod(shape)
    ordered = (np.arange(size) - size / 2 + 0.5) * 0.1
    return np.random.default_rng(seed).permutation(ordered).reshape(shape)


def numeric_gradient(function, x, step=1e-5):
    """Central differences of a function of one array, which it leaves as it was."""
    gradient = np.empty_like(x)
    for at in np.ndindex(x.shape):
        kept = x[at]
        x[at] = kept + step
        above = function()
        x[at] = kept - step
        below = function()
        x[at] = kept
        gradient[at] = (above - below) / (2 * step)
    return gradient


def conv_output(h, w, kernel, a):
    (top, bottom), (left, right) = a["padding"]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, a["dilation"], strict=True)]
    padded = (h + top + bottom, w + left + right)
    return tuple(
        (p - r) // s + 1 for p, r, s in zip(padded, reach, a["strides"], strict=True)
    )


def naive_conv2d(x, kernel, a):
    n, h, w, _ = x.shape
    kh, kw, per_group, units = kernel.shape
    oh, ow = conv_output(h, w, (kh, kw), a)
    (top, _), (left, _) = a["padding"]
    y = np.zeros((n, oh, ow, units))
    for b, i, j, o in np.ndindex(y.shape):
        group = o // (units // a["groups"])
        for p, q, c in np.ndindex(kh, kw, per_group):
            row = i * a["strides"][0] - top + p * a["dilation"][0]
            column = j * a["strides"][1] - left + q * a["dilation"][1]
            if 0 <= row < h and 0 <= column < w:
                y[b, i, j, o] += (
                    x[b, row, column, group * per_group + c] * kernel[p, q, c, o]
                )
    return y


def naive_pool(x, a):
    """Maximum, its place and mean of every window, pixel by pixel."""
    n, h, w, c = x.shape
    oh, ow = conv_output(h, w, a["pool_size"], {**a, "dilation": (1, 1)})
    (top, _), (left, _) = a["padding"]
    best = np.full((n, oh, ow, c), -np.inf)
    index = np.zeros((n, oh, ow, c), np.uint8)
    mean = np.zeros((n, oh, ow, c))
    for b, i, j, k in np.ndindex(best.shape):
        seen = []
        for p, q in np.ndindex(*a["pool_size"]):
            row, column = i * a["strides"][0] - top + p, j * a["strides"][1] - left + q
            if 0 <= row < h and 0 <= column < w:
                seen.append((x[b, row, column, k], p * a["pool_size"][1] + q))
        best[b, i, j, k] = max(value for value, _ in seen)
        index[b, i, j, k] = next(
            place for value, place in seen if value == best[b, i, j, k]
        )
        mean[b, i, j, k] = sum(value for value, _ in seen) / len(seen)
    return best, index, mean


class TestConvolution:
    @pytest.mark.parametrize("groups", [1, 2, 4])
    def test_forward_is_the_sum_over_windows(self, groups):
        a = {**CONV, "groups": groups}
        x, kernel = values(2, 6, 5, 4), values(3, 2, 4 // groups, 8, seed=1)
        expected = naive_conv2d(x, kernel, a)
        (y,) = run("conv2d", a, [x, kernel], [expected.shape])
        np.testing.assert_allclose(y, expected, atol=1e-12)

    @pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
    def test_gradients(self, dilation):
        a = {**CONV, "dilation": dilation}
        x, kernel = values(2, 6, 5, 4), values(3, 2, 2, 6, seed=1)
        shape = (2, *conv_output(6, 5, (3, 2), a), 6)
        dy = values(*shape, seed=2)

        def loss():
            return float((run("conv2d", a, [x, kernel], [shape])[0] * dy).sum())

        (dkernel,) = run("conv2d_gradient_kernel", a, [x, dy], [kernel.shape])
        (dx,) = run("conv2d_gradient_input", a, [kernel, dy], [x.shape])
        np.testing.assert_allclose(dkernel, numeric_gradient(loss, kernel), atol=1e-7)
        np.testing.assert_allclose(dx, numeric_gradient(loss, x), atol=1e-7)


class TestDense:
    def test_forward_on_any_rank(self):
        x, kernel = values(2, 3, 4), values(4, 5, seed=1)
        (y,) = run("dense", {}, [x, kernel], [(2, 3, 5)])
        for i, j, k in np.ndindex(y.shape):
            assert y[i, j, k] == pytest.approx(
                sum(x[i, j, c] * kernel[c, k] for c in range(4))
            )

    def test_gradients(self):
        x, kernel, dy = values(2, 3, 4), values(4, 5, seed=1), values(2, 3, 5, seed=2)

        def loss():
            return float((run("dense", {}, [x, kernel], [dy.shape])[0] * dy).sum())

        (dkernel,) = run("dense_gradient_kernel", {}, [x, dy], [kernel.shape])
        (dx,) = run("dense_gradient_input", {}, [kernel, dy], [x.shape])
        np.testing.assert_allclose(dkernel, numeric_gradient(loss, kernel), atol=1e-8)
        np.testing.assert_allclose(dx, numeric_gradient(loss, x), atol=1e-8)


class TestPooling:
    @given(
        data=st.data(),
        size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        shape=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    )
    @settings(max_examples=25, deadline=None)
    def test_forward(self, data, size, strides, shape):
        padding = tuple(
            (data.draw(st.integers(0, k - 1)), data.draw(st.integers(0, k - 1)))
            for k in size
        )
        a = {"pool_size": size, "strides": strides, "padding": padding}
        # few distinct values: ties are common
        x = np.random.default_rng(0).integers(-2, 2, (2, *shape, 3)).astype(float)
        best, index, mean = naive_pool(x, a)
        found, places = run("max_pool2d", a, [x], [best.shape] * 2)
        np.testing.assert_array_equal(found, best)
        np.testing.assert_array_equal(places, index)
        (again,) = run("max_pool2d_inference", a, [x], [best.shape])
        np.testing.assert_array_equal(again, best)
        (average,) = run("average_pool2d", a, [x], [best.shape])
        np.testing.assert_allclose(average, mean)

    def test_a_window_of_nothing_but_minus_infinity_points_into_the_image(self):
        x = np.full((1, 2, 2, 1), -np.inf)
        a = {"pool_size": (2, 2), "strides": (2, 2), "padding": ((1, 1), (1, 1))}
        _, index = run("max_pool2d", a, [x], [(1, 2, 2, 1)] * 2)
        np.testing.assert_array_equal(index[0, :, :, 0], [[3, 2], [1, 0]])

    def test_nan_is_the_maximum(self):
        x = np.array([3.0, np.nan, 5.0, np.nan]).reshape(1, 2, 2, 1)
        a = {"pool_size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}
        y, index = run("max_pool2d", a, [x], [(1, 1, 1, 1)] * 2)
        assert np.isnan(y).all()
        assert index.item() == 1

    @pytest.mark.parametrize("kind", ["max", "average"])
    def test_gradients(self, kind):
        x = distinct(2, 6, 5, 2)
        shape = naive_pool(x, POOL)[0].shape
        dy = values(*shape, seed=1)
        forward = f"{kind}_pool2d"
        outputs = [shape] * (2 if kind == "max" else 1)

        def loss():
            return float((run(forward, POOL, [x], outputs)[0] * dy).sum())

        inputs = [dy]
        if kind == "max":
            inputs = [run(forward, POOL, [x], outputs)[1], dy]
        (dx,) = run(f"{forward}_gradient", POOL, inputs, [x.shape])
        np.testing.assert_allclose(dx, numeric_gradient(loss, x), atol=1e-7)

    def test_global_average(self):
        x, dy = values(2, 3, 4, 5), values(2, 5, seed=1)
        (y,) = run("global_average_pool2d", {}, [x], [(2, 5)])
        expected = [[x[n, :, :, c].sum() / 12 for c in range(5)] for n in range(2)]
        np.testing.assert_allclose(y, expected)

        def loss():
            return float(
                (run("global_average_pool2d", {}, [x], [(2, 5)])[0] * dy).sum()
            )

        (dx,) = run("global_average_pool2d_gradient", {}, [dy], [x.shape])
        np.testing.assert_allclose(dx, numeric_gradient(loss, x), atol=1e-8)


class TestBatchNormalization:
    def test_statistics_and_output(self):
        x, gamma, beta = values(3, 2, 4), values(4, seed=1), values(4, seed=2)
        mean, variance = run("batch_moments", {}, [x], [(4,), (4,)])
        inputs = [x, gamma, beta, mean, variance]
        (y,) = run("batch_normalization", EPSILON, inputs, [x.shape])
        for c in range(4):
            column = x[..., c].ravel()
            centre = sum(column) / 6
            spread = sum((v - centre) ** 2 for v in column) / 6
            assert mean[c] == pytest.approx(centre)
            assert variance[c] == pytest.approx(spread)
            expected = gamma[c] * (x[..., c] - centre) / math.sqrt(spread + 1e-2)
            np.testing.assert_allclose(y[..., c], expected + beta[c])
        (again,) = run("batch_normalization_inference", EPSILON, inputs, [x.shape])
        np.testing.assert_array_equal(again, y)

    def test_gradients(self):
        x, gamma, beta = values(3, 2, 4), values(4, seed=1), values(4, seed=2)
        dy = values(3, 2, 4, seed=3)
        shapes = [x.shape, (4,), (4,)]

        def loss():
            inputs = [x, gamma, beta, *run("batch_moments", {}, [x], shapes[1:])]
            (y,) = run("batch_normalization", EPSILON, inputs, shapes[:1])
            return float((y * dy).sum())

        mean, variance = run("batch_moments", {}, [x], shapes[1:])
        dx, dgamma, dbeta = run(
            "batch_normalization_gradient",
            EPSILON,
            [x, dy, gamma, mean, variance],
            shapes,
        )
        np.testing.assert_allclose(dx, numeric_gradient(loss, x), atol=1e-7)
        np.testing.assert_allclose(dgamma, numeric_gradient(loss, gamma), atol=1e-7)
        np.testing.assert_allclose(dbeta, numeric_gradient(loss, beta), atol=1e-7)


class TestElementwise:
    def test_bias_relu_add(self):
        x, b = values(2, 3, 4), values(4, seed=1)
        (y,) = run("bias", {}, [x, b], [x.shape])
        for at in np.ndindex(x.shape):
            assert y[at] == x[at] + b[at[-1]]
        (y,) = run("relu", {}, [x], [x.shape])
        assert all(y[at] == max(x[at], 0) for at in np.ndindex(x.shape))
        (y,) = run("add", {}, [x, 2 * x], [x.shape])
        assert all(y[at] == x[at] + 2 * x[at] for at in np.ndindex(x.shape))

    def test_relu_keeps_nan(self):
        (y,) = run("relu", {}, [np.array([np.nan, -1.0])], [(2,)])
        assert np.isnan(y[0])
        assert y[1] == 0

    def test_gradients(self):
        x, b, dy = distinct(2, 3, 4), values(4, seed=1), values(2, 3, 4, seed=2)
        (y,) = run("relu", {}, [x], [x.shape])
        (dx,) = run("relu_gradient", {}, [y, dy], [x.shape])
        expected = numeric_gradient(
            lambda: float((run("relu", {}, [x], [x.shape])[0] * dy).sum()), x
        )
        np.testing.assert_allclose(dx, expected, atol=1e-8)
        (db,) = run("bias_gradient", {}, [dy], [(4,)])
        expected = numeric_gradient(
            lambda: float((run("bias", {}, [x, b], [x.shape])[0] * dy).sum()), b
        )
        np.testing.assert_allclose(db, expected, atol=1e-8)

    @pytest.mark.parametrize("op_type", ["flatten", "reshape"])
    def test_copies_keep_the_order(self, op_type):
        x = values(2, 3, 4)
        (y,) = run(op_type, {"shape": (2, 12)}, [x], [(2, 12)])
        np.testing.assert_array_equal(y.ravel(), x.ravel())


class TestLoss:
    LABELS = np.array([2, 0, 1], np.int32)

    def test_loss_and_probabilities(self):
        logits = values(3, 4)
        loss, p = run("softmax_cross_entropy", {}, [logits, self.LABELS], [(), (3, 4)])
        total = 0.0
        for i in range(3):
            exponentials = [math.exp(v) for v in logits[i]]
            expected = np.array(exponentials) / sum(exponentials)
            np.testing.assert_allclose(p[i], expected)
            total -= math.log(expected[self.LABELS[i]])
        assert loss == pytest.approx(total / 3)

    def test_large_logits_do_not_overflow(self):
        logits = np.array([[1e4, 0.0], [-1e4, 0.0]])
        labels = np.array([0, 1], np.int32)
        (loss,) = run("softmax_cross_entropy_inference", {}, [logits, labels], [()])
        assert loss == 0

    @pytest.mark.parametrize("label", [-1, 4])
    def test_a_label_out_of_range_makes_the_loss_nan(self, label):
        labels = np.array([0, label, 1], np.int32)
        (loss,) = run(
            "softmax_cross_entropy_inference", {}, [values(3, 4), labels], [()]
        )
        assert np.isnan(loss)

    def test_gradient(self):
        logits = values(3, 4)

        def forward():
            return run("softmax_cross_entropy", {}, [logits, self.LABELS], [(), (3, 4)])

        (gradient,) = run(
            "softmax_cross_entropy_gradient",
            {},
            [forward()[1], self.LABELS],
            [(3, 4)],
        )
        expected = numeric_gradient(lambda: float(forward()[0]), logits)
        np.testing.assert_allclose(gradient, expected, atol=1e-8)

    def test_correct_count_takes_the_first_maximum(self):
        logits = np.array([[1.0, 3.0, 3.0], [1.0, 3.0, 3.0], [5.0, 0.0, 0.0]])
        labels = np.array([1, 2, 0], np.int32)
        (count,) = run("correct_count", {}, [logits, labels], [()])
        assert count == 2


class TestUpdates:
    RATE = np.float64(0.1)

    def test_sgd(self):
        w, g = values(5), values(5, seed=1)
        (new,) = run("sgd", {}, [w, g, self.RATE], [(5,)])
        assert all(new[i] == w[i] - 0.1 * g[i] for i in range(5))

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_sgd_momentum(self, nesterov):
        w, g, v = values(5), values(5, seed=1), values(5, seed=2)
        a = {"momentum": 0.9, "nesterov": nesterov}
        new, velocity = run("sgd_momentum", a, [w, g, v, self.RATE], [(5,)] * 2)
        for i in range(5):
            speed = 0.9 * v[i] - 0.1 * g[i]
            step = 0.9 * speed - 0.1 * g[i] if nesterov else speed
            assert velocity[i] == pytest.approx(speed)
            assert new[i] == pytest.approx(w[i] + step)

    def test_adam_follows_the_paper(self):
        """Kingma and Ba, algorithm 1, with epsilon added as Keras does."""
        w, a = values(5), {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
        m, v = np.zeros(5), np.zeros(5)
        expected, mean, square = w.copy(), np.zeros(5), np.zeros(5)
        for step in range(4):
            g = values(5, seed=step + 1)
            w, m, v = run(
                "adam", a, [w, g, m, v, self.RATE, np.int64(step)], [(5,)] * 3
            )
            t = step + 1
            for i in range(5):
                mean[i] = 0.9 * mean[i] + 0.1 * g[i]
                square[i] = 0.999 * square[i] + 0.001 * g[i] ** 2
                rate = 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                expected[i] -= rate * mean[i] / (math.sqrt(square[i]) + 1e-7)
        np.testing.assert_allclose(w, expected)
        np.testing.assert_allclose(m, mean)
        np.testing.assert_allclose(v, square)

    def test_moving_average(self):
        moving, value = values(5), values(5, seed=1)
        (new,) = run("moving_average", {"momentum": 0.9}, [moving, value], [(5,)])
        assert all(
            new[i] == pytest.approx(0.9 * moving[i] + 0.1 * value[i]) for i in range(5)
        )


class TestDropout:
    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [
            ([0] * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
            (
                [0xFFFFFFFF] * 4,
                (0xFFFFFFFF, 0xFFFFFFFF),
                "408f276d 41c83b0e a20bc7c6 6d5451fd",
            ),
            (
                [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
                (0xA4093822, 0x299F31D0),
                "d16cfe09 94fdcceb 5001e420 24126ea1",
            ),
        ],
        ids=["zeros", "ones", "pi"],
    )
    def test_the_generator_gives_random123s_known_answers(self, counter, key, words):
        found = philox4x32(np.array(counter, np.uint64), key)
        assert " ".join(f"{int(word):08x}" for word in found) == words

    def test_the_counter_is_block_and_step(self):
        """Element i against the generator at one counter, in plain integers."""
        key, step, rate = 2**40 + 7, 2**33 + 3, 0.25
        mask = keep_mask(key, step, 9, rate)
        for i in range(9):
            counter = [i // 4, 0, step % 2**32, step >> 32]
            words = philox4x32(np.array(counter, np.uint64), (key % 2**32, key >> 32))
            assert mask[i] == (int(words[i % 4]) >= 2**30)

    def test_about_the_rate_is_dropped_and_the_rest_scaled(self):
        x = np.ones((100, 100))
        (y,) = run("dropout", {"rate": 0.3, "key": 5}, [x, np.int64(0)], [x.shape])
        assert set(np.unique(y)) == {0, 1 / 0.7}
        assert np.mean(y == 0) == pytest.approx(0.3, abs=0.02)

    def test_key_and_step_change_the_mask(self):
        masks = [
            keep_mask(key, step, 400, 0.5).tobytes()
            for key, step in itertools.product((1, 2**32 + 1), (0, 1, 2**32))
        ]
        assert len(set(masks)) == len(masks)

    @pytest.mark.parametrize(("rate", "kept"), [(0.0, 1.0), (1.0, 0.0)])
    def test_the_ends_of_the_rate(self, rate, kept):
        x = np.ones(64)
        (y,) = run("dropout", {"rate": rate, "key": 1}, [x, np.int64(0)], [x.shape])
        np.testing.assert_array_equal(y, kept)


@pytest.mark.parametrize(
    ("op_type", "attributes", "inputs", "pairs"),
    [
        ("bias", {}, [values(3, 4), values(4)], {0: 0}),
        ("relu", {}, [values(3, 4)], {0: 0}),
        ("add", {}, [values(3, 4), values(3, 4, seed=1)], {0: 0}),
        ("add", {}, [values(3, 4), values(3, 4, seed=1)], {0: 1}),
        ("relu_gradient", {}, [values(3, 4), values(3, 4, seed=1)], {0: 0}),
        ("relu_gradient", {}, [values(3, 4), values(3, 4, seed=1)], {0: 1}),
        ("reshape", {}, [values(3, 4)], {0: 0}),
        ("dropout", {"rate": 0.5, "key": 1}, [values(3, 4), np.int64(3)], {0: 0}),
        (
            "softmax_cross_entropy_gradient",
            {},
            [values(3, 4), np.array([1, 0, 3], np.int32)],
            {0: 0},
        ),
        ("sgd", {}, [values(4), values(4, seed=1), np.float64(0.1)], {0: 0}),
        ("moving_average", {"momentum": 0.9}, [values(4), values(4, seed=1)], {0: 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_output_in_place(op_type, attributes, inputs, pairs):
    shape = inputs[0].shape
    expected = run(op_type, attributes, inputs, [shape])
    inputs = [np.array(operand) for operand in inputs]
    outputs = [inputs[pairs[0]]]
    ops.op_type(op_type).numpy(attributes, inputs, outputs)
    np.testing.assert_array_equal(outputs[0], expected[0])


@pytest.mark.parametrize("op_type", ["sgd_momentum", "adam"])
def test_all_state_in_place(op_type):
    rate = np.float64(0.1)
    if op_type == "adam":
        a = {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-7}
        inputs = [values(4), values(4, seed=1), values(4, seed=2), values(4) ** 2]
        inputs, places = [*inputs, rate, np.int64(2)], (0, 2, 3)
    else:
        a = {"momentum": 0.9, "nesterov": True}
        inputs = [values(4), values(4, seed=1), values(4, seed=2), rate]
        places = (0, 2)
    expected = run(op_type, a, inputs, [(4,)] * len(places))
    inputs = [np.array(operand) for operand in inputs]
    ops.op_type(op_type).numpy(a, inputs, [inputs[i] for i in places])
    for place, value in zip(places, expected, strict=True):
        np.testing.assert_array_equal(inputs[place], value)


def test_normalization_in_place():
    a, gamma, beta = {"epsilon": 1e-3}, values(4, seed=1), values(4, seed=2)
    x, dy = values(5, 4), values(5, 4, seed=3)
    shapes = [x.shape, (4,), (4,)]
    mean, variance = run("batch_moments", {}, [x], shapes[1:])
    rest = [gamma, beta, mean, variance]
    (y,) = run("batch_normalization", a, [x, *rest], shapes[:1])
    same = x.copy()
    ops.op_type("batch_normalization").numpy(a, [same, *rest], [same])
    np.testing.assert_array_equal(same, y)
    inputs = [x, dy, gamma, mean, variance]
    expected = run("batch_normalization_gradient", a, inputs, shapes)
    inputs[1] = dy.copy()
    outputs = [inputs[1], np.empty(4), np.empty(4)]
    ops.op_type("batch_normalization_gradient").numpy(a, inputs, outputs)
    for found, value in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(found, value)


def test_probabilities_in_place_of_logits():
    logits, labels = values(3, 4), np.array([1, 0, 3], np.int32)
    loss, p = run("softmax_cross_entropy", {}, [logits, labels], [(), (3, 4)])
    outputs = [np.empty(()), logits]
    ops.op_type("softmax_cross_entropy").numpy({}, [logits, labels], outputs)
    assert outputs[0] == loss
    np.testing.assert_array_equal(logits, p)

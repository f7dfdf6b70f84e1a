"""`GradientTape` outside of functions: what is computed at once, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network():
    nn.set_random_seed(0)
    return nn.Sequential(
        [nn.Input((4,)), nn.Dense(8, "tanh"), nn.BatchNormalization(), nn.Dense(1)]
    )


X = numbers(16, 4)
Y = X[:, :1] * X[:, 1:2]


def loss_of(model, x, y):
    return nn.losses.MeanSquaredError()(y, model(x, training=True))


def test_a_loop_trains_as_a_function_does():
    """As in Keras's guide; the numbers are those of one program."""
    results = []
    for at_once in (True, False):
        model, optimizer = network(), nn.Adam(0.05)

        def step(x, y, model=model, optimizer=optimizer):
            with mc.GradientTape() as tape:
                loss = loss_of(model, x, y)
            slopes = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(slopes, model.trainable_weights, strict=True))
            return loss

        run = step if at_once else mc.function(step)
        losses = [float(run(X, Y)) for _ in range(5)]
        results.append((losses, model.get_weights()))
    (first, ours), (second, wanted) = results
    assert first[-1] < first[0]
    assert_allclose(first, second, rtol=1e-5)
    for one, other in zip(ours, wanted, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_values_are_read_as_in_tensorflow():
    """They are constants, while the tape records and afterwards."""
    x = np.array([1.0, 2.0], np.float32)
    with mc.GradientTape() as tape:
        given = nn.ops.convert_to_tensor(x)
        tape.watch(given)
        y = nn.ops.square(given)
        inner = y.numpy()
        loss = nn.ops.sum(y * inner)
    assert type(inner) is type(loss.numpy()) is np.ndarray
    assert_array_equal(inner, x**2)
    assert_array_equal(tape.gradient(loss, given).numpy(), 2 * x * x**2)


def test_operators_of_numpy_are_seen():
    x = numbers(3, 4)
    with mc.GradientTape(persistent=True) as tape:
        z = ops.convert_to_tensor(x)
        tape.watch(z)
        y = np.exp(2 * z) - z[1] / (1 + np.square(z)) + -abs(z) @ np.ones((4, 4))
        first = sum(row[0] for row in y)
        assert float(first) == pytest.approx(float(np.asarray(y)[:, 0].sum()), rel=1e-5)
        assert np.argmax(np.asarray(y)) == int(ops.argmax(ops.reshape(y, (12,))))

    def plain(x):
        y = np.exp(2 * x) - x[1] / (1 + x**2) - np.abs(x) @ np.ones((4, 4))
        return y[:, 0].sum()

    small, wanted = 1e-6, np.empty(x.shape)
    for place in np.ndindex(x.shape):
        up, down = x.astype(np.float64), x.astype(np.float64)
        up[place] += small
        down[place] -= small
        wanted[place] = (plain(up) - plain(down)) / (2 * small)
    assert_allclose(tape.gradient(first, z), wanted, rtol=1e-4, atol=1e-4)
    assert_allclose(tape.gradient(first, [z])[0], wanted, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients():
    with mc.GradientTape() as outer:
        x = ops.convert_to_tensor([1.0, 2.0])
        with mc.GradientTape() as inner:
            y = ops.sum(x**3)
        slope = inner.gradient(y, x)
        penalty = ops.sum(slope * slope)
    assert_allclose(slope, [3, 12], rtol=1e-6)
    assert_allclose(outer.gradient(penalty, x), [36, 288], rtol=1e-6)


def test_the_gradient_is_that_of_the_numbers_that_were_drawn():
    drop = nn.Dropout(0.5, seed=1)
    with mc.GradientTape() as tape:
        x = ops.convert_to_tensor(np.ones((4, 50), np.float32))
        noise = nn.random.normal((4, 50))
        once = drop(x, training=True)
        twice = drop(x * noise, training=True)
        loss = ops.sum(once + twice)
    assert not np.array_equal(once == 0, twice == 0)
    factors = np.asarray(once) + 2 * (np.asarray(twice) != 0) * np.asarray(noise)
    assert_allclose(tape.gradient(loss, x), factors, rtol=1e-5)


def test_moving_averages_move_once():
    model, other = network(), network()
    with mc.GradientTape() as tape:
        loss = loss_of(model, X, Y)
    tape.gradient(loss, model.trainable_weights)
    other(X, training=True)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        assert_array_equal(one, two)


def test_weights_and_losses_of_layers():
    dense = nn.Dense(2, kernel_regularizer="l2", name="own")
    model = nn.Sequential([nn.Input((4,)), dense])
    with mc.GradientTape() as tape:
        y = model(X)
        loss = ops.sum(dense.kernel**3) + sum(model.losses) + 0 * ops.sum(y)
    kernel = dense.kernel.numpy()
    assert_allclose(loss, (kernel**3).sum() + 0.01 * (kernel**2).sum(), rtol=1e-5)
    wanted = 3 * kernel**2 + 0.02 * kernel
    (slope,) = tape.gradient(loss, [dense.kernel])
    assert_allclose(slope, wanted, rtol=1e-5)


def test_a_result_by_another_result_of_one_model():
    """As Grad-CAM has it."""
    inputs = nn.Input((6, 6, 1))
    maps = nn.Conv2D(2, 3, activation="relu")(inputs)
    outputs = nn.Dense(3)(nn.GlobalAveragePooling2D()(maps))
    both = nn.Model(inputs, [maps, outputs])
    image = abs(numbers(1, 6, 6, 1))
    with mc.GradientTape() as tape:
        found, scores = both(image)
        best = scores[:, int(ops.argmax(scores[0]))]
    slope = tape.gradient(best, found)
    column = both.layers[-1].kernel.numpy()[:, int(np.argmax(np.asarray(scores)))]
    assert_allclose(slope, np.broadcast_to(column / 16, found.shape), rtol=1e-5)


OF_NUMPY = {
    "sum": lambda x: (x.mean(axis=0) ** 2).sum(),
    "by position": lambda x: (x / np.sum(x, 0, None, None, True)).max(1, None).sum(),
    "T": lambda x: (x @ x.T).max(),
    "reshape": lambda x: (x.reshape(2, 6) * np.arange(6)).mean(),
    "shape in a tuple": lambda x: (x.reshape((2, -1)) ** 2).min(),
    "transpose": lambda x: x.transpose(1, 0)[0].prod(),
    "std and var": lambda x: x.std() + np.var(x, axis=1).sum(),
    "clip and round": lambda x: x.clip(0.2, 0.8).sum() + 0 * x.round().sum(),
    "flatten": lambda x: (x.flatten() * np.arange(12)).cumsum()[-1],
    "take": lambda x: (x.take([0, 0], axis=1) * x.swapaxes(0, 1)[:2].T).sum(),
    "maximum": lambda x: np.sum(np.maximum(x, 0.5) * np.concatenate([x, x])[:3]),
    "stack": lambda x: np.mean(np.tanh(np.stack([x, 2 * x], axis=1))),
    "where": lambda x: np.where(x > 0.5, x, 0).sum(),
    "einsum": lambda x: np.einsum("ij,ij->", x, x) + np.dot(x, x.T).trace(),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_methods_and_functions_of_numpy_are_seen(name):
    call, x = OF_NUMPY[name], np.random.default_rng(0).random((3, 4))
    with mc.GradientTape() as tape:
        z = ops.convert_to_tensor(x)
        y = call(z)
    wanted = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        wanted[place] = (call(x + step) - call(x - step)) / 2e-6
    assert_allclose(tape.gradient(y, z), wanted, rtol=1e-4, atol=1e-5)
    assert type(call(x)) is not type(z)


def test_what_a_tape_does_not_see_is_told():
    x = numbers(3)
    with mc.GradientTape() as tape:
        with pytest.raises(TypeError, match=r"begin with x = ops.convert_to_tensor"):
            tape.watch(x)
        z = ops.convert_to_tensor(x)
        with pytest.raises(TypeError, match="a tape does not see var with ddof=1"):
            z.var(ddof=1)
        with pytest.raises(TypeError, match="a tape does not see sum with dtype="):
            z.sum(0, np.float64)
        with pytest.raises(TypeError, match="does not see std with ddof=1"):
            np.std(z, 0, None, None, 1)
        y = ops.sum(z)
    assert z.mean() == pytest.approx(x.mean())
    with pytest.raises(TypeError, match="the target was not computed by ops"):
        tape.gradient(x.sum(), z)
    with pytest.raises(TypeError, match=r"begin with x = ops.convert_to_tensor"):
        tape.gradient(y, x)
    assert tape.gradient(y, model_weight()) is None


def model_weight():
    dense = nn.Dense(1)
    dense.build((None, 2))
    return dense.kernel


def test_a_step_that_does_not_fit_leaves_the_weights():
    model = network()
    before = model.get_weights()
    mc.config.set_memory_limit("CPU:0", "2KiB")
    try:
        with pytest.raises(mc.errors.ResourceExhaustedError), mc.GradientTape() as tape:
            tape.gradient(loss_of(model, X, Y), model.weights)
    finally:
        mc.config.set_memory_limit("CPU:0", None)
    for one, other in zip(model.get_weights(), before, strict=True):
        assert_array_equal(one, other)
    with mc.GradientTape() as tape:
        loss = loss_of(model, X, Y)
    assert tape.gradient(loss, model.trainable_weights)[0].shape == (4, 8)


def test_an_index_that_was_computed_selects_a_class():
    """As in Grad-CAM, which takes the class with the highest score."""
    with mc.GradientTape() as tape:
        x = ops.convert_to_tensor(X)
        tape.watch(x)
        scores = x * np.float32([1, 2, 3, 4])
        best = ops.argmax(scores[0])
        score = scores[:, best]
        one = scores[best]
    place = np.argmax(X[0] * [1, 2, 3, 4])
    assert_allclose(one, X[place] * [1, 2, 3, 4], rtol=1e-6)
    slope = tape.gradient(score, x)
    assert_array_equal(slope, np.tile((place + 1) * np.eye(4)[place], (16, 1)))

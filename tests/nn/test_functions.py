"""Functions of one's own: values, gradients, updates, traces, limits and errors."""

from __future__ import annotations

import gc
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, RetracingWarning

nn = mc.nn
ops = nn.ops


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dense(*units, inputs=4, seed=0, name=None, activation="tanh"):
    nn.set_random_seed(seed)
    hidden = [nn.Dense(each, activation=activation) for each in units[:-1]]
    return nn.Sequential([nn.Input((inputs,)), *hidden, nn.Dense(units[-1])], name=name)


def mean_square(y, y_pred):
    error = y_pred - y
    return ops.mean(error * error)


def training(model, optimizer, loss=mean_square, **settings_):
    """A custom step of a model."""

    @mc.function(**settings_)
    def step(x, y):
        with mc.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(value, weights), weights)
        return value

    return step


def same_bits(first, second):
    return [each.tobytes() for each in first] == [each.tobytes() for each in second]


# -- values ------------------------------------------------------------------------


# By name: the function of a tensor, and NumPy's of an array.
OF_AXES = {
    "sum": (ops.sum, np.sum),
    "sum 0": (lambda x: ops.sum(x, axis=0), lambda x: np.sum(x, axis=0)),
    "mean 0, 2": (lambda x: ops.mean(x, (0, 2)), lambda x: np.mean(x, (0, 2))),
    "max": (ops.max, np.max),
    "min 0": (lambda x: ops.min(x, axis=0), lambda x: np.min(x, axis=0)),
    "var": (ops.var, np.var),
    "std 0": (lambda x: ops.std(x, axis=0), lambda x: np.std(x, axis=0)),
    "keepdims": (
        lambda x: ops.sum(x, axis=(0, 1), keepdims=True),
        lambda x: np.sum(x, axis=(0, 1), keepdims=True),
    ),
    "transpose": (ops.transpose, np.transpose),
    "transpose 2 0 1": (
        lambda x: ops.transpose(x, (2, 0, 1)),
        lambda x: np.transpose(x, (2, 0, 1)),
    ),
    "reshape": (lambda x: ops.reshape(x, (4, -1)), lambda x: np.reshape(x, (4, -1))),
    "flat": (lambda x: ops.reshape(x, (-1,)), lambda x: np.reshape(x, (-1,))),
    "expand": (lambda x: ops.expand_dims(x, 0), lambda x: np.expand_dims(x, 0)),
    "squeeze": (lambda x: ops.squeeze(ops.expand_dims(x, 0)), lambda x: x),
    "moveaxis": (lambda x: ops.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2)),
    "swapaxes": (lambda x: ops.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1)),
    "flip": (ops.flip, np.flip),
    "flip 0": (lambda x: ops.flip(x, 0), lambda x: np.flip(x, 0)),
    "concatenate": (
        lambda x: ops.concatenate([x, 2 * x]),
        lambda x: np.concatenate([x, 2 * x]),
    ),
    "stack": (lambda x: ops.stack([x, -x]), lambda x: np.stack([x, -x])),
    "split": (lambda x: ops.split(x, 2)[1], lambda x: np.split(x, 2)[1]),
    "item": (lambda x: x[1], lambda x: x[1]),
    "slice": (lambda x: x[::-1, 1:, None, -1], lambda x: x[::-1, 1:, None, -1]),
    "dots": (lambda x: x[..., 0], lambda x: x[..., 0]),
    "softmax 0": (
        lambda x: ops.softmax(x, axis=0),
        lambda x: np.exp(x) / np.exp(x).sum(axis=0),
    ),
    "matmul": (lambda x: x[0] @ x[1], lambda x: x[0] @ x[1]),
    "array": (
        lambda x: x * np.arange(3.0) - [[1.0]] + 2,
        lambda x: x * np.arange(3.0) + 1,
    ),
    "array first": (lambda x: np.ones(3) / x, lambda x: 1 / x),
    "ranks": (lambda x: x[0] * x, lambda x: x[0] * x),
}


@pytest.mark.parametrize("name", OF_AXES)
def test_axis_0_is_like_any_other(name):
    function, expected = OF_AXES[name]
    x = numbers(4, 3, 3)
    made = mc.function(lambda x: function(x))(x)
    wanted = expected(x)
    assert made.shape == wanted.shape
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in OF_AXES if n not in ("array", "ranks")])
def test_ops_take_arrays_at_once(name):
    """They compute with the same kernels, and keep no memory of the device."""
    function, expected = OF_AXES[name]
    x = numbers(4, 3, 3)
    np.testing.assert_allclose(function(x), expected(x), rtol=2e-5, atol=1e-6)
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


def test_layers_losses_and_activations_take_arrays_at_once():
    layer = nn.Dense(3, activation="relu")
    x = numbers(2, 4)
    kernel = layer(x) * 0 + 1  # its weights are made by the first call
    assert kernel.shape == (2, 3)
    expected = np.maximum(x @ layer.kernel.numpy() + layer.bias.numpy(), 0)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(nn.activations.relu(x), np.maximum(x, 0))
    y = numbers(2, 4, seed=1)
    loss = nn.losses.MeanSquaredError()(y, x)
    np.testing.assert_allclose(loss, np.mean((x - y) ** 2), rtol=1e-5)
    loss = nn.losses.MeanSquaredError()(y, x, sample_weight=[1.0, 3.0])
    expected = np.mean(np.mean((x - y) ** 2, axis=1) * [1, 3])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    logits = numbers(5, 3)
    labels = np.array([0, 1, 2, 1, 0])
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)
    each = np.log(np.exp(logits).sum(axis=1)) - logits[range(5), labels]
    np.testing.assert_allclose(loss, each.mean(), rtol=1e-5)
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    model = nn.Sequential([nn.Input((4,)), layer])
    np.testing.assert_array_equal(model.predict(x, verbose=0), layer(x))


def test_structures_and_python_values_pass():
    @mc.function
    def many(pair, options, count=2, *, flag=False):
        a, b = pair
        total = a
        for _ in range(count):
            total = total + (b if flag else options["c"])
        return {"total": total, "rest": [a, (b, count)]}

    a, b, c = numbers(3), numbers(3, seed=1), numbers(3, seed=2)
    made = many((a, b), {"c": c}, 3)
    np.testing.assert_allclose(made["total"], a + 3 * c, rtol=1e-6)
    np.testing.assert_array_equal(made["rest"][0], a)
    assert made["rest"][1][1] == 3
    np.testing.assert_allclose(many((a, b), {"c": c}, flag=True)["total"], a + 2 * b)
    assert many.trace_count == 2


def test_a_result_may_be_returned_twice_and_integers_stay_integers():
    @mc.function
    def twice(x, n):
        y = x * 2
        return y, y, n

    y, again, n = twice(np.ones(2), np.array([1, 2]))
    np.testing.assert_array_equal(y, again)
    assert n.dtype == np.int32
    assert n.tolist() == [1, 2]


def test_functions_and_methods_call_each_other():
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        @mc.function
        def scaled(self, x):
            return x * self.factor

    two, three = Scaler(2), Scaler(3)
    whole = mc.function(lambda x: two.scaled(x) + three.scaled(x))
    assert whole(np.ones(2)).tolist() == [5, 5]
    assert two.scaled(np.ones(2)).tolist() == [2, 2]
    assert two.scaled.trace_count == 1


# -- gradients -------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 4), units=st.integers(1, 4))
def test_gradients_are_those_of_differences(seed, rows, units):
    x, w = numbers(rows, 3, seed=seed), numbers(3, units, seed=seed + 1)

    def loss(x, w):
        h = ops.tanh(x @ w)
        return ops.mean(h * h) + ops.sum(ops.sigmoid(x)) / 7

    def exact(x, w):
        h = np.tanh(x @ w)
        return np.mean(h * h) + np.sum(1 / (1 + np.exp(-x))) / 7

    value, slopes = mc.value_and_grad(loss, argnums=(0, 1))(x, w)
    given = [x.astype(float), w.astype(float)]
    np.testing.assert_allclose(value, exact(*given), rtol=1e-5)
    for place, slope in enumerate(slopes):
        for index in np.ndindex(slope.shape):
            moved = [each.copy() for each in given]
            moved[place][index] += 1e-5
            above = exact(*moved)
            moved[place][index] -= 2e-5
            difference = (above - exact(*moved)) / 2e-5
            assert slope[index] == pytest.approx(difference, abs=2e-5)


def test_a_tape_differentiates_by_inputs_weights_and_what_lies_between():
    layer = nn.Dense(2)
    layer(np.ones((1, 3)))

    @mc.function
    def slopes(x):
        with mc.GradientTape(persistent=True) as tape:
            h = layer(x)
            value = ops.sum(h * h)
        return tape.gradient(value, {"x": x, "h": h, "w": layer.trainable_variables})

    x = numbers(4, 3)
    made = slopes(x)
    kernel = layer.kernel.numpy()
    h = x @ kernel
    np.testing.assert_allclose(made["h"], 2 * h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made["x"], 2 * h @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made["w"][0], x.T @ (2 * h), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made["w"][1], (2 * h).sum(axis=0), rtol=1e-4, atol=1e-5)


def test_what_does_not_lead_to_the_target_has_no_gradient():
    other = nn.Dense(1)
    other(np.ones((1, 2)))

    @mc.function
    def slopes(x, y):
        with mc.GradientTape() as tape:
            value = ops.stop_gradient(x) * x
        found = tape.gradient(value, [x, y, other.kernel])
        assert found[1:] == [None, None]
        return found[0]

    assert slopes(np.float32(3), np.float32(4)) == 3  # half of the slope of a square
    assert mc.grad(lambda x, y: x * x, argnums=1)(np.float32(3), np.float32(4)) == 0


# -- updates ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.SGD(0.1),
        lambda: nn.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: nn.Adam(0.01),
        lambda: nn.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
        lambda: nn.Nadam(0.01),
        lambda: nn.RMSprop(0.01, centered=True),
        lambda: nn.Adam(nn.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    ],
)
def test_a_step_of_ones_own_has_the_bits_of_the_models(make):
    x, y = numbers(8, 4), numbers(8, 2, seed=1)
    model, built_in = dense(16, 2), dense(16, 2)
    optimizer = make()
    step = training(model, optimizer, nn.losses.MeanSquaredError())
    built_in.compile(make(), "mse")
    for _ in range(5):
        assert float(step(x, y)) == built_in.train_on_batch(x, y)
    assert same_bits(model.get_weights(), built_in.get_weights())
    assert optimizer.iterations == 5


def test_moving_averages_and_draws_are_those_of_training():
    model = nn.Sequential([nn.Input((4,)), nn.BatchNormalization(momentum=0.5)])
    draws = nn.Dropout(0.5, seed=3)

    @mc.function
    def step(x):
        return draws(model(x, training=True), training=True)

    x = numbers(64, 4) * 3 + 1
    first, second = step(x), step(x)
    assert not np.array_equal(first, second)
    mean = x.mean(axis=0)
    np.testing.assert_allclose(model.get_weights()[2], mean * 0.75, rtol=1e-4)
    np.testing.assert_array_equal(
        mc.function(lambda x: draws(x))(x), x
    )  # not in training


def test_weights_are_assigned():
    layer = nn.Dense(2, use_bias=False)
    layer(np.ones((1, 2)))
    before = layer.kernel.numpy()

    @mc.function
    def scale(factor):
        layer.kernel.assign(layer.kernel * factor)
        layer.kernel.assign(layer.kernel + 1)
        return ops.sum(layer.kernel)

    total = scale(np.float32(3))
    np.testing.assert_allclose(layer.kernel.numpy(), before * 3 + 1, rtol=1e-5)
    np.testing.assert_allclose(total, layer.kernel.numpy().sum(), rtol=1e-5)
    layer.kernel.assign(before)
    assert (layer.kernel * 2 - 1).tolist() == (before * 2 - 1).tolist()  # at once
    layer.kernel.assign_add(np.ones_like(before))
    layer.kernel.assign_sub(1 * np.ones_like(before))
    np.testing.assert_allclose(layer.kernel[0], before[0], rtol=1e-6)
    scale(np.float32(3))
    np.testing.assert_allclose(layer.kernel.numpy(), before * 3 + 1, rtol=1e-5)


def adversarial(together):
    """Three steps of two networks, in one function or in two."""
    generator = dense(16, 2, name="generator", seed=1, activation="relu")
    critic = dense(16, 1, inputs=2, name="critic", seed=2, activation="relu")
    first, second = nn.Adam(1e-2), nn.Adam(2e-2)

    def judged(logits, truth):
        return ops.mean(ops.softplus(logits) - logits * truth)

    def judge(real, z):
        with mc.GradientTape() as tape:
            loss = judged(critic(real), 1.0) + judged(critic(generator(z)), 0.0)
        weights = critic.trainable_variables
        first.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def forge(z):
        with mc.GradientTape() as tape:
            loss = judged(critic(generator(z)), 1.0)
        weights = generator.trainable_variables
        second.apply(tape.gradient(loss, weights), weights)
        return loss

    real, z = numbers(32, 2), numbers(32, 4, seed=1)
    if together:
        step = mc.function(lambda real, z: (judge(real, z), forge(z)))
        losses = [step(real, z) for _ in range(3)]
        report = step.memory_report(real, z, verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
    else:
        judge, forge = mc.function(judge), mc.function(forge)
        losses = [(judge(real, z), forge(z)) for _ in range(3)]
    return losses, [*generator.get_weights(), *critic.get_weights()]


def test_a_function_reads_what_it_has_updated():
    """As two functions that run one after the other do."""
    (losses, weights), (expected, other) = adversarial(True), adversarial(False)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for first, second in zip(weights, other, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_models_and_functions_share_weights():
    x, y = numbers(8, 4), numbers(8, 2, seed=1)
    model = dense(16, 2)
    model.compile(nn.SGD(0.1), "mse")
    model.train_on_batch(x, y)
    before = model.get_weights()
    step = training(model, nn.SGD(0.1))
    step(x, y)
    after = model.get_weights()
    assert not same_bits(before, after)
    predicted = model.predict(x, verbose=0)
    model.train_on_batch(x, y)
    step(x, y)
    trained = model.get_weights()
    del step
    gc.collect()
    assert same_bits(model.get_weights(), trained)
    model.set_weights(after)
    np.testing.assert_array_equal(model.predict(x, verbose=0), predicted)


# -- traces ----------------------------------------------------------------------------


def test_a_function_that_is_traced_again_and_again_warns_once():
    scaled = mc.function(lambda x, factor: x * factor, max_traces=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(5):
            scaled(np.ones(2), number)
        scaled(np.ones(2), 4)
    with pytest.warns(RetracingWarning, match="factor was 4, and is 9"):
        scaled(np.ones(2), 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled(np.ones(3), 9)
    assert scaled.trace_count == 7
    assert "3 traces" in repr(scaled)
    assert scaled(np.ones(2), 0).tolist() == [0, 0]


def test_an_array_whose_shape_changes_is_named():
    doubled = mc.function(lambda rows: rows * 2)
    for length in range(1, 6):
        doubled(np.ones(length))
    with pytest.warns(RetracingWarning, match=r"rows was an array of shape \(5,\)"):
        doubled(np.ones(6))


def test_a_signature_admits_arrays():
    spec = mc.data.TensorSpec((None, 2), "float32")
    doubled = mc.function(lambda x: x * 2, input_signature=[spec])
    assert doubled(np.ones((3, 2))).shape == (3, 2)
    with pytest.raises(ValueError, match=r"shape \(None, 2\)"):
        doubled(np.ones((3, 3)))
    with pytest.raises(ValueError, match="float32"):
        doubled(np.ones((3, 2), int))
    with pytest.raises(TypeError, match="has 1 arrays, got 2"):
        mc.function(lambda x, y: x, input_signature=[spec])(np.ones((1, 2)), np.ones(2))


# -- limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.7, 0.5])
def test_a_step_runs_within_a_limit_with_the_same_bits(part):
    x, y = numbers(256, 8), numbers(256, 4, seed=1)

    def make(**settings_):
        model = dense(*[32] * 8, 4, inputs=8)
        return model, training(model, nn.SGD(0.1), **settings_)

    model, free = make(memory="share")
    peak = free.plan(x, y).peak_bytes
    losses = [free(x, y) for _ in range(3)]
    expected = model.get_weights()
    free.close()
    del model, free
    gc.collect()
    mc.config.reset()
    limit = int(peak * part)
    mc.config.set_memory_limit("CPU:0", limit)
    model, step = make()
    assert same_bits([step(x, y) for _ in range(3)], losses)
    report = step.memory_report(x, y, verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    assert same_bits(model.get_weights(), expected)
    step.close()


def test_a_step_that_does_not_fit_leaves_weights_as_they_are():
    x, y = numbers(256, 8), numbers(256, 4, seed=1)
    model = dense(32, 32, 4, inputs=8)
    step = training(model, nn.SGD(0.1))
    step(x[:4], y[:4])
    limit = mc.config.get_memory_info("CPU:0")["current"]
    mc.config.set_memory_limit("CPU:0", limit)
    before = model.get_weights()
    with pytest.raises(InfeasiblePlanError):
        step(x, y)
    with pytest.raises(InfeasiblePlanError):
        step.plan(x, y, limit="4KiB")
    assert same_bits(model.get_weights(), before)
    step(x[:4], y[:4])
    assert not same_bits(model.get_weights(), before)
    step.close()


# -- errors ----------------------------------------------------------------------------


def test_branches_on_tensors_are_refused():
    @mc.function
    def positive(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(TypeError, match="has no truth value"):
        positive(np.float32(1))


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda x: None, TypeError, "computes nothing"),
        (lambda x: mc.nn.Input((2,)), TypeError, "does not come from its arguments"),
        (lambda x: x[5], IndexError, "out of range"),
        (lambda x: ops.sum(x, axis=3), ValueError, "axis 3|out of range"),
        (lambda x: x + np.ones(3), ValueError, "shape"),
        (
            lambda x: mc.GradientTape().gradient(3.0, x),
            TypeError,
            "the target must be a tensor",
        ),
        (
            lambda x: mc.GradientTape().gradient(x * 2, 3.0),
            TypeError,
            "gradients are with respect to",
        ),
        (lambda x: mc.grad(lambda y: y * 2)(x), TypeError, "must be a scalar"),
        (lambda x: nn.SGD(0.1).apply([x], []), TypeError, "pass the weights"),
    ],
)
def test_what_cannot_be_traced_is_said(function, error, words):
    with pytest.raises(error, match=words):
        mc.function(function)(np.ones(2))


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (np.array(["a"]), TypeError, "must have numbers"),
        (np.array([2**40]), ValueError, "int32"),
        (np.array([1j]), TypeError, "must have numbers"),
    ],
)
def test_arrays_that_cannot_be_computed_with_are_refused(x, error, words):
    with pytest.raises(error, match=words):
        mc.function(lambda x: x * 2)(x)


def test_arguments_are_those_of_the_function():
    doubled = mc.function(lambda x: x * 2)
    with pytest.raises(TypeError, match="y"):
        doubled(np.ones(2), y=3)
    with pytest.raises(TypeError, match="callable"):
        mc.function(3)
    with pytest.raises(ValueError, match="memory policy"):
        mc.function(lambda x: x, memory="none such")


def test_the_optimizer_of_a_model_is_not_used_in_a_function():
    model = dense(2)
    model.compile(nn.SGD(0.1), "mse")
    with pytest.raises(ValueError, match="already belongs to another model"):
        training(model, model.optimizer)(np.ones((1, 4)), np.ones((1, 2)))


def test_optimizers_tell_and_take_their_state():
    first, second = nn.Dense(1, name="first"), nn.Dense(1, name="second")
    first(np.ones((1, 2)))
    second(np.ones((1, 2)))
    optimizers = nn.Adam(0.1), nn.Adam(0.1, use_ema=True, ema_momentum=0.5)

    @mc.function
    def step(x):
        with mc.GradientTape() as tape:
            value = ops.sum(first(x) * second(x))
        found = tape.gradient(value, [first.kernel, second.kernel])
        for optimizer, slope, layer in zip(
            optimizers, found, (first, second), strict=True
        ):
            optimizer.apply([slope], [layer.kernel])
        return value

    x = numbers(4, 2)
    step(x)
    states = [optimizer.get_state() for optimizer in optimizers]
    assert [*states[0]] == ["iteration", "first/kernel/m", "first/kernel/v"]
    assert [*states[1]][3:] == ["second/kernel/average"]
    assert all(state["iteration"] == 1 for state in states)
    kernels = first.kernel.numpy(), second.kernel.numpy()
    value = step(x)
    step.close()  # values are on the host then
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.set_state(state)
        np.testing.assert_array_equal(
            [*optimizer.get_state().values()][1], [*state.values()][1]
        )
    first.kernel.assign(kernels[0])
    second.kernel.assign(kernels[1])
    assert step(x) == value
    average = optimizers[1].get_state()["second/kernel/average"]
    optimizers[1].finalize_variable_values()
    np.testing.assert_array_equal(second.kernel.numpy(), average)


def test_threads_call_one_function():
    layer = nn.Dense(2, use_bias=False, kernel_initializer="ones")
    scaled = mc.function(lambda x, factor: layer(x) * factor, max_traces=2)
    wrong = []

    def run(factor):
        for number in range(40):
            made = scaled(np.full((number % 3 + 1, 2), float(number)), factor)
            if not (made == 2 * number * factor).all():
                wrong.append((number, factor))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetracingWarning)
        threads = [threading.Thread(target=run, args=(each,)) for each in (2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_memory_comes_back_and_values_return_to_layers():
    layer = nn.Dense(3)
    double = mc.function(lambda x: layer(x) * 2)
    x = numbers(5, 4)
    expected = double(x)
    kernel = layer.kernel.numpy()
    assert mc.config.get_memory_info("CPU:0")["current"] > 0
    del double
    gc.collect()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
    np.testing.assert_allclose(layer(x) * 2, expected, rtol=1e-6)


def test_a_refused_call_loses_no_weight():
    model = dense(32, 3)
    function = mc.function(lambda x: model(x))
    x = numbers(2, 4)
    values = [each + 1 for each in model.get_weights()]
    before = np.asarray(function(x))
    model.set_weights(values)
    function.close()
    mc.config.set_memory_limit("CPU:0", "1KiB")
    with pytest.raises(InfeasiblePlanError):
        function(x)
    mc.config.set_memory_limit("CPU:0", None)
    for value, own in zip(values, model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, value)
    assert not np.array_equal(np.asarray(function(x)), before)


def test_calls_on_arrays_of_many_shapes_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(1, 10):
            assert ops.relu(np.full((rows,), -1.0)).tolist() == [0.0] * rows


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_activations_along_any_axis_of_a_tensor_without_a_batch(name, axis):
    x = np.random.default_rng(3).standard_normal((3, 5)).astype(np.float32)
    wide = np.exp(x.astype(np.float64))
    wanted = wide / wide.sum(axis, keepdims=True)
    if name == "log_softmax":
        wanted = np.log(wanted)
    run = mc.function(lambda x: getattr(nn.activations, name)(x, axis=axis))
    np.testing.assert_allclose(run(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("use", "kind", "advice"),
    [
        (float, TypeError, r"has no number while it is traced: .* ops\.cast"),
        (int, TypeError, r"has no number while it is traced: .* ops\.cast"),
        (len, TypeError, r"has no len\(\) while it is traced: use x\.shape\[0\]"),
        (list, TypeError, r"has no elements while it is traced: use ops\.unstack"),
        (bool, TypeError, r"has no truth value.*ops\.where.*ops\.cond"),
        (lambda x: x.mean(), AttributeError, r"no 'mean': use ops\.mean\(x\)"),
        (lambda x: x.item(), AttributeError, r"no 'item': return it from the"),
        (lambda x: x.T, AttributeError, r"no 'T': use ops\.transpose"),
        (lambda x: x @ x, ValueError, r"matmul cannot take tensors of shapes \(2, 3\)"),
        (
            lambda x: x + np.ones((2, 4), "f4"),
            ValueError,
            r"add cannot take tensors of shapes \(2, 3\) and \(2, 4\): they do not br",
        ),
    ],
)
def test_python_and_shapes_that_a_traced_tensor_does_not_take(use, kind, advice):
    def traced(x):
        return use(x)

    with pytest.raises(kind, match=advice):
        mc.function(traced)(np.ones((2, 3), np.float32))

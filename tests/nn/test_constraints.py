"""Constraints of weights: what they compute, and where they are a part of the step."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
EPSILON = 1e-7
BATCH = 8


def norms(w, axis):
    return np.sqrt((w**2).sum(axis, keepdims=True))


def max_norm(w, most=2.0, axis=0):
    length = norms(w, axis)
    return w * np.clip(length, 0, most) / (EPSILON + length)


def min_max_norm(w, least=0.0, most=1.0, rate=1.0, axis=0):
    length = norms(w, axis)
    wanted = rate * np.clip(length, least, most) + (1 - rate) * length
    return w * wanted / (EPSILON + length)


class Bounded(nn.constraints.Constraint):
    """A constraint of one's own, with an argument."""

    def __init__(self, bound):
        self.bound = bound

    def __call__(self, w):
        return nn.ops.clip(w, -self.bound, self.bound)

    def get_config(self):
        return {"bound": self.bound}


CASES = {
    "max": (nn.constraints.MaxNorm(0.5), lambda w: max_norm(w, 0.5)),
    "max by name": ("max_norm", max_norm),
    "max along both": (
        nn.constraints.MaxNorm(0.4, axis=[0, 1]),
        lambda w: max_norm(w, 0.4, (0, 1)),
    ),
    "unit": ("unit_norm", lambda w: w / (EPSILON + norms(w, 0))),
    "unit of rows": (
        nn.constraints.UnitNorm(axis=-1),
        lambda w: w / (EPSILON + norms(w, 1)),
    ),
    "positive": ("non_neg", lambda w: np.maximum(w, 0)),
    "between": (
        nn.constraints.MinMaxNorm(0.5, 0.8, rate=0.3),
        lambda w: min_max_norm(w, 0.5, 0.8, 0.3),
    ),
    "own": (Bounded(0.3), lambda w: np.clip(w, -0.3, 0.3)),
}


def made(constraint, optimizer="sgd", policy="share", **options):
    nn.set_random_seed(1)
    layers = [
        nn.Dense(6, "tanh", kernel_constraint=constraint, name="held"),
        nn.Dense(3, bias_constraint="non_neg", name="free"),
    ]
    model = nn.Sequential([nn.Input((5,)), *layers])
    model.compile(optimizer, "mse", memory=policy, **options)
    return model


def data(count=BATCH):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)), rng.normal(size=(count, 3))


def gradients(weights, x, y):
    """Of the mean squared error of two dense layers, by hand."""
    a, b, c, d = weights
    h = np.tanh(x @ a + b)
    out = 2 * (h @ c + d - y) / y.size
    back = out @ c.T * (1 - h * h)
    return x.T @ back, back.sum(0), h.T @ out, out.sum(0)


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_descent_and_then_the_constraint(case):
    constraint, project = CASES[case]
    model = made(constraint, nn.SGD(0.5))
    x, y = data()
    for _ in range(3):
        before = model.get_weights()
        model.train_on_batch(x, y)
        slopes = gradients(before, x, y)
        a, b, c, d = (w - 0.5 * g for w, g in zip(before, slopes, strict=True))
        wanted = project(a), b, c, np.maximum(d, 0)
        for each, found in zip(wanted, model.get_weights(), strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-5)
    model.close()


OPTIMIZERS = {
    "momentum": lambda: nn.SGD(0.1, momentum=0.9),
    "adam": lambda: nn.Adam(0.05),
    "averages": lambda: nn.Adam(0.05, use_ema=True, ema_overwrite_frequency=2),
    "clipped": lambda: nn.AdamW(0.05, global_clipnorm=0.1),
    "accumulated": lambda: nn.SGD(0.1, gradient_accumulation_steps=2),
    "adafactor": lambda: nn.Adafactor(0.05),
}


@pytest.mark.parametrize("policy", ["keep_all", "auto", "sqrt_checkpoint"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_obey_under_every_optimizer_and_policy(name, policy):
    x, y = data()
    models = [
        made(nn.constraints.MaxNorm(0.3), OPTIMIZERS[name](), each)
        for each in (policy, "share")
    ]
    for _ in range(4):
        for model in models:
            model.train_on_batch(x, y)
        kernel = models[0].get_weights()[0]
        assert norms(kernel, 0).max() <= 0.3 + 1e-5
        assert models[0].get_weights()[3].min() >= 0
    for ours, theirs in zip(*(each.get_weights() for each in models), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    report = models[0].memory_report()
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    for model in models:
        model.close()


def test_a_batch_in_parts_is_constrained_once():
    """By a rate below 1, twice would be further."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 40, 5)), rng.normal(size=(64, 40, 3))

    def trained(limit=None):
        nn.set_random_seed(1)
        constraint = nn.constraints.MinMaxNorm(0.1, 0.2, rate=0.3)
        layer = nn.Dense(32, "tanh", kernel_constraint=constraint)
        model = nn.Sequential([nn.Input((40, 5)), layer, nn.Dense(3)])
        model.compile(nn.SGD(0.1), "mse")
        if limit is not None:
            mc.config.set_memory_limit("CPU:0", limit)
        history = model.fit(x, y, batch_size=64, epochs=3, verbose=0)
        return model, history

    whole, _ = trained()
    wanted = whole.get_weights()
    limit = mc.plan.lower_bound(whole.graph(64)) // 4096 * 4096 - 4096
    whole.close()
    with pytest.warns(mc.errors.FallbackWarning):
        parts, history = trained(limit)
    assert {each.step for each in history.fallbacks} == {"micro_batch"}
    for ours, theirs in zip(parts.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    parts.close()


def test_a_constraint_is_saved_with_its_layer(tmp_path):
    x, y = data()
    model = made(Bounded(0.3))
    model.train_on_batch(x, y)
    path = tmp_path / "model.memcfg"
    model.save(path)
    loaded = nn.models.load_model(path, custom_objects={"Bounded": Bounded})
    assert loaded.get_layer("held").get_config()["kernel_constraint"]["config"] == {
        "bound": 0.3
    }
    for each in (model, loaded):
        each.train_on_batch(x, y)
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.abs(loaded.get_weights()[0]).max() == np.float32(0.3)


def test_a_frozen_weight_stays_as_it_is():
    model = made("unit_norm")
    model.get_layer("held").trainable = False
    model.compile("sgd", "mse")
    before = model.get_weights()[0]
    model.train_on_batch(*data())
    np.testing.assert_array_equal(model.get_weights()[0], before)


def test_a_weight_of_ones_own_layer():
    class Scaled(nn.Layer):
        def build(self, input_shape):
            shape = (input_shape[-1],)
            self.scale = self.add_weight(shape, "ones", constraint="non_neg")

        def call(self, x):
            return x * self.scale

    model = nn.Sequential([nn.Input((4,)), Scaled()])
    model.compile(nn.SGD(10.0), "mse")
    x = np.ones((BATCH, 4))
    model.train_on_batch(x, -x)
    np.testing.assert_array_equal(model.get_weights()[0], 0)


def test_a_step_of_a_function():
    layer = nn.Dense(2, kernel_constraint="non_neg", use_bias=False)
    model = nn.Sequential([nn.Input((3,)), layer])
    optimizer = nn.SGD(1.0)

    @mc.function
    def step(x):
        with mc.GradientTape() as tape:
            loss = nn.ops.sum(model(x))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(slopes, model.trainable_variables)
        return loss

    step(np.ones((4, 3), np.float32))
    np.testing.assert_array_equal(model.get_weights()[0], 0)


LAYERS = {
    "recurrent": lambda c: nn.GRU(2, recurrent_constraint=c),
    "cell": lambda c: nn.RNN(nn.LSTMCell(2, kernel_constraint=c)),
    "convolution": lambda c: nn.Conv1D(2, 2, kernel_constraint=c),
    "separable": lambda c: nn.SeparableConv1D(2, 2, pointwise_constraint=c),
    "attention": lambda c: nn.GroupQueryAttention(2, 2, 1, kernel_constraint=c),
    "norm": lambda c: nn.LayerNormalization(gamma_constraint=c),
    "slope": lambda c: nn.PReLU(alpha_constraint=c),
    "einsum": lambda c: nn.EinsumDense("abc,cx->abx", (4, 2), kernel_constraint=c),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_take_constraints(kind):
    layer = LAYERS[kind](Bounded(0.01))
    start = nn.Input((4, 3))
    y = layer(start, start) if kind == "attention" else layer(start)
    model = nn.Model(start, nn.Dense(1)(nn.Flatten()(y)))
    model.compile("sgd", "mse")
    model.train_on_batch(np.ones((2, 4, 3)), np.ones((2, 1)))
    held = [w for w in layer.weights if np.abs(w.numpy()).max() <= 0.01 + 1e-8]
    assert held
    assert "constraint" in str(layer.get_config()) or kind == "cell"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Dense(2, kernel_constraint="tight"), ValueError, "unknown constr"),
        (lambda: nn.Dense(2, kernel_constraint=abs), TypeError, "a constraint must be"),
        (lambda: nn.ReLU(kernel_constraint="non_neg"), TypeError, "takes no argument"),
        (lambda: nn.constraints.MaxNorm(-1), ValueError, "max_value must be zero"),
        (lambda: nn.constraints.MaxNorm(axis=0.5), TypeError, "axis must be an int"),
        (lambda: nn.constraints.MinMaxNorm(2, 1), ValueError, "must not exceed"),
        (lambda: nn.constraints.MinMaxNorm(rate=2), ValueError, r"be in \[0, 1\]"),
        (
            lambda: nn.constraints.NonNeg()(nn.Input((3,))),
            TypeError,
            "pass it to a layer",
        ),
    ],
)
def test_what_cannot_be_honoured_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_does_not_fit_a_weight_raises():
    class Longer(nn.constraints.Constraint):
        def __call__(self, w):
            return nn.ops.concatenate([w, w], 0)

    for constraint, error, message in (
        (nn.constraints.UnitNorm(2), ValueError, r"shape \(5, 6\) does not have"),
        (
            Longer(),
            TypeError,
            r"Longer must return a symbolic tensor of shape \(5, 6\)",
        ),
    ):
        with pytest.raises(error, match=message):
            made(constraint).train_on_batch(*data())


def test_the_arguments_are_a_configuration():
    constraint = nn.constraints.MinMaxNorm(0.1, 0.2, 0.5, [0, 1])
    again = type(constraint).from_config(constraint.get_config())
    assert repr(again) == repr(constraint)
    layer = nn.Dense(2, bias_constraint=constraint)
    written = nn.constraints.serialize(constraint)
    assert layer.get_config()["bias_constraint"] == written
    again = type(layer).from_config(layer.get_config())
    assert again.get_config()["bias_constraint"] == written

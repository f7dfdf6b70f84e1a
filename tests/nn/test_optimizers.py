"""One step and several of each optimizer, against NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn


def reference_gradients(weights, x, y):
    """Mean loss and gradients of relu(x w1 + b1) w2 + b2, in float64."""
    w1, b1, w2, b2 = weights
    h = np.maximum(x @ w1 + b1, 0)
    logits = h @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    n = len(x)
    loss = -np.log(p[np.arange(n), y]).mean()
    dlogits = p.copy()
    dlogits[np.arange(n), y] -= 1
    dlogits /= n
    dh = (dlogits @ w2.T) * (h > 0)
    return loss, [x.T @ dh, dh.sum(0), h.T @ dlogits, dlogits.sum(0)]


def reference_sgd(weights, gradients, state, rate, momentum, nesterov):
    for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        v = state.setdefault(i, np.zeros_like(w))
        v *= momentum
        v -= rate * g
        w += momentum * v - rate * g if nesterov else v


def reference_adam(weights, gradients, state, rate, t):
    b1, b2, eps = 0.9, 0.999, 1e-7
    alpha = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
    for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        m, v = state.setdefault(i, (np.zeros_like(w), np.zeros_like(w)))
        m += (g - m) * (1 - b1)
        v += (g * g - v) * (1 - b2)
        w -= alpha * m / (np.sqrt(v) + eps)


CASES = {
    "sgd": (
        lambda: nn.SGD(0.1),
        lambda w, g, s, t: reference_sgd(w, g, s, 0.1, 0.0, False),
    ),
    "momentum": (
        lambda: nn.SGD(0.1, momentum=0.9),
        lambda w, g, s, t: reference_sgd(w, g, s, 0.1, 0.9, False),
    ),
    "nesterov": (
        lambda: nn.SGD(0.1, momentum=0.9, nesterov=True),
        lambda w, g, s, t: reference_sgd(w, g, s, 0.1, 0.9, True),
    ),
    "adam": (
        lambda: nn.Adam(0.01),
        lambda w, g, s, t: reference_adam(w, g, s, 0.01, t),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_agree_with_numpy(dense, rows, case):
    make, step = CASES[case]
    x, y = rows
    model = dense(make())
    weights = [w.astype(np.float64) for w in model.get_weights()]
    state = {}
    for t in range(1, 5):
        expected, gradients = reference_gradients(weights, x.astype(np.float64), y)
        assert model.train_on_batch(x, y) == pytest.approx(expected, rel=1e-5)
        step(weights, gradients, state, t)
        for found, wanted in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-6)
        assert model.optimizer.iterations == t


def test_the_learning_rate_can_change_between_steps(dense, rows):
    x, y = rows
    model = dense(nn.SGD(0.1))
    model.train_on_batch(x, y)
    plan = model.memory_plan
    before = model.get_weights()
    _, gradients = reference_gradients([w.astype(np.float64) for w in before], x, y)
    model.optimizer.learning_rate = 0.5
    model.train_on_batch(x, y)
    assert model.memory_plan is plan
    for old, new, gradient in zip(before, model.get_weights(), gradients, strict=True):
        np.testing.assert_allclose(new, old - 0.5 * gradient, rtol=2e-4, atol=2e-6)
    model.optimizer.learning_rate = 0.0
    frozen = model.get_weights()
    model.train_on_batch(x, y)
    for old, new in zip(frozen, model.get_weights(), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.SGD(-0.1), "learning_rate must be zero or more"),
        (lambda: nn.SGD(float("nan")), "learning_rate must be finite"),
        (lambda: nn.SGD(0.1, momentum=1.0), "momentum must be in"),
        (lambda: nn.SGD(0.1, nesterov=True), "needs a momentum"),
        (lambda: nn.Adam(beta_1=1.0), "beta_1 must be in"),
        (lambda: nn.Adam(epsilon=-1), "epsilon must be zero or more"),
        (lambda: nn.SGD(1e39), "learning_rate must be finite in float32"),
        (lambda: nn.SGD(10**400), "learning_rate must be finite in float32"),
        (lambda: nn.SGD(np.longdouble("1e400")), "learning_rate must be finite"),
        (lambda: nn.SGD(0.1, momentum=1 - 1e-9), "momentum must be below 1 in float32"),
        (lambda: nn.Adam(beta_2=1 - 1e-9), "beta_2 must be below 1 in float32"),
        (lambda: nn.Adam(epsilon=1e39), "epsilon must be finite in float32"),
    ],
)
def test_wrong_hyperparameters(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("value", [1e39, -1e39, float("inf"), float("nan"), 10**400])
def test_a_learning_rate_that_is_refused_changes_nothing(dense, rows, value):
    model = dense(nn.SGD(0.25))
    with pytest.raises(ValueError, match="learning_rate must be finite in float32"):
        model.optimizer.learning_rate = value
    assert model.optimizer.learning_rate == 0.25
    model.train_on_batch(*rows)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    "value", [3.4028234663852886e38, np.float16(0.5), np.int64(2), 0]
)
def test_a_learning_rate_that_float32_holds_is_taken(value):
    found = nn.SGD(value).learning_rate
    assert isinstance(found, float)
    assert found == value


def test_hyperparameters_are_keras_defaults():
    sgd, adam = nn.SGD(), nn.Adam()
    assert (sgd.learning_rate, sgd.momentum, sgd.nesterov) == (0.01, 0.0, False)
    assert (adam.learning_rate, adam.beta_1, adam.beta_2) == (0.001, 0.9, 0.999)
    assert adam.epsilon == 1e-7
    with pytest.raises(TypeError, match="learning_rate must be a number"):
        sgd.learning_rate = "fast"
    with pytest.raises(TypeError, match="decay"):
        nn.SGD(decay=0.1)


def test_planned_hyperparameters_cannot_change_silently():
    with pytest.raises(AttributeError, match="'momentum' of SGD is fixed"):
        nn.SGD(0.1, momentum=0.9).momentum = 0.5
    with pytest.raises(AttributeError, match="'beta_1' of Adam is fixed"):
        nn.Adam().beta_1 = 0.5


def test_an_optimizer_belongs_to_one_model(dense):
    optimizer = nn.SGD(0.1)
    first = dense(optimizer)
    with pytest.raises(ValueError, match="another model"):
        dense(optimizer)
    del first
    assert dense(optimizer).optimizer is optimizer

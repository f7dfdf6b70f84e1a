"""Optimizers and schedules beside Keras 3 on PyTorch: the same settings and steps."""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_rules import CLASSES, RULES, OnDevice, drawn, values

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]
NAMES = {kind: found.__name__ for kind, found in CLASSES.items() if kind in RULES}
# Keras takes the mean of iterates with the new iterate for the old one, to which
# `momentum.value` refers: NumPy has the paper's.
STEPPED = [kind for kind in RULES if kind != "schedulefreeadamw"]


@pytest.mark.parametrize("kind", RULES)
def test_arguments_order_and_defaults(kind):
    ours = inspect.signature(getattr(mc.nn.optimizers, NAMES[kind]).__init__)
    theirs = inspect.signature(getattr(keras.optimizers, NAMES[kind]).__init__)
    wanted = [
        (name, each.default)
        for name, each in theirs.parameters.items()
        if each.kind is not each.VAR_KEYWORD
    ]
    assert [(n, each.default) for n, each in ours.parameters.items()] == wanted


@pytest.mark.parametrize("kind", STEPPED)
@given(data=st.data())
@settings(max_examples=10)
def test_ten_steps(kind, data):
    chosen = data.draw(drawn(kind))
    length = st.integers(1, 9)
    shapes = {
        f"w{i}": shape
        for i, shape in enumerate(
            data.draw(
                st.lists(
                    st.lists(length, max_size=4).map(tuple), min_size=1, max_size=4
                )
            )
        )
    }
    weights = values(shapes, 0)
    rate = data.draw(st.floats(1e-3, 0.1))
    ours = OnDevice(CLASSES[kind](rate, **chosen), weights)
    theirs = getattr(keras.optimizers, NAMES[kind])(rate, **chosen)
    variables = [keras.Variable(value) for value in weights.values()]
    for number in range(10):
        gradients = values(shapes, 1 + number)
        found = ours.step(gradients, rate)
        tensors = [keras.ops.convert_to_tensor(g) for g in gradients.values()]
        theirs.apply(tensors, variables)
        for name, variable in zip(shapes, variables, strict=True):
            wanted = keras.ops.convert_to_numpy(variable)
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=3e-5)
    ours.close()


@pytest.mark.parametrize("kind", STEPPED)
def test_ten_steps_of_a_model(kind):
    """Losses and weights, by `fit`, with all defaults but what differs most."""
    options = {
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 1.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "weight_decay": 0.01,
    }
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)).astype(np.float32)
    y = rng.integers(0, 4, 80)
    made = []
    for library, optimizers in ((keras, keras.optimizers), (mc.nn, mc.nn.optimizers)):
        layers = library.layers if library is keras else library
        losses = library.losses if library is keras else library
        model = library.Sequential(
            [layers.Input((6,)), layers.Dense(7, activation="relu"), layers.Dense(4)]
        )
        model.compile(
            getattr(optimizers, NAMES[kind])(0.01, **options),
            losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        made.append(model)
    theirs, ours = made
    ours.set_weights(theirs.get_weights())
    found, wanted = (
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history["loss"]
        for model in (ours, theirs)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert ours.optimizer.iterations == int(theirs.optimizer.iterations) == 5
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


rates, switch = st.floats(1e-4, 1.0), st.booleans()
lengths = st.integers(1, 50)
SCHEDULES = {
    "ExponentialDecay": (rates, lengths, st.floats(0.1, 1.0), switch),
    "InverseTimeDecay": (rates, lengths, st.floats(0.1, 1.0), switch),
    "PolynomialDecay": (rates, lengths, rates, st.floats(0.5, 3.0), switch),
    "CosineDecay": (rates, lengths, st.floats(0.0, 0.5)),
    "CosineDecayRestarts": (
        *(rates, lengths, st.sampled_from([1.0, 1.5, 2.0])),
        *(st.floats(0.5, 1.0), st.floats(0.0, 0.5)),
    ),
    "PiecewiseConstantDecay": (
        st.just([5, 20, 21]),
        st.lists(rates, min_size=4, max_size=4),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data(), step=st.integers(0, 200))
@settings(max_examples=30)
def test_schedules(name, data, step):
    arguments = [data.draw(each) for each in SCHEDULES[name]]
    warm = {}
    if name == "CosineDecay" and data.draw(st.booleans()):
        warm = {"warmup_target": data.draw(rates), "warmup_steps": data.draw(lengths)}
    ours = getattr(mc.nn.optimizers.schedules, name)(*arguments, **warm)
    theirs = getattr(keras.optimizers.schedules, name)(*arguments, **warm)
    wanted = float(keras.ops.convert_to_numpy(theirs(step)))
    near = [step]
    if name == "CosineDecayRestarts" or arguments[-1] is True:
        near += [step - 1, step + 1]  # where one period ends float32 is in another
    assert wanted in [pytest.approx(ours(max(n, 0)), rel=1e-4, abs=2e-6) for n in near]
    assert set(ours.get_config()) == set(theirs.get_config())

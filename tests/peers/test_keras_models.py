"""Models beside Keras 3 on PyTorch: outputs, sample weights, frozen and own layers."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]
STEPS = 10
SAMPLES = 12


def towers(k, units, frozen):
    """Two inputs, a model inside, a layer called twice, two outputs."""
    a, b = k.layers.Input((4,), name="a"), k.layers.Input((4,), name="b")
    inner = k.Sequential(
        [
            k.layers.Input((4,)),
            k.layers.Dense(units, activation="tanh", name="inner"),
            k.layers.BatchNormalization(name="norm"),
        ],
        name="tower",
    )
    left, right = inner(a), inner(b)
    h = k.layers.Concatenate()([left, k.layers.Subtract()([left, right])])
    first = k.layers.Dense(1, name="first")(h)
    second = k.layers.Dense(3, activation="softmax", name="second")(h)
    inner.trainable = not frozen
    return k.Model([a, b], [first, second])


def own_layer(k):
    """Return a class of layers as a user writes it."""

    class Scaled(k.layers.Layer):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.dense = k.layers.Dense(units, activation="relu")
            self.after = k.layers.LayerNormalization()

        def build(self, input_shape):
            self.scale = self.add_weight(
                shape=(input_shape[-1],), initializer="ones", name="scale"
            )
            if hasattr(self.dense, "built"):  # Keras's wants it
                self.dense.build(input_shape)

        def call(self, x):
            return self.after(self.dense(x * self.scale) + 1.0)

    return Scaled


def users(k, units, _frozen):
    """A layer and a model of a user's."""
    x = k.layers.Input((4,), name="a")
    y = own_layer(k)(units, name="own")(x)
    return k.Model(
        x,
        [
            k.layers.Dense(1, name="first", kernel_regularizer="l2")(y),
            k.layers.Dense(3, activation="softmax", name="second")(y),
        ],
    )


@settings(max_examples=8)
@given(
    make=st.sampled_from([towers, users]),
    units=st.integers(1, 5),
    frozen=st.booleans(),
    weighing=st.sampled_from([None, "one", "each"]),
    factors=st.sampled_from([None, [0.5, 2.0], {"first": 0.5, "second": 2.0}]),
    seed=st.integers(0, 2**16),
)
def test_ten_steps(make, units, frozen, weighing, factors, seed):
    random = np.random.default_rng(seed)
    ours, theirs = make(mc.nn, units, frozen), make(keras, units, frozen)
    values = [random.normal(size=w.shape).astype("f4") for w in theirs.get_weights()]
    names = [w.name for w in theirs.weights]
    values = [
        abs(v) + 0.5 if "variance" in n else v
        for n, v in zip(names, values, strict=True)
    ]
    for model in (ours, theirs):
        model.set_weights(values)
        optimizer = (mc.nn if model is ours else keras).optimizers.SGD(0.05)
        model.compile(
            optimizer,
            {"first": "mse", "second": "sparse_categorical_crossentropy"},
            loss_weights=factors,
            metrics={"second": ["accuracy"]},
            weighted_metrics={"first": ["mae"]},
        )
    xs = [random.normal(size=(SAMPLES, 4)).astype("f4") for _ in ours.inputs]
    x = xs if len(xs) > 1 else xs[0]
    y = [random.normal(size=(SAMPLES, 1)), random.integers(0, 3, SAMPLES)]
    y[0] = y[0].astype("f4")
    weights = random.uniform(0, 2, (2, SAMPLES)).astype("f4")
    options = {
        None: {},
        "one": {"sample_weight": [weights[0], weights[0]]},
        "each": {"sample_weight": list(weights)},
    }[weighing]
    options |= {"batch_size": SAMPLES, "shuffle": False, "verbose": 0}
    for one, other in zip(
        ours.predict(x, verbose=0), theirs.predict(x, verbose=0), strict=True
    ):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    found = ours.fit(x, y, epochs=STEPS, **options).history
    expected = theirs.fit(x, y, epochs=STEPS, **options).history
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, 1e-3, 1e-4, err_msg=name)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)
    ours.close()


def test_masks_and_class_weights():
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 5, 3)).astype("f4")
    x[0, 3:] = x[4, 1:] = 0
    y = random.integers(0, 2, 6)
    models = []
    for k in (mc.nn, keras):
        model = k.Sequential(
            [
                k.layers.Input((5, 3)),
                k.layers.Masking(),
                k.layers.LSTM(4, return_sequences=True),
                k.layers.Dense(2),
            ]
        )
        model.compile(k.optimizers.SGD(0.1), "mse")
        head = k.Sequential([k.layers.Input((15,)), k.layers.Dense(2)])
        head.compile(
            k.optimizers.SGD(0.1),
            k.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        models.append((model, head))
    (ours, head), (theirs, other) = models
    ours.set_weights(theirs.get_weights())
    head.set_weights(other.get_weights())
    target = random.normal(size=(6, 5, 2)).astype("f4")
    one, two = (
        m.fit(x, target, batch_size=6, epochs=3, shuffle=False, verbose=0).history
        for m in (ours, theirs)
    )
    np.testing.assert_allclose(one["loss"], two["loss"], 1e-4)
    flat, options = x.reshape(6, 15), {"batch_size": 6, "epochs": 3, "verbose": 0}
    one, two = (
        m.fit(flat, y, class_weight={0: 3.0, 1: 0.5}, **options).history
        for m in (head, other)
    )
    np.testing.assert_allclose(one["loss"], two["loss"], 1e-4)


def test_epochs_of_validation():
    x, y = np.ones((4, 3), "f4"), np.ones((4, 2), "f4")
    for freq in (2, 3, [1, 4]):
        found = []
        for k in (mc.nn, keras):
            model = k.Sequential([k.layers.Input((3,)), k.layers.Dense(2)])
            model.compile("sgd", "mse", run_eagerly=False, jit_compile=False)
            model.set_weights([np.ones((3, 2)), np.zeros(2)])
            fitted = model.fit(
                *(x, y, None, 5, 0), validation_data=(x, y), validation_freq=freq
            )
            found.append(fitted.history["val_loss"])
        np.testing.assert_allclose(*found, 1e-5)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("per_step", [False, True])
def test_weights_of_steps(labels, per_step):
    random, steps = np.random.default_rng(1), 3
    x = random.normal(size=(SAMPLES, steps, 3)).astype("f4")
    y = random.normal(size=(SAMPLES, steps, 2)).astype("f4")
    weights = random.uniform(0, 2, (SAMPLES, steps)).astype("f4")
    if labels:
        y = y.argmax(-1)
    if not per_step:
        weights = weights[:, :1]
    found, values = [], None
    for k in (mc.nn, keras):
        model = k.Sequential(
            [
                k.layers.Input((steps, 3)),
                k.layers.LSTM(4, return_sequences=True),
                k.layers.Dense(2),
            ]
        )
        loss = "mse"
        if labels:
            loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
        measured = ["sparse_categorical_accuracy" if labels else "mae"]
        model.compile(k.optimizers.SGD(0.1), loss, weighted_metrics=measured)
        values = values or model.get_weights()
        model.set_weights(values)
        options = {"batch_size": 5, "epochs": 3, "verbose": 0, "shuffle": False}
        held = {"validation_data": (x, y, weights)}
        logs = model.fit(x, y, sample_weight=weights, **options, **held).history
        again = model.evaluate(x, y, 5, 0, sample_weight=weights, return_dict=True)
        found.append((logs, again, model.get_weights()))
    (ours, one, mine), (theirs, other, keras_weights) = found
    assert set(ours) == set(theirs)
    for name, numbers in theirs.items():
        np.testing.assert_allclose(ours[name], numbers, 1e-4, 1e-5, err_msg=name)
    for name, number in other.items():
        np.testing.assert_allclose(one[name], number, 1e-4, 1e-5, err_msg=name)
    for pair in zip(mine, keras_weights, strict=True):
        np.testing.assert_allclose(*pair, 1e-4, 1e-5)


def inside(k, where):
    """A layer whose result and kernel are penalised, inside of another."""
    options = {"kernel_regularizer": "l1", "activity_regularizer": "l2"}
    if where == "both ends":
        inner = k.layers.LSTM(2, return_sequences=True, **options)
        return k.layers.Bidirectional(inner)
    dense = k.layers.Dense(2, **options)
    if where == "model":
        return k.Sequential([k.layers.Input((4, 3)), dense, k.layers.LSTM(2)])
    if where == "steps of a model":
        step = k.Sequential([k.layers.Input((3,)), dense])
        return k.layers.TimeDistributed(step)
    # Keras leaves the inner layer's activity out here.
    if k is keras:
        dense = k.layers.Dense(2, kernel_regularizer="l1")
        return k.layers.TimeDistributed(dense, activity_regularizer="l2")
    return k.layers.TimeDistributed(dense)


@pytest.mark.parametrize("where", ["both ends", "model", "steps of a model", "steps"])
def test_penalties_inside_of_layers(where):
    random, values, found = np.random.default_rng(3), None, []
    x = random.normal(size=(6, 4, 3)).astype("f4")
    for k in (mc.nn, keras):
        start = k.layers.Input((4, 3))
        flat = k.layers.Flatten()(inside(k, where)(start))
        model = k.Model(start, k.layers.Dense(1)(flat))
        model.compile(k.optimizers.SGD(0.05), "mse")
        values = values or model.get_weights()
        model.set_weights(values)
        steps = [float(model.train_on_batch(x, np.ones((6, 1)))) for _ in range(4)]
        found.append((steps, *model.get_weights()))
    for pair in zip(*found, strict=True):
        np.testing.assert_allclose(*pair, 1e-4, 1e-5)


def frozen_inside(k, where):
    """What goes around a layer or a model that is not to be trained."""
    start = k.layers.Input((4, 6, 6, 1))
    layers = [k.layers.Conv2D(2, 3, activation="relu"), k.layers.Flatten()]
    frame = k.Sequential([k.layers.Input((6, 6, 1)), *layers, k.layers.Dense(3)])
    h = k.layers.TimeDistributed(frame)(start)
    if where == "frames":
        frame.trainable = False
    inner = k.layers.GRU(2, return_sequences=True, trainable=where != "both ends")
    h = k.layers.Flatten()(k.layers.Bidirectional(inner)(h))
    base = k.Sequential([k.layers.Input((16,)), k.layers.BatchNormalization()])
    return k.Model(start, k.layers.Dense(1)(base(h)))


@pytest.mark.parametrize("where", ["frames", "both ends", "nowhere"])
def test_layers_inside_of_others_that_are_frozen(where):
    random, values, found = np.random.default_rng(3), None, []
    x = random.normal(size=(6, 4, 6, 6, 1)).astype("f4")
    for k in (mc.nn, keras):
        model = frozen_inside(k, where)
        model.compile(k.optimizers.SGD(0.05), "mse")
        values = values or model.get_weights()
        model.set_weights(values)
        steps = [float(model.train_on_batch(x, np.ones((6, 1)))) for _ in range(5)]
        count = len(model.trainable_weights)
        found.append((steps, count, model.predict(x, verbose=0), *model.get_weights()))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-4, 1e-5)


def test_a_base_that_is_tuned_in_the_mode_of_inference():
    def make(k):
        x = k.layers.Input((8, 8, 2))
        h = k.layers.Conv2D(4, 3)(x)
        h = k.layers.BatchNormalization(epsilon=0.01)(h)
        h = k.layers.Dropout(0.5)(k.layers.MaxPooling2D()(h))
        h = k.layers.MaxPooling1D(2)(k.layers.Reshape((9, 4))(h))
        base = k.Model(x, k.layers.LSTM(3, dropout=0.5)(h))

        class Tuned(k.layers.Layer):  # in a functional model Keras's fit wins
            def __init__(self):
                super().__init__()
                self.base = base

            def call(self, x):
                return self.base(x, training=False)

        start = k.layers.Input((8, 8, 2))
        return k.Model(start, k.layers.Dense(1)(Tuned()(start)))

    theirs, ours = make(keras), make(mc.nn)
    ours.set_weights(theirs.get_weights())
    for model, k in ((theirs, keras), (ours, mc.nn)):
        model.compile(k.optimizers.SGD(0.05), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 8, 8, 2)).astype("f4"), np.ones((6, 1), "f4")
    for _ in range(STEPS):
        theirs.train_on_batch(x, y)
        ours.train_on_batch(x, y)
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def nested(k):
    """A model whose outputs are a dict of a tensor and a list, compiled alike."""
    start = k.layers.Input((4,), name="start")
    heads = {name: k.layers.Dense(2, name=name)(start) for name in "abc"}
    model = k.Model(start, {"p": heads["a"], "n": [heads["b"], {"r": heads["c"]}]})
    model.compile(
        k.optimizers.SGD(0.1),
        {"p": "mse", "n": ["mae", {"r": "mse"}]},
        loss_weights={"p": 1.0, "n": [0.5, {"r": 2.0}]},
        metrics={"p": ["mae"], "n": [["mse"], {"r": ["mae"]}]},
    )
    return model


def test_nested_outputs_train_as_in_keras():
    rng = np.random.default_rng(5)
    x, *ys = (rng.standard_normal((SAMPLES, n)).astype("f4") for n in (4, 2, 2, 2))
    y = {"p": ys[0], "n": [ys[1], {"r": ys[2]}]}
    ours, theirs = nested(mc.nn), nested(keras)
    ours.set_weights(theirs.get_weights())
    options = {"epochs": STEPS, "batch_size": SAMPLES, "verbose": 0}
    logs = ours.fit(x, y, **options).history, theirs.fit(x, y, **options).history
    assert set(logs[0]) == set(logs[1])
    for name, values in logs[0].items():
        np.testing.assert_allclose(values, logs[1][name], 1e-4, 1e-6)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-6)

"""Masks on their way through chains of layers, beside Keras's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg import nn
from tests.nn.test_ops import CASES
from tests.support.beside_keras import MARKS, OURS, keras

pytestmark = MARKS
STEPS, FEATURES = 5, 4
# A step of a chain: of a masked tensor h to another one of the same shape.
STEP = {
    "dense": lambda k, h: k.Dense(FEATURES, activation="tanh")(h),
    "lstm": lambda k, h: k.LSTM(FEATURES, return_sequences=True)(h),
    "gru": lambda k, h: k.GRU(FEATURES, return_sequences=True)(h),
    "both": lambda k, h: k.Bidirectional(k.SimpleRNN(2, return_sequences=True))(h),
    "distributed": lambda k, h: k.TimeDistributed(k.Dense(FEATURES))(h),
    "layer norm": lambda k, h: k.LayerNormalization()(h),
    "batch norm": lambda k, h: k.BatchNormalization()(h),
    "rescaled": lambda k, h: k.Activation("tanh")(k.Rescaling(0.5, 0.1)(h)),
    "attention": lambda k, h: k.Attention()([h, h]),
    "heads": lambda k, h: k.MultiHeadAttention(2, 3)(h, h),
    "permute": lambda k, h: k.Reshape((STEPS, FEATURES))(k.Permute((2, 1))(h)),
    "conv": lambda k, h: k.Conv1D(FEATURES, 2, padding="causal")(h),
    "pool": lambda k, h: k.AveragePooling1D(2, 1, padding="same")(h),
    "residual": lambda k, h: h + k.Dense(FEATURES)(h),
    "scaled": lambda k, h: 0.5 * h,
}
MERGE = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
END = {
    "steps": lambda k, h: h,
    "mean": lambda k, h: k.GlobalAveragePooling1D()(h),
    "greatest": lambda k, h: k.GlobalMaxPooling1D()(h),
    "last": lambda k, h: k.GRU(3)(h),
    "flat": lambda k, h: k.Flatten()(h),
}


def trained_alike(make, arrays):
    """Predictions, losses and weights after steps are those of Keras."""
    rng = np.random.default_rng(7)
    models = []
    for k in (OURS, keras):
        inputs = [k.Input(each.shape[1:], dtype=each.dtype.name) for each in arrays]
        models.append(k.Model(inputs, make(k.layers, *inputs)))
    weights = [
        rng.normal(size=each.shape, scale=0.4).astype("f4") for each in named(models[1])
    ]
    for i, each in enumerate(named(models[1])):
        if "variance" in each.path:
            weights[i] = np.abs(weights[i])
    found = []
    for model, k in zip(models, (OURS, keras), strict=True):
        for variable, value in zip(named(model), weights, strict=True):
            variable.assign(value)
        model.compile(k.optimizers.SGD(0.1), "mse", metrics=["mae"])
        predicted = model.predict(arrays, verbose=0)
        y = np.random.default_rng(8).normal(size=predicted.shape).astype("f4")
        logs = [model.train_on_batch(arrays, y) for _ in range(3)]
        found.append([predicted, logs, model.evaluate(arrays, y, verbose=0)])
        found[-1] += [np.array(each.numpy()) for each in named(model)]
    models[0].close()
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def named(model):
    """Weights of embeddings by name: Keras orders them by what reads their masks."""
    return sorted(
        model.weights,
        key=lambda each: each.path if "embeddings" in each.path else "z",
    )


def tokens(seed, batch=4):
    """Words padded at the end; each has one at least."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 6, (batch, STEPS))
    lengths = rng.integers(1, STEPS + 1, (batch, 1))
    return np.where(np.arange(STEPS) < lengths, ids, 0).astype("i4")


@given(
    chain=st.lists(st.sampled_from(sorted(STEP)), min_size=1, max_size=3),
    end=st.sampled_from(sorted(END)),
    seed=st.integers(0, 9),
)
@settings(max_examples=18, deadline=None)
def test_chains(chain, end, seed):
    # What attention of heads gives for steps that are masked means nothing, and a
    # layer that ends the mask would count it.
    ends_mask = {"permute", "conv", "pool", "residual", "scaled"} & set(chain)
    if "heads" in chain and (ends_mask or end in ("greatest", "flat")):
        chain = [each for each in chain if each != "heads"]

    def make(k, x):
        h = k.Embedding(6, FEATURES, mask_zero=True)(x)
        for each in chain:
            h = STEP[each](k, h)
        return k.Dense(2)(END[end](k, h))

    trained_alike(make, [tokens(seed)])


@given(
    kind=st.sampled_from([*MERGE, "last", "steps", "dot"]),
    masked=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    count=st.integers(2, 3),
    end=st.sampled_from(["steps", "mean", "last"]),
)
@settings(max_examples=12, deadline=None)
def test_merges(kind, masked, count, end):
    count = 2 if kind in ("Subtract", "dot") else count

    def make(k, *xs):
        hs = [
            k.Embedding(6, FEATURES, mask_zero=zero, name=f"e{i}")(x)
            for i, (x, zero) in enumerate(zip(xs, masked, strict=False))
        ]
        if kind == "dot":
            h = k.Dot(axes=2)(hs)
        elif kind in MERGE:
            h = getattr(k, kind)()(hs)
        else:
            h = k.Concatenate(axis=1 if kind == "steps" else -1)(hs)
        return k.Dense(2)(END[end](k, h))

    trained_alike(make, [tokens(seed) for seed in range(count)])


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_where_some_or_no_steps_count(reduction, weighted):
    some, none = tokens(3), np.zeros((4, STEPS), "i4")
    weight = np.random.default_rng(4).uniform(0.5, 2, (4, STEPS)).astype("f4")
    found = []
    for k in (OURS, keras):
        x = k.Input((STEPS,), dtype="int32")
        h = k.layers.Embedding(6, FEATURES, mask_zero=True)(x)
        model = k.Model(x, k.layers.Dense(1)(h))
        rng = np.random.default_rng(1)
        model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
        losses = nn.losses if k is OURS else keras.losses
        loss = losses.MeanSquaredError(reduction=reduction)
        model.compile(k.optimizers.SGD(0.1), loss)
        options = {"sample_weight": weight} if weighted else {}
        y = np.ones((4, STEPS, 1), "f4")
        logs = [model.train_on_batch(each, y, **options) for each in (some, none)]
        found.append([logs, *model.get_weights()])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("supports", [False, True])
@pytest.mark.parametrize("computes", [False, True])
def test_layers_of_users(supports, computes):
    def kind(library, layers):
        class Own(layers.Layer):
            def __init__(self):
                super().__init__()
                self.inner = layers.Dense(3)
                if supports:
                    self.supports_masking = True

            def call(self, x, mask=None):
                if mask is None:
                    return library.ops.exp(x)
                return (
                    library.ops.exp(x) * library.ops.cast(mask, "float32")[:, :, None]
                )

            if computes:

                def compute_mask(self, inputs, mask=None):
                    return mask[:, ::1]

        return Own

    def make(k, x):
        library = keras if k is keras.layers else nn
        h = k.Embedding(6, FEATURES, mask_zero=True)(x)
        return k.Dense(2)(kind(library, k)()(h))

    trained_alike(make, [tokens(5)])


def shown(k):
    """A layer whose result is the mask of its input, or sevens where there is none."""

    class Shown(k.layers.Layer):
        def call(self, x, mask=None):
            if mask is None:
                first = x if len(x.shape) == 2 else k.ops.max(x, axis=-1)
                return first * 0.0 + 7.0
            return k.ops.cast(mask, "float32")

    return Shown()


OPERATORS = {
    "+": lambda k, h: h + h,
    "1 -": lambda k, h: 1.0 - h,
    "*": lambda k, h: h * 2.0,
    "/": lambda k, h: h / 2.0,
    "**": lambda k, h: h**2,
    "negative": lambda k, h: -h,
    "abs": lambda k, h: abs(h),
    "@": lambda k, h: h @ k.ops.swapaxes(h, 1, 2),
    "steps": lambda k, h: h[:, 1:4],
    "all steps": lambda k, h: h[:, :],
    "features": lambda k, h: h[..., 1:3],
    "reshape": lambda k, h: k.ops.reshape(h, (-1, STEPS, FEATURES)),
    "concatenate function": lambda k, h: k.layers.concatenate([h, h]),
    "add function": lambda k, h: k.layers.add([h, h]),
    **{
        f"activations.{name}": lambda k, h, name=name: getattr(k.activations, name)(h)
        for name in ("relu", "gelu", "softmax", "tanh", "leaky_relu", "linear")
    },
}
LAYERS = {
    "Dense": [3],
    "Activation": ["relu"],
    "ReLU": [],
    "LeakyReLU": [],
    "PReLU": [],
    "ELU": [],
    "Dropout": [0.5],
    "SpatialDropout1D": [0.5],
    "GaussianNoise": [0.5],
    "GaussianDropout": [0.5],
    "Rescaling": [2.0],
    "Masking": [9.0],
    "LayerNormalization": [],
    "BatchNormalization": [],
    "GroupNormalization": [2],
    "Conv1D": [3, 1],
    "SeparableConv1D": [3, 1],
    "DepthwiseConv1D": [1],
    "Conv1DTranspose": [3, 1],
    "MaxPooling1D": [1],
    "AveragePooling1D": [1],
    "GlobalMaxPooling1D": [],
    "GlobalAveragePooling1D": [],
    "UpSampling1D": [1],
    "ZeroPadding1D": [1],
    "Cropping1D": [1],
    "Flatten": [],
    "Reshape": [(STEPS, FEATURES)],
    "Permute": [(2, 1)],
    "SimpleRNN": [3],
}


def masks_alike(compute):
    found = []
    for k in (nn, keras):
        x = k.Input((STEPS,), dtype="int32")
        h = k.layers.Embedding(6, FEATURES, "ones", mask_zero=True)(x)
        found.append(k.Model(x, shown(k)(compute(k, h))).predict(tokens(5), verbose=0))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", OPERATORS)
def test_masks_after_operators(name):
    masks_alike(lambda k, h: OPERATORS[name](k, h))


# An op drops masks whatever it is; these are of each kind, for inputs of this shape.
OPS = (
    *("add", "subtract", "multiply", "divide", "matmul", "power", "negative", "abs"),
    *("maximum", "clip", "square", "sqrt", "exp", "log", "gelu", "sum", "mean", "max"),
    *("var", "expand_dims", "transpose", "moveaxis", "flip", "concatenate", "stack"),
    *("split", "take", "where", "less_equal", "equal", "get_item"),
)


@pytest.mark.parametrize("name", OPS)
def test_masks_after_ops(name):
    masks_alike(lambda k, h: CASES[name][0](k.ops, h, h))


@pytest.mark.parametrize("name", LAYERS)
def test_masks_after_layers(name):
    masks_alike(lambda k, h: getattr(k.layers, name)(*LAYERS[name])(h))


# Layers that are given a mask with the call.
GIVEN = {
    "lstm": lambda k, x, m: k.LSTM(3, return_sequences=True)(x, mask=m),
    "backwards": lambda k, x, m: k.GRU(3, go_backwards=True)(x, mask=m),
    "backward steps": lambda k, x, m: k.GlobalAveragePooling1D()(
        k.GRU(3, return_sequences=True, go_backwards=True)(x, mask=m)
    ),
    "both": lambda k, x, m: k.Bidirectional(k.SimpleRNN(2))(x, mask=m),
    "rnn": lambda k, x, m: k.RNN(k.GRUCell(2))(x, mask=m),
    "batch norm": lambda k, x, m: k.BatchNormalization()(x, mask=m),
    "mean": lambda k, x, m: k.GlobalAveragePooling1D()(x, mask=m),
    "distributed": lambda k, x, m: k.TimeDistributed(k.Dense(2))(x, mask=m),
    "attention": lambda k, x, m: k.Attention()([x, x], mask=[m, m]),
    "additive": lambda k, x, m: k.AdditiveAttention()([x, x], mask=[None, m]),
    "heads": lambda k, x, m: k.GlobalAveragePooling1D()(
        k.MultiHeadAttention(2, 3)(x, x, query_mask=m, value_mask=m), mask=m
    ),
    "keys": lambda k, x, m: k.MultiHeadAttention(2, 3)(
        x, x, key_mask=m, use_causal_mask=True
    ),
    "groups": lambda k, x, m: k.GroupQueryAttention(3, 4, 2)(x, x, value_mask=m),
    "replaced": lambda k, x, m: k.LSTM(3)(k.Masking()(x), mask=m),
    "softmax": lambda k, x, m: k.Flatten()(
        k.Softmax(axis=1)(k.Dense(1)(x), mask=k.Reshape((STEPS, 1))(m))
    ),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_masks_that_calls_are_given(kind):
    rng = np.random.default_rng(2)
    x = np.float32(rng.normal(size=(4, STEPS, FEATURES)))
    mask = np.int32(tokens(3) > 0)

    def make(k, x, m):
        given = m if k is OURS.layers else keras.ops.cast(m, "bool")
        return k.Dense(2)(GIVEN[kind](k, x, given))

    trained_alike(make, [x, mask])


AXES = {
    "batch norm": lambda k, axis: k.BatchNormalization(axis=axis, momentum=0.7),
    "group norm": lambda k, axis: k.GroupNormalization(2, axis=axis),
    "softmax": lambda k, axis: k.Softmax(axis=axis),
    "softmax of two": lambda k, axis: k.Softmax(axis=(axis, -1)),
}


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize("axis", [1, 2])
def test_any_axes(kind, axis):
    x = np.float32(np.random.default_rng(1).normal(size=(5, 4, 2, 3)))
    trained_alike(lambda k, x: k.Dense(2)(AXES[kind](k, axis)(x)), [x])


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_ignored_class_beside_a_mask(reduction, weighted):
    random = np.random.default_rng(3)
    x = random.integers(0, 4, (6, 5)).astype(np.int32)
    y = random.integers(-1, 3, (6, 5)).astype(np.int32)
    weights = random.uniform(0.5, 2, (6, 5)).astype(np.float32) if weighted else None
    table, kernel = (random.normal(size=n).astype(np.float32) for n in ((4, 3), (3, 3)))
    losses = []
    for room in (keras, nn):
        start = room.Input((5,), dtype="int32")
        h = room.layers.Embedding(4, 3, mask_zero=True)(start)
        model = room.Model(start, room.layers.Dense(3, use_bias=False)(h))
        model.set_weights([table, kernel])
        loss = room.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=-1, reduction=reduction
        )
        model.compile(room.optimizers.SGD(0.1), loss)
        fit = model.fit(x, y, batch_size=6, epochs=2, verbose=0, sample_weight=weights)
        losses.append([*fit.history["loss"], model.evaluate(x, y, verbose=0)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)

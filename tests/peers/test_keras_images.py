"""Convolutions, pooling, normalisation and activations beside Keras on PyTorch.

A layer, Flatten and Dense are trained three steps on both sides from the same weights:
outputs, and all gradients by what they do to the weights, agree.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")

nn = mc.nn

pytestmark = pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning")

CLASSES, RATE, STEPS = 3, 0.05, 3


def pair(make, shape):
    """A model of the layer on both sides, with the weights of Keras's."""
    theirs = keras.Sequential(
        [
            keras.Input(shape),
            make(keras.layers),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    ours = nn.Sequential([nn.Input(shape), make(nn), nn.Flatten(), nn.Dense(CLASSES)])
    rng = np.random.default_rng(7)
    weights = [
        (w + 0.1 * rng.normal(size=w.shape)).astype(np.float32)
        for w in theirs.get_weights()
    ]
    assert [w.shape for w in weights] == [w.shape for w in ours.get_weights()]
    theirs.set_weights(weights)
    ours.set_weights(weights)
    theirs.compile(
        keras.optimizers.SGD(RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ours.compile(nn.SGD(RATE), nn.SparseCategoricalCrossentropy(from_logits=True))
    return theirs, ours


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def agree(make, shape, samples=3, seed=0):
    theirs, ours = pair(make, shape)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, *shape)).astype(np.float32)
    y = rng.integers(0, CLASSES, samples)
    close(ours.predict(x, verbose=0), theirs.predict(x, verbose=0))
    for _ in range(STEPS):
        close(ours.train_on_batch(x, y), theirs.train_on_batch(x, y))
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        close(one, other)
    close(ours.predict(x, verbose=0), theirs.predict(x, verbose=0))
    ours.close()


def drawn(count):
    phases = (Phase.explicit, Phase.generate)  # to shrink takes minutes
    return settings(max_examples=count, deadline=None, phases=phases)


@st.composite
def windows(draw, rank, *, causal=False, transposed=False):
    """Keras refuses strides beside dilation."""
    dilated = draw(st.booleans())
    numbers = st.integers(1, 2)
    tuples = st.tuples(*[numbers] * rank)
    paddings = ["valid", "same", *(["causal"] if causal else [])]
    found = {
        "kernel_size": draw(st.tuples(*[st.integers(1, 3)] * rank)),
        "padding": draw(st.sampled_from(paddings)),
        "use_bias": draw(st.booleans()),
        "activation": draw(st.sampled_from([None, "relu", "tanh"])),
    }
    found["strides"] = 1 if dilated else draw(st.integers(1, 3 if transposed else 2))
    if dilated and not transposed:
        found["dilation_rate"] = draw(tuples)
    return found


@st.composite
def shapes(draw, rank):
    sizes = draw(st.tuples(*[st.integers(5, 8)] * rank))
    return (*sizes, draw(st.sampled_from([2, 4])))


@pytest.mark.parametrize("rank", [1, 2])
@drawn(10)
@given(data=st.data())
def test_convolution(rank, data):
    options = data.draw(windows(rank, causal=rank == 1))
    groups = data.draw(st.sampled_from([1, 2]))
    name = f"Conv{rank}D"
    agree(
        lambda layers: getattr(layers, name)(4, groups=groups, **options),
        data.draw(shapes(rank)),
    )


@pytest.mark.parametrize("rank", [1, 2])
@drawn(8)
@given(data=st.data())
def test_transposed_convolution(rank, data):
    options = data.draw(windows(rank, transposed=True))
    name = f"Conv{rank}DTranspose"
    agree(lambda layers: getattr(layers, name)(3, **options), data.draw(shapes(rank)))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["Depthwise", "Separable"])
@drawn(6)
@given(data=st.data())
def test_convolution_of_each_channel(rank, kind, data):
    options = data.draw(windows(rank))
    options["kernel_size"] = options["kernel_size"][:1] * rank
    options["depth_multiplier"] = data.draw(st.integers(1, 2))
    first = [5] if kind == "Separable" else []
    name = f"{kind}Conv{rank}D"
    agree(
        lambda layers: getattr(layers, name)(*first, **options),
        data.draw(shapes(rank)),
    )


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["MaxPooling", "AveragePooling"])
@drawn(5)
@given(data=st.data())
def test_pooling(rank, kind, data):
    options = {
        "pool_size": data.draw(st.tuples(*[st.integers(1, 3)] * rank)),
        "strides": data.draw(st.sampled_from([None, 1, 2])),
        # On PyTorch Keras averages repeated edges where padding is uneven; see below.
        "padding": data.draw(
            st.sampled_from(["valid", "same"][: 1 + (kind == "MaxPooling")])
        ),
    }
    if rank == 1:
        (options["pool_size"],) = options["pool_size"]
    name = f"{kind}{rank}D"
    agree(lambda layers: getattr(layers, name)(**options), data.draw(shapes(rank)))


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("pool_size", [(1, 2), (2, 2), (3, 3), (3, 1)])
def test_average_pooling_leaves_out_padding_as_tensorflow_does(pool_size, strides):
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    x = np.random.default_rng(0).normal(size=(2, 5, 6, 4)).astype(np.float32)
    wanted = tf.nn.avg_pool2d(x, pool_size, strides, "SAME").numpy()
    layer = mc.nn.AveragePooling2D(pool_size, strides, "same")
    model = mc.nn.Sequential([mc.nn.Input(x.shape[1:]), layer])
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 1e-5, 1e-6)
    model.close()


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["GlobalMaxPooling", "GlobalAveragePooling"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_global_pooling(rank, kind, keepdims):
    name = f"{kind}{rank}D"
    shape = (6, 5, 4)[2 - rank :]
    agree(lambda layers: getattr(layers, name)(keepdims=keepdims), shape)


NORMALIZATIONS = {
    "batch": lambda layers, **flags: layers.BatchNormalization(momentum=0.8, **flags),
    "layer": lambda layers, **flags: layers.LayerNormalization(**flags),
    "group": lambda layers, **flags: layers.GroupNormalization(2, **flags),
}


@pytest.mark.parametrize("kind", NORMALIZATIONS)
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("shape", [(5, 6, 4), (7, 4)])
def test_normalization(kind, center, scale, shape):
    make = NORMALIZATIONS[kind]
    agree(lambda layers: make(layers, center=center, scale=scale), shape, samples=4)


ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "swish"),
    *("sigmoid", "hard_sigmoid", "tanh", "hard_tanh", "softplus", "softsign", "mish"),
    *("exponential", "linear", "softmax", "log_softmax", "log_sigmoid", "hard_silu"),
    *("tanh_shrink", "soft_shrink", "hard_shrink"),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    agree(lambda layers: layers.Activation(name), (4, 6))


LAYERS = {
    "relu": lambda layers: layers.ReLU(1.5, 0.1, 0.2),
    "leaky": lambda layers: layers.LeakyReLU(0.25),
    "elu": lambda layers: layers.ELU(0.7),
    "prelu": lambda layers: layers.PReLU(),
    "prelu, shared": lambda layers: layers.PReLU(shared_axes=[1]),
    "softmax": lambda layers: layers.Softmax(axis=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_activation_layer(name):
    agree(LAYERS[name], (4, 6))

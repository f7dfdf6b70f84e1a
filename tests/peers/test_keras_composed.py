"""Layers made of several ops beside Keras 3: outputs, and weights after ten steps."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from beside_keras import MARKS, OURS, check, keras, sequences

import memcfg as mc

pytestmark = MARKS
NAMES = (
    *("EinsumDense", "GroupQueryAttention", "RMSNormalization", "UnitNormalization"),
    *("AdaptiveAveragePooling1D", "AdaptiveMaxPooling2D", "Lambda", "Wrapper"),
)
UNTAKEN = {"gptq_unpacked_column_size", "lora_rank", "lora_alpha"}
UNTAKEN |= {"quantization_config"}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_order_and_defaults(name):
    found = []
    for room in (mc.nn, keras.layers):
        kind = getattr(room, name)
        parameters = inspect.signature(kind.__init__).parameters.values()
        found.append(
            [
                (each.name, None if each.default is each.empty else each.default)
                for each in parameters
                if each.kind is each.POSITIONAL_OR_KEYWORD
                if each.name not in UNTAKEN and not each.name.endswith("_constraint")
                if name != "EinsumDense" or not each.name.endswith("_regularizer")
            ]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("equation", "shape", "output", "bias"),
    [
        ("ab,bc->ac", (4,), 5, "c"),
        ("abc,cx->abx", (3, 4), (3, 5), "bx"),
        ("abc,cde->abde", (3, 4), (3, 2, 5), "d"),
        ("abcd,cde->abe", (3, 2, 4), (3, 5), None),
        ("abc,bcx->abx", (3, 4), (3, 5), "x"),
        ("...x,xy->...y", (3, 2, 4), 5, "y"),
        ("ab...,bc->ac...", (4, 3, 2), 5, "c"),
    ],
)
def test_einsum_dense(equation, shape, output, bias):
    def make(k):
        x = k.Input(shape)
        layer = k.layers.EinsumDense(
            equation, output, activation="tanh", bias_axes=bias
        )
        return x, layer(x)

    check(make, sequences(shape, False))


@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (3, 3)])
@pytest.mark.parametrize("flash", [None, False])
@pytest.mark.parametrize("causal", [False, True])
def test_group_query_attention(heads, flash, causal):
    def make(k):
        x = k.Input((5, 6))
        how = {"flash_attention": flash} if k is not keras else {}
        layer = k.layers.GroupQueryAttention(4, *heads, **how)
        return x, layer(x, k.layers.Dense(6, name="v")(x), use_causal_mask=causal)

    check(make, sequences((5, 6), False))


@pytest.mark.parametrize(
    "layer",
    [
        lambda layers: layers.RMSNormalization(),
        lambda layers: layers.RMSNormalization([1, 2], epsilon=0.01),
        lambda layers: layers.UnitNormalization(),
        lambda layers: layers.UnitNormalization(axis=(1, 2)),
        lambda layers: layers.AdaptiveAveragePooling1D(3),
        lambda layers: layers.AdaptiveMaxPooling1D(4),
        lambda layers: layers.Lambda(lambda x: x * x + 1),
        lambda layers: layers.Identity(),
    ],
)
def test_of_sequences(layer):
    def make(k):
        x = k.Input((7, 4))
        return x, layer(k.layers)(k.layers.Dense(4, name="first")(x))

    check(make, sequences((7, 4), False))


@pytest.mark.parametrize("name", ["Average", "Max"])
@pytest.mark.parametrize("size", [(3, 4), 2, (6, 1)])
def test_adaptive_windows_of_images(name, size):
    def make(k):
        x = k.Input((6, 5, 2))
        layer = getattr(k.layers, f"Adaptive{name}Pooling2D")(size)
        return x, layer(k.layers.Dense(3, name="first")(x))

    check(make, sequences((6, 5, 2), False))


def test_masks_that_are_passed_on():
    def make(k):
        x = k.Input((5, 3))
        h = k.layers.UnitNormalization()(k.layers.Masking()(x))
        return x, k.layers.LSTM(3, use_cudnn=False)(k.layers.Identity()(h))

    check(make, sequences((5, 3), True))


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("kind", ["Dense", "Conv1D"])
def test_spectral_normalization(kind, iterations):
    """Keras lists the kernel before the vector, and memcfg after it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 1))
    found, first = [], None
    for k in (keras, OURS):
        start = k.Input((5, 3))
        arguments = (4,) if kind == "Dense" else (4, 2)
        layer = getattr(k.layers, kind)(*arguments)
        h = k.layers.SpectralNormalization(layer, iterations)(start)
        model = k.Model(start, k.layers.Dense(1)(k.layers.Flatten()(h)))

        def swapped(weights, here=k is OURS):
            kernel, vector, *others = weights
            return [vector, kernel, *others] if here else weights

        if first is None:
            first = [rng.normal(size=w.shape) for w in model.get_weights()]
        model.set_weights(swapped(first))
        model.compile(k.optimizers.SGD(0.1), "mse")
        for _ in range(4):
            model.train_on_batch(x, y)
        found.append(swapped(model.get_weights()))
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

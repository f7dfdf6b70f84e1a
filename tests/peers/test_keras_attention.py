"""Attention layers and softmax beside Keras 3: outputs, and ten steps."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from beside_keras import BATCH, MARKS, check, keras, sequences
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

pytestmark = MARKS
LENGTH = st.integers(1, 4)


@pytest.mark.parametrize("name", ["Attention", "MultiHeadAttention", "Softmax"])
def test_arguments_order_and_defaults(name):
    found = [
        [
            (each.name, each.default)
            for each in inspect.signature(
                getattr(room, name).__init__
            ).parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        for room in (mc.nn, keras.layers)
    ]
    assert found[0] == found[1]


@given(
    shape=st.tuples(st.integers(1, 5), LENGTH),
    sizes=st.tuples(LENGTH, LENGTH, LENGTH),
    use_bias=st.booleans(),
    masked=st.booleans(),
    use_causal_mask=st.booleans(),
    output_shape=st.sampled_from([None, 2]),
)
@settings(max_examples=15, deadline=None)
def test_self_attention(shape, sizes, use_bias, masked, use_causal_mask, output_shape):
    x = sequences(shape, masked)
    x[:, 0] = 1  # a causal row must see a step

    def make(k):
        inputs = h = k.Input(shape)
        if masked:
            h = k.layers.Masking()(h)
        layer = k.layers.MultiHeadAttention(
            *sizes, use_bias=use_bias, output_shape=output_shape
        )
        y = layer(h, h, use_causal_mask=use_causal_mask)
        # Rows of masked queries mean nothing, and are not the same.
        return inputs, y if not masked else y[:, :1]

    check(make, x)


@given(shape=st.tuples(LENGTH, LENGTH), keys=LENGTH, own_key=st.booleans())
@settings(max_examples=8, deadline=None)
def test_attention_between_sequences(shape, keys, own_key):
    steps, features = shape

    def make(k):
        inputs = k.Input((steps, features))
        value = k.layers.Permute((2, 1))(k.layers.Dense(keys)(inputs))
        key = [k.layers.Dense(3)(value)] if own_key else []
        layer = k.layers.MultiHeadAttention(2, 3)
        return inputs, layer(inputs, value, *key)

    check(make, sequences(shape, False))


@given(
    shape=st.tuples(st.integers(1, 5), LENGTH),
    kind=st.sampled_from(["Attention", "AdditiveAttention"]),
    use_scale=st.booleans(),
    masked=st.booleans(),
    causal=st.booleans(),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_attention_of_one_head(shape, kind, use_scale, masked, causal, data):
    options = {"use_scale": use_scale}
    if kind == "Attention":
        options["score_mode"] = data.draw(st.sampled_from(["dot", "concat"]))
    x = sequences(shape, masked)
    x[:, 0] = 1

    def make(k):
        inputs = h = k.Input(shape)
        if masked:
            h = k.layers.Masking()(h)
        h = k.layers.Dense(3)(h)
        layer = getattr(k.layers, kind)(**options)
        return inputs, layer([h, h], use_causal_mask=causal)

    check(make, x)


def test_scores_and_softmax():
    def make(k):
        inputs = k.Input((5, 3))
        layer = k.layers.MultiHeadAttention(2, 3)
        y, scores = layer(inputs, inputs, return_attention_scores=True)
        probabilities = k.layers.Softmax(axis=1)(y)
        flat = [k.layers.Flatten()(each) for each in (y, scores, probabilities)]
        return inputs, k.layers.Concatenate()(flat)

    check(make, np.random.default_rng(0).normal(size=(BATCH, 5, 3)).astype("f4"))

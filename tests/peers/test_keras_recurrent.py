"""Recurrent layers beside Keras 3: outputs, and weights after ten steps."""

from __future__ import annotations

import inspect

import pytest
from beside_keras import BATCH, MARKS, check, keras, sequences
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

pytestmark = MARKS
KINDS = ("SimpleRNN", "LSTM", "GRU")
WRAPPERS = ("Bidirectional", "TimeDistributed", "Masking")


@pytest.mark.parametrize("name", [*KINDS, *WRAPPERS])
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


@st.composite
def cases(draw):
    """A kind of layer, its arguments, a shape, and whether steps are masked."""
    kind = draw(st.sampled_from(KINDS))
    options = {
        "units": draw(st.integers(1, 4)),
        "activation": draw(st.sampled_from(["tanh", "tanh", "relu", None])),
        "use_bias": draw(st.booleans()),
        "return_sequences": draw(st.booleans()),
        "go_backwards": draw(st.booleans()),
        "unroll": draw(st.booleans()),
    }
    if kind != "SimpleRNN":
        gates = st.sampled_from(["sigmoid", "sigmoid", "hard_sigmoid"])
        options |= {"recurrent_activation": draw(gates), "use_cudnn": False}
    if kind == "GRU":
        options["reset_after"] = draw(st.booleans())
    shape, masked = (
        (draw(st.integers(1, 5)), draw(st.integers(1, 3))),
        draw(st.booleans()),
    )
    if masked and options["go_backwards"]:
        options["unroll"] = False  # which Keras cannot
    return kind, options, shape, masked


@given(case=cases())
@settings(max_examples=10, deadline=None)
def test_layers(case):
    kind, options, shape, masked = case

    def make(k):
        x = h = k.Input(shape)
        if masked:
            h = k.layers.Masking()(h)
        h = k.layers.TimeDistributed(k.layers.Dense(3, name="first"))(h)
        return x, getattr(k.layers, kind)(**options)(h)

    check(make, sequences(shape, masked))


@given(
    case=cases(),
    merge=st.sampled_from(["concat", "sum", "mul", "ave"]),
)
@settings(max_examples=8, deadline=None)
def test_both_directions(case, merge):
    kind, options, shape, masked = case
    options |= {"go_backwards": False, "activation": "tanh", "unroll": False}

    def make(k):
        x = h = k.Input(shape)
        if masked:
            h = k.layers.Masking()(h)
        layer = getattr(k.layers, kind)(**options)
        return x, k.layers.Bidirectional(layer, merge_mode=merge)(h)

    check(make, sequences(shape, masked))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_states_that_are_given_and_returned(kind, unroll, masked):
    """An encoder's states are where a decoder begins."""
    options = {} if kind == "SimpleRNN" else {"use_cudnn": False}
    options["unroll"] = unroll

    def make(k):
        x = h = k.Input((5, 3))
        if masked:
            h = k.layers.Masking()(h)
        kinds = getattr(k.layers, kind)
        y, *states = kinds(4, return_state=True, **options)(h)
        decoder = kinds(4, return_sequences=True, return_state=True, **options)
        # With states beside the sequences, Keras looks for no mask of its own accord.
        own = {"mask": h._keras_mask} if masked and k is keras else {}
        z, *ends = decoder(h, initial_state=states, **own)
        flat = [k.layers.Flatten()(each) for each in (y, z, *ends)]
        return x, k.layers.Concatenate()(flat)

    check(make, sequences((5, 3), masked))


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_stay_between_batches(kind):
    options = {} if kind == "SimpleRNN" else {"use_cudnn": False}

    def make(k):
        x = k.Input((4, 3), batch_size=BATCH)
        layer = getattr(k.layers, kind)(3, stateful=True, **options)
        return x, layer(x)

    check(make, sequences((4, 3), False))

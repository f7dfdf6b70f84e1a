"""Cells, `RNN` and convolutional LSTMs beside Keras 3: outputs and trained weights."""

from __future__ import annotations

import inspect

import pytest
from beside_keras import BATCH, MARKS, check, keras, sequences

import memcfg as mc

pytestmark = MARKS
CELLS = ("SimpleRNNCell", "LSTMCell", "GRUCell")
NAMES = (*CELLS, "RNN", "StackedRNNCells", "ConvLSTM1D", "ConvLSTM2D")


@pytest.mark.parametrize("name", NAMES)
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


def own_cell(k):
    """The minimal cell of Keras's guide, of either library."""

    class Minimal(k.layers.Layer):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.units = units
            self.state_size = units

        def build(self, input_shape):
            shape = (input_shape[-1], self.units)
            self.kernel = self.add_weight(shape=shape, name="kernel")
            shape = (self.units, self.units)
            self.recurrent = self.add_weight(shape=shape, name="recurrent")

        def call(self, inputs, states):
            h = inputs @ self.kernel + states[0] @ self.recurrent
            return h * h, [h]

    return Minimal(3)


MAKERS = {
    "simple": lambda k: k.layers.SimpleRNNCell(3),
    "lstm": lambda k: k.layers.LSTMCell(3),
    "lstm of relu": lambda k: k.layers.LSTMCell(
        3, activation="relu", use_bias=False, unit_forget_bias=False
    ),
    "gru": lambda k: k.layers.GRUCell(3),
    "gru before": lambda k: k.layers.GRUCell(3, reset_after=False),
    "own": own_cell,
    "stack": lambda k: [k.layers.LSTMCell(2), own_cell(k), k.layers.GRUCell(4)],
}


@pytest.mark.parametrize("options", [{}, {"return_sequences": True}])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("cell", MAKERS)
def test_cells(cell, options, backwards):
    def make(k):
        x = k.Input((4, 3))
        made = MAKERS[cell](k)
        return x, k.layers.RNN(made, go_backwards=backwards, **options)(x)

    check(make, sequences((4, 3), False))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "own"])
def test_masked_steps(cell, whole, zeros):
    def make(k):
        x = k.Input((5, 3))
        how = {"return_sequences": whole, "zero_output_for_mask": zeros}
        y = k.layers.RNN(MAKERS[cell](k), **how)(k.layers.Masking()(x))
        return x, y

    check(make, sequences((5, 3), True))


def test_states_that_are_given_returned_and_kept():
    def make(k):
        x = k.Input((4, 3), batch_size=BATCH)
        y, *states = k.layers.RNN(MAKERS["lstm"](k), return_state=True)(x)
        z = k.layers.RNN(MAKERS["lstm"](k))(x, initial_state=states)
        kept = k.layers.RNN(MAKERS["gru"](k), stateful=True)(x)
        return x, k.layers.Concatenate()([y, z, kept, *states])

    check(make, sequences((4, 3), False))


def test_both_directions():
    def make(k):
        x = k.Input((4, 3))
        layer = k.layers.RNN(MAKERS["lstm"](k), return_sequences=True)
        return x, k.layers.Bidirectional(layer)(x)

    check(make, sequences((4, 3), False))


@pytest.mark.parametrize("name", CELLS)
def test_one_step(name):
    def make(k):
        x = k.Input((3,))
        h = k.layers.Dense(4, name="h")(x)
        cell = getattr(k.layers, name)(4)
        several = [h, h] if name == "LSTMCell" else [h]
        y, states = cell(x, several)
        return x, k.layers.Concatenate()([y, *states])

    check(make, sequences((3,), False))


CONVOLUTIONS = [
    {"padding": "same", "return_sequences": True},
    {"strides": 2, "go_backwards": True},
    {"dilation_rate": 2, "padding": "same", "use_bias": False},
    {"recurrent_activation": "hard_sigmoid", "activation": "relu"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("rank", [1, 2])
def test_convolutional(rank, options):
    shape = (3, *(6, 5)[:rank], 2)

    def make(k):
        x = k.Input(shape)
        return x, getattr(k.layers, f"ConvLSTM{rank}D")(2, 3, **options)(x)

    check(make, sequences(shape, False))


def test_the_states_of_a_convolutional_layer():
    shape = (3, 6, 5, 2)

    def make(k):
        x = k.Input(shape)
        y, h, c = k.layers.ConvLSTM2D(2, 3, padding="same", return_state=True)(x)
        z = k.layers.ConvLSTM2D(2, 3, padding="same")(x, initial_state=[h, c])
        return x, k.layers.Concatenate()([y, z, h, c])

    check(make, sequences(shape, False))

"""Sequences are learnt: an LSTM copies them, an encoder with attention turns them."""

from __future__ import annotations

import numpy as np

import memcfg as mc

nn = mc.nn
SYMBOLS, LENGTH = 4, 3


def symbols(count):
    return np.random.default_rng(0).integers(0, SYMBOLS, (count, LENGTH))


def accuracy(model, x, y):
    return (model.predict(x, verbose=0).argmax(-1) == y).mean()


def fitted(inputs, outputs, x, y, epochs):
    """The accuracy on samples that were held back."""
    model = nn.Model(inputs, outputs)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.02), loss)
    model.fit(x[:768], y[:768], batch_size=64, epochs=epochs, verbose=0, seed=0)
    return accuracy(model, x[768:], y[768:])


def test_an_lstm_copies_what_it_saw():
    """The symbols come first, then as many blanks, at which they are asked for."""
    nn.set_random_seed(0)
    asked = symbols(1024)
    x = np.zeros((1024, 2 * LENGTH, SYMBOLS + 1), "f4")
    x[:, :LENGTH, :SYMBOLS] = np.eye(SYMBOLS)[asked]
    x[:, LENGTH:, SYMBOLS] = 1
    inputs = nn.Input(x.shape[1:])
    h = nn.LSTM(32, return_sequences=True)(inputs)
    outputs = nn.Dense(SYMBOLS)(h[:, LENGTH:])
    assert fitted(inputs, outputs, x, asked.astype("i4"), epochs=20) > 0.95


def test_an_encoder_with_attention_reverses():
    nn.set_random_seed(0)
    given = symbols(1024)
    places = np.broadcast_to(np.eye(LENGTH), (1024, LENGTH, LENGTH))
    x = np.concatenate([np.eye(SYMBOLS)[given], places], -1).astype("f4")
    inputs = nn.Input(x.shape[1:])
    h = nn.Dense(24)(inputs)
    h = nn.LayerNormalization()(h + nn.MultiHeadAttention(2, 12)(h, h))
    h = nn.LayerNormalization()(h + nn.Dense(24)(nn.Dense(48, "gelu")(h)))
    outputs = nn.Dense(SYMBOLS)(h)
    y = np.ascontiguousarray(given[:, ::-1]).astype("i4")
    assert fitted(inputs, outputs, x, y, epochs=8) > 0.95

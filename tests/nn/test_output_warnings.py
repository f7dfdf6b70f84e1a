"""A loss that does not fit the activation of its output is warned of, as in Keras."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from memcfg import nn

X = np.ones((4, 3), "f4")


def fitted(units, activation, loss, y):
    layers = [nn.Input((3,)), nn.Dense(units)]
    layers += [activation] if isinstance(activation, nn.Layer) else []
    if isinstance(activation, str):
        layers[1] = nn.Dense(units, activation=activation)
    model = nn.Sequential(layers)
    model.compile("sgd", loss)
    model.fit(X, y, verbose=0)
    model.evaluate(X, y, verbose=0)
    model.close()


@pytest.mark.parametrize(
    "activation", ["softmax", nn.Softmax(), nn.Activation("softmax")]
)
def test_a_softmax_of_one_unit(activation):
    with pytest.warns(UserWarning, match="softmax of one unit") as told:
        fitted(1, activation, "binary_crossentropy", np.ones((4, 1)))
    assert len(told) == 1
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("activation", "loss", "units"),
    [
        ("softmax", nn.losses.SparseCategoricalCrossentropy(from_logits=True), 3),
        (nn.Softmax(), nn.losses.CategoricalCrossentropy(from_logits=True), 3),
        ("sigmoid", nn.losses.BinaryCrossentropy(from_logits=True), 1),
    ],
)
def test_probabilities_that_are_read_as_logits(activation, loss, units):
    one_hot = isinstance(loss, nn.losses.CategoricalCrossentropy)
    y = np.ones((4, units) if one_hot or units == 1 else 4)
    with pytest.warns(UserWarning, match=r"from_logits=True, and the output") as told:
        fitted(units, activation, loss, y)
    assert len(told) == 1


def test_what_fits_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(3, "softmax", "sparse_categorical_crossentropy", np.ones(4))
        fitted(1, "sigmoid", "binary_crossentropy", np.ones((4, 1)))
        logits = nn.losses.BinaryCrossentropy(from_logits=True)
        fitted(1, None, logits, np.ones((4, 1)))

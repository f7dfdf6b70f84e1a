"""Layers over volumes beside Keras 3: outputs, and weights after some steps."""

from __future__ import annotations

import inspect

import pytest
from beside_keras import MARKS, check, keras, sequences

import memcfg as mc

pytestmark = MARKS
NAMES = (
    *("Conv3D", "Conv3DTranspose", "MaxPooling3D"),
    *("GlobalMaxPooling3D", "UpSampling3D", "ZeroPadding3D", "Cropping3D"),
    *("AdaptiveAveragePooling3D", "SpatialDropout3D", "ConvLSTM3D"),
)
SHAPE = (5, 6, 4, 2)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_order_and_defaults(name):
    found = []
    for room in (mc.nn, keras.layers):
        kind = getattr(room, name)
        parameters = inspect.signature(kind.__init__).parameters.values()
        found.append(
            [
                (each.name, each.default)
                for each in parameters
                if each.kind is each.POSITIONAL_OR_KEYWORD
                if each.name not in ("name", "dtype")
                if name == "ConvLSTM3D"
                or not each.name.endswith(("_regularizer", "_constraint"))
            ]
        )
    assert found[0] == found[1]


LAYERS = {
    "same": lambda layers: layers.Conv3D(3, 3, padding="same", activation="tanh"),
    "strides": lambda layers: layers.Conv3D(3, (2, 3, 1), strides=(2, 1, 2)),
    "groups": lambda layers: layers.Conv3D(4, 2, groups=2, use_bias=False),
    "dilated": lambda layers: layers.Conv3D(3, 2, dilation_rate=2, padding="same"),
    "points": lambda layers: layers.Conv3D(3, 1, strides=(2, 2, 1)),
    "transposed": lambda layers: layers.Conv3DTranspose(3, 2, strides=2),
    "transposed same": lambda layers: layers.Conv3DTranspose(
        3, 3, strides=(1, 2, 1), padding="same"
    ),
    "maximum": lambda layers: layers.MaxPooling3D(2, padding="same"),
    "maximum, overlapping": lambda layers: layers.MaxPooling3D((3, 2, 2), strides=1),
    "mean": lambda layers: layers.AveragePooling3D((2, 3, 2)),
    "all": lambda layers: layers.GlobalMaxPooling3D(keepdims=True),
    "all, mean": lambda layers: layers.GlobalAveragePooling3D(),
    "adaptive": lambda layers: layers.AdaptiveAveragePooling3D((2, 4, 3)),
    "adaptive maximum": lambda layers: layers.AdaptiveMaxPooling3D(3),
    "larger": lambda layers: layers.UpSampling3D((2, 1, 2)),
    "padded": lambda layers: layers.ZeroPadding3D(((1, 0), (0, 2), (1, 1))),
    "cropped": lambda layers: layers.Cropping3D(((1, 0), (0, 2), (1, 1))),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    def make(k):
        x = k.Input(SHAPE)
        return x, LAYERS[case](k.layers)(k.layers.Dense(2, name="first")(x))

    check(make, sequences(SHAPE, False), steps=5)


def test_recurrent():
    shape = (2, 4, 3, 4, 2)

    def make(k):
        x = k.Input(shape)
        return x, k.layers.ConvLSTM3D(2, 2, padding="same")(x)

    check(make, sequences(shape, False), steps=4)

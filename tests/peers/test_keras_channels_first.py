"""Layers with channels first beside Keras 3: outputs, and weights after ten steps."""

from __future__ import annotations

import pytest
from beside_keras import MARKS, check, sequences

pytestmark = MARKS
HOW = {"data_format": "channels_first"}
LAYERS = {
    "conv": lambda layers: layers.Conv2D(3, (2, 3), padding="same", **HOW),
    "strided": lambda layers: layers.Conv2D(4, 3, strides=2, groups=2, **HOW),
    "depthwise": lambda layers: layers.DepthwiseConv2D(3, **HOW),
    "transposed": lambda layers: layers.Conv2DTranspose(3, 2, strides=2, **HOW),
    "maximum": lambda layers: layers.MaxPooling2D(padding="same", **HOW),
    "mean": lambda layers: layers.AveragePooling2D((3, 2), **HOW),
    "all": lambda layers: layers.GlobalMaxPooling2D(keepdims=True, **HOW),
    "padded": lambda layers: layers.ZeroPadding2D(((1, 0), (2, 1)), **HOW),
    "cropped": lambda layers: layers.Cropping2D(((1, 0), (0, 1)), **HOW),
    "larger": lambda layers: layers.UpSampling2D((2, 3), **HOW),
    "flat": lambda layers: layers.Flatten(**HOW),
    "adaptive": lambda layers: layers.AdaptiveAveragePooling2D((2, 3), **HOW),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    shape = (4, 6, 5)

    def make(k):
        x = k.Input(shape)
        return x, LAYERS[case](k.layers)(k.layers.Dense(5, name="first")(x))

    check(make, sequences(shape, False))

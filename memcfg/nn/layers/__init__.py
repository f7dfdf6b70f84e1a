"""Layers, by the names that users of Keras know.

An argument that cannot be honoured raises TypeError or ValueError.
"""

from __future__ import annotations

from memcfg.nn.layers._basic import (
    Activation,
    Add,
    Concatenate,
    Dense,
    Dropout,
    Flatten,
    ReLU,
    Softmax,
)
from memcfg.nn.layers._conv import Conv2D
from memcfg.nn.layers._layer import Input, Layer, SymbolicTensor
from memcfg.nn.layers._norm import BatchNormalization, LayerNormalization
from memcfg.nn.layers._pool import (
    AveragePooling2D,
    AvgPool2D,
    GlobalAveragePooling2D,
    GlobalAvgPool2D,
    MaxPool2D,
    MaxPooling2D,
)

__all__ = [
    "Activation",
    "Add",
    "AveragePooling2D",
    "AvgPool2D",
    "BatchNormalization",
    "Concatenate",
    "Conv2D",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAveragePooling2D",
    "GlobalAvgPool2D",
    "Input",
    "Layer",
    "LayerNormalization",
    "MaxPool2D",
    "MaxPooling2D",
    "ReLU",
    "Softmax",
    "SymbolicTensor",
]

"""Layers, by the names that users of Keras know.

An argument that cannot be honoured raises TypeError or ValueError.
"""

from __future__ import annotations

from memcfg.nn.layers import _operators
from memcfg.nn.layers._attention import (
    AdditiveAttention,
    Attention,
    MultiHeadAttention,
)
from memcfg.nn.layers._basic import (
    Activation,
    Dense,
    Dropout,
    Flatten,
    ReLU,
    Softmax,
)
from memcfg.nn.layers._conv import Conv2D
from memcfg.nn.layers._embedding import Embedding
from memcfg.nn.layers._layer import Input, Layer, SymbolicTensor
from memcfg.nn.layers._masking import Masking
from memcfg.nn.layers._merge import (
    Add,
    Average,
    Concatenate,
    Dot,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    add,
    average,
    concatenate,
    dot,
    maximum,
    minimum,
    multiply,
    subtract,
)
from memcfg.nn.layers._norm import BatchNormalization, LayerNormalization
from memcfg.nn.layers._pool import (
    AveragePooling2D,
    AvgPool2D,
    GlobalAveragePooling2D,
    GlobalAvgPool2D,
    MaxPool2D,
    MaxPooling2D,
)
from memcfg.nn.layers._recurrent import GRU, LSTM, SimpleRNN
from memcfg.nn.layers._reshape import (
    Cropping1D,
    Cropping2D,
    Permute,
    RepeatVector,
    Rescaling,
    Reshape,
    UpSampling1D,
    UpSampling2D,
    ZeroPadding1D,
    ZeroPadding2D,
)
from memcfg.nn.layers._wrappers import Bidirectional, TimeDistributed

SymbolicTensor.operators = _operators

__all__ = [
    "GRU",
    "LSTM",
    "Activation",
    "Add",
    "AdditiveAttention",
    "Attention",
    "Average",
    "AveragePooling2D",
    "AvgPool2D",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Conv2D",
    "Cropping1D",
    "Cropping2D",
    "Dense",
    "Dot",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAveragePooling2D",
    "GlobalAvgPool2D",
    "Input",
    "Layer",
    "LayerNormalization",
    "Masking",
    "MaxPool2D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Permute",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SimpleRNN",
    "Softmax",
    "Subtract",
    "SymbolicTensor",
    "TimeDistributed",
    "UpSampling1D",
    "UpSampling2D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]

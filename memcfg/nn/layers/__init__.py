"""Layers under Keras's names.

An argument that cannot be honoured raises TypeError or ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._keras_names import absent
from memcfg.nn.layers import _operators
from memcfg.nn.layers._activations import (
    ELU,
    Activation,
    LeakyReLU,
    PReLU,
    ReLU,
    Softmax,
)
from memcfg.nn.layers._adaptive import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
)
from memcfg.nn.layers._attention import (
    AdditiveAttention,
    Attention,
    GroupQueryAttention,
    MultiHeadAttention,
)
from memcfg.nn.layers._basic import Dense, Flatten
from memcfg.nn.layers._conv import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Convolution1D,
    Convolution1DTranspose,
    Convolution2D,
    Convolution2DTranspose,
    DepthwiseConv1D,
    DepthwiseConv2D,
    SeparableConv1D,
    SeparableConv2D,
    SeparableConvolution1D,
    SeparableConvolution2D,
)
from memcfg.nn.layers._conv_recurrent import ConvLSTM1D, ConvLSTM2D
from memcfg.nn.layers._einsum import EinsumDense
from memcfg.nn.layers._embedding import (
    Embedding,
    PositionEmbedding,
    ReversibleEmbedding,
)
from memcfg.nn.layers._lambda import Identity, Lambda
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
from memcfg.nn.layers._noise import (
    Dropout,
    GaussianDropout,
    GaussianNoise,
    SpatialDropout1D,
    SpatialDropout2D,
)
from memcfg.nn.layers._norm import (
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    RMSNormalization,
    UnitNormalization,
)
from memcfg.nn.layers._pool import (
    AveragePooling1D,
    AveragePooling2D,
    AvgPool1D,
    AvgPool2D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    MaxPool1D,
    MaxPool2D,
    MaxPooling1D,
    MaxPooling2D,
    MaxUnpooling2D,
)
from memcfg.nn.layers._preprocessing import Normalization
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
from memcfg.nn.layers._rnn import RNN
from memcfg.nn.layers._rnn_cells import (
    GRUCell,
    LSTMCell,
    SimpleRNNCell,
    StackedRNNCells,
)
from memcfg.nn.layers._spectral import SpectralNormalization
from memcfg.nn.layers._wrappers import Bidirectional, TimeDistributed, Wrapper

SymbolicTensor.operators = _operators

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "Add",
    "AdditiveAttention",
    "Attention",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AvgPool1D",
    "AvgPool2D",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "Convolution1D",
    "Convolution1DTranspose",
    "Convolution2D",
    "Convolution2DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dot",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GroupNormalization",
    "GroupQueryAttention",
    "Identity",
    "Input",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "LocalResponseNormalization",
    "Masking",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxUnpooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Normalization",
    "PReLU",
    "Permute",
    "PositionEmbedding",
    "RMSNormalization",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "ReversibleEmbedding",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpectralNormalization",
    "StackedRNNCells",
    "Subtract",
    "SymbolicTensor",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "Wrapper",
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

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

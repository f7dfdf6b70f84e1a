"""Layers under Keras's names.

An argument that cannot be honoured raises TypeError or ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._keras_names import absent
from memcfg.nn.constraints import Constraint
from memcfg.nn.exchange._configs import functions_of
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
    AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D,
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
    Conv3D,
    Conv3DTranspose,
    Convolution1D,
    Convolution1DTranspose,
    Convolution2D,
    Convolution2DTranspose,
    Convolution3D,
    Convolution3DTranspose,
    DepthwiseConv1D,
    DepthwiseConv2D,
    SeparableConv1D,
    SeparableConv2D,
    SeparableConvolution1D,
    SeparableConvolution2D,
)
from memcfg.nn.layers._conv_recurrent import ConvLSTM1D, ConvLSTM2D, ConvLSTM3D
from memcfg.nn.layers._einsum import EinsumDense
from memcfg.nn.layers._embedding import (
    Embedding,
    PositionEmbedding,
    ReversibleEmbedding,
)
from memcfg.nn.layers._input_spec import InputSpec
from memcfg.nn.layers._lambda import Identity, Lambda
from memcfg.nn.layers._layer import Input, InputLayer, Layer, SymbolicTensor
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
    ActivityRegularization,
    AlphaDropout,
    Dropout,
    GaussianDropout,
    GaussianNoise,
    SpatialDropout1D,
    SpatialDropout2D,
    SpatialDropout3D,
)
from memcfg.nn.layers._norm import (
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    RMSNormalization,
    UnitNormalization,
)
from memcfg.nn.layers._pipeline import Pipeline
from memcfg.nn.layers._pool import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
    MaxUnpooling2D,
)
from memcfg.nn.layers._preprocessing import Normalization
from memcfg.nn.layers._recurrent import GRU, LSTM, SimpleRNN
from memcfg.nn.layers._reshape import (
    Cropping1D,
    Cropping2D,
    Cropping3D,
    Permute,
    RepeatVector,
    Rescaling,
    Reshape,
    UpSampling1D,
    UpSampling2D,
    UpSampling3D,
    ZeroPadding1D,
    ZeroPadding2D,
    ZeroPadding3D,
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
from memcfg.nn.layers.audio._mel import MelSpectrogram
from memcfg.nn.layers.audio._stft_spectrogram import STFTSpectrogram
from memcfg.nn.layers.augmentation._chains import (
    AugMix,
    RandAugment,
    RandomColorJitter,
)
from memcfg.nn.layers.augmentation._mixing import CutMix, MixUp
from memcfg.nn.layers.augmentation._patches import RandomErasing, RandomGaussianBlur
from memcfg.nn.layers.augmentation._warps import (
    RandomElasticTransform,
    RandomPerspective,
)
from memcfg.nn.layers.categories._category_encoding import CategoryEncoding
from memcfg.nn.layers.categories._discretization import Discretization
from memcfg.nn.layers.categories._hashing import HashedCrossing, Hashing
from memcfg.nn.layers.categories._lookups import IntegerLookup, StringLookup
from memcfg.nn.layers.categories._text_vectorization import TextVectorization
from memcfg.nn.layers.images._center_crop import CenterCrop
from memcfg.nn.layers.images._histograms import (
    ContrastLimitedAdaptiveHistogramEqualization,
    Equalization,
)
from memcfg.nn.layers.images._max_num_boxes import MaxNumBoundingBoxes
from memcfg.nn.layers.images._random_affine import (
    RandomRotation,
    RandomShear,
    RandomTranslation,
    RandomZoom,
)
from memcfg.nn.layers.images._random_color import RandomBrightness, RandomContrast
from memcfg.nn.layers.images._random_crop import RandomCrop
from memcfg.nn.layers.images._random_flip import RandomFlip
from memcfg.nn.layers.images._random_tint import (
    RandomColorDegeneration,
    RandomGrayscale,
    RandomHue,
    RandomInvert,
    RandomSaturation,
)
from memcfg.nn.layers.images._resizing import Resizing
from memcfg.nn.layers.images._tones import (
    AutoContrast,
    RandomPosterization,
    RandomSharpness,
    Solarization,
)
from memcfg.nn.regularizers import Regularizer

SymbolicTensor.operators = Constraint.operators = Regularizer.operators = _operators

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "AugMix",
    "AutoContrast",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNormalization",
    "Bidirectional",
    "CategoryEncoding",
    "CenterCrop",
    "Concatenate",
    "ContrastLimitedAdaptiveHistogramEqualization",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "Convolution1D",
    "Convolution1DTranspose",
    "Convolution2D",
    "Convolution2DTranspose",
    "Convolution3D",
    "Convolution3DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "CutMix",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Discretization",
    "Dot",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Equalization",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNormalization",
    "GroupQueryAttention",
    "HashedCrossing",
    "Hashing",
    "Identity",
    "Input",
    "InputLayer",
    "InputSpec",
    "IntegerLookup",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "LocalResponseNormalization",
    "Masking",
    "MaxNumBoundingBoxes",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "MaxUnpooling2D",
    "Maximum",
    "MelSpectrogram",
    "Minimum",
    "MixUp",
    "MultiHeadAttention",
    "Multiply",
    "Normalization",
    "PReLU",
    "Permute",
    "Pipeline",
    "PositionEmbedding",
    "RMSNormalization",
    "RandAugment",
    "RandomBrightness",
    "RandomColorDegeneration",
    "RandomColorJitter",
    "RandomContrast",
    "RandomCrop",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomFlip",
    "RandomGaussianBlur",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterization",
    "RandomRotation",
    "RandomSaturation",
    "RandomSharpness",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "Resizing",
    "ReversibleEmbedding",
    "STFTSpectrogram",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "Solarization",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "StackedRNNCells",
    "StringLookup",
    "Subtract",
    "SymbolicTensor",
    "TextVectorization",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "Wrapper",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "add",
    "average",
    "concatenate",
    "deserialize",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "serialize",
    "subtract",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

serialize, deserialize, _ = functions_of("layers", Layer, lambda layer: layer)

"""Layers, losses, optimizers and models, by the names that users of Keras know.

Images are channels-last, all numbers float32, labels integers. A model traces its step
into a graph, a policy of `memcfg.plan` decides where every byte goes, and
`memcfg.runtime` runs it. An argument that cannot be honoured raises TypeError or
ValueError; nothing is ignored.
"""

from __future__ import annotations

from memcfg.nn._model import Model
from memcfg.nn._random import set_random_seed
from memcfg.nn._sequential import Sequential
from memcfg.nn.callbacks import Callback, History
from memcfg.nn.initializers import (
    Constant,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Identity,
    Initializer,
    LecunNormal,
    LecunUniform,
    Ones,
    Orthogonal,
    RandomNormal,
    RandomUniform,
    TruncatedNormal,
    VarianceScaling,
    Zeros,
)
from memcfg.nn.layers import (
    Activation,
    Add,
    AveragePooling2D,
    AvgPool2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    GlobalAvgPool2D,
    Input,
    Layer,
    LayerNormalization,
    MaxPool2D,
    MaxPooling2D,
    ReLU,
    Softmax,
    SymbolicTensor,
)
from memcfg.nn.losses import Loss, SparseCategoricalCrossentropy
from memcfg.nn.metrics import Metric
from memcfg.nn.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    Nadam,
    Optimizer,
    RMSprop,
)

__all__ = [
    "SGD",
    "Activation",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Add",
    "AveragePooling2D",
    "AvgPool2D",
    "BatchNormalization",
    "Callback",
    "Concatenate",
    "Constant",
    "Conv2D",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAveragePooling2D",
    "GlobalAvgPool2D",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "History",
    "Identity",
    "Initializer",
    "Input",
    "Layer",
    "LayerNormalization",
    "LecunNormal",
    "LecunUniform",
    "Lion",
    "Loss",
    "MaxPool2D",
    "MaxPooling2D",
    "Metric",
    "Model",
    "Nadam",
    "Ones",
    "Optimizer",
    "Orthogonal",
    "RMSprop",
    "RandomNormal",
    "RandomUniform",
    "ReLU",
    "Sequential",
    "Softmax",
    "SparseCategoricalCrossentropy",
    "SymbolicTensor",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "set_random_seed",
]

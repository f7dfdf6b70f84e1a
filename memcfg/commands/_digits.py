"""The demo's data and network, which the benchmarks use too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg import nn
from memcfg.errors import MissingDependencyError

_HELD_OUT = 360  # of 1,797 images


class Digits(NamedTuple):
    """Images float32 in [0, 1], shape (number, 8, 8, 1), and labels int32."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int32]
    held_out_x: npt.NDArray[np.float32]
    held_out_y: npt.NDArray[np.int32]


def load_digits() -> Digits:
    """Load the handwritten digits that come with scikit-learn, with a fixed split."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "The demo's images come with scikit-learn, which is not installed; "
            "install it with: pip install scikit-learn"
        ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    y = labels.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    held_out, kept = order[:_HELD_OUT], order[_HELD_OUT:]
    return Digits(x[kept], y[kept], x[held_out], y[held_out])


def residual_network() -> nn.Model:
    """Build a residual network from images (8, 8, 1) to 10 logits, not compiled."""
    inputs = nn.Input((8, 8, 1))
    tensor = _convolution(inputs, 32)
    tensor = _residual_block(tensor, 32)
    tensor = nn.MaxPool2D(2)(_residual_block(tensor, 32))
    tensor = _residual_block(_convolution(tensor, 64), 64)
    tensor = nn.GlobalAveragePooling2D()(tensor)
    return nn.Model(inputs, nn.Dense(10)(tensor), name="residual_digits")


def _convolution(
    tensor: nn.SymbolicTensor, filters: int, *, relu: bool = True
) -> nn.SymbolicTensor:
    tensor = nn.Conv2D(filters, 3, padding="same", use_bias=False)(tensor)
    tensor = nn.BatchNormalization(momentum=0.9)(tensor)
    return nn.ReLU()(tensor) if relu else tensor


def _residual_block(tensor: nn.SymbolicTensor, filters: int) -> nn.SymbolicTensor:
    branch = _convolution(_convolution(tensor, filters), filters, relu=False)
    joined: nn.SymbolicTensor = nn.ReLU()(nn.Add()([tensor, branch]))
    return joined

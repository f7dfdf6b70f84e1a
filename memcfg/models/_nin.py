"""Network in network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import ceil_pool

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes

__all__ = ["nin"]

# Filters, kernel, strides and padding of a convolution that two of 1 x 1 follow.
_BLOCKS = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (1024, 3, 1, 1))


@network
def nin(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "nin"
) -> nn.Model:
    """Return network in network for ImageNet.

    It has four convolutions, each of which two 1 x 1 convolutions follow.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 51 pixels a side.
    classes : int, default 1000
        Number of logits, which are the means of the last feature maps.
    name : str, default "nin"
        The model's name.

    Returns
    -------
    Model
        A model of 7,595,176 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Lin, Chen and Yan, "Network in network", ICLR 2014; layers as in the authors'
    network for ImageNet in Caffe's model zoo.
    """
    x = inputs = nn.Input(input_shape)
    for i, (filters, window, strides, padding) in enumerate(_BLOCKS, 1):
        last = i == len(_BLOCKS)
        if last:
            x = nn.Dropout(0.5)(x)
        widths = (filters, filters, classes if last else filters)
        for j, width in enumerate(widths):
            x = nn.Conv2D(
                width,
                window if j == 0 else 1,
                strides if j == 0 else 1,
                padding if j == 0 else 0,
                activation="relu",
                kernel_initializer="he_normal",
                name=f"conv{i}" if j == 0 else f"cccp{2 * i - 2 + j}",
            )(x)
        if not last:
            x = ceil_pool(x, 3, 2)
    return nn.Model(inputs, nn.GlobalAveragePooling2D()(x), name=name)

"""Network in network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import ceil_pool

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes

__all__ = ["nin"]

# Filters, window, strides and padding of a convolution before two of 1 x 1.
_BLOCKS = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (1024, 3, 1, 1))


@network
def nin(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "nin"
) -> nn.Model:
    """Return network in network for ImageNet: four convolutions, each before two 1 x 1.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Of one image, of 51 pixels a side or more.
    classes : int, default 1000
        How many logits it gives, means of the last maps.
    name : str, default "nin"
        The model's name.

    Returns
    -------
    Model
        Of 7,595,176 parameters by default. Not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

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

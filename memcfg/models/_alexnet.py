"""AlexNet, in the single-column variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import adaptive_average

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes

__all__ = ["alexnet"]

# Index in torchvision's `features`, filters, kernel, strides, padding, pooling.
_CONVOLUTIONS = (
    (0, 64, 11, 4, 2, True),
    (3, 192, 5, 1, 2, True),
    (6, 384, 3, 1, 1, False),
    (8, 256, 3, 1, 1, False),
    (10, 256, 3, 1, 1, True),
)
_UNITS = 4096  # of the first two dense layers
# PyTorch's default initializer, as in torchvision. With He's, three max poolings raise
# the activations: the initial loss is 28, where uniform probabilities give 6.9.
_START = nn.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


@network
def alexnet(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "alexnet"
) -> nn.Model:
    """Return AlexNet in the single-column variant of torchvision.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 63 pixels a side.
    classes : int, default 1000
        Number of logits.
    name : str, default "alexnet"
        The model's name.

    Returns
    -------
    Model
        A model of 61,100,840 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
    arXiv:1404.5997, 2014.
    """
    x = inputs = nn.Input(input_shape)
    for place, filters, window, strides, padding, pooled in _CONVOLUTIONS:
        x = nn.Conv2D(
            filters,
            window,
            strides,
            padding,
            activation="relu",
            kernel_initializer=_START,
            name=f"features.{place}",
        )(x)
        if pooled:
            x = nn.MaxPooling2D(3, 2)(x)
    x = nn.Flatten()(adaptive_average(x, 6))
    for place in (1, 4):
        x = nn.Dropout(0.5)(x)
        x = nn.Dense(
            _UNITS, "relu", kernel_initializer=_START, name=f"classifier.{place}"
        )(x)
    x = nn.Dense(classes, kernel_initializer=_START, name="classifier.6")(x)
    return nn.Model(inputs, x, name=name)

"""VGG: 3 x 3 convolutions between poolings, and three dense layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import FAN_OUT, adaptive_average

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.models._parts import Sizes

__all__ = ["vgg16", "vgg19"]

_FILTERS = (64, 128, 256, 512, 512)
_UNITS = 4096  # of the first two dense layers


@network
def vgg16(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "vgg16"
) -> nn.Model:
    """Return VGG-16, configuration D: 16 layers with weights.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 32 pixels a side.
    classes : int, default 1000
        Number of logits.
    name : str, default "vgg16"
        The model's name.

    Returns
    -------
    Model
        A model of 138,357,544 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
    recognition", ICLR 2015.
    """
    return _vgg((2, 2, 3, 3, 3), input_shape, classes, name)


@network
def vgg19(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "vgg19"
) -> nn.Model:
    """Return VGG-19, configuration E: 19 layers with weights.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 32 pixels a side.
    classes : int, default 1000
        Number of logits.
    name : str, default "vgg19"
        The model's name.

    Returns
    -------
    Model
        A model of 143,667,240 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
    recognition", ICLR 2015.
    """
    return _vgg((2, 2, 4, 4, 4), input_shape, classes, name)


def _vgg(
    counts: Sequence[int], input_shape: Sizes, classes: int, name: str
) -> nn.Model:
    x = inputs = nn.Input(input_shape)
    place = 0  # index in torchvision's `features`, which includes ReLUs and poolings
    for filters, count in zip(_FILTERS, counts, strict=True):
        for _ in range(count):
            x = nn.Conv2D(
                filters,
                3,
                padding=1,
                activation="relu",
                kernel_initializer=FAN_OUT,
                name=f"features.{place}",
            )(x)
            place += 2
        x = nn.MaxPooling2D()(x)
        place += 1
    x = nn.Flatten()(adaptive_average(x, 7))
    start = nn.RandomNormal(stddev=0.01)
    for place in (0, 3):
        x = nn.Dense(
            _UNITS, "relu", kernel_initializer=start, name=f"classifier.{place}"
        )(x)
        x = nn.Dropout(0.5)(x)
    x = nn.Dense(classes, kernel_initializer=start, name="classifier.6")(x)
    return nn.Model(inputs, x, name=name)

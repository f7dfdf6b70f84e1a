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
    """Return VGG with 16 layers that have weights, configuration D.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Of one image, of 32 pixels a side or more.
    classes : int, default 1000
        How many logits it gives.
    name : str, default "vgg16"
        The model's name.

    Returns
    -------
    Model
        Of 138,357,544 parameters by default. Not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

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
    """Return VGG with 19 layers that have weights, configuration E.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Of one image, of 32 pixels a side or more.
    classes : int, default 1000
        How many logits it gives.
    name : str, default "vgg19"
        The model's name.

    Returns
    -------
    Model
        Of 143,667,240 parameters by default. Not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

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
    place = 0  # among torchvision's features, which count ReLUs and poolings
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

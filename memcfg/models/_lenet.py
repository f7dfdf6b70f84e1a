"""The networks of LeCun et al. for handwritten digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes

__all__ = ["lenet5", "lenet_300_100"]


@network
def lenet_300_100(
    input_shape: Sizes = (28, 28, 1), classes: int = 10, name: str = "lenet_300_100"
) -> nn.Model:
    """Return LeNet-300-100: two hidden layers of 300 and 100 units, with ReLU.

    Parameters
    ----------
    input_shape : tuple of int, default (28, 28, 1)
        Shape of a sample, which is flattened.
    classes : int, default 10
        Number of logits.
    name : str, default "lenet_300_100"
        The model's name.

    Returns
    -------
    Model
        A model of 266,610 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE 86, 1998; with ReLU as in Han et al.,
    "Learning both weights and connections for efficient neural networks", NeurIPS 2015.
    """
    x = inputs = nn.Input(input_shape)
    x = nn.Flatten()(x)
    for i, units in enumerate((300, 100), 1):
        x = nn.Dense(units, "relu", kernel_initializer="he_normal", name=f"fc{i}")(x)
    return nn.Model(inputs, nn.Dense(classes, name="fc3")(x), name=name)


@network
def lenet5(
    input_shape: Sizes = (32, 32, 1), classes: int = 10, name: str = "lenet5"
) -> nn.Model:
    """Return LeNet-5: two convolutions and three dense layers.

    As the network is trained today, the second convolution reads all maps of the first,
    activations are ReLU and pooling takes maxima. The paper has partial connections,
    tanh and average pooling.

    Parameters
    ----------
    input_shape : tuple of int, default (32, 32, 1)
        Shape of an image; pad 28 x 28 digits to it.
    classes : int, default 10
        Number of logits.
    name : str, default "lenet5"
        The model's name.

    Returns
    -------
    Model
        A model of 61,706 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE 86, 1998.
    """
    x = inputs = nn.Input(input_shape)
    for i, filters in enumerate((6, 16), 1):
        x = nn.Conv2D(
            filters,
            5,
            activation="relu",
            kernel_initializer="he_normal",
            name=f"conv{i}",
        )(x)
        x = nn.MaxPooling2D()(x)
    x = nn.Flatten()(x)
    for i, units in enumerate((120, 84), 1):
        x = nn.Dense(units, "relu", kernel_initializer="he_normal", name=f"fc{i}")(x)
    return nn.Model(inputs, nn.Dense(classes, name="fc3")(x), name=name)

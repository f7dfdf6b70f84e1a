"""MobileNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import FAN_OUT, batch_normalized, normalized

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["mobilenet_v2"]

# Expansion, channels, number of blocks, stride of the first: table 2 of the paper.
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@network
def mobilenet_v2(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "mobilenet_v2"
) -> nn.Model:
    """Return MobileNetV2, of inverted residual blocks.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "mobilenet_v2"
        The model's name.

    Returns
    -------
    Model
        A model of 3,504,872 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: inverted residuals and
    linear bottlenecks", CVPR 2018.
    """
    x = inputs = nn.Input(input_shape)
    names = "features.0.0", "features.0.1"
    x = normalized(x, 32, 3, names, strides=2, padding=1, activation="relu6")
    place = 1
    for expansion, filters, count, first in _BLOCKS:
        for i in range(count):
            strides = first if i == 0 else 1
            x = _block(x, expansion, filters, strides, f"features.{place}.conv")
            place += 1
    names = f"features.{place}.0", f"features.{place}.1"
    x = normalized(x, 1280, 1, names, activation="relu6")
    x = nn.Dropout(0.2)(nn.GlobalAveragePooling2D()(x))
    start = nn.RandomNormal(stddev=0.01)
    x = nn.Dense(classes, kernel_initializer=start, name="classifier.1")(x)
    return nn.Model(inputs, x, name=name)


def _block(
    x: SymbolicTensor, expansion: int, filters: int, strides: int, name: str
) -> SymbolicTensor:
    y, place = x, 0
    if expansion != 1:
        width = x.sample_shape[-1] * expansion
        names = f"{name}.0.0", f"{name}.0.1"
        y = normalized(y, width, 1, names, activation="relu6")
        place = 1
    y = nn.DepthwiseConv2D(
        3,
        strides,
        padding=1,
        use_bias=False,
        depthwise_initializer=FAN_OUT,
        name=f"{name}.{place}.0",
    )(y)
    y = nn.Activation("relu6")(batch_normalized(y, f"{name}.{place}.1"))
    names = f"{name}.{place + 1}", f"{name}.{place + 2}"
    y = normalized(y, filters, 1, names, activation=None)
    return nn.Add()([x, y]) if x.sample_shape == y.sample_shape else y

"""Densely connected networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import batch_normalized, normalized

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["densenet121"]

_COUNTS, _GROWTH, _BOTTLENECK = (6, 12, 24, 16), 32, 4


@network
def densenet121(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "densenet121"
) -> nn.Model:
    """Return DenseNet-121: each layer of a block reads all layers before it.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 29 pixels a side.
    classes : int, default 1000
        Number of logits.
    name : str, default "densenet121"
        The model's name.

    Returns
    -------
    Model
        A model of 7,978,856 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Huang, Liu, van der Maaten and Weinberger, "Densely connected convolutional
    networks", CVPR 2017.
    """
    x = inputs = nn.Input(input_shape)
    x = normalized(x, 64, 7, ("features.conv0", "features.norm0"), strides=2, padding=3)
    x = nn.MaxPooling2D(3, 2, padding=1)(x)
    for block, count in enumerate(_COUNTS, 1):
        for i in range(1, count + 1):
            x = _layer(x, f"features.denseblock{block}.denselayer{i}")
        if block < len(_COUNTS):
            x = _transition(x, f"features.transition{block}")
    x = nn.ReLU()(batch_normalized(x, "features.norm5"))
    x = nn.GlobalAveragePooling2D()(x)
    return nn.Model(inputs, nn.Dense(classes, name="classifier")(x), name=name)


def _layer(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Concatenate the new channels of a layer to its input."""
    y = nn.ReLU()(batch_normalized(x, f"{name}.norm1"))
    y = normalized(y, _BOTTLENECK * _GROWTH, 1, (f"{name}.conv1", f"{name}.norm2"))
    y = _convolved(y, _GROWTH, 3, 1, f"{name}.conv2")
    result: SymbolicTensor = nn.Concatenate()([x, y])
    return result


def _transition(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Halve channels, height and width."""
    channels = x.sample_shape[-1]
    x = nn.ReLU()(batch_normalized(x, f"{name}.norm"))
    result: SymbolicTensor = nn.AveragePooling2D()(
        _convolved(x, channels // 2, 1, 0, f"{name}.conv")
    )
    return result


def _convolved(
    x: SymbolicTensor, filters: int, window: int, padding: int, name: str
) -> SymbolicTensor:
    result: SymbolicTensor = nn.Conv2D(
        filters,
        window,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )(x)
    return result

"""MobileNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.nn._argument_checks import real

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["mobilenet"]

# Filters and strides of the blocks: table 1 of the paper.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


@network
def mobilenet(
    input_shape: Sizes = (224, 224, 3),
    classes: int = 1000,
    alpha: float = 1.0,
    name: str = "mobilenet",
) -> nn.Model:
    """Return Keras's MobileNet, of depthwise separable convolutions.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    alpha : float, default 1.0
        Factor of the numbers of filters.
    name : str, default "mobilenet"
        The model's name.

    Returns
    -------
    Model
        A model of 4,253,864 parameters by default, of which 4,231,976 are trainable,
        not compiled. Layers have Keras's names.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Howard et al., "MobileNets: efficient convolutional neural networks for mobile
    vision applications", arXiv:1704.04861, 2017.
    """
    width = real(alpha, "mobilenet: alpha")
    x = inputs = nn.Input(input_shape)
    x = nn.Conv2D(int(32 * width), 3, 2, "same", use_bias=False, name="conv1")(x)
    x = _normalized(x, "conv1")
    for i, (filters, strides) in enumerate(_BLOCKS, 1):
        x = nn.DepthwiseConv2D(
            3,
            strides,
            "same" if strides == 1 else ((0, 1), (0, 1)),
            use_bias=False,
            name=f"conv_dw_{i}",
        )(x)
        x = _normalized(x, f"conv_dw_{i}")
        x = nn.Conv2D(int(filters * width), 1, use_bias=False, name=f"conv_pw_{i}")(x)
        x = _normalized(x, f"conv_pw_{i}")
    x = nn.GlobalAveragePooling2D(keepdims=True)(x)
    x = nn.Dropout(1e-3, name="dropout")(x)
    x = nn.Conv2D(classes, 1, name="conv_preds")(x)
    return nn.Model(inputs, nn.Reshape((classes,))(x), name=name)


def _normalized(x: SymbolicTensor, name: str) -> SymbolicTensor:
    x = nn.BatchNormalization(name=f"{name}_bn")(x)
    result: SymbolicTensor = nn.ReLU(6.0, name=f"{name}_relu")(x)
    return result

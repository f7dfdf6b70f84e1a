"""What both versions of EfficientNet share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.applications._shared_layers import normalized
from memcfg.nn.initializers import VarianceScaling
from memcfg.nn.layers import (
    Activation,
    Conv2D,
    GlobalAveragePooling2D,
    Multiply,
    Reshape,
)

if TYPE_CHECKING:
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["CLASSIFIER_START", "KERNEL_START", "convolved", "gated", "swish"]

KERNEL_START = VarianceScaling(2.0, "fan_out", "truncated_normal")
CLASSIFIER_START = VarianceScaling(1 / 3, "fan_out", "uniform")


def swish(x: SymbolicTensor, name: str | None) -> SymbolicTensor:
    """Append the activation of all layers."""
    result: SymbolicTensor = Activation("swish", name=name)(x)
    return result


def convolved(
    x: SymbolicTensor,
    filters: int,
    kernel_size: int,
    strides: int,
    name: str,
    *,
    padding: str = "same",
    **normalization: Any,
) -> SymbolicTensor:
    """Append a convolution, normalisation and activation, named after its place."""
    x = Conv2D(
        filters,
        kernel_size,
        strides,
        padding,
        use_bias=False,
        kernel_initializer=KERNEL_START,
        name=f"{name}_conv",
    )(x)
    x = normalized(x, f"{name}_bn", **normalization)
    return swish(x, f"{name}_activation")


def gated(block: str, narrow: int, x: SymbolicTensor) -> SymbolicTensor:
    """Append factors of channels, which depend on the means of all."""
    width = x.sample_shape[-1]
    y = GlobalAveragePooling2D(name=f"{block}se_squeeze")(x)
    y = Reshape((1, 1, width), name=f"{block}se_reshape")(y)
    for filters, activation, word in (
        (narrow, "swish", "reduce"),
        (width, "sigmoid", "expand"),
    ):
        y = Conv2D(
            filters,
            1,
            padding="same",
            activation=activation,
            kernel_initializer=KERNEL_START,
            name=f"{block}se_{word}",
        )(y)
    result: SymbolicTensor = Multiply(name=f"{block}se_excite")([x, y])
    return result

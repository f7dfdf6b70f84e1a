"""Residual blocks that are wide between their ends: MobileNet and EfficientNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn.applications._shared_layers import normalized, padded
from memcfg.nn.layers import Add, Conv2D, DepthwiseConv2D, Dropout

if TYPE_CHECKING:
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["Style", "dropped", "inverted_residual"]

Activated = Callable[["SymbolicTensor", str | None], "SymbolicTensor"]


class Style(NamedTuple):
    """What the blocks of a network have in common.

    Names of layers follow that of their block: of a convolution, its normalisation and
    its activation. The last has none where it is named automatically.
    """

    expand: tuple[str, str, str | None]
    depthwise: tuple[str, str, str | None]
    project: tuple[str, str]
    pad: str | None  # before a stride; None: padding "same"
    activate: Activated
    normalization: dict[str, Any]
    kernel_initializer: Any = "glorot_uniform"


def inverted_residual(
    style: Style,
    x: SymbolicTensor,
    block: str,
    *,
    width: int | None,
    filters: int,
    kernel_size: int,
    strides: int,
    gate: Callable[[SymbolicTensor], SymbolicTensor] | None = None,
    rate: float = 0.0,
) -> SymbolicTensor:
    """Append a block, of `width` channels inside; None: as many as the input has."""
    start, options = style.kernel_initializer, style.normalization
    around = x

    def convolved(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
        result: SymbolicTensor = Conv2D(
            filters,
            1,
            padding="same",
            use_bias=False,
            kernel_initializer=start,
            name=f"{block}{name}",
        )(x)
        return result

    def finished(
        x: SymbolicTensor, names: tuple[str, str, str | None]
    ) -> SymbolicTensor:
        x = normalized(x, f"{block}{names[1]}", **options)
        return style.activate(x, names[2] and f"{block}{names[2]}")

    if width is not None:
        x = finished(convolved(x, width, style.expand[0]), style.expand)
    if strides > 1 and style.pad is not None:
        x = padded(x, kernel_size, f"{block}{style.pad}")
    x = DepthwiseConv2D(
        kernel_size,
        strides,
        "same" if strides == 1 or style.pad is None else "valid",
        use_bias=False,
        depthwise_initializer=start,
        name=f"{block}{style.depthwise[0]}",
    )(x)
    x = finished(x, style.depthwise)
    if gate is not None:
        x = gate(x)
    x = convolved(x, filters, style.project[0])
    x = normalized(x, f"{block}{style.project[1]}", **options)
    return dropped(x, around, block, strides, rate)


def dropped(
    x: SymbolicTensor, around: SymbolicTensor, block: str, strides: int, rate: float
) -> SymbolicTensor:
    """Append dropout of whole samples, and add the block's input if its shape fits."""
    if strides > 1 or around.sample_shape[-1] != x.sample_shape[-1]:
        return x
    if rate:
        x = Dropout(rate, noise_shape=(None, 1, 1, 1), name=f"{block}drop")(x)
    result: SymbolicTensor = Add(name=f"{block}add")([x, around])
    return result

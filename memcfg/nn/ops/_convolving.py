"""Convolutions and pooling as functions, channels last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import (
    check_channels_last,
    numbers,
    padding_name,
    resolve_padding,
)
from memcfg.nn.layers import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D,
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)
from memcfg.nn.layers._conv import INPUTS
from memcfg.nn.layers._operators import Several, as_tensor
from memcfg.nn.ops._declaring import documented, lengths_of, reshaped, tensor_of

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "adaptive_average_pool",
    "adaptive_max_pool",
    "average_pool",
    "conv",
    "conv_transpose",
    "depthwise_conv",
    "max_pool",
    "separable_conv",
]


def _windowed(inputs: Any, data_format: Any, name: str) -> tuple[Any, int]:
    """Return a tensor and its number of dimensions, 1 to 3; ValueError for others."""
    check_channels_last(data_format, name)
    x = tensor_of(inputs, name)
    rank = len(x.shape) - 2
    if rank not in INPUTS:
        raise ValueError(f"{name} is of {' or '.join(INPUTS.values())}, got {x!r}")
    return x, rank


def _both(value: Any, rank: int, what: str) -> tuple[int, ...]:
    """Return a number for both axes of images, of which sequences have one."""
    return (1,) * (2 - rank) + numbers(value, rank, what)


class _Window:
    """The operands and attributes of a convolution over images."""

    def __init__(
        self,
        name: str,
        inputs: Any,
        kernel: Any,
        strides: Any,
        data_format: Any,
        dilation: Any,
    ) -> None:
        x, self.rank = _windowed(inputs, data_format, name)
        self.kind = "conv3d" if self.rank == 3 else "conv2d"
        weights = as_tensor(kernel, f"{name}: kernel")
        if not weights.whole or len(weights.shape) != self.rank + 2:
            raise ValueError(
                f"{name}: the kernel has no batch and {self.rank + 2} axes, got "
                f"{weights!r}"
            )
        wide = [1] * (2 - self.rank)
        lengths = lengths_of(x)
        self.x = reshaped(x, [lengths[0], *wide, *lengths[1:]])
        self.kernel = reshaped(weights, [*wide, *lengths_of(weights)])
        self.strides = _both(strides, self.rank, f"{name}: strides")
        self.dilation = _both(dilation, self.rank, f"{name}: dilation_rate")

    def attributes(
        self, padding: str, sizes: Sequence[int], window: Sequence[int], groups: int
    ) -> dict[str, Any]:
        """Return the attributes of the op over images of some sizes."""
        how = self.strides, self.dilation
        return {
            "strides": self.strides,
            "padding": resolve_padding(padding, sizes, window, *how),
            "dilation": self.dilation,
            "groups": groups,
        }

    def convolved(self, kernel: Any, padding: str, groups: int) -> Any:
        """Return the convolution with a kernel for images."""
        _, *sizes, channels = lengths_of(self.x)
        *window, inner, filters = lengths_of(kernel)
        if inner * groups != channels or filters % groups:
            raise ValueError(
                f"a kernel of {inner} inputs and {filters} filters does not fit "
                f"{channels} channels in {groups} groups"
            )
        how = self.attributes(padding, sizes, window, groups)
        return Several(self.kind, how)([self.x, kernel])

    def finished(self, y: Any) -> Any:
        """Return the result without the axis that sequences do not have."""
        lengths = lengths_of(y)
        return reshaped(y, [lengths[0], *lengths[-1 - self.rank :]])


@documented
def conv(
    inputs: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Convolve sequences, images or volumes; the kernel's inputs give the groups."""
    window = _Window("conv", inputs, kernel, strides, data_format, dilation_rate)
    channels, inner = lengths_of(window.x)[-1], lengths_of(window.kernel)[-2]
    if channels % inner:
        raise ValueError(f"conv: {channels} channels are no multiple of {inner}")
    name = padding_name(padding, "conv")
    return window.finished(window.convolved(window.kernel, name, channels // inner))


@documented
def depthwise_conv(
    inputs: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Convolve each channel with its own kernels."""
    name = "depthwise_conv"
    window = _Window(name, inputs, kernel, strides, data_format, dilation_rate)
    *sizes, channels, times = lengths_of(window.kernel)
    flat = reshaped(window.kernel, [*sizes, 1, channels * times])
    how = padding_name(padding, name), channels
    return window.finished(window.convolved(flat, *how))


@documented
def separable_conv(
    inputs: Any,
    depthwise_kernel: Any,
    pointwise_kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Convolve each channel with its own kernels, then mix the channels."""
    how = strides, padding, data_format, dilation_rate
    return conv(depthwise_conv(inputs, depthwise_kernel, *how), pointwise_kernel)


@documented
def conv_transpose(
    inputs: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    output_padding: Any = None,
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Return the gradient of a convolution, whose kernel has (filters, channels)."""
    name = "conv_transpose"
    if output_padding is not None:
        raise ValueError(f"{name}: output_padding must be None, got {output_padding!r}")
    window = _Window(name, inputs, kernel, strides, data_format, dilation_rate)
    _, *sizes, channels = lengths_of(window.x)
    *size, filters, inner = lengths_of(window.kernel)
    if inner != channels:
        raise ValueError(f"{name}: the kernel has {inner} channels, x {channels}")
    how = padding_name(padding, name)
    out = []
    for i, length in enumerate(sizes):
        reach = (size[i] - 1) * window.dilation[i] + 1
        beyond = 0 if how == "same" else max(reach - window.strides[i], 0)
        out.append(length * window.strides[i] + beyond)
    attributes = window.attributes(how, out, size, 1)
    attributes["input_shape"] = (lengths_of(window.x)[0], *out, filters)
    y = Several(f"{window.kind}_gradient_input", attributes)([window.kernel, window.x])
    return window.finished(y)


@documented
def max_pool(
    inputs: Any,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Any:
    """Return the maximum of each window."""
    x, rank = _windowed(inputs, data_format, "max_pool")
    layer = (MaxPooling1D, MaxPooling2D, MaxPooling3D)[rank - 1]
    return layer(pool_size, strides, padding)(x)


@documented
def average_pool(
    inputs: Any,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Any:
    """Return the mean of each window."""
    x, rank = _windowed(inputs, data_format, "average_pool")
    layer = (AveragePooling1D, AveragePooling2D, AveragePooling3D)[rank - 1]
    return layer(pool_size, strides, padding)(x)


@documented
def adaptive_average_pool(
    inputs: Any, output_size: Any, data_format: str | None = None
) -> Any:
    """Return the means of windows that divide each axis into a number of parts."""
    x, rank = _windowed(inputs, data_format, "adaptive_average_pool")
    kinds = (AdaptiveAveragePooling1D, AdaptiveAveragePooling2D)
    layer = (*kinds, AdaptiveAveragePooling3D)[rank - 1]
    return layer(output_size)(x)


@documented
def adaptive_max_pool(
    inputs: Any, output_size: Any, data_format: str | None = None
) -> Any:
    """Return the maxima of windows that divide each axis into a number of parts."""
    x, rank = _windowed(inputs, data_format, "adaptive_max_pool")
    kinds = (AdaptiveMaxPooling1D, AdaptiveMaxPooling2D)
    layer = (*kinds, AdaptiveMaxPooling3D)[rank - 1]
    return layer(output_size)(x)

"""Convolutions over sequences, images and volumes, channels-last.

Convolutions over sequences ``(N, L, C)`` are computed as images ``(N, 1, L, C)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    activation_name,
    check_channels_last,
    integer,
    numbers,
    padding_name,
    padding_of,
    resolve_padding,
)
from memcfg.nn.initializers import Initializer, get_initializer
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._basic import bias_and_activation
from memcfg.nn.layers._layer import Layer, Scope, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._argument_checks import Sides
    from memcfg.nn.layers._layer import Shape

__all__ = [
    "INPUTS",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Convolution1D",
    "Convolution1DTranspose",
    "Convolution2D",
    "Convolution2DTranspose",
    "Convolution3D",
    "Convolution3DTranspose",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "convolve",
]

Window = int | tuple[int, ...]
Padding = str | int | tuple[int, ...] | tuple[tuple[int, int], ...]

INPUTS = {  # by rank
    1: "sequences (None, steps, channels)",
    2: "images (None, height, width, channels)",
    3: "volumes (None, depth, height, width, channels)",
}
_PIXEL = {
    "strides": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilation": (1, 1),
    "groups": 1,
}
_SLOTS = (
    "_activation_op",
    "bias_initializer",
    "dilation_rate",
    "kernel_size",
    "padding",
    "strides",
    "use_bias",
)


class _Convolution:
    """Base class of the convolutions."""

    __slots__ = ()

    activation = ActivationOf()
    _activation_op: Any
    bias_initializer: Initializer
    dilation_rate: tuple[int, ...]
    kernel_size: tuple[int, ...]
    padding: str | Sides
    strides: tuple[int, ...]
    use_bias: bool


def _take(
    layer: Any,
    kernel_size: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilation_rate: Any,
    activation: Any,
    use_bias: bool,
    bias_initializer: Any,
    name: str | None,
) -> None:
    """Check and set the arguments common to all convolutions."""
    kind, rank = type(layer).__name__, layer.rank
    check_channels_last(data_format, kind)
    layer.kernel_size = numbers(kernel_size, rank, f"{kind}: kernel_size")
    layer.strides = numbers(strides, rank, f"{kind}: strides")
    paddings: tuple[str, ...] = ("valid", "same")
    if "transpose" in kind.lower():
        layer.padding = padding_name(padding, kind)
    else:
        paddings += ("causal",) * (rank == 1)
        layer.padding = padding_of(padding, rank, kind, paddings)
    layer.dilation_rate = numbers(dilation_rate, rank, f"{kind}: dilation_rate")
    layer._activation_op = activation_name(activation, kind)
    layer.use_bias = bool(use_bias)
    layer.bias_initializer = get_initializer(bias_initializer)
    Layer.__init__(layer, name)


def _channels(layer: Any, shapes: Sequence[Shape]) -> int:
    """Return the channels of the input; ValueError for another rank."""
    layer.require_rank(shapes[0], layer.rank + 1, INPUTS[layer.rank])
    return shapes[0][-1]


def convolve(
    scope: Scope,
    x: int,
    kernel: int,
    padding: str | Sides,
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> int:
    """Append a convolution of sequences, images or volumes, in their own rank."""
    shape = scope.builder.shape(x)
    one = (1,) * (4 - len(shape))
    if one:
        (x,) = scope.apply("reshape", (x,), {"shape": (shape[0], 1, *shape[1:])})
        wide = {"shape": (1, *scope.builder.shape(kernel))}
        (kernel,) = scope.apply("reshape", (kernel,), wide)
    sizes, window = scope.builder.shape(x)[1:-1], scope.builder.shape(kernel)[:-2]
    how = one + strides, one + dilation
    attributes = {
        "strides": how[0],
        "padding": resolve_padding(padding, sizes, window, *how),
        "dilation": how[1],
        "groups": groups,
    }
    kind = "conv3d" if len(shape) == 5 else "conv2d"
    (y,) = scope.apply(kind, (x, kernel), attributes)
    if one:
        samples, _, *sample = scope.builder.shape(y)
        (y,) = scope.apply("reshape", (y,), {"shape": (samples, *sample)})
    return y


def _with_bias(layer: Any, units: int, *kernels: WeightSpec) -> tuple[WeightSpec, ...]:
    """Return the kernels and, if there is one, the bias."""
    bias = WeightSpec("bias", (units,), layer.bias_initializer)
    return (*kernels, bias) if layer.use_bias else kernels


def _as_images(layer: Any, scope: Scope, x: int) -> int:
    """Return the input as images."""
    if layer.rank > 1:
        return x
    samples, *sample = scope.builder.shape(x)
    return scope.apply("reshape", (x,), {"shape": (samples, 1, *sample)})[0]


def _op(layer: Any) -> str:
    """Return the type of the layer's convolution."""
    return "conv3d" if layer.rank == 3 else "conv2d"


def _kernel(layer: Any, scope: Scope, name: str, shape: tuple[int, int]) -> int:
    """Append the reshape of a sequence's kernel to one for images."""
    weight = scope.weights[name]
    full = (1,) * (2 - layer.rank) + layer.kernel_size + shape
    if scope.builder.shape(weight) == full:
        return weight
    return scope.apply("reshape", (weight,), {"shape": full})[0]


def _window(layer: Any, sizes: Sequence[int], groups: int = 1) -> dict[str, Any]:
    """Return the attributes of a convolution over images of a size."""
    one = (1,) * (2 - layer.rank)
    size, strides = one + layer.kernel_size, one + layer.strides
    dilation = one + layer.dilation_rate
    return {
        "strides": strides,
        "padding": resolve_padding(layer.padding, sizes, size, strides, dilation),
        "dilation": dilation,
        "groups": groups,
    }


def _finish(layer: Any, scope: Scope, y: int) -> int:
    """Append bias and activation, and restore the shape of sequences."""
    y = bias_and_activation(scope, y, layer.use_bias, layer._activation_op)
    if layer.rank > 1:
        return y
    samples, _, *sample = scope.builder.shape(y)
    return scope.apply("reshape", (y,), {"shape": (samples, *sample)})[0]


class Conv2D(_Convolution, Layer):
    """Convolve images ``(N, H, W, C)`` with a kernel ``(KH, KW, C / groups, O)``.

    Also named `Convolution2D`.

    Parameters
    ----------
    filters : int
        The number of channels of the output, a multiple of `groups`.
    kernel_size : int or tuple of two int
        The height and width of the window.
    strides : int or tuple of two int, default (1, 1)
        The strides of the window.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"`` pads nothing; ``"same"`` pads with zeros to an output of size
        ``ceil(size / stride)``, with an odd row or column at the end. Numbers pad like
        `ZeroPadding2D`, without a copy.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int or tuple of two int, default (1, 1)
        The distance of the kernel's elements in the input; 1 is dense.
    groups : int, default 1
        The number of groups of channels that are convolved independently.
    activation : str, callable or None, default None
        The activation, as for `Activation`. None: the identity.
    use_bias : bool, default True
        Whether to add a bias, of shape ``(filters,)``.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((28, 28, 1))
    >>> mc.nn.Conv2D(32, 3, strides=2, padding="same")(x).shape
    (None, 14, 14, 32)
    """

    __slots__ = (
        *_SLOTS,
        "filters",
        "groups",
        "kernel_initializer",
    )

    rank: ClassVar[int] = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1),
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: Window = (1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        self.filters = integer(filters, f"{kind}: filters")
        self.groups = integer(groups, f"{kind}: groups")
        self.kernel_initializer = get_initializer(kernel_initializer)
        if self.filters % self.groups:
            raise ValueError(
                f"{kind}: filters ({self.filters}) must be a multiple of groups "
                f"({self.groups})"
            )
        _take(
            self,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            name,
        )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        channels = _channels(self, shapes)
        if channels % self.groups:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}): {channels} channels "
                f"cannot be divided into {self.groups} groups"
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        kernel = WeightSpec("kernel", shape, self.kernel_initializer)
        return _with_bias(self, self.filters, kernel)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the convolution, the bias and the activation."""
        x = _as_images(self, scope, inputs[0])
        _, *sizes, channels = scope.builder.shape(x)
        shape = channels // self.groups, self.filters
        kernel = _kernel(self, scope, "kernel", shape)
        attributes = _window(self, sizes, self.groups)
        (y,) = scope.apply(_op(self), (x, kernel), attributes)
        return _finish(self, scope, y)


class Conv1D(_Convolution, Layer):
    """Convolve sequences ``(N, L, C)`` with a kernel ``(K, C / groups, O)``.

    Also named `Convolution1D`.

    Parameters
    ----------
    filters : int
        The number of channels of the output, a multiple of `groups`.
    kernel_size : int
        The length of the window.
    strides : int, default 1
        The strides of the window.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"``, or ``"causal"``, which reads no later steps. Numbers
        pad like `ZeroPadding1D`.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int, default 1
        The distance of the kernel's elements in the input; 1 is dense.
    groups : int, default 1
        The number of groups of channels that are convolved independently.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, as for `Conv2D`.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Conv1D(8, 3, padding="causal")(mc.nn.Input((20, 4))).shape
    (None, 20, 8)
    """

    __slots__ = Conv2D.__slots__

    rank: ClassVar[int] = 1
    filters: int
    groups: int
    kernel_initializer: Initializer

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: Window = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        Conv2D.__init__(
            layer,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            groups,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            name=name,
        )

    specs = Conv2D.specs
    trace = Conv2D.trace


class DepthwiseConv2D(_Convolution, Layer):
    """Convolve each channel of images ``(N, H, W, C)`` with its own kernels.

    The kernel is ``(KH, KW, C, depth_multiplier)``; the output has
    ``C * depth_multiplier`` channels.

    Parameters
    ----------
    kernel_size : int or tuple of two int
        The height and width of the window.
    strides : int or tuple of two int, default (1, 1)
        The strides of the window.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers, as for `Conv2D`.
    depth_multiplier : int, default 1
        The number of output channels per input channel.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int or tuple of two int, default (1, 1)
        The distance of the kernel's elements in the input; 1 is dense.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    depthwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.DepthwiseConv2D(3, depth_multiplier=2)(mc.nn.Input((8, 8, 4))).shape
    (None, 6, 6, 8)
    """

    __slots__ = (
        *_SLOTS,
        "depth_multiplier",
        "depthwise_initializer",
    )

    rank: ClassVar[int] = 2

    def __init__(
        self,
        kernel_size: Window,
        strides: Window = (1, 1),
        padding: Padding = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Window = (1, 1),
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        self.depth_multiplier = integer(depth_multiplier, f"{kind}: depth_multiplier")
        self.depthwise_initializer = get_initializer(depthwise_initializer)
        _take(
            self,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            name,
        )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        channels = _channels(self, shapes)
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        kernel = WeightSpec("kernel", shape, self.depthwise_initializer)
        return _with_bias(self, channels * self.depth_multiplier, kernel)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the convolution, the bias and the activation."""
        return _finish(self, scope, _depthwise(self, scope, inputs[0], "kernel"))


def _depthwise(layer: Any, scope: Scope, x: int, name: str) -> int:
    """Append a convolution with one group per input channel."""
    x = _as_images(layer, scope, x)
    _, *sizes, channels = scope.builder.shape(x)
    kernel = _kernel(layer, scope, name, (1, channels * layer.depth_multiplier))
    return scope.apply("conv2d", (x, kernel), _window(layer, sizes, channels))[0]


class DepthwiseConv1D(_Convolution, Layer):
    """Convolve each channel of sequences ``(N, L, C)`` with its own kernels.

    Parameters
    ----------
    kernel_size : int
        The length of the window.
    strides : int, default 1
        The strides of the window.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"``, ``"causal"`` or numbers, as for `Conv1D`.
    depth_multiplier : int, default 1
        The number of output channels per input channel.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int, default 1
        The distance of the kernel's elements in the input.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    depthwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, as for `DepthwiseConv2D`.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = DepthwiseConv2D.__slots__

    rank: ClassVar[int] = 1
    depth_multiplier: int
    depthwise_initializer: Initializer

    def __init__(
        self,
        kernel_size: Window,
        strides: Window = 1,
        padding: Padding = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Window = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        DepthwiseConv2D.__init__(
            layer,
            kernel_size,
            strides,
            padding,
            depth_multiplier,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            depthwise_initializer,
            bias_initializer,
            name=name,
        )

    specs = DepthwiseConv2D.specs
    trace = DepthwiseConv2D.trace


class SeparableConv2D(_Convolution, Layer):
    """Convolve each channel of images separately, then mix the channels per pixel.

    Also named `SeparableConvolution2D`.

    Parameters
    ----------
    filters : int
        The number of channels of the output.
    kernel_size : int or tuple of two int
        The height and width of the window.
    strides : int or tuple of two int, default (1, 1)
        The strides of the window.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers, as for `Conv2D`.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int or tuple of two int, default (1, 1)
        The distance of the kernel's elements in the input; 1 is dense.
    depth_multiplier : int, default 1
        The number of intermediate channels per input channel.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    depthwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the first kernel, ``(KH, KW, C, depth_multiplier)``.
    pointwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the second kernel, ``(1, 1, C * depth_multiplier, filters)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.SeparableConv2D(16, 3)(mc.nn.Input((8, 8, 4))).shape
    (None, 6, 6, 16)
    """

    __slots__ = (
        *_SLOTS,
        "depth_multiplier",
        "depthwise_initializer",
        "filters",
        "pointwise_initializer",
    )

    rank: ClassVar[int] = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1),
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: Window = (1, 1),
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        self.filters = integer(filters, f"{kind}: filters")
        self.depth_multiplier = integer(depth_multiplier, f"{kind}: depth_multiplier")
        self.depthwise_initializer = get_initializer(depthwise_initializer)
        self.pointwise_initializer = get_initializer(pointwise_initializer)
        _take(
            self,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            name,
        )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return both kernels and the bias."""
        channels, middle = _channels(self, shapes), self.depth_multiplier
        shape = (*self.kernel_size, channels, middle)
        point = ((1,) * self.rank) + (channels * middle, self.filters)
        return _with_bias(
            self,
            self.filters,
            WeightSpec("depthwise_kernel", shape, self.depthwise_initializer),
            WeightSpec("pointwise_kernel", point, self.pointwise_initializer),
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append both convolutions, the bias and the activation."""
        y = _depthwise(self, scope, inputs[0], "depthwise_kernel")
        kernel = scope.weights["pointwise_kernel"]
        if self.rank == 1:
            shape = (1, *scope.builder.shape(kernel))
            (kernel,) = scope.apply("reshape", (kernel,), {"shape": shape})
        (y,) = scope.apply("conv2d", (y, kernel), _PIXEL)
        return _finish(self, scope, y)


class SeparableConv1D(_Convolution, Layer):
    """Convolve each channel of sequences separately, then mix the channels per step.

    Also named `SeparableConvolution1D`.

    Parameters
    ----------
    filters : int
        The number of channels of the output.
    kernel_size : int
        The length of the window.
    strides : int, default 1
        The strides of the window.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"``, ``"causal"`` or numbers, as for `Conv1D`.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int, default 1
        The distance of the kernel's elements in the input.
    depth_multiplier : int, default 1
        The number of intermediate channels per input channel.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    depthwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the first kernel, ``(K, C, depth_multiplier)``.
    pointwise_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the second kernel, ``(1, C * depth_multiplier, filters)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = SeparableConv2D.__slots__

    rank: ClassVar[int] = 1
    depth_multiplier: int
    depthwise_initializer: Initializer
    filters: int
    pointwise_initializer: Initializer

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: Window = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        SeparableConv2D.__init__(
            layer,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            depth_multiplier,
            activation,
            use_bias,
            depthwise_initializer,
            pointwise_initializer,
            bias_initializer,
            name=name,
        )

    specs = SeparableConv2D.specs
    trace = SeparableConv2D.trace


class Conv2DTranspose(_Convolution, Layer):
    """Transposed convolution: the gradient of `Conv2D` with respect to its input.

    The kernel is ``(KH, KW, filters, C)``. Also named `Convolution2DTranspose`.

    Parameters
    ----------
    filters : int
        The number of channels of the output.
    kernel_size : int or tuple of two int
        The height and width of the window.
    strides : int or tuple of two int, default (1, 1)
        The factors by which the output is larger than the input.
    padding : str, default "valid"
        With ``"same"``, the output is `strides` times as large as the input. With
        ``"valid"``, it is larger by the part of the kernel that exceeds the stride.
    output_padding : None
        Not supported; crop or pad the output.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int or tuple of two int, default (1, 1)
        The distance of the kernel's elements in the output; 1 is dense.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((7, 7, 16))
    >>> mc.nn.Conv2DTranspose(8, 3, strides=2, padding="same")(x).shape
    (None, 14, 14, 8)
    """

    __slots__ = (
        *_SLOTS,
        "filters",
        "kernel_initializer",
    )

    rank: ClassVar[int] = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1),
        padding: str = "valid",
        output_padding: None = None,
        data_format: str | None = None,
        dilation_rate: Window = (1, 1),
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        if output_padding is not None:
            raise ValueError(
                f"{kind}: output_padding={output_padding!r} is not supported: crop or "
                "pad the output instead"
            )
        self.filters = integer(filters, f"{kind}: filters")
        self.kernel_initializer = get_initializer(kernel_initializer)
        _take(
            self,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            name,
        )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        shape = (*self.kernel_size, self.filters, _channels(self, shapes))
        kernel = WeightSpec("kernel", shape, self.kernel_initializer)
        return _with_bias(self, self.filters, kernel)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the gradient op of a convolution, the bias and the activation."""
        x = _as_images(self, scope, inputs[0])
        samples, *sizes, channels = scope.builder.shape(x)
        kernel = _kernel(self, scope, "kernel", (self.filters, channels))
        attributes = _window(self, sizes)
        out = []
        for i, size in enumerate(sizes):
            stride, step = attributes["strides"][i], attributes["dilation"][i]
            reach = (scope.builder.shape(kernel)[i] - 1) * step + 1
            beyond = 0 if self.padding == "same" else max(reach - stride, 0)
            out.append(size * stride + beyond)
        attributes = _window(self, out) | {"input_shape": (samples, *out, self.filters)}
        kind = f"{_op(self)}_gradient_input"
        (y,) = scope.apply(kind, (kernel, x), attributes)
        return _finish(self, scope, y)


class Conv1DTranspose(_Convolution, Layer):
    """Transposed convolution over sequences: the gradient of `Conv1D`.

    Also named `Convolution1DTranspose`.

    Parameters
    ----------
    filters : int
        The number of channels of the output.
    kernel_size : int
        The length of the window.
    strides : int, default 1
        The factor by which the output is longer than the input.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``, as for `Conv2DTranspose`.
    output_padding : None
        Not supported; crop or pad the output.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int, default 1
        The distance of the kernel's elements in the output.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, as for `Conv2DTranspose`.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = Conv2DTranspose.__slots__

    rank: ClassVar[int] = 1
    filters: int
    kernel_initializer: Initializer

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = 1,
        padding: str = "valid",
        output_padding: None = None,
        data_format: str | None = None,
        dilation_rate: Window = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        Conv2DTranspose.__init__(
            layer,
            filters,
            kernel_size,
            strides,
            padding,
            output_padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            name=name,
        )

    specs = Conv2DTranspose.specs
    trace = Conv2DTranspose.trace


class Conv3D(_Convolution, Layer):
    """Convolve volumes with a kernel ``(KD, KH, KW, C / groups, O)``.

    Also named `Convolution3D`.

    Parameters
    ----------
    filters : int
        The number of channels of the output, a multiple of `groups`.
    kernel_size : int or tuple of three int
        The depth, height and width of the window.
    strides : int or tuple of three int, default (1, 1, 1)
        The strides of the window.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"`` or ``"same"``, as for `Conv2D`. Numbers pad like `ZeroPadding3D`.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    dilation_rate : int or tuple of three int, default (1, 1, 1)
        The distance of the kernel's elements in the input; 1 is dense.
    groups : int, default 1
        The number of groups of channels that are convolved independently.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, as for `Conv2D`.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Conv3D(8, 3, strides=2)(mc.nn.Input((9, 9, 7, 1))).shape
    (None, 4, 4, 3, 8)
    """

    __slots__ = Conv2D.__slots__

    rank: ClassVar[int] = 3
    filters: int
    groups: int
    kernel_initializer: Initializer

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1, 1),
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: Window = (1, 1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        Conv2D.__init__(
            layer,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            groups,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            name=name,
        )

    specs = Conv2D.specs
    trace = Conv2D.trace


class Conv3DTranspose(_Convolution, Layer):
    """Transposed convolution over volumes: the gradient of `Conv3D`.

    Also named `Convolution3DTranspose`.

    Parameters
    ----------
    filters : int
        The number of channels of the output.
    kernel_size : int or tuple of three int
        The depth, height and width of the window.
    strides : int or tuple of three int, default (1, 1, 1)
        The factors by which the output is larger than the input.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``, as for `Conv2DTranspose`.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    output_padding : None
        Not supported; crop or pad the output.
    dilation_rate : int or tuple of three int, default (1, 1, 1)
        The distance of the kernel's elements in the output.
    activation : str, callable or None, default None
        As for `Conv2D`.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, as for `Conv2DTranspose`.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = Conv2DTranspose.__slots__

    rank: ClassVar[int] = 3
    filters: int
    kernel_initializer: Initializer

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        output_padding: None = None,
        dilation_rate: Window = (1, 1, 1),
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        layer: Any = self
        Conv2DTranspose.__init__(
            layer,
            filters,
            kernel_size,
            strides,
            padding,
            output_padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            name=name,
        )

    specs = Conv2DTranspose.specs
    trace = Conv2DTranspose.trace


Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution1DTranspose, Convolution2DTranspose = Conv1DTranspose, Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
SeparableConvolution1D, SeparableConvolution2D = SeparableConv1D, SeparableConv2D

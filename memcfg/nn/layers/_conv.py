"""Two-dimensional convolution, channels-last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import (
    activation_name,
    check_channels_last,
    integer,
    padding_name,
    pair,
    resolve_padding,
)
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._basic import bias_and_activation, kernel_and_bias
from memcfg.nn.layers._layer import Layer, Scope, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Shape

__all__ = ["Conv2D"]


class Conv2D(Layer):
    """Convolve images ``(N, H, W, C)`` with a kernel ``(KH, KW, C / groups, O)``.

    Parameters
    ----------
    filters : int
        Channels of the output, a multiple of `groups`.
    kernel_size : int or tuple of two int
        Height and width of the window.
    strides : int or tuple of two int, default (1, 1)
        Steps of the window.
    padding : str, default "valid"
        ``"valid"`` pads nothing; ``"same"`` pads with zeros so that the output has
        ``ceil(size / stride)`` places, an odd row or column at the end.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    dilation_rate : int or tuple of two int, default (1, 1)
        Distance of the kernel's elements in the input; 1 is dense.
    groups : int, default 1
        In how many independent groups the channels are convolved.
    activation : str or None, default None
        ``"relu"``, ``"sigmoid"``, another element-wise op of one array
        (`memcfg.ops.elementwise`), ``"linear"`` or None.
    use_bias : bool, default True
        Whether to add a bias, of shape ``(filters,)``.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        For the kernel.
    bias_initializer : str or Initializer, default "zeros"
        For the bias.
    name : str, optional
        Unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((28, 28, 1))
    >>> mc.nn.Conv2D(32, 3, strides=2, padding="same")(x).shape
    (None, 14, 14, 32)
    """

    __slots__ = (
        "activation",
        "bias_initializer",
        "dilation_rate",
        "filters",
        "groups",
        "kernel_initializer",
        "kernel_size",
        "padding",
        "strides",
        "use_bias",
    )

    _reads_images = True

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "Conv2D")
        self.filters = integer(filters, "Conv2D: filters")
        self.kernel_size = pair(kernel_size, "Conv2D: kernel_size")
        self.strides = pair(strides, "Conv2D: strides")
        self.padding = padding_name(padding, "Conv2D")
        self.dilation_rate = pair(dilation_rate, "Conv2D: dilation_rate")
        self.groups = integer(groups, "Conv2D: groups")
        self.activation = activation_name(activation, "Conv2D")
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        if self.filters % self.groups:
            raise ValueError(
                f"Conv2D: filters ({self.filters}) is not a multiple of groups "
                f"({self.groups})"
            )
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        super().specs(shapes)
        channels = shapes[0][2]
        if channels % self.groups:
            raise ValueError(
                f"layer {self.name!r} (Conv2D): {channels} channels do not divide into "
                f"{self.groups} groups"
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        return kernel_and_bias(self, shape)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the convolution, the bias and the activation."""
        sizes = scope.builder.shape(inputs[0])[1:3]
        attributes = {
            "strides": self.strides,
            "padding": resolve_padding(
                self.padding, sizes, self.kernel_size, self.strides, self.dilation_rate
            ),
            "dilation": self.dilation_rate,
            "groups": self.groups,
        }
        operands = (inputs[0], scope.weights["kernel"])
        (y,) = scope.apply("conv2d", operands, attributes)
        return bias_and_activation(scope, y, self.use_bias, self.activation)

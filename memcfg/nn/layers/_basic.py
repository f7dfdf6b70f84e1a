"""Dense and Flatten, and the ops after products and convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    activation_name,
    check_channels_last,
    integer,
)
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec, trace_function
from memcfg.nn.layers._low_rank import _Adaptable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Dense",
    "Flatten",
]


class Dense(_Adaptable):
    """Multiply the last axis by a matrix: ``y = activation(x @ kernel + bias)``.

    Parameters
    ----------
    units : int
        The length of the output's last axis.
    activation : str, callable or None, default None
        The activation, as for `Activation`. None: the identity.
    use_bias : bool, default True
        Whether to add a bias, of shape ``(units,)``.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(inputs, units)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    lora_rank : int, optional
        Freezes the kernel, and trains an addition of this rank, as `enable_lora` does.
    lora_alpha : float, optional
        The addition is scaled by ``lora_alpha / lora_rank``; by default `lora_rank`.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Dense(10)(mc.nn.Input((784,))).shape
    (None, 10)
    """

    __slots__ = (
        "_activation_op",
        "bias_initializer",
        "kernel_initializer",
        "units",
        "use_bias",
    )

    activation = ActivationOf()
    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        name: str | None = None,
    ) -> None:
        self._begin_low_rank(lora_rank, lora_alpha)
        self.units = integer(units, "Dense: units")
        self._activation_op = activation_name(activation, "Dense")
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        return self._with_low_rank(kernel_and_bias(self, (shapes[0][-1], self.units)))

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product, the bias and the activation."""
        (y,) = scope.apply("dense", (inputs[0], scope.weights["kernel"]))
        if self.lora_enabled:
            (low,) = scope.apply("dense", (inputs[0], scope.weights["lora_kernel_a"]))
            y = self._through(scope, y, low)
        return bias_and_activation(scope, y, self.use_bias, self._activation_op)


def kernel_and_bias(layer: Any, shape: tuple[int, ...]) -> tuple[WeightSpec, ...]:
    """Return the weights of a `Dense` or a `Conv2D`."""
    kernel = WeightSpec("kernel", shape, layer.kernel_initializer)
    if not layer.use_bias:
        return (kernel,)
    return kernel, WeightSpec("bias", shape[-1:], layer.bias_initializer)


def bias_and_activation(scope: Scope, y: int, use_bias: bool, activation: Any) -> int:
    """Append the bias and the activation after a product or a convolution."""
    if use_bias:
        (y,) = scope.apply("bias", (y, scope.weights["bias"]))
    return activate(scope, y, activation)


def activate(scope: Scope, x: int, activation: Any) -> int:
    """Append an activation: an op by its name, or a function of the user's."""
    if activation is None:
        return x
    if isinstance(activation, str):
        return scope.apply(activation, (x,))[0]
    return trace_function(activation, scope, x)


class Flatten(Layer):
    """Flatten each sample to one axis.

    Parameters
    ----------
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    def __init__(
        self, data_format: str | None = None, *, name: str | None = None
    ) -> None:
        check_channels_last(data_format, "Flatten")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("flatten", inputs)[0]

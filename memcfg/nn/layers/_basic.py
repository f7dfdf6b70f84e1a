"""Layers without windows: products, activations, joints, Flatten, Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import (
    activation_name,
    check_channels_last,
    integer,
    unit_interval,
)
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec, show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Activation",
    "Dense",
    "Dropout",
    "Flatten",
    "ReLU",
    "Softmax",
]


class Dense(Layer):
    """Multiply the last axis by a matrix: ``y = activation(x @ kernel + bias)``.

    Parameters
    ----------
    units : int
        Length of the output's last axis.
    activation : str or None, default None
        ``"relu"``, ``"sigmoid"``, another element-wise op of one array
        (`memcfg.ops.elementwise`), ``"linear"`` or None.
    use_bias : bool, default True
        Whether to add a bias, of shape ``(units,)``.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        For the kernel, of shape ``(inputs, units)``.
    bias_initializer : str or Initializer, default "zeros"
        For the bias.
    name : str, optional
        Unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Dense(10)(mc.nn.Input((784,))).shape
    (None, 10)
    """

    __slots__ = (
        "activation",
        "bias_initializer",
        "kernel_initializer",
        "units",
        "use_bias",
    )

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        name: str | None = None,
    ) -> None:
        self.units = integer(units, "Dense: units")
        self.activation = activation_name(activation, "Dense")
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        return kernel_and_bias(self, (shapes[0][-1], self.units))

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product, the bias and the activation."""
        (y,) = scope.apply("dense", (inputs[0], scope.weights["kernel"]))
        return bias_and_activation(scope, y, self.use_bias, self.activation)


def kernel_and_bias(layer: Any, shape: tuple[int, ...]) -> tuple[WeightSpec, ...]:
    """Return the weights of a `Dense` or a `Conv2D`."""
    kernel = WeightSpec("kernel", shape, layer.kernel_initializer)
    if not layer.use_bias:
        return (kernel,)
    return kernel, WeightSpec("bias", shape[-1:], layer.bias_initializer)


def bias_and_activation(
    scope: Scope, y: int, use_bias: bool, activation: str | None
) -> int:
    """Append what follows a product or a convolution."""
    if use_bias:
        (y,) = scope.apply("bias", (y, scope.weights["bias"]))
    if activation is not None:
        (y,) = scope.apply(activation, (y,))
    return y


class Activation(Layer):
    """Apply an activation.

    Parameters
    ----------
    activation : str or None
        ``"relu"``, ``"sigmoid"``, another element-wise op of one array
        (`memcfg.ops.elementwise`); ``"linear"`` and None for the identity.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("activation",)

    def __init__(self, activation: str | None, *, name: str | None = None) -> None:
        self.activation = activation_name(activation, "Activation")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the activation; nothing for the identity."""
        return bias_and_activation(scope, inputs[0], False, self.activation)


class ReLU(Layer):
    """Rectified linear unit: ``max(x, 0)``.

    Parameters
    ----------
    max_value : None
        A ceiling cannot be honoured yet.
    negative_slope : float, default 0.0
        Only zero can be honoured yet.
    threshold : float, default 0.0
        Only zero can be honoured yet.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ()

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        *,
        name: str | None = None,
    ) -> None:
        if max_value is not None or negative_slope != 0 or threshold != 0:
            raise ValueError(
                "ReLU is max(x, 0): max_value must be None, negative_slope and "
                f"threshold 0, got {max_value!r}, {negative_slope!r}, {threshold!r}"
            )
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("relu", inputs)[0]


class Softmax(Layer):
    """Softmax along an axis.

    Parameters
    ----------
    axis : int, default -1
        The axis, which counts the batch: 0 cannot be honoured.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("axis",)

    def __init__(self, axis: int = -1, *, name: str | None = None) -> None:
        self.axis = integer(axis, "Softmax: axis", None)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Check the axis; there are no weights."""
        rank = len(shapes[0]) + 1
        if not -rank < self.axis < rank or self.axis == 0:
            raise ValueError(
                f"layer {self.name!r} (Softmax) takes an axis of a sample, got "
                f"axis={self.axis} for an input of shape {show_shape(shapes[0])}"
            )
        return ()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("softmax", inputs, {"axis": self.axis})[0]


class Flatten(Layer):
    """Turn each sample into one row.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
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


class Dropout(Layer):
    """Drop elements at random while training, and scale up the others.

    ``y = x * mask / (1 - rate)``; in evaluation and prediction nothing happens.
    The mask depends on the seed, the step and the element's place alone, so it is
    never stored, and replaying the layer makes the same one.

    Parameters
    ----------
    rate : float
        The part of the elements to drop, in ``[0, 1)``.
    seed : int, optional
        Fix the masks. None: a seed drawn from `set_random_seed`'s sequence.
    name : str, optional
        Unique within a model.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple
    way to prevent neural networks from overfitting", JMLR 15, 2014.
    """

    __slots__ = ("rate",)

    def __init__(
        self, rate: float, seed: int | None = None, *, name: str | None = None
    ) -> None:
        self.rate = unit_interval(rate, "Dropout: rate")
        fixed = fixed_seed(seed)
        super().__init__(name)
        if fixed is not None:
            self._seed = fixed

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op when training; nothing otherwise."""
        if not scope.training or scope.step is None or self.rate == 0:
            return inputs[0]
        key = derive_seed(self.seed, scope.call)
        operands = (inputs[0], scope.step())
        return scope.apply("dropout", operands, {"rate": self.rate, "key": key})[0]

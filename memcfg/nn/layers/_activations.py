"""Activations as layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import activation_name, integer, nonnegative, real
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._axes import axes_of_sample, moved_back, moved_last
from memcfg.nn.layers._basic import bias_and_activation
from memcfg.nn.layers._layer import (
    Layer,
    Scope,
    Shape,
    SymbolicTensor,
    Variable,
    WeightSpec,
    are_arrays,
    show_shape,
)
from memcfg.nn.layers._masking import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ELU", "Activation", "LeakyReLU", "PReLU", "ReLU", "Softmax"]

_NO_CEILING = math.inf
_LOW = -1e9  # the scores of masked steps, as in Keras


class Activation(Layer):
    """Apply an activation.

    Parameters
    ----------
    activation : str, callable or None
        The name of an activation, such as ``"relu"``, a function of
        `memcfg.nn.activations`, or a function of your own that returns a symbolic
        tensor of the shape of its argument, in float32. Element-wise ops of one array
        that were registered with `memcfg.ops.elementwise` have names, too. ``"linear"``
        and None: the identity.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("_activation_op",)

    activation = ActivationOf()
    supports_masking: ClassVar[bool] = True

    def __init__(self, activation: Any, *, name: str | None = None) -> None:
        self._activation_op = activation_name(activation, "Activation")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the activation, or nothing for the identity."""
        return bias_and_activation(scope, inputs[0], False, self._activation_op)


class ReLU(Layer):
    """Rectified linear unit: ``max(x, 0)``, with a slope, a threshold and a ceiling.

    ``min(x, max_value)`` where ``x > threshold``, else
    ``negative_slope * (x - threshold)``.

    Parameters
    ----------
    max_value : float, optional
        The maximum, zero or more; by default there is none.
    negative_slope : float, default 0.0
        The slope below the threshold, zero or more.
    threshold : float, default 0.0
        The start of the linear part, zero or more.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("max_value", "negative_slope", "threshold")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        *,
        name: str | None = None,
    ) -> None:
        self.max_value = max_value
        if max_value is not None:
            nonnegative(max_value, "ReLU: max_value")
        self.negative_slope = nonnegative(negative_slope, "ReLU: negative_slope")
        self.threshold = nonnegative(threshold, "ReLU: threshold")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        if self.max_value in (None, 6) and not self.negative_slope + self.threshold:
            name = "relu" if self.max_value is None else "relu6"
            return scope.apply(name, inputs)[0]
        attributes = {
            "max_value": _NO_CEILING if self.max_value is None else self.max_value,
            "negative_slope": self.negative_slope,
            "threshold": self.threshold,
        }
        return scope.apply("rectified", inputs, attributes)[0]


class LeakyReLU(Layer):
    """``x`` where it is positive, else ``negative_slope * x``.

    Parameters
    ----------
    negative_slope : float, default 0.3
        The slope for negative x, zero or more.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("negative_slope",)

    supports_masking: ClassVar[bool] = True

    def __init__(self, negative_slope: float = 0.3, *, name: str | None = None) -> None:
        what = "LeakyReLU: negative_slope"
        self.negative_slope = nonnegative(negative_slope, what)
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        attributes = {"negative_slope": self.negative_slope}
        return scope.apply("leaky_relu", inputs, attributes)[0]


class ELU(Layer):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
        The negated limit for large negative values.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("alpha",)

    supports_masking: ClassVar[bool] = True

    def __init__(self, alpha: float = 1.0, *, name: str | None = None) -> None:
        self.alpha = real(alpha, "ELU: alpha")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("elu", inputs, {"alpha": self.alpha})[0]


class PReLU(Layer):
    """``x`` where it is positive, else ``alpha * x`` with a trained alpha.

    Parameters
    ----------
    alpha_initializer : str or Initializer, default "zeros"
        The initializer of alpha, of a sample's shape.
    alpha_regularizer : str or Regularizer, optional
        A penalty on alpha added to the loss.
    alpha_constraint : str or Constraint, optional
        What is done to alpha after each update.
    shared_axes : sequence of int, optional
        Axes along which alpha is shared, where axis 0 is the batch: ``[1, 2]`` for
        images.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.
    """

    __slots__ = ("alpha_initializer", "shared_axes")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        alpha_initializer: Any = "zeros",
        alpha_regularizer: Any = None,
        alpha_constraint: Any = None,
        shared_axes: Sequence[int] | int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.alpha_initializer = get_initializer(alpha_initializer)
        axes = [shared_axes] if isinstance(shared_axes, int) else shared_axes or []
        self.shared_axes = [integer(axis, "PReLU: an axis") for axis in axes]
        super().__init__(name)
        self._take("alpha_regularizer", alpha_regularizer)
        self._take("alpha_constraint", alpha_constraint)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return alpha."""
        shape = list(shapes[0])
        for axis in self.shared_axes:
            if axis > len(shape):
                raise ValueError(
                    f"layer {self.name!r} (PReLU): shared axis {axis} is out of range "
                    f"for an input of shape {show_shape(shapes[0])}"
                )
            shape[axis - 1] = 1
        return (WeightSpec("alpha", tuple(shape), self.alpha_initializer),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        weight = scope.weights["alpha"]
        shape = {"shape": (1, *scope.builder.shape(weight))}
        (alpha,) = scope.apply("reshape", (weight,), shape)
        shape = {"shape": scope.builder.shape(inputs[0])}
        (alpha,) = scope.apply("broadcast_to", (alpha,), shape)
        return scope.apply("prelu", (inputs[0], alpha))[0]


class _Chosen(Layer):
    """The elements of a tensor where a mask is above 0.5, and a number elsewhere."""

    __slots__ = ("other",)

    arity: ClassVar[int | None] = 2

    def __init__(self, other: float, *, name: str | None = None) -> None:
        self.other = other
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the choice, with the mask broadcast along axes of length 1."""
        x, mask = inputs
        shape = scope.builder.shape(x)
        if scope.builder.dtype(mask) == "int32":
            (mask,) = scope.apply("cast", (mask,), {"dtype": "float32"})
        (mask,) = scope.apply("above", (mask,), {"threshold": 0.5})
        if scope.builder.shape(mask) != shape:
            (mask,) = scope.apply("broadcast_to", (mask,), {"shape": shape})
        other = {"shape": shape, "value": self.other, "dtype": "float32"}
        operands = (mask, x, *scope.apply("fill", (), other))
        return scope.apply("choose", operands)[0]


class Softmax(Layer):
    """Softmax along an axis, or along several together.

    A call may be given a mask of the rank of its input: masked elements become 0.

    Parameters
    ----------
    axis : int or sequence of int, default -1
        The axis, or several; axis 0, the batch, is not supported.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("axis",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, axis: int | Sequence[int] = -1, *, name: str | None = None
    ) -> None:
        if isinstance(axis, tuple | list):
            self.axis: Any = tuple(integer(i, "Softmax: axis", None) for i in axis)
        else:
            self.axis = integer(axis, "Softmax: axis", None)
        super().__init__(name)

    def __call__(
        self, inputs: Any, mask: Any = None, training: bool | None = None
    ) -> Any:
        """Connect the layer to a tensor and, optionally, a mask."""
        if mask is None:
            return super().__call__(inputs, training=training)
        if are_arrays(inputs, mask):
            return Variable.functions.at_once(self, (inputs, mask), {})
        if not isinstance(mask, SymbolicTensor) or len(mask.shape) != len(inputs.shape):
            raise TypeError(
                f"layer {self.name!r}: a mask is a symbolic tensor of the rank of the "
                f"input, {len(inputs.shape)}, got {mask!r}"
            )
        result = super().__call__(_Chosen(_LOW)([inputs, mask]), training=training)
        return _Chosen(0.0)([result, mask])

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the axes."""
        axes_of_sample(self, shapes[0])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op; a softmax along the steps ignores masked ones."""
        (x,), shape = inputs, scope.builder.shape(inputs[0])
        axes = axes_of_sample(self, shape[1:])
        wide = None
        if scope.mask is not None and 1 in axes:
            wide = spread(scope, scope.mask, shape)
            low = {"shape": shape, "value": _LOW, "dtype": "float32"}
            operands = (wide, x, *scope.apply("fill", (), low))
            (x,) = scope.apply("choose", operands)
        if len(axes) == 1:
            (y,) = scope.apply("softmax", (x,), {"axis": axes[0]})
        else:
            x = moved_last(scope, x, axes)
            lead, lengths = scope.builder.shape(x), [shape[i] for i in axes]
            rows = (*lead[: -len(axes)], math.prod(lengths))
            (x,) = scope.apply("reshape", (x,), {"shape": rows})
            (y,) = scope.apply("softmax", (x,), {"axis": len(rows) - 1})
            (y,) = scope.apply("reshape", (y,), {"shape": lead})
            y = moved_back(scope, y, axes)
        return y if wide is None else scope.apply("masked", (wide, y))[0]

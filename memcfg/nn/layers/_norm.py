"""Normalisation over the batch, samples, groups or neighbouring channels."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._axes import axes_of_sample, moved_back, moved_last
from memcfg.nn.layers._integers import as_floats
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec
from memcfg.nn.layers._masking import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.initializers import Initializer

__all__ = [
    "BatchNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "LocalResponseNormalization",
    "RMSNormalization",
    "UnitNormalization",
]


_LEAST_NORM = 1e-12


def _positive(epsilon: float, kind: str) -> float:
    """Return a number that is positive in float32."""
    number = real(epsilon, f"{kind}: epsilon")
    if np.float32(number) <= 0:
        raise ValueError(
            f"{kind}: epsilon must be positive in float32, got {epsilon!r}"
        )
    return number


def _take(
    layer: BatchNormalization | LayerNormalization | GroupNormalization,
    epsilon: float,
    center: bool,
    scale: bool,
    initializers: dict[str, Any],
) -> None:
    """Check and set the arguments that the three layers share."""
    kind = type(layer).__name__
    layer.epsilon = _positive(epsilon, kind)
    layer.center, layer.scale = bool(center), bool(scale)
    layer.initializers = {
        name: get_initializer(given)
        for name, given in initializers.items()
        if {"gamma": scale, "beta": center}.get(name, True)
    }


def _specs(
    layer: BatchNormalization | GroupNormalization, shapes: Sequence[Shape]
) -> tuple[WeightSpec, ...]:
    """Return a weight of the length of the axis for each initializer."""
    (shape,) = shapes
    (axis,) = axes_of_sample(layer, shape)
    return tuple(
        WeightSpec(name, (shape[axis - 1],), start, trainable=name in ("gamma", "beta"))
        for name, start in layer.initializers.items()
    )


def _gamma_and_beta(layer: Any, scope: Scope, length: int) -> tuple[int, int]:
    """Return gamma and beta as rows, with constants for absent ones."""
    result = []
    for name, value in (("gamma", 1.0), ("beta", 0.0)):
        if name in layer.initializers:
            weight = scope.weights[name]
            if len(scope.builder.shape(weight)) > 1:
                (weight,) = scope.apply("reshape", (weight,), {"shape": (length,)})
            result.append(weight)
        else:
            constant = {"shape": (length,), "value": value, "dtype": "float32"}
            result.append(scope.apply("fill", (), constant)[0])
    return result[0], result[1]


class BatchNormalization(Layer):
    """Normalise each channel by the batch's mean and variance.

    ``y = gamma * (x - mean) / sqrt(variance + epsilon) + beta``. While training,
    mean and (biased) variance are the batch's, and each updates a moving average once
    per step: ``moving = momentum * moving + (1 - momentum) * value``. Evaluation and
    prediction use the averages.

    Parameters
    ----------
    axis : int, default -1
        The channels' axis, counted with the batch, which it is not.
    momentum : float, default 0.99
        The fraction of a moving average kept at a step, in ``[0, 1]``.
    epsilon : float, default 1e-3
        Added to the variance, positive.
    center, scale : bool, default True
        Whether to add beta and to multiply by gamma.
    beta_initializer : str or Initializer, default "zeros"
        The initializer of beta, of shape ``(channels,)`` as the others.
    gamma_initializer : str or Initializer, default "ones"
        The initializer of gamma.
    moving_mean_initializer : str or Initializer, default "zeros"
        The initializer of the moving mean.
    moving_variance_initializer : str or Initializer, default "ones"
        The initializer of the moving variance.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
    reducing internal covariate shift", ICML 2015.
    """

    __slots__ = ("axis", "center", "epsilon", "initializers", "momentum", "scale")

    takes_mask: ClassVar[bool] = True
    _moving: ClassVar[tuple[str, ...]] = ("moving_mean", "moving_variance")
    _after_inputs: ClassVar[tuple[str, ...]] = ("training", "mask")
    supports_masking: ClassVar[bool] = True

    axis: int
    center: bool
    epsilon: float
    initializers: dict[str, Initializer]
    scale: bool

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        *,
        name: str | None = None,
    ) -> None:
        self.momentum = real(momentum, "BatchNormalization: momentum")
        if not 0 <= self.momentum <= 1:
            raise ValueError(
                f"BatchNormalization: momentum must be in [0, 1], got {momentum!r}"
            )
        initializers = {
            "gamma": gamma_initializer,
            "beta": beta_initializer,
            "moving_mean": moving_mean_initializer,
            "moving_variance": moving_variance_initializer,
        }
        self.axis = integer(axis, "BatchNormalization: axis", None)
        _take(self, epsilon, center, scale, initializers)
        super().__init__(name)

    specs = _specs

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops, of the channels at the end."""
        axes = axes_of_sample(self, scope.builder.shape(inputs[0])[1:])
        if scope.mask is not None and axes == (1,) != (
            len(scope.builder.shape(inputs[0])) - 1,
        ):
            raise ValueError(
                f"layer {self.name!r} (BatchNormalization): axis=1 is that of the "
                "steps, which a mask marks"
            )
        x = moved_last(scope, as_floats(scope.builder, inputs[0]), axes)
        return moved_back(scope, self._normalized(scope, x), axes)

    def _normalized(self, scope: Scope, x: int) -> int:
        """Append the ops and, when training, request the moving averages."""
        weights, attributes = scope.weights, {"epsilon": self.epsilon}
        channels = scope.builder.shape(x)[-1]
        operands = [x, *_gamma_and_beta(self, scope, channels)]
        if not (scope.training and scope.trainable):
            operands += [weights["moving_mean"], weights["moving_variance"]]
            kind = "batch_normalization_inference"
            return scope.apply(kind, operands, attributes)[0]
        if scope.mask is None:
            mean, variance = scope.apply("batch_moments", (x,))
            operands += [mean, variance]
            (y,) = scope.apply("batch_normalization", operands, attributes)
        else:
            y, mean, variance = self._of_counted_steps(scope, scope.mask, *operands)
        scope.move("moving_mean", mean, self.momentum)
        scope.move("moving_variance", variance, self.momentum)
        return y

    def _of_counted_steps(
        self, scope: Scope, mask: int, x: int, gamma: int, beta: int
    ) -> tuple[int, int, int]:
        """Append moments over unmasked steps, and the normalisation of all steps."""
        shape = scope.builder.shape(x)
        over = {"axes": tuple(range(len(shape) - 1)), "keepdims": False}
        wide = spread(scope, mask, shape)
        (count,) = scope.apply("reduce_sum", (wide,), over)

        def mean_of(values: int) -> int:
            total = scope.apply("reduce_sum", (values,), over)
            return scope.apply("divide_no_nan", (*total, count))[0]

        mean = mean_of(*scope.apply("masked", (wide, x)))
        (rows,) = scope.apply("broadcast_to", (mean,), {"shape": shape})
        (centred,) = scope.apply("subtract", (x, rows))
        (counted,) = scope.apply("masked", (wide, centred))
        variance = mean_of(*scope.apply("multiply", (counted, counted)))
        shifted = scope.apply(
            "affine", (variance,), {"factor": 1, "term": self.epsilon}
        )
        (scale,) = scope.apply("inverse_root", shifted, {"least": 0.0})
        (scale,) = scope.apply("multiply", (scale, gamma))
        (rows,) = scope.apply("broadcast_to", (scale,), {"shape": shape})
        (y,) = scope.apply("multiply", (centred, rows))
        return scope.apply("bias", (y, beta))[0], mean, variance


class LayerNormalization(Layer):
    """Normalise axes of each sample by their own mean and variance.

    ``y = gamma * (x - mean) / sqrt(variance + epsilon) + beta``, in training as in
    evaluation and prediction.

    Parameters
    ----------
    axis : int or sequence of int, default -1
        The axis, or several, counted with the batch, which is none of them.
    epsilon : float, default 1e-3
        Added to the variance, positive.
    center, scale : bool, default True
        Whether to add beta and to multiply by gamma.
    beta_initializer : str or Initializer, default "zeros"
        The initializer of beta, of the axes' shape.
    gamma_initializer : str or Initializer, default "ones"
        The initializer of gamma, likewise.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.LayerNormalization()(mc.nn.Input((8,))).shape
    (None, 8)
    """

    __slots__ = ("axis", "center", "epsilon", "initializers", "scale")

    supports_masking: ClassVar[bool] = True

    axis: int | tuple[int, ...]
    center: bool
    epsilon: float
    initializers: dict[str, Initializer]
    scale: bool

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        *,
        name: str | None = None,
    ) -> None:
        initializers = {"gamma": gamma_initializer, "beta": beta_initializer}
        self.axis = _axis(axis, "LayerNormalization")
        _take(self, epsilon, center, scale, initializers)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return gamma and beta, of the shape of the axes."""
        (shape,) = shapes
        lengths = tuple(shape[axis - 1] for axis in axes_of_sample(self, shape))
        return tuple(
            WeightSpec(name, lengths, start)
            for name, start in self.initializers.items()
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op, with the axes at the end, and several flattened to one."""
        axes = axes_of_sample(self, scope.builder.shape(inputs[0])[1:])
        x, count = moved_last(scope, inputs[0], axes), len(axes)
        shape = scope.builder.shape(x)
        length = prod(shape[-count:])
        if count > 1:
            rows = {"shape": (*shape[:-count], length)}
            (x,) = scope.apply("reshape", (x,), rows)
        operands = (x, *_gamma_and_beta(self, scope, length))
        attributes = {"epsilon": self.epsilon}
        y = scope.apply("layer_normalization", operands, attributes)[0]
        if count > 1:
            (y,) = scope.apply("reshape", (y,), {"shape": shape})
        return moved_back(scope, y, axes)


class GroupNormalization(Layer):
    """Normalise groups of channels of each sample by their own mean and variance.

    ``y = gamma * (x - mean) / sqrt(variance + epsilon) + beta``, in training as in
    evaluation and prediction.

    Parameters
    ----------
    groups : int, default 32
        The number of groups of channels; -1 makes each channel a group (instance
        normalization).
    axis : int, default -1
        The channels' axis, counted with the batch, which it is not.
    epsilon : float, default 1e-3
        Added to the variance, positive.
    center, scale : bool, default True
        Whether to add beta and to multiply by gamma.
    beta_initializer : str or Initializer, default "zeros"
        The initializer of beta, of shape ``(channels,)``.
    gamma_initializer : str or Initializer, default "ones"
        The initializer of gamma, likewise.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Wu and He, "Group normalization", ECCV 2018.
    """

    __slots__ = ("axis", "center", "epsilon", "groups", "initializers", "scale")

    supports_masking: ClassVar[bool] = True

    axis: int
    center: bool
    epsilon: float
    initializers: dict[str, Initializer]
    scale: bool

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        *,
        name: str | None = None,
    ) -> None:
        whole = integer(groups, "GroupNormalization: groups", None)
        self.groups = whole if whole == -1 else integer(groups, "groups")
        initializers = {"gamma": gamma_initializer, "beta": beta_initializer}
        self.axis = integer(axis, "GroupNormalization: axis", None)
        _take(self, epsilon, center, scale, initializers)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return gamma and beta; check that the channels divide into groups."""
        specs = _specs(self, shapes)
        (axis,) = axes_of_sample(self, shapes[0])
        channels = shapes[0][axis - 1]
        if channels % (channels if self.groups == -1 else self.groups):
            raise ValueError(
                f"layer {self.name!r} (GroupNormalization): {channels} channels cannot "
                f"be divided into {self.groups} groups"
            )
        return specs

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops, of the channels at the end."""
        axes = axes_of_sample(self, scope.builder.shape(inputs[0])[1:])
        x = moved_last(scope, inputs[0], axes)
        return moved_back(scope, self._normalized(scope, x), axes)

    def _normalized(self, scope: Scope, x: int) -> int:
        """Append the layer normalization of each group, then gamma and beta."""
        shape = scope.builder.shape(x)
        samples, *_, channels = shape
        groups = channels if self.groups == -1 else self.groups
        pixels = prod(shape[1:-1])
        parts, swap = (samples, pixels, groups, channels // groups), (0, 2, 1, 3)
        swapped = tuple(parts[i] for i in swap)
        rows = (samples * groups, pixels * channels // groups)
        (x,) = scope.apply("reshape", (x,), {"shape": parts})
        (x,) = scope.apply("transpose", (x,), {"axes": swap})
        (x,) = scope.apply("reshape", (x,), {"shape": rows})
        one = {"shape": rows[1:], "value": 1.0, "dtype": "float32"}
        (ones,) = scope.apply("fill", (), one)
        (zeros,) = scope.apply("fill", (), one | {"value": 0.0})
        attributes = {"epsilon": self.epsilon}
        y = scope.apply("layer_normalization", (x, ones, zeros), attributes)[0]
        (y,) = scope.apply("reshape", (y,), {"shape": swapped})
        (y,) = scope.apply("transpose", (y,), {"axes": swap})
        (y,) = scope.apply("reshape", (y,), {"shape": shape})
        if self.scale:
            gamma = scope.weights["gamma"]
            (gamma,) = scope.apply("broadcast_to", (gamma,), {"shape": shape})
            (y,) = scope.apply("multiply", (y, gamma))
        if self.center:
            (y,) = scope.apply("bias", (y, scope.weights["beta"]))
        return y


class LocalResponseNormalization(Layer):
    """Divide each element by a norm over its neighbouring channels.

    ``y = x / (bias + alpha * sum(x² of the channels within depth_radius)) ** beta``,
    with the arguments of TensorFlow's op; Keras has no such layer.

    Parameters
    ----------
    depth_radius : int, default 5
        The number of neighbouring channels on each side, at most 127.
    bias : float, default 1.0
        The offset, positive.
    alpha : float, default 1.0
        The factor of the sum of squares, zero or more.
    beta : float, default 0.5
        The exponent.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional
    neural networks", NIPS 2012, section 3.3.
    """

    __slots__ = ("alpha", "beta", "bias", "depth_radius")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        depth_radius: int = 5,
        bias: float = 1.0,
        alpha: float = 1.0,
        beta: float = 0.5,
        *,
        name: str | None = None,
    ) -> None:
        kind = "LocalResponseNormalization"
        self.depth_radius = integer(depth_radius, f"{kind}: depth_radius", 0)
        if not 2 * self.depth_radius < 256:
            raise ValueError(
                f"{kind}: depth_radius must be at most 127, got {depth_radius}"
            )
        self.bias = real(bias, f"{kind}: bias")
        if self.bias <= 0:
            raise ValueError(f"{kind}: bias must be positive, got {bias!r}")
        self.alpha = nonnegative(alpha, f"{kind}: alpha")
        self.beta = real(beta, f"{kind}: beta")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the mean square over a window of channels, and the division."""
        (x,) = inputs
        shape = scope.builder.shape(x)
        size, radius = 2 * self.depth_radius + 1, self.depth_radius
        (squares,) = scope.apply("multiply", (x, x))
        rows = (prod(shape[:-1]), 1, shape[-1], 1)
        (squares,) = scope.apply("reshape", (squares,), {"shape": rows})
        sides = {"before": (0, 0, radius, 0), "after": (0, 0, radius, 0), "value": 0.0}
        (squares,) = scope.apply("pad", (squares,), sides)  # padding counts in the mean
        window = {
            "pool_size": (1, size),
            "strides": (1, 1),
            "padding": ((0, 0), (0, 0)),
        }
        (mean,) = scope.apply("average_pool2d", (squares,), window)
        (mean,) = scope.apply("reshape", (mean,), {"shape": shape})
        attributes = {
            "count": float(size),
            "alpha": self.alpha,
            "beta": self.beta,
            "bias": self.bias,
        }
        return scope.apply("divide_by_local_response", (x, mean), attributes)[0]


def _axis(axis: Any, kind: str) -> int | tuple[int, ...]:
    """Return an axis, or several."""
    what = f"{kind}: axis"
    if isinstance(axis, tuple | list):
        return tuple(integer(each, what, None) for each in axis)
    return integer(axis, what, None)


def _floats(scope: Scope, x: int) -> int:
    """Append a conversion of integers, whose squares would wrap around."""
    if scope.builder.dtype(x) != "int32":
        return x
    return scope.apply("cast", (x,), {"dtype": "float32"})[0]


def _over(scope: Scope, op: str, x: int, axes: Sequence[int]) -> int:
    """Append a reduction of squares, with the axes kept."""
    (squares,) = scope.apply("multiply", (x, x))
    how = {"axes": tuple(axes), "keepdims": True}
    return scope.apply(op, (squares,), how)[0]


def _times_root(scope: Scope, x: int, squares: int, least: float) -> int:
    """Append the quotient by the root of squares, which are at least a number."""
    (factor,) = scope.apply("inverse_root", (squares,), {"least": least})
    shape = {"shape": scope.builder.shape(x)}
    (wide,) = scope.apply("broadcast_to", (factor,), shape)
    return scope.apply("multiply", (x, wide))[0]


class RMSNormalization(Layer):
    """Divide by the root of the mean square along axes, and scale.

    ``y = scale * x / sqrt(mean(x**2) + epsilon)``, in training as in evaluation and
    prediction.

    Parameters
    ----------
    axis : int or sequence of int, default -1
        The axis, or several, counted with the batch, which is none of them.
    epsilon : float, default 1e-6
        Added to the mean square, positive.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.RMSNormalization()(mc.nn.Input((8,))).shape
    (None, 8)
    """

    __slots__ = ("axis", "epsilon")

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-6,
        *,
        name: str | None = None,
    ) -> None:
        self.axis = _axis(axis, "RMSNormalization")
        self.epsilon = _positive(epsilon, "RMSNormalization")
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the scale, of the lengths of the axes."""
        axes = axes_of_sample(self, shapes[0])
        lengths = tuple(shapes[0][axis - 1] for axis in axes)
        return (WeightSpec("scale", lengths, get_initializer("ones")),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        x, shape = _floats(scope, inputs[0]), scope.builder.shape(inputs[0])
        axes = axes_of_sample(self, shape[1:])
        mean = _over(scope, "reduce_mean", x, axes)
        mean = scope.apply("affine", (mean,), {"factor": 1, "term": self.epsilon})[0]
        y = _times_root(scope, x, mean, 0.0)
        lengths = tuple(n if i in axes else 1 for i, n in enumerate(shape))
        scale = scope.weights["scale"]
        (scale,) = scope.apply("reshape", (scale,), {"shape": lengths})
        (scale,) = scope.apply("broadcast_to", (scale,), {"shape": shape})
        return scope.apply("multiply", (y, scale))[0]


class UnitNormalization(Layer):
    """Divide by the Euclidean norm along axes, so that it becomes 1.

    Parameters
    ----------
    axis : int or sequence of int, default -1
        The axis, or several, counted with the batch, which is none of them.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.UnitNormalization()(mc.nn.Input((8,))).shape
    (None, 8)
    """

    __slots__ = ("axis",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, axis: int | Sequence[int] = -1, *, name: str | None = None
    ) -> None:
        self.axis = _axis(axis, "UnitNormalization")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the axes."""
        axes_of_sample(self, shapes[0])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops; a norm below 1e-12 counts as that, as in Keras."""
        axes = axes_of_sample(self, scope.builder.shape(inputs[0])[1:])
        x = _floats(scope, inputs[0])
        total = _over(scope, "reduce_sum", x, axes)
        return _times_root(scope, x, total, _LEAST_NORM**2)

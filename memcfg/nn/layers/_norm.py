"""Normalisation of the last axis: by the batch, and by each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec, show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.initializers import Initializer

__all__ = ["BatchNormalization", "LayerNormalization"]


def _take(
    layer: BatchNormalization | LayerNormalization,
    axis: int,
    epsilon: float,
    whole: bool,
    initializers: dict[str, Any],
) -> None:
    """Check and take the arguments that both layers have."""
    kind = type(layer).__name__
    layer.epsilon = real(epsilon, f"{kind}: epsilon")
    if np.float32(layer.epsilon) <= 0:
        raise ValueError(
            f"{kind}: epsilon must be positive in float32, got {epsilon!r}"
        )
    if not whole:
        raise ValueError(f"{kind}: center=False and scale=False are not supported")
    layer.axis = integer(axis, f"{kind}: axis", None)
    layer.initializers = {
        name: get_initializer(given) for name, given in initializers.items()
    }


def _specs(
    layer: BatchNormalization | LayerNormalization, shapes: Sequence[Shape]
) -> tuple[WeightSpec, ...]:
    """Return a weight of the last axis' length for each initializer."""
    (shape,) = shapes
    if layer.axis not in (-1, len(shape)):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) normalises the last axis "
            f"only, got axis={layer.axis} for an input of shape {show_shape(shape)}"
        )
    return tuple(
        WeightSpec(name, shape[-1:], start, trainable=name in ("gamma", "beta"))
        for name, start in layer.initializers.items()
    )


class BatchNormalization(Layer):
    """Normalise each channel by the batch's mean and variance.

    ``y = gamma * (x - mean) / sqrt(variance + epsilon) + beta``. While training,
    mean and (biased) variance are the batch's, and each moves an average once a
    step: ``moving = momentum * moving + (1 - momentum) * value``. In evaluation
    and prediction the averages are used.

    Parameters
    ----------
    axis : int, default -1
        The channels' axis; only the last can be honoured.
    momentum : float, default 0.99
        The part of a moving average that stays at a step, in ``[0, 1]``.
    epsilon : float, default 1e-3
        Added to the variance, positive.
    center, scale : bool, default True
        Whether there are a beta and a gamma; only True can be honoured yet.
    beta_initializer : str or Initializer, default "zeros"
        For beta, of shape ``(channels,)`` as the others.
    gamma_initializer : str or Initializer, default "ones"
        For gamma.
    moving_mean_initializer : str or Initializer, default "zeros"
        For the moving mean.
    moving_variance_initializer : str or Initializer, default "ones"
        For the moving variance.
    name : str, optional
        Unique within a model.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
    reducing internal covariate shift", ICML 2015.
    """

    __slots__ = ("axis", "epsilon", "initializers", "momentum")

    axis: int
    epsilon: float
    initializers: dict[str, Initializer]

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
        _take(self, axis, epsilon, center and scale, initializers)
        super().__init__(name)

    specs = _specs

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op, and ask for the moving averages when training."""
        weights, attributes = scope.weights, {"epsilon": self.epsilon}
        operands = [inputs[0], weights["gamma"], weights["beta"]]
        if not scope.training:
            operands += [weights["moving_mean"], weights["moving_variance"]]
            kind = "batch_normalization_inference"
            return scope.apply(kind, operands, attributes)[0]
        y, mean, variance = scope.apply("batch_normalization", operands, attributes)
        scope.move("moving_mean", mean, self.momentum)
        scope.move("moving_variance", variance, self.momentum)
        return y


class LayerNormalization(Layer):
    """Normalise the last axis of each sample by its own mean and variance.

    ``y = gamma * (x - mean) / sqrt(variance + epsilon) + beta``, in training as in
    evaluation and prediction.

    Parameters
    ----------
    axis : int, default -1
        The axis; only the last can be honoured.
    epsilon : float, default 1e-3
        Added to the variance, positive.
    center, scale : bool, default True
        Whether there are a beta and a gamma; only True can be honoured yet.
    beta_initializer : str or Initializer, default "zeros"
        For beta, of the axis' length.
    gamma_initializer : str or Initializer, default "ones"
        For gamma, likewise.
    name : str, optional
        Unique within a model.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.LayerNormalization()(mc.nn.Input((8,))).shape
    (None, 8)
    """

    __slots__ = ("axis", "epsilon", "initializers")

    axis: int
    epsilon: float
    initializers: dict[str, Initializer]

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        *,
        name: str | None = None,
    ) -> None:
        initializers = {"gamma": gamma_initializer, "beta": beta_initializer}
        _take(self, axis, epsilon, center and scale, initializers)
        super().__init__(name)

    specs = _specs

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        weights = scope.weights
        operands = (inputs[0], weights["gamma"], weights["beta"])
        attributes = {"epsilon": self.epsilon}
        return scope.apply("layer_normalization", operands, attributes)[0]

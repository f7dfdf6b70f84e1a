"""Batch normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec, show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BatchNormalization"]


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

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
    reducing internal covariate shift", ICML 2015.
    """

    __slots__ = ("axis", "epsilon", "initializers", "momentum")

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
        self.epsilon = real(epsilon, "BatchNormalization: epsilon")
        if not 0 <= self.momentum <= 1:
            raise ValueError(
                f"BatchNormalization: momentum must be in [0, 1], got {momentum!r}"
            )
        if np.float32(self.epsilon) <= 0:
            raise ValueError(
                "BatchNormalization: epsilon must be positive in float32, got "
                f"{epsilon!r}"
            )
        if not (center and scale):
            raise ValueError(
                "BatchNormalization: center=False and scale=False are not supported"
            )
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"BatchNormalization: axis is an integer, not {axis!r}")
        self.axis = axis
        self.initializers = {
            "gamma": get_initializer(gamma_initializer),
            "beta": get_initializer(beta_initializer),
            "moving_mean": get_initializer(moving_mean_initializer),
            "moving_variance": get_initializer(moving_variance_initializer),
        }
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return gamma, beta, moving mean and moving variance."""
        (shape,) = shapes
        if self.axis not in (-1, len(shape)):
            raise ValueError(
                f"layer {self.name!r} (BatchNormalization) normalises the last axis "
                f"only, got axis={self.axis} for an input of shape {show_shape(shape)}"
            )
        return tuple(
            WeightSpec(name, shape[-1:], start, trainable=name in ("gamma", "beta"))
            for name, start in self.initializers.items()
        )

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

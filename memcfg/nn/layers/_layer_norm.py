"""Layer normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec, show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LayerNormalization"]


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

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

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
        self.epsilon = real(epsilon, "LayerNormalization: epsilon")
        if np.float32(self.epsilon) <= 0:
            raise ValueError(
                "LayerNormalization: epsilon must be positive in float32, got "
                f"{epsilon!r}"
            )
        if not (center and scale):
            raise ValueError(
                "LayerNormalization: center=False and scale=False are not supported"
            )
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"LayerNormalization: axis is an integer, not {axis!r}")
        self.axis = axis
        self.initializers = {
            "gamma": get_initializer(gamma_initializer),
            "beta": get_initializer(beta_initializer),
        }
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return gamma and beta."""
        (shape,) = shapes
        if self.axis not in (-1, len(shape)):
            raise ValueError(
                f"layer {self.name!r} (LayerNormalization) normalises the last axis "
                f"only, got axis={self.axis} for an input of shape {show_shape(shape)}"
            )
        return tuple(
            WeightSpec(name, shape[-1:], start)
            for name, start in self.initializers.items()
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        weights = scope.weights
        operands = (inputs[0], weights["gamma"], weights["beta"])
        attributes = {"epsilon": self.epsilon}
        return scope.apply("layer_normalization", operands, attributes)[0]

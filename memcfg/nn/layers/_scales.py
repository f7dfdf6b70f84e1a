"""Factors of the results of residual blocks, as networks of Keras have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.initializers import Constant
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CustomScaleLayer", "LayerScale"]


class LayerScale(Layer):
    """Multiply each channel by a trained factor."""

    __slots__ = ("init_values", "projection_dim")

    def __init__(
        self, init_values: float, projection_dim: int, *, name: str | None = None
    ) -> None:
        self.init_values = real(init_values, "LayerScale: init_values")
        self.projection_dim = integer(projection_dim, "LayerScale: projection_dim")
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the factors."""
        del shapes
        start = Constant(self.init_values)
        return (WeightSpec("gamma", (self.projection_dim,), start),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product."""
        shape = scope.builder.shape(inputs[0])
        factors = scope.weights["gamma"]
        (factors,) = scope.apply("broadcast_to", (factors,), {"shape": shape})
        return scope.apply("multiply", (inputs[0], factors))[0]


class CustomScaleLayer(Layer):
    """Add a number of times the second tensor to the first."""

    __slots__ = ("scale",)

    arity: ClassVar[int | None] = 2

    def __init__(self, scale: float, *, name: str | None = None) -> None:
        self.scale = real(scale, "CustomScaleLayer: scale")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product and the sum."""
        x, y = inputs
        (y,) = scope.apply("affine", (y,), {"factor": self.scale, "term": 0.0})
        return scope.apply("add", (x, y))[0]

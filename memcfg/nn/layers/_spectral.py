"""Spectral normalization of the kernel of another layer."""

from __future__ import annotations

from math import prod
from typing import Any

from memcfg.nn._argument_checks import integer
from memcfg.nn.initializers import TruncatedNormal
from memcfg.nn.layers._layer import Layer, Node, Scope, Variable, input_layer
from memcfg.nn.layers._steps import apply
from memcfg.nn.layers._wrappers import only_layer

__all__ = ["SpectralNormalization"]

_EPSILON = 1e-7  # the least norm that is divided by, as in Keras


class SpectralNormalization(Layer):
    """Divide a layer's kernel by its largest singular value in each training step.

    The kernel is replaced by the quotient, and the optimizer updates that. The singular
    value is found by iterations from a vector that is kept from step to step. The
    vector precedes the kernel in lists of weights; Keras lists it after the kernel.

    Parameters
    ----------
    layer : Layer
        The layer, with a weight ``kernel`` or ``embeddings``, whose last axis is the
        columns of the matrix.
    power_iterations : int, default 1
        The number of iterations in each step.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    ValueError
        If the layer has no such weight.

    References
    ----------
    Miyato et al., "Spectral normalization for generative adversarial networks", ICLR
    2018.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.SpectralNormalization(mc.nn.Dense(4))(mc.nn.Input((3,))).shape
    (None, 4)
    """

    __slots__ = ("layer", "power_iterations", "vector_u")

    vector_u: Variable

    def __init__(
        self, layer: Layer, power_iterations: int = 1, *, name: str | None = None
    ) -> None:
        what = "SpectralNormalization: power_iterations"
        self.power_iterations = integer(power_iterations, what)
        self.layer = only_layer(layer, "SpectralNormalization")
        super().__init__(name)

    def _sublayers(self) -> list[Layer]:
        return [self.layer]

    @property
    def _kernel(self) -> tuple[str, tuple[int, ...]]:
        """The name and the shape of the layer's weight."""
        specs = {spec.name: spec.shape for spec in self.layer.weight_specs or ()}
        for name in ("kernel", "embeddings"):
            if name in specs:
                return name, specs[name]
        raise ValueError(
            f"layer {self.name!r}: {self.layer!r} has no weight named 'kernel' or "
            "'embeddings'"
        )

    def build(self, input_shape: Any = None, *more: Any) -> None:
        """Create the vector, for the columns of the layer's weight.

        Parameters
        ----------
        input_shape : tuple of (int or None)
            The shape of the layer's input.
        *more : tuple of (int or None)
            Ignored: the layer has one input.
        """
        kind = tuple(input_shape[1:]), "float32"
        self.layer(Node(input_layer(*kind), (), [kind]).outputs[0])
        self.vector_u = self.add_weight(
            (1, self._kernel[1][-1]),
            TruncatedNormal(stddev=0.02),
            trainable=False,
            name="vector_u",
        )

    def call(self, inputs: Any) -> Any:
        """Return the layer's result.

        Parameters
        ----------
        inputs : SymbolicTensor
            The layer's input.

        Returns
        -------
        SymbolicTensor
            The result.
        """
        return self.layer(inputs)

    def _prepare(self, scope: Scope) -> None:
        """Append the normalization of the layer's kernel, while training."""
        if not scope.training:
            return
        name = f"{self.layer.name}/{self._kernel[0]}"
        key = f"{scope.name}/{name}"
        if scope.rewritten is None:
            raise ValueError(
                f"layer {self.name!r} (SpectralNormalization) replaces a kernel while "
                "fit trains a model, and not in a function"
            )
        if key not in scope.rewritten:
            scope.rewritten[key] = self._normalized(scope, scope.weights[name])
        scope.weights = {**scope.weights, name: scope.rewritten[key]}

    def _normalized(self, scope: Scope, kernel: int) -> int:
        """Append the iterations; return the quotient, or a kernel of zeros as it is."""
        builder = scope.builder
        dtype, builder.compute_dtype = builder.compute_dtype, "float32"
        shape = builder.shape(kernel)
        rows, columns = prod(shape[:-1]), shape[-1]
        matrix = apply(scope, "reshape", kernel, shape=(rows, columns))
        before = u = scope.weights["vector_u"]
        for _ in range(self.power_iterations):
            (v,) = scope.apply("matmul", (u, matrix), {"transpose_b": True})
            v = self._unit(scope, v)
            (u,) = scope.apply("matmul", (v, matrix))
            u = self._unit(scope, u)
        (image,) = scope.apply("matmul", (v, matrix))
        (sigma,) = scope.apply("matmul", (image, u), {"transpose_b": True})
        wide = apply(scope, "broadcast_to", sigma, shape=(rows, columns))
        (quotient,) = scope.apply("divide_or_zero", (matrix, wide))
        known = apply(scope, "broadcast_to", sigma, shape=(1, columns))
        (u,) = scope.apply("where", (known, u, before))
        scope.move("vector_u", u, 0.0)
        result = apply(scope, "reshape", quotient, shape=shape)
        builder.compute_dtype = dtype
        return result

    def _unit(self, scope: Scope, vector: int) -> int:
        """Append the quotient of a vector by its norm."""
        (squares,) = scope.apply("multiply", (vector, vector))
        total = apply(scope, "reduce_sum", squares, axes=(1,), keepdims=True)
        factor = apply(scope, "inverse_root", total, least=_EPSILON**2)
        shape = scope.builder.shape(vector)
        wide = apply(scope, "broadcast_to", factor, shape=shape)
        return scope.apply("multiply", (vector, wide))[0]

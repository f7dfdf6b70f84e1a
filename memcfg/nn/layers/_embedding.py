"""Vectors of indices: a table whose rows are learnt."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Embedding(Layer):
    """Look up a vector for each index.

    An index out of range is refused in arrays that feed it, and else gives NaN, and
    with it the loss.

    Parameters
    ----------
    input_dim : int
        How many vectors there are; indices are below it.
    output_dim : int
        Their length.
    embeddings_initializer : str or Initializer, default "uniform"
        For the vectors, of shape ``(input_dim, output_dim)``.
    embeddings_regularizer : str or Regularizer, optional
        A penalty on all vectors that is added to the loss.
    embeddings_constraint : None
        Cannot be honoured.
    mask_zero : bool, default False
        Whether index 0 stands for no step: recurrent layers, attention and losses leave
        it out.
    weights : None
        Cannot be honoured: use `set_weights`.
    lora_rank, lora_alpha, quantization_config : None
        Cannot be honoured.
    name : str, optional
        Unique within a model.
    **options : Any
        `input_length`, which Keras ignores with a warning, too.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Embedding(1000, 16)(mc.nn.Input((20,))).shape
    (None, 20, 16)
    """

    __slots__ = ("embeddings_initializer", "input_dim", "mask_zero", "output_dim")

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: None = None,
        mask_zero: bool = False,
        weights: None = None,
        lora_rank: None = None,
        lora_alpha: None = None,
        quantization_config: None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if options.pop("input_length", None) is not None:
            warnings.warn(
                "Embedding: input_length is ignored, the input's shape says it",
                DeprecationWarning,
                stacklevel=2,
            )
        if options:
            raise TypeError(f"Embedding has no argument {', '.join(sorted(options))}")
        if weights is not None:
            raise ValueError(
                "Embedding: weights must be None; call set_weights on the model, or "
                "pass an initializer"
            )
        for what, value in (
            ("embeddings_constraint", embeddings_constraint),
            ("lora_rank", lora_rank),
            ("lora_alpha", lora_alpha),
            ("quantization_config", quantization_config),
        ):
            if value is not None:
                raise ValueError(f"Embedding: {what} must be None, got {value!r}")
        self.input_dim = integer(input_dim, "Embedding: input_dim")
        self.output_dim = integer(output_dim, "Embedding: output_dim")
        self.embeddings_initializer = get_initializer(embeddings_initializer)
        self.mask_zero = bool(mask_zero)
        super().__init__(name)
        self._take("embeddings_regularizer", embeddings_regularizer)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the table."""
        shape = (self.input_dim, self.output_dim)
        return (WeightSpec("embeddings", shape, self.embeddings_initializer),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op, and the mask; floats become indices first, as in Keras."""
        (indices,), builder = inputs, scope.builder
        if builder.dtype(indices) != "int32":
            (indices,) = scope.apply("cast", (indices,), {"dtype": "int32"})
        if self.mask_zero and len(builder.shape(indices)) == 2:
            (numbers,) = scope.apply("cast", (indices,), {"dtype": "float32"})
            (scope.mask,) = scope.apply("unequal", (numbers,), {"to": 0.0})
        return scope.apply("gather", (scope.weights["embeddings"], indices))[0]

"""Embedding layers: trained tables of vectors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import integer
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec
from memcfg.nn.layers._low_rank import _Adaptable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["Embedding", "PositionEmbedding", "ReversibleEmbedding"]


class Embedding(_Adaptable):
    """Look up a vector for each index.

    An index out of range raises an error if it comes from an input array. Otherwise its
    vector, and with it the loss, is NaN.

    Parameters
    ----------
    input_dim : int
        The number of vectors; indices are smaller.
    output_dim : int
        The length of the vectors.
    embeddings_initializer : str or Initializer, default "uniform"
        The initializer of the vectors, of shape ``(input_dim, output_dim)``.
    embeddings_regularizer : str or Regularizer, optional
        A penalty on all vectors added to the loss.
    embeddings_constraint : None
        Not supported.
    mask_zero : bool, default False
        Whether index 0 marks a padded step, which recurrent layers, attention and
        losses ignore.
    weights : None
        Not supported; use `set_weights`.
    lora_rank : int, optional
        Freezes the vectors, and trains an addition of this rank, as `enable_lora` does.
    lora_alpha : float, optional
        The addition is scaled by ``lora_alpha / lora_rank``; by default `lora_rank`.
    quantization_config : None
        Not supported.
    name : str, optional
        The name, unique within a model.
    **options : Any
        `input_length`, which is ignored with a warning, as in Keras.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Embedding(1000, 16)(mc.nn.Input((20,))).shape
    (None, 20, 16)
    """

    __slots__ = ("embeddings_initializer", "input_dim", "mask_zero", "output_dim")

    _adapted: ClassVar[str] = "embeddings"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        quantization_config: None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if options.pop("input_length", None) is not None:
            warnings.warn(
                "Embedding: input_length is ignored; the length is that of the input",
                DeprecationWarning,
                stacklevel=2,
            )
        if options:
            raise TypeError(
                f"Embedding got unexpected arguments: {', '.join(sorted(options))}"
            )
        if weights is not None:
            raise ValueError(
                "Embedding: weights must be None; call set_weights on the model, or "
                "pass an initializer"
            )
        if quantization_config is not None:
            raise ValueError(
                "Embedding: quantization_config must be None, got "
                f"{quantization_config!r}"
            )
        self._begin_low_rank(lora_rank, lora_alpha)
        self.input_dim = integer(input_dim, "Embedding: input_dim")
        self.output_dim = integer(output_dim, "Embedding: output_dim")
        self.embeddings_initializer = get_initializer(embeddings_initializer)
        self.mask_zero = bool(mask_zero)
        super().__init__(name)
        self._take("embeddings_regularizer", embeddings_regularizer)
        self._take("embeddings_constraint", embeddings_constraint)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the table."""
        shape = (self.input_dim, self.output_dim)
        table = WeightSpec("embeddings", shape, self.embeddings_initializer)
        return self._with_low_rank([table])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op and the mask; floats are converted to indices, as in Keras."""
        (indices,), builder = inputs, scope.builder
        if builder.dtype(indices) != "int32":
            (indices,) = scope.apply("cast", (indices,), {"dtype": "int32"})
        if self.mask_zero and len(builder.shape(indices)) == 2:
            (numbers,) = scope.apply("cast", (indices,), {"dtype": "float32"})
            (scope.mask,) = scope.apply("unequal", (numbers,), {"to": 0.0})
        (y,) = scope.apply("gather", (scope.weights["embeddings"], indices))
        if not self.lora_enabled:
            return y
        a = scope.weights["lora_embeddings_a"]
        return self._through(scope, y, *scope.apply("gather", (a, indices)))


class _Rows(Layer):
    """Take rows of a table by indices."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op; floats are converted to indices, as in Keras."""
        table, indices = inputs
        if scope.builder.dtype(indices) != "int32":
            (indices,) = scope.apply("cast", (indices,), {"dtype": "int32"})
        return scope.apply("gather", (table, indices))[0]


class _Scores(Layer):
    """Multiply each vector by all rows of a table."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("matmul", inputs, {"transpose_b": True})[0]


class ReversibleEmbedding(Layer):
    """Look up a vector for each index, or multiply vectors by the transposed table.

    A call with ``reverse=True`` multiplies by the transposed table, so that the last
    layer of a language model shares its weight with the first. There is no bias.

    Parameters
    ----------
    input_dim : int
        The number of vectors; indices are smaller.
    output_dim : int
        The length of the vectors.
    tie_weights : bool, default True
        Must be True; for separate weights use `Embedding` and `Dense`.
    embeddings_initializer : str or Initializer, default "uniform"
        The initializer of the vectors, of shape ``(input_dim, output_dim)``.
    embeddings_regularizer : str or Regularizer, optional
        A penalty on all vectors added to the loss.
    embeddings_constraint : None
        Not supported.
    mask_zero : bool, default False
        Must be False.
    reverse_dtype, logit_soft_cap : None
        Not supported.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Press and Wolf, "Using the output embedding to improve language models", EACL 2017.

    Examples
    --------
    >>> import memcfg as mc
    >>> words = mc.nn.ReversibleEmbedding(1000, 16)
    >>> x = words(mc.nn.Input((20,), dtype="int32"))
    >>> words(x, reverse=True).shape
    (None, 20, 1000)
    """

    __slots__ = ("embeddings_initializer", "input_dim", "output_dim", "tie_weights")

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        reverse_dtype: None = None,
        logit_soft_cap: None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "ReversibleEmbedding"
        for what, value, only in (
            ("tie_weights", bool(tie_weights), True),
            ("mask_zero", bool(mask_zero), False),
            ("reverse_dtype", reverse_dtype, None),
            ("logit_soft_cap", logit_soft_cap, None),
        ):
            if value is not only:
                raise ValueError(f"{kind}: {what} must be {only}, got {value!r}")
        self.tie_weights = True
        self.input_dim = integer(input_dim, f"{kind}: input_dim")
        self.output_dim = integer(output_dim, f"{kind}: output_dim")
        self.embeddings_initializer = get_initializer(embeddings_initializer)
        super().__init__(name)
        self._take("embeddings_regularizer", embeddings_regularizer)
        self._take("embeddings_constraint", embeddings_constraint)

    def build(self, input_shape: Any = None) -> None:
        """Create the table.

        Parameters
        ----------
        input_shape : tuple of (int or None)
            The shape of the first call's input.
        """
        self.add_weight(
            (self.input_dim, self.output_dim),
            self.embeddings_initializer,
            regularizer=self._regularizers.get("embeddings"),
            constraint=self._constraints.get("embeddings"),
            name="embeddings",
        )

    def call(self, inputs: Any, reverse: bool = False) -> SymbolicTensor:
        """Look up vectors, or multiply by the transposed table.

        Parameters
        ----------
        inputs : SymbolicTensor
            Indices or, with `reverse`, vectors along the last axis.
        reverse : bool, default False
            Whether to multiply by the transposed table.

        Returns
        -------
        SymbolicTensor
            Vectors or, with `reverse`, a score for each vector of the table.
        """
        (table,) = self._own
        layer, operands = (
            (_Scores, [inputs, table]) if reverse else (_Rows, [table, inputs])
        )
        result: SymbolicTensor = layer()(operands)
        return result


class PositionEmbedding(Layer):
    """Return a trained vector for each position of sequences ``(N, L, C)``.

    Parameters
    ----------
    sequence_length : int
        The number of vectors; sequences may be shorter.
    initializer : str or Initializer, default "glorot_uniform"
        The initializer of the vectors, of shape ``(sequence_length, C)``.
    name : str, optional
        The name, unique within a model.

    Notes
    -----
    The layer has KerasHub's name, arguments and result. Add the result to the input.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((20, 16))
    >>> mc.nn.Add()([x, mc.nn.PositionEmbedding(64)(x)]).shape
    (None, 20, 16)
    """

    __slots__ = ("initializer", "sequence_length")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        sequence_length: int,
        initializer: Any = "glorot_uniform",
        *,
        name: str | None = None,
    ) -> None:
        kind = "PositionEmbedding"
        self.sequence_length = integer(sequence_length, f"{kind}: sequence_length")
        self.initializer = get_initializer(initializer)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the table; ValueError for sequences longer than it."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, channels)")
        steps, channels = shapes[0]
        if steps > self.sequence_length:
            raise ValueError(
                f"layer {self.name!r} (PositionEmbedding) has vectors for "
                f"{self.sequence_length} steps, but its input has {steps}"
            )
        shape = (self.sequence_length, channels)
        return (WeightSpec("position_embeddings", shape, self.initializer),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops that repeat the table for each sample."""
        shape = scope.builder.shape(inputs[0])
        _, steps, channels = shape
        table = scope.weights["position_embeddings"]
        if steps < self.sequence_length:
            part = {"begin": (0, 0), "end": (steps, channels)}
            (table,) = scope.apply("slice", (table,), part)
        (table,) = scope.apply("reshape", (table,), {"shape": (1, steps, channels)})
        return scope.apply("broadcast_to", (table,), {"shape": shape})[0]

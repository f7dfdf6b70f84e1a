"""Attention layers: means of values, weighted by scores of queries and keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from memcfg.nn._argument_checks import integer, unit_interval
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._einsum import for_units
from memcfg.nn.layers._flash_setting import flash_or_default
from memcfg.nn.layers._layer import (
    Layer,
    Scope,
    Shape,
    Variable,
    WeightSpec,
    are_arrays,
    with_mask,
)
from memcfg.nn.layers._masking import spread
from memcfg.nn.layers._operators import ForEachSample, constant_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Node

__all__ = [
    "AdditiveAttention",
    "Attention",
    "GroupQueryAttention",
    "MultiHeadAttention",
]

_MASKED = 1e9  # subtracted from the scores of masked keys, as in Keras


class CallOptions(NamedTuple):
    """The optional operands and modes of a call."""

    key: bool = False
    mask: bool = False
    scores: bool = False
    causal: bool = False


class _Attending:
    """Base of the attention layers."""

    __slots__ = ()

    dropout: float
    _call: CallOptions | None

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True  # passes on the query's mask

    def __init__(self: Any, dropout: float, seed: int | None, name: str | None) -> None:
        self.dropout = unit_interval(dropout, f"{type(self).__name__}: dropout")
        self._call = None
        fixed = fixed_seed(seed)
        Layer.__init__(self, name)
        if fixed is not None:
            self._seed = fixed

    def _note(self: Any, call: CallOptions) -> None:
        """Record the arguments of a call, which all calls of a layer must share."""
        if self._call is not None and self._call != call:
            raise ValueError(
                f"layer {self.name!r} was already called with other arguments: use "
                "another layer"
            )
        self._call = call

    def _computed(self: Any, *args: Any) -> Any:
        """Return the result of a call on arrays, which may differ from other calls."""
        before, self._call = self._call, None
        try:
            return Variable.functions.at_once(self, args, {})
        finally:
            self._call = before

    def _arguments_of(self: Any, node: Node) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the list of sequences, and the options of the call."""
        _, options = node.details or ((), {})
        flags = {
            "return_attention_scores": self._options.scores,
            "use_causal_mask": self._options.causal,
        }
        given = dict(options) | {key: True for key, each in flags.items() if each}
        if isinstance(self, Attention | AdditiveAttention):
            return (list(node.inputs),), given
        first, (*rest,) = node.inputs[:2], node.inputs[2:]
        for name in ("key", "mask"):
            if getattr(self._options, name):
                given["attention_mask" if name == "mask" else name] = rest.pop(0)
        return first, given

    @property
    def _options(self: Any) -> CallOptions:
        return CallOptions() if self._call is None else self._call

    def _drops(self: Any, scope: Scope) -> bool:
        """Return whether dropout is applied to the scores."""
        return bool(self.dropout and scope.training and scope.step is not None)

    def _attend_in_blocks(
        self: Any,
        scope: Scope,
        heads: Sequence[int],
        masks: Sequence[int],
        scale: float,
    ) -> int:
        """Append the op that does not store the scores; axis 1 is the steps."""
        attributes = {"scale": scale}
        operands = [*heads, *masks]
        if self._options.causal:
            attributes["causal"] = True
        if scope.step is not None and self._drops(scope):
            attributes |= self._dropout(scope)
            operands.append(scope.step())
        return scope.apply("scaled_dot_product_attention", operands, attributes)[0]

    def _dropout(self: Any, scope: Scope) -> dict[str, Any]:
        """Return the attributes of dropout."""
        return {"rate": self.dropout, "key": derive_seed(self._seed, scope.call)}

    def _attend(
        self: Any, scope: Scope, scores: int, value: int, mask: int | None
    ) -> tuple[int, int]:
        """Append softmax, dropout and the weighted mean, with a mask for the scores."""
        if mask is not None:
            wide = _broadcast(scope, mask, scope.builder.shape(scores))
            bias = _apply(scope, "affine", wide, factor=_MASKED, term=-_MASKED)
            (scores,) = scope.apply("add", (scores, bias))
        causal = {"causal": True} if self._options.causal else {}
        (weights,) = scope.apply("softmax", (scores,), {"axis": -1, **causal})
        dropped = weights
        if scope.step is not None and self._drops(scope):
            operands = (weights, scope.step())
            (dropped,) = scope.apply("dropout", operands, self._dropout(scope))
        return scope.apply("matmul", (dropped, value))[0], weights


def _apply(scope: Scope, kind: str, tensor: int, **attributes: Any) -> int:
    """Append an op of one input and one output."""
    return scope.apply(kind, (tensor,), attributes)[0]


def _broadcast(scope: Scope, tensor: int, shape: Shape) -> int:
    if scope.builder.shape(tensor) == shape:
        return tensor
    return _apply(scope, "broadcast_to", tensor, shape=shape)


def _reshape(scope: Scope, tensor: int, *shape: int) -> int:
    return _apply(scope, "reshape", tensor, shape=shape)


def _build(layer: Any, query: Any, value: Any, key: Any) -> None:
    """Create the weights of a layer of heads for shapes, or for a list of them."""
    shapes = [query, value, key] if value is not None else [*query]
    given = [each for each in shapes if each is not None]
    before, layer._call = layer._call, CallOptions(key=len(given) > 2)
    try:
        Layer.build(layer, given)
    finally:
        layer._call = before


def _shape_of_result(layer: Any, *shapes: Any) -> Any:
    """Return the shape of the result of sequences of given shapes, or None."""
    before, layer._call = layer._call, None
    try:
        given = [each for each in shapes if each is not None]
        return Layer.compute_output_shape(layer, *given)
    finally:
        layer._call = before


class Attention(_Attending, Layer):
    """Dot-product attention of ``[query, value]`` or ``[query, value, key]``.

    Parameters
    ----------
    use_scale : bool, default False
        Whether to multiply the scores by a weight of shape ``()``.
    score_mode : str, default "dot"
        ``"dot"``, or ``"concat"`` for the sum of ``tanh(query + key)``.
    dropout : float, default 0.0
        The fraction of the scores to drop while training.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Luong, Pham and Manning, "Effective approaches to attention-based neural machine
    translation", EMNLP 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Attention()([mc.nn.Input((7, 3)), mc.nn.Input((5, 3))]).shape
    (None, 7, 3)
    """

    __slots__ = ("_call", "dropout", "score_mode", "use_scale")

    takes_mask: ClassVar[bool] = True
    _keeps_first_mask: ClassVar[bool] = True

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if score_mode not in ("dot", "concat"):
            raise ValueError(
                f"Attention: score_mode must be 'dot' or 'concat', got {score_mode!r}"
            )
        self.use_scale = bool(use_scale)
        self.score_mode = score_mode
        super().__init__(dropout, seed, name)

    def __call__(
        self: Any,
        inputs: Any,
        mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        """Connect the layer to ``[query, value]`` or ``[query, value, key]``.

        `mask` is a list of the masks of query and value, or None for either.
        """
        if are_arrays(inputs, mask):
            options = (mask, training, return_attention_scores, use_causal_mask)
            return self._computed(inputs, *options)
        if not isinstance(inputs, list | tuple) or len(inputs) not in (2, 3):
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) must be called on a list "
                "[query, value] or [query, value, key]"
            )
        self._note(
            CallOptions(
                len(inputs) == 3,
                scores=bool(return_attention_scores),
                causal=bool(use_causal_mask),
            )
        )
        return Layer.__call__(self, inputs, mask=mask, training=training)

    def _masked(self: Any, inputs: Any, mask: Any) -> Any:
        """Return inputs with the masks of a list."""
        if not isinstance(mask, list | tuple) or len(mask) > len(inputs):
            raise TypeError(
                f"layer {self.name!r}: mask must be a list of the masks of query and "
                f"value, got {mask!r}"
            )
        masks = [*mask, *[None] * (len(inputs) - len(mask))]
        return [with_mask(*both, self.name) for both in zip(inputs, masks, strict=True)]

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Check the shapes and return the weights of the scores."""
        for shape in shapes:
            self.require_rank(shape, 2, "sequences (None, steps, features)")
        result = []
        if self.use_scale:
            result.append(WeightSpec("scale", (), get_initializer("ones")))
        if self.score_mode == "concat":
            ones = get_initializer("ones")
            result.append(WeightSpec("concat_score_weight", (), ones))
        return tuple(result)

    @property
    def _has_products(self) -> bool:
        """Whether scores are products of queries and keys."""
        return self.score_mode == "dot"

    def _scores(self, scope: Scope, query: int, key: int) -> int:
        if self.score_mode == "concat":
            total = _pairs(scope, query, key)
            if self.use_scale:
                (total,) = scope.apply("scale", (total, scope.weights["scale"]))
            squashed = _apply(scope, "tanh", total)
            scores = _apply(scope, "reduce_sum", squashed, axes=(3,), keepdims=False)
            by = scope.weights["concat_score_weight"]
            return scope.apply("scale", (scores, by))[0]
        (scores,) = scope.apply("matmul", (query, key), {"transpose_b": True})
        if self.use_scale:
            (scores,) = scope.apply("scale", (scores, scope.weights["scale"]))
        return scores

    def trace(self: Any, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the attention; outputs of masked queries become zeros."""
        query, value = inputs[:2]
        key = inputs[2] if self._options.key else value
        builder = scope.builder
        own, mask, *_ = scope.masks or (None, None)
        if mask is not None:
            batch, steps = builder.shape(mask)
            mask = _reshape(scope, mask, batch, 1, steps)
        weights = None
        if self._has_products and not self._options.scores:
            if self.use_scale:
                (query,) = scope.apply("scale", (query, scope.weights["scale"]))
            masks = () if mask is None else (mask,)
            y = self._attend_in_blocks(scope, (query, key, value), masks, 1.0)
        else:
            scores = self._scores(scope, query, key)
            y, weights = self._attend(scope, scores, value, mask)
        if own is not None:
            wide = spread(scope, own, builder.shape(y))
            (y,) = scope.apply("masked", (wide, y))
        return (y, weights) if self._options.scores else y


def _pairs(scope: Scope, query: int, key: int) -> int:
    """Append the sums of all pairs, [batch, queries, keys, features]."""
    batch, queries, features = scope.builder.shape(query)
    keys = scope.builder.shape(key)[1]
    shape = (batch, queries, keys, features)
    wide = (
        _broadcast(scope, _reshape(scope, query, batch, queries, 1, features), shape),
        _broadcast(scope, _reshape(scope, key, batch, 1, keys, features), shape),
    )
    return scope.apply("add", wide)[0]


class AdditiveAttention(_Attending, Layer):
    """Additive attention of ``[query, value]`` or ``[query, value, key]``.

    Parameters
    ----------
    use_scale : bool, default True
        Whether to multiply the features by a weight of shape ``(features,)``.
    dropout : float, default 0.0
        The fraction of the scores to drop while training.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align
    and translate", ICLR 2015.
    """

    __slots__ = ("_call", "dropout", "use_scale")

    _has_products: ClassVar[bool] = False

    takes_mask: ClassVar[bool] = True
    _keeps_first_mask: ClassVar[bool] = True
    _masked = Attention._masked
    __call__ = Attention.__call__
    trace = Attention.trace

    def __init__(
        self,
        use_scale: bool = True,
        dropout: float = 0.0,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.use_scale = bool(use_scale)
        super().__init__(dropout, seed, name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Check the shapes and return the weights of the features."""
        for shape in shapes:
            self.require_rank(shape, 2, "sequences (None, steps, features)")
        if not self.use_scale:
            return ()
        start = get_initializer("glorot_uniform")
        return (WeightSpec("scale", shapes[0][-1:], start),)

    def _scores(self, scope: Scope, query: int, key: int) -> int:
        squashed = _apply(scope, "tanh", _pairs(scope, query, key))
        if not self.use_scale:
            return _apply(scope, "reduce_sum", squashed, axes=(3,), keepdims=False)
        shape = scope.builder.shape(squashed)
        kernel = _reshape(scope, scope.weights["scale"], shape[3], 1)
        (scores,) = scope.apply("dense", (squashed, kernel))
        return _reshape(scope, scores, *shape[:3])


class MultiHeadAttention(_Attending, Layer):
    """Attention of several heads, each on its own projections.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    key_dim : int
        The number of features of each head's queries and keys.
    value_dim : int, optional
        The number of features of each head's values, by default `key_dim`.
    dropout : float, default 0.0
        The fraction of the scores to drop while training.
    use_bias : bool, default True
        Whether the projections have biases.
    output_shape : int or sequence of int, optional
        The number of features of the output, by default those of the query.
    attention_axes, sliding_window : None
        Not supported; attention is over all steps.
    flash_attention : bool, optional
        Whether to compute the scores in blocks, forward and backward, without storing
        all of them (Dao et al.). By default True, unless the scores are returned or
        `nn.config.disable_flash_attention` was called.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernels of the projections, of shape ``(features, heads,
        dim)``, and of the output, of shape ``(heads, value_dim, features)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the biases.
    kernel_regularizer, bias_regularizer : str or Regularizer, optional
        Penalties on all kernels and on all biases added to the loss.
    activity_regularizer : str or Regularizer, optional
        A penalty on the output.
    kernel_constraint, bias_constraint : str or Constraint, optional
        What is done to all kernels and to all biases after each update.
    use_gate : bool, default False
        Must be False.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Vaswani et al., "Attention is all you need", NeurIPS 2017.

    Dao, Fu, Ermon, Rudra and Re, "FlashAttention: fast and memory-efficient exact
    attention with IO-awareness", NeurIPS 2022.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((7, 16))
    >>> mc.nn.MultiHeadAttention(num_heads=2, key_dim=8)(x, x).shape
    (None, 7, 16)
    """

    __slots__ = (
        "_call",
        "bias_initializer",
        "dropout",
        "flash_attention",
        "kernel_initializer",
        "key_dim",
        "num_heads",
        "output_shape",
        "use_bias",
        "value_dim",
    )

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _refuse_all(
            "MultiHeadAttention",
            attention_axes=None if attention_axes in (1, (1,), [1]) else attention_axes,
            sliding_window=sliding_window,
            use_gate=use_gate or None,
        )
        kind = "MultiHeadAttention"
        self.num_heads = integer(num_heads, f"{kind}: num_heads")
        self.key_dim = integer(key_dim, f"{kind}: key_dim")
        value_dim = key_dim if value_dim is None else value_dim
        self.value_dim = integer(value_dim, f"{kind}: value_dim")
        if isinstance(output_shape, list | tuple) and output_shape:
            given: Any = tuple(integer(n, "output_shape") for n in output_shape)
        else:
            given = (
                None if output_shape is None else integer(output_shape, "output_shape")
            )
        self.output_shape: int | tuple[int, ...] | None = given
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        super().__init__(dropout, seed, name)
        self.flash_attention = flash_or_default(flash_attention)
        for argument, value in (
            ("kernel_regularizer", kernel_regularizer),
            ("bias_regularizer", bias_regularizer),
            ("activity_regularizer", activity_regularizer),
            ("kernel_constraint", kernel_constraint),
            ("bias_constraint", bias_constraint),
        ):
            if value is not None:
                self._take(argument, value)

    def _regularized(self, specs: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
        """Set what is for all kernels, and for all biases."""
        result = []
        for spec in specs:
            kind = spec.name.rpartition("_")[2]
            penalty, bound = self._regularizers.get(kind), self._constraints.get(kind)
            result.append(replace(spec, regularizer=penalty, constraint=bound))
        return tuple(result)

    def __call__(
        self,
        query: Any,
        value: Any = None,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Connect the layer to a query, a value and optionally a key.

        `attention_mask`, of shape (batch, queries, keys), is 1 where a query may attend
        to a key. The other masks, of shape (batch, steps), replace those that come with
        the sequences.
        """
        if value is None:
            raise TypeError(
                f"layer {self.name!r} must be called as layer(query, value)"
            )
        masks = query_mask, value_mask, key_mask, attention_mask
        if are_arrays(query, value, key, masks):
            modes = return_attention_scores, training, use_causal_mask
            return self._computed(query, value, key, *masks, *modes)
        if self.flash_attention and return_attention_scores:
            raise ValueError(
                f"layer {self.name!r}: with flash_attention=True there are no scores "
                "to return"
            )
        if key is None and key_mask is not None:
            key = value
        query = with_mask(query, query_mask, self.name)
        value = with_mask(value, value_mask, self.name)
        key = with_mask(key, key_mask, self.name)
        if isinstance(attention_mask, np.ndarray):
            attention_mask = self._for_each_sample(attention_mask, query)
        optional = [each for each in (key, attention_mask) if each is not None]
        self._note(
            CallOptions(
                key is not None,
                attention_mask is not None,
                bool(return_attention_scores),
                bool(use_causal_mask),
            )
        )
        return Layer.__call__(self, [query, value, *optional], training=training)

    def _for_each_sample(self, mask: np.ndarray, query: Any) -> Any:
        """Return an array of (1, queries, keys) as the mask of all samples."""
        if mask.ndim == 3 and len(mask) == 1:
            mask = mask[0]
        if mask.ndim != 2:
            raise ValueError(
                f"layer {self.name!r}: an array as attention_mask has shape "
                f"(1, queries, keys), got {mask.shape}: pass others as an Input"
            )
        return ForEachSample()([constant_tensor(mask), query])

    def build(  # type: ignore[override]
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        """Create the weights for the shapes of the query, the value and the key."""
        _build(self, query_shape, value_shape, key_shape)

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any, key_shape: Any = None
    ) -> Any:
        """Return the shape of the result for those of the query, value and key."""
        return _shape_of_result(self, query_shape, value_shape, key_shape)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias of query, key, value and output."""
        query, value = shapes[:2]
        key = shapes[2] if self._options.key else value
        _check_sequences(self, query, value, key)
        result = []
        for part, features, size in (
            ("query", query[-1], self.key_dim),
            ("key", key[-1], self.key_dim),
            ("value", value[-1], self.value_dim),
        ):
            shape = (features, self.num_heads, size)
            result += self._pair(part, shape, shape[1:])
        wanted = query[-1] if self.output_shape is None else self.output_shape
        lengths = wanted if isinstance(wanted, tuple) else (wanted,)
        last = (self.num_heads, self.value_dim, *lengths)
        return (*result, *self._pair("attention_output", last, last[2:]))

    def _pair(self, part: str, shape: Shape, bias: Shape) -> list[WeightSpec]:
        result = [WeightSpec(f"{part}_kernel", shape, self.kernel_initializer)]
        if self.use_bias:
            result.append(WeightSpec(f"{part}_bias", bias, self.bias_initializer))
        return result

    def _project(self, scope: Scope, part: str, x: int) -> int:
        """Append a projection to heads: [batch, steps, heads, size]."""
        batch, steps, _ = scope.builder.shape(x)
        kernel = scope.weights[f"{part}_kernel"]
        features, heads, size = scope.builder.shape(kernel)
        width = heads * size
        kernel = _reshape(scope, kernel, features, width)
        (y,) = scope.apply("dense", (x, kernel))
        if self.use_bias:
            bias = _reshape(scope, scope.weights[f"{part}_bias"], width)
            (y,) = scope.apply("bias", (y, bias))
        return _reshape(scope, y, batch, steps, heads, size)

    def _heads(self, scope: Scope, *sequences: int) -> tuple[int, ...]:
        """Append the projections of query, key and value."""
        parts = zip(("query", "key", "value"), sequences, strict=True)
        return tuple(self._project(scope, *each) for each in parts)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the projections, the attention and the output projection."""
        options, builder = self._options, scope.builder
        query, value = inputs[:2]
        key = inputs[2] if options.key else value
        batch, steps, _ = builder.shape(query)
        masks = self._masks(scope, inputs)
        heads = self._heads(scope, query, key, value)
        weights = None
        if options.scores or self.flash_attention is False:
            y, weights = self._attend_to_all(scope, heads, masks)
        else:
            scale = 1 / math.sqrt(builder.shape(heads[0])[-1])
            y = self._attend_in_blocks(scope, heads, masks, scale)
        out = scope.weights["attention_output_kernel"]
        count, size, *lengths = builder.shape(out)
        width, features = count * size, math.prod(lengths)
        rows = _reshape(scope, y, batch, steps, width)
        kernel = _reshape(scope, out, width, features)
        (y,) = scope.apply("dense", (rows, kernel))
        if self.use_bias:
            bias = scope.weights["attention_output_bias"]
            if len(lengths) > 1:
                bias = _reshape(scope, bias, features)
            (y,) = scope.apply("bias", (y, bias))
        if len(lengths) > 1:
            y = _reshape(scope, y, batch, steps, *lengths)
        return (y, weights) if options.scores else y

    def _attend_to_all(
        self, scope: Scope, heads: Sequence[int], masks: Sequence[int]
    ) -> tuple[int, int]:
        """Append the attention with a stored matrix of scores for each head."""
        turn = {"axes": (0, 2, 1, 3)}
        q, k, v = (scope.apply("transpose", (each,), turn)[0] for each in heads)
        scale = 1 / math.sqrt(scope.builder.shape(q)[-1])
        q = _apply(scope, "affine", q, factor=scale, term=0.0)
        (scores,) = scope.apply("matmul", (q, k), {"transpose_b": True})
        y, weights = self._attend(scope, scores, v, _product(scope, masks))
        return scope.apply("transpose", (y,), turn)[0], weights

    def _masks(self, scope: Scope, inputs: Sequence[int]) -> list[int]:
        """Append all masks, of shapes [batch, queries or 1, keys or 1]."""
        builder = scope.builder
        own, *others = scope.masks[: 3 if self._options.key else 2] or [None]
        result = []
        if own is not None:
            result.append(_reshape(scope, own, *builder.shape(own), 1))
        for mask in dict.fromkeys(others):
            if mask is not None:
                batch, keys = builder.shape(mask)
                result.append(_reshape(scope, mask, batch, 1, keys))
        if self._options.mask:
            given = inputs[-1]
            if builder.dtype(given) != "float32":
                given = _apply(scope, "cast", given, dtype="float32")
            result.append(given)
        return result


def _check_sequences(layer: Layer, query: Shape, value: Shape, key: Shape) -> None:
    """Raise ValueError if shapes of samples are not those of sequences."""
    for shape in (query, value, key):
        layer.require_rank(shape, 2, "sequences (None, steps, features)")
    if key[0] != value[0]:
        raise ValueError(
            f"layer {layer.name!r}: value has {value[0]} steps, but key has {key[0]}"
        )


def _refuse_all(kind: str, **arguments: Any) -> None:
    """Raise ValueError for an argument that is not None."""
    for argument, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"{kind}: {argument} is not supported and must be left out, got "
                f"{value!r}; attention is over all steps"
            )


class GroupQueryAttention(_Attending, Layer):
    """Attention of several heads, groups of which share their keys and values.

    It is called like `MultiHeadAttention`.

    Parameters
    ----------
    head_dim : int
        The number of features of each head.
    num_query_heads : int
        The number of heads, a multiple of `num_key_value_heads`.
    num_key_value_heads : int
        The number of heads of keys and values: 1 is multi-query attention.
    dropout : float, default 0.0
        The fraction of the scores to drop while training.
    use_bias : bool, default True
        Whether the projections have biases.
    sliding_window : None
        Not supported; attention is over all steps.
    flash_attention : bool, optional
        Whether to compute the scores in blocks, as for `MultiHeadAttention`.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernels of the projections, of shape ``(features, heads,
        head_dim)``, and of the output, of shape ``(heads, head_dim, features)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the biases.
    kernel_regularizer, bias_regularizer : str or Regularizer, optional
        Penalties on all kernels and on all biases added to the loss.
    activity_regularizer : str or Regularizer, optional
        A penalty on the output.
    kernel_constraint, bias_constraint : str or Constraint, optional
        What is done to all kernels and to all biases after each update.
    use_gate : bool, default False
        Must be False.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Ainslie et al., "GQA: training generalized multi-query transformer models from
    multi-head checkpoints", EMNLP 2023.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((7, 16))
    >>> mc.nn.GroupQueryAttention(8, 4, 2)(x, x).shape
    (None, 7, 16)
    """

    __slots__ = (
        "_call",
        "bias_initializer",
        "dropout",
        "flash_attention",
        "head_dim",
        "kernel_initializer",
        "num_key_value_heads",
        "num_query_heads",
        "use_bias",
    )

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "GroupQueryAttention"
        _refuse_all(
            kind,
            sliding_window=sliding_window,
            use_gate=use_gate or None,
        )
        self.head_dim = integer(head_dim, f"{kind}: head_dim")
        self.num_query_heads = integer(num_query_heads, f"{kind}: num_query_heads")
        shared = integer(num_key_value_heads, f"{kind}: num_key_value_heads")
        self.num_key_value_heads = shared
        if self.num_query_heads % shared:
            raise ValueError(
                f"{kind}: num_query_heads ({num_query_heads}) must be a multiple of "
                f"num_key_value_heads ({num_key_value_heads})"
            )
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        super().__init__(dropout, seed, name)
        self.flash_attention = flash_or_default(flash_attention)
        for argument, value in (
            ("kernel_regularizer", kernel_regularizer),
            ("bias_regularizer", bias_regularizer),
            ("activity_regularizer", activity_regularizer),
            ("kernel_constraint", kernel_constraint),
            ("bias_constraint", bias_constraint),
        ):
            if value is not None:
                self._take(argument, value)

    __call__ = MultiHeadAttention.__call__  # type: ignore[assignment]
    trace = MultiHeadAttention.trace
    _attend_to_all = MultiHeadAttention._attend_to_all
    _masks = MultiHeadAttention._masks
    _project = MultiHeadAttention._project
    _regularized = MultiHeadAttention._regularized

    def build(  # type: ignore[override]
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        """Create the weights for the shapes of the query, the value and the key."""
        _build(self, query_shape, value_shape, key_shape)

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any, key_shape: Any = None
    ) -> Any:
        """Return the shape of the result for those of the query, value and key."""
        return _shape_of_result(self, query_shape, value_shape, key_shape)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias of query, key, value and output."""
        query, value = shapes[:2]
        key = shapes[2] if self._options.key else value
        _check_sequences(self, query, value, key)
        result = []
        for part, features, heads in (
            ("query", query[-1], self.num_query_heads),
            ("key", key[-1], self.num_key_value_heads),
            ("value", value[-1], self.num_key_value_heads),
        ):
            shape = (features, heads, self.head_dim)
            result += self._pair(part, shape, shape[1:], features)
        shape = (self.num_query_heads, self.head_dim, query[-1])
        inputs = self.num_query_heads * self.head_dim
        result += self._pair("attention_output", shape, shape[2:], inputs)
        return tuple(result)

    def _pair(
        self, part: str, shape: Shape, bias: Shape, inputs: int
    ) -> list[WeightSpec]:
        start = for_units(self.kernel_initializer, inputs)
        result = [WeightSpec(f"{part}_kernel", shape, start)]
        if self.use_bias:
            result.append(WeightSpec(f"{part}_bias", bias, self.bias_initializer))
        return result

    def _heads(self, scope: Scope, *sequences: int) -> tuple[int, ...]:
        """Append the projections, with keys and values repeated for each query head."""
        query, *others = MultiHeadAttention._heads(self, scope, *sequences)  # type: ignore[arg-type]
        times = self.num_query_heads // self.num_key_value_heads
        if times == 1:
            return (query, *others)
        wide = []
        for each in others:
            *lead, heads, size = scope.builder.shape(each)
            x = _reshape(scope, each, *lead, heads, 1, size)
            x = _broadcast(scope, x, (*lead, heads, times, size))
            wide.append(_reshape(scope, x, *lead, heads * times, size))
        return (query, *wide)


def _product(scope: Scope, masks: Sequence[int]) -> int | None:
    """Append the product of masks, of shape [batch, 1, queries or 1, keys or 1]."""
    if not masks:
        return None
    wide = np.broadcast_shapes(*map(scope.builder.shape, masks))
    total, *rest = (_broadcast(scope, each, wide) for each in masks)
    for each in rest:
        (total,) = scope.apply("multiply", (total, each))
    return _reshape(scope, total, wide[0], 1, *wide[1:])


ATTENTION = (Attention, AdditiveAttention, MultiHeadAttention, GroupQueryAttention)

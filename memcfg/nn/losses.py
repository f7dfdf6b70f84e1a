"""Keras's losses, which training minimises.

A loss is computed for each sample, weighted, and reduced to one number. Probabilities
are clipped to ``[1e-7, 1 - 1e-7]``, as in Keras, and have no gradient outside. If the
model ends with a softmax or a sigmoid, cross-entropies, focal cross-entropies and the
Kullback-Leibler divergence are computed from the logits instead, without clipping, so
that the gradient does not vanish for confident wrong predictions.

See docs/decisions/0012-keras-names.md.
"""

from __future__ import annotations

import inspect
from math import inf, prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, check_name, snake_case
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import Configured, functions_of
from memcfg.nn.layers._layer import (
    Layer,
    SymbolicTensor,
    Variable,
    array_of,
    means_samples,
    operation,
    trace_call,
)
from memcfg.nn.layers._operators import Function, constant_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph import Builder, Op
    from memcfg.nn.layers._layer import Scope

__all__ = [
    "CTC",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "CategoricalHinge",
    "Circle",
    "CosineSimilarity",
    "Dice",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "Target",
    "Tversky",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "categorical_hinge",
    "circle",
    "cosine_similarity",
    "ctc",
    "dice",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
    "tversky",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_MEANS = ("sum_over_batch_size", "mean")
_REDUCTIONS = (*_MEANS, "sum", "mean_with_sample_weight", "none", None)
_LINEAR = ("dense", "bias", "conv2d")  # ops whose results are not probabilities
_LOGARITHMS = {"softmax": "log_softmax", "sigmoid": "log_sigmoid"}


class Target(NamedTuple):
    """The shape and dtype that a loss or a metric needs y in.

    Parameters
    ----------
    shape : tuple of int
        Shape of one sample; ``()`` for a label.
    dtype : str
        ``"int32"`` for labels, or ``"float32"``.
    classes : int or None
        Upper bound of the labels, exclusive. None: labels are not checked.
    filler : int or None, default None
        What a last axis that is shorter than that of `shape` is filled up with. None:
        y has this shape.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int | None
    filler: int | None = None


class Terms:
    """Appends the ops of a loss or a metric to a graph, under its name."""

    def __init__(self, builder: Builder, name: str) -> None:
        self.builder = builder
        self.name = name

    def __call__(
        self,
        kind: str,
        inputs: Sequence[int],
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> int:
        """Append an op and return its first output."""
        label = name or f"{self.name}/{kind}"
        return self.builder.apply(kind, inputs, attributes, name=label)[0]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.builder.shape(tensor)

    def reduce(
        self,
        how: str,
        tensor: int,
        axes: Sequence[int] | None = None,
        name: str = "",
        *,
        keepdims: bool = False,
    ) -> int:
        """Append ``reduce_sum``, ``_mean`` or ``_max`` over axes; None: over all."""
        chosen = tuple(range(len(self.shape(tensor))) if axes is None else axes)
        attributes = {"axes": chosen, "keepdims": keepdims}
        return self(f"reduce_{how}", (tensor,), attributes, name)

    def producer(self, tensor: int) -> Op | None:
        """Return the op that computes a tensor; None for an input."""
        ops = reversed(self.builder.ops)
        return next((op for op in ops if tensor in op.outputs), None)

    def read_by(self, y_pred: int, kind: str) -> int | None:
        """Return the input of the softmax or sigmoid that computes y_pred, or None."""
        op, last = self._activation(y_pred), (-1, len(self.shape(y_pred)) - 1)
        if op is None or op.type != kind or op.attributes.get("axis", -1) not in last:
            return None
        return op.inputs[0]

    def logits(self, y_pred: int, kind: str, loss: Loss) -> int | None:
        """Return `read_by`; ValueError if the last layer has no activation."""
        op = self._activation(y_pred)
        # Keras would clip the logits like probabilities and silently train on noise.
        if op is not None and op.type in _LINEAR:
            raise ValueError(
                f"{type(loss).__name__} expects probabilities, but the model's last "
                "layer has no activation: pass from_logits=True, or end the model "
                f"with activation={kind!r}"
            )
        return self.read_by(y_pred, kind)

    def _activation(self, y_pred: int) -> Op | None:
        """Return the op that computes a tensor, looking through a cast of bfloat16."""
        op = self.producer(y_pred)
        if op is not None and op.type == "cast":
            op = self.producer(op.inputs[0])
        return op

    def weighted(self, values: int, weight: int, how: str = "mean") -> int:
        """Append values times weights, after reducing the axes that weights lack."""
        shape, of = self.shape(values), self.shape(weight)
        if of == (*shape, 1):  # as targets have an axis that losses do not
            weight, of = self("reshape", (weight,), {"shape": shape}), shape
        weight = self.fitted(weight, shape)
        of = self.shape(weight)
        if shape[: len(of)] != of:
            raise ValueError(
                f"sample weights of shape {of} do not match losses of shape {shape}: "
                "pass one weight for each sample, or for each step of each sample"
            )
        if shape != of:
            values = self.reduce(how, values, range(len(of), len(shape)))
        return self("multiply", (values, weight))

    def fitted(self, weight: int, shape: tuple[int, ...]) -> int:
        """Append the weight with its axes of length 1 broadcast, of as many axes."""
        of = self.shape(weight)
        fits = all(a in (1, b) for a, b in zip(of, shape, strict=False))
        if of == shape or len(of) != len(shape) or not fits:
            return weight
        return self("broadcast_to", (weight,), {"shape": shape})

    def spread(self, weight: int, shape: tuple[int, ...]) -> int:
        """Append the weight broadcast to a shape that starts with the weight's."""
        of = self.shape(weight)
        if of == shape:
            return weight
        column = {"shape": (*of, *(1 for _ in shape[len(of) :]))}
        narrow = self("reshape", (weight,), column)
        return self("broadcast_to", (narrow,), {"shape": shape})


def in_shape(y_true: SymbolicTensor, shape: tuple[Any, ...]) -> SymbolicTensor:
    """Return targets with or without axes of length 1, where only these differ."""
    plain = [n for n in shape if n != 1]
    if y_true.shape == shape or [n for n in y_true.shape if n != 1] != plain:
        return y_true
    made: SymbolicTensor = Function("reshape", {"shape": shape})(y_true)
    return made


def in_dtype(tensor: SymbolicTensor, dtype: str) -> SymbolicTensor:
    """Return a tensor in a dtype."""
    if tensor.sample_dtype == dtype:
        return tensor
    made: SymbolicTensor = Function("cast", {"dtype": dtype})(tensor)
    return made


def masked(
    builder: Builder, weights: int | None, mask: int | None, *, scaled: bool = False
) -> int | None:
    """Multiply weights by a mask scaled to a mean of 1 (0 if it is all zeros)."""
    if mask is None:
        return weights
    apply, shape = builder.apply, builder.shape(mask)
    if scaled:
        (share,) = apply("reduce_mean", (mask,), {"axes": (0, 1), "keepdims": True})
        one = {"shape": (1, 1), "value": 1.0, "dtype": "float32"}
        (factor,) = apply("divide_no_nan", (*apply("fill", (), one), share))
        (factor,) = apply("broadcast_to", (factor,), {"shape": shape})
        (mask,) = apply("multiply", (mask, factor), name="mask_weights")
    if weights is None:
        return mask
    if builder.shape(weights) != shape:
        (column,) = apply("reshape", (weights,), {"shape": (shape[0], 1)})
        (weights,) = apply("broadcast_to", (column,), {"shape": shape})
    return apply("multiply", (mask, weights), name="masked_weights")[0]


class _OfLoss(Layer):
    """The loss of targets, an output and perhaps weights, as a call."""

    __slots__ = ("batch_size", "loss")

    arity: ClassVar[int | None] = None

    def __init__(self, loss: Loss, *, whole: bool) -> None:
        self.loss = loss
        self.batch_size = 1 if whole else None  # one number of a batch of any size
        super().__init__()

    def _called(self) -> str:
        return self.loss.name

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops of the loss."""
        y_true, y_pred, *weight = inputs
        builder, mask = scope.builder, scope.mask_of(1)
        y_pred, *weight = (
            scope.apply("cast", (each,), {"dtype": "float32"})[0]
            if builder.dtype(each) == "int32"
            else builder.cast(each, "float32")
            for each in (y_pred, *weight)
        )
        y_true, mask = self.loss._with_mask(builder, y_true, mask)
        weights = masked(
            builder,
            weight[0] if weight else None,
            mask,
            scaled=self.loss.reduction in (*_MEANS, "mean_with_sample_weight"),
        )
        if self.loss.reduction in ("none", None):
            values = self.loss.values(builder, y_true, y_pred)
            return values if weights is None else _times(builder, values, weights)
        made: int = self.loss.trace(builder, y_true, y_pred, weights)
        if self.batch_size is None:
            return made
        return scope.apply("reshape", (made,), {"shape": (1,)})[0]


def _times(builder: Builder, values: int, weights: int) -> int:
    """Multiply values by weights that may lack their last axes."""
    shape, of = builder.shape(values), builder.shape(weights)
    if of == (*shape, 1):
        of = shape
    ones = (1,) * (len(shape) - len(of))
    (weights,) = builder.apply("reshape", (weights,), {"shape": (*of, *ones)})
    (weights,) = builder.apply("broadcast_to", (weights,), {"shape": shape})
    return builder.apply("multiply", (values, weights))[0]


class Loss(FixedAttributes, Configured):
    """Base class of the losses.

    A subclass overrides `call`, which computes the loss of each sample with operators.
    Alternatively it appends graph ops: in `elements`, whose mean over the last axis is
    the loss of a sample; in `values`, the loss of each sample; or in `trace`.

    Parameters
    ----------
    name : str, optional
        The name. None: the class's name in snake case, such as
        ``"sparse_categorical_crossentropy"``.
    reduction : str, default "sum_over_batch_size"
        How the losses of the samples become one number: their mean
        (``"sum_over_batch_size"``, ``"mean"``), their sum (``"sum"``), or their
        weighted sum divided by the sum of the weights (``"mean_with_sample_weight"``).
        ``"none"`` or None keeps them, which `compile` refuses.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    TypeError
        If the name is not a string.
    ValueError
        If the reduction is unknown, the name is empty or
        contains a slash, or the dtype is not ``"float32"``.
    """

    __slots__ = ("name", "reduction")

    def __init__(
        self,
        name: str | None = None,
        reduction: str = "sum_over_batch_size",
        dtype: str | None = None,
    ) -> None:
        kind = type(self).__name__
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got "
                f"{reduction!r}"
            )
        if dtype not in (None, "float32"):
            raise ValueError(f"{kind}: dtype must be 'float32' or None, got {dtype!r}")
        self.name = snake_case(kind) if name is None else check_name(name)
        self.reduction = reduction

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Compute the loss of arrays, or of symbolic tensors.

        Parameters
        ----------
        y_true, y_pred : array_like or SymbolicTensor
            The targets of a batch and the model's output.
        sample_weight : array_like or SymbolicTensor, optional
            Weights of shape ``(batch,)``, or ``(batch, time)``.

        Returns
        -------
        numpy.ndarray or SymbolicTensor
            The loss, a scalar.

        Raises
        ------
        ValueError
            If the loss cannot read arrays of these shapes.

        Notes
        -----
        In a `call`, the loss of the batch is a number for `Layer.add_loss`.
        """
        given = [y_true, y_pred, *(() if sample_weight is None else (sample_weight,))]
        if not any(isinstance(each, SymbolicTensor) for each in given):
            arrays = list(map(array_of, given))
            return Variable.functions.at_once(self._of_tensors, arrays, {})
        for place, each in enumerate(given):
            if not isinstance(each, SymbolicTensor):
                given[place] = constant_tensor(each)
        return self._of_tensors(*given)

    def _of_tensors(self, y_true: Any, y_pred: Any, *weight: Any) -> Any:
        batch = not y_pred.whole and self.reduction not in ("none", None)
        call = _OfLoss(self, whole=batch)
        return call([self._matching(y_true, y_pred), y_pred, *weight])

    def _matching(self, y_true: Any, y_pred: Any) -> Any:
        """Return targets in the shape and the dtype that the loss needs."""
        target, batch = self.target(y_pred), y_pred.shape[:1]
        y_true = in_shape(y_true, (*batch, *target.shape))
        if self.reads_any:
            return in_dtype(y_true, target.dtype)
        shorter = target.filler is not None and len(y_true.shape) == 1 + len(
            target.shape
        )
        if y_true.shape[1:] != target.shape and not shorter:
            raise ValueError(
                f"{type(self).__name__}: targets must have shape "
                f"{(*batch, *target.shape)}, got {y_true.shape}"
            )
        return in_dtype(y_true, target.dtype)

    @property
    def reads_any(self) -> bool:
        """Whether `call` is a user's, who says nothing of the shape of targets."""
        kind = type(self)
        return kind.call is not Loss.call and kind.target is Loss.target

    def target(self, output: SymbolicTensor) -> Target:
        """Return the shape and dtype of the targets of one sample.

        A loss with a `call` of its own, and no `target`, reads arrays of other shapes
        as they are given to `Model.fit`.

        Parameters
        ----------
        output : SymbolicTensor
            The model's output that the loss reads.

        Returns
        -------
        Target
            Shape, dtype and number of classes.

        Raises
        ------
        ValueError
            If the loss cannot read an output of this shape.
        """
        return Target(output.sample_shape, "float32", None)

    def call(self, y_true: SymbolicTensor, y_pred: SymbolicTensor) -> SymbolicTensor:
        """Compute the loss of each sample; a subclass overrides this.

        Parameters
        ----------
        y_true, y_pred : SymbolicTensor
            The targets of a batch and the model's output, of the same shape unless
            targets are given in arrays of another one. Axis 0 is the batch, of any
            size; where it is moved, as in ``ops.transpose(y_pred)``, the call gets the
            whole batch, which then does not run in micro-batches.

        Returns
        -------
        SymbolicTensor
            The losses, whose first axis is the batch. Further axes are averaged.

        Raises
        ------
        NotImplementedError
            If a subclass overrides neither this nor another method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define the loss of a sample: override "
            "`call`"
        )

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the ops of the loss of each sample.

        Parameters
        ----------
        builder : Builder
            Collects the ops; its `training` says whether gradients will be taken.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        int
            Id of a tensor whose first axis is the batch.
        """
        elements = self.elements(builder, y_true, y_pred)
        if elements is None:
            given = y_true, y_pred
            return trace_call(self.call, builder, self.name, given, whole=True)
        return Terms(builder, self.name).reduce("mean", elements, (-1,))

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int | None:
        """Append the ops of element-wise losses, whose mean is the loss of a sample.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        int or None
            Id of a tensor of the output's shape. None: the loss is not a mean over the
            last axis.
        """
        del builder, y_true, y_pred
        return None

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> int:
        """Append the ops of the loss.

        Parameters
        ----------
        builder : Builder
            Collects the ops; its `training` says whether gradients will be taken.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.
        sample_weight : int or None
            Id of a float32 tensor of shape ``(batch,)``, or ``(batch, time)`` with a
            mask. None: all samples have the same weight.

        Returns
        -------
        int
            Id of the loss, a scalar.
        """
        terms = Terms(builder, self.name)
        if sample_weight is None and self.reduction != "sum":
            elements = self.elements(builder, y_true, y_pred)
            if elements is not None:  # all samples have equally many elements
                return terms.reduce("mean", elements, None, "loss")
        values = self.values(builder, y_true, y_pred)
        return self._reduced(terms, values, sample_weight)

    def _with_mask(
        self, builder: Builder, y_true: int, mask: int | None
    ) -> tuple[int, int | None]:
        """Return targets, and the mask of the output that they do not have."""
        del builder
        return y_true, mask

    def divisor(
        self, builder: Builder, y_true: int, sample_weight: int | None
    ) -> int | None:
        """Append what the loss of a batch is divided by, if its data decides that.

        The loss of a batch that runs in parts is the sum of their shares of it.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true : int
            Id of the targets of a batch.
        sample_weight : int or None
            As of `trace`; a mask is 0 or 1.

        Returns
        -------
        int or None
            The id of one number; None: the number of samples, or nothing.
        """
        del y_true
        if self.reduction != "mean_with_sample_weight" or sample_weight is None:
            return None
        return Terms(builder, self.name).reduce("sum", sample_weight)

    def is_mean(self, builder: Builder, y_true: int, y_pred: int) -> bool:
        """Return whether a user's `call` ends in the mean over all samples.

        Parameters
        ----------
        builder : Builder
            Collects the ops; none is appended.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        bool
            Whether the loss is one number, and that of a batch is the mean of those of
            equal parts.
        """
        kind = type(self)
        own = kind.call is not Loss.call and kind.values is Loss.values
        if not own or kind.trace is not Loss.trace:
            return False
        return means_samples(self.call, builder, (y_true, y_pred))

    def check_samples(self, builder: Builder, y_true: int, y_pred: int) -> None:
        """Raise NotImplementedError if the loss is not reduced from one of each sample.

        One that `is_mean` is.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Raises
        ------
        NotImplementedError
            If it reads more of a batch than one sample at a time.
        ValueError
            If it cannot be computed of the whole batch either.
        """
        own = type(self).trace not in (Loss.trace, SparseCategoricalCrossentropy.trace)
        if not own and self.elements(builder, y_true, y_pred) is None:
            given = y_true, y_pred
            try:
                values = (
                    trace_call(self.call, builder, self.name, given)
                    if type(self).values is Loss.values
                    else self.values(builder, *given)
                )
            except ValueError as error:
                self.values(builder, *given)  # raises what is no matter of the batch
                raise NotImplementedError(
                    f"{self.name} compares the samples of a batch"
                ) from error
            own = builder.shape(values)[:1] != builder.shape(y_true)[:1]
        if own and not self.is_mean(builder, y_true, y_pred):
            raise NotImplementedError(
                f"{self.name} is one number of a whole batch, and no mean over samples"
            )

    def _reduced(
        self,
        terms: Terms,
        values: int,
        weight: int | None,
        count: int | None = None,  # id of a divisor to use instead of their number
    ) -> int:
        total = self.reduction == "sum"
        if terms.shape(values) == ():
            if weight is not None:
                raise ValueError(
                    f"{self.name} is one number for the whole batch and cannot use "
                    "sample weights: pass axis=..., the axes of a sample"
                )
            return terms("reshape", (values,), {"shape": ()}, "loss")
        if weight is not None:
            values = terms.weighted(values, weight, "sum" if total else "mean")
            if self.reduction == "mean_with_sample_weight" and count is None:
                count = terms.reduce("sum", weight)
        if total or count is None:
            return terms.reduce("sum" if total else "mean", values, None, "loss")
        whole = terms.reduce("sum", values)
        return terms("divide_no_nan", (whole, count), None, "loss")

    def _check_axis(self, axis: Any) -> None:
        """Raise ValueError if the axis of the classes is not the last one."""
        if integer(axis, "axis", None) != -1:
            raise ValueError(
                f"{type(self).__name__}: axis must be -1, the axis of the classes, got "
                f"{axis}: end the model with Permute"
            )

    def _settings(self) -> dict[str, Any]:
        usual = {
            "name": snake_case(type(self).__name__),
            "reduction": "sum_over_batch_size",
        }
        result = super()._settings()
        own = {name: value for name, value in result.items() if name not in usual}
        return own | {n: result[n] for n in usual if result[n] != usual[n]}


class _Function(Loss):
    """A loss from a user's function of y_true and y_pred, or of a user's `__call__`."""

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function
        name = getattr(function, "__name__", None) or getattr(function, "name", None)
        super().__init__(name)

    def call(self, y_true: SymbolicTensor, y_pred: SymbolicTensor) -> SymbolicTensor:
        """Call the function."""
        made: SymbolicTensor = self.function(y_true, y_pred)
        return made


class _Plain(Loss):
    """A loss without settings of its own, usually the mean of one op's results.

    Hinge losses need targets -1 and 1. Their ops convert targets 0 and 1: they read
    the number of targets that are neither, and convert if it is 0.
    """

    __slots__ = ()

    _op: ClassVar[str] = ""  # the op of the element-wise losses, if there is one
    _has_margins: ClassVar[bool] = False

    def __init__(
        self,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int | None:
        """Append the element-wise losses; None if `_op` is empty."""
        if not self._op:
            return None
        terms, inputs = Terms(builder, self.name), [y_true, y_pred]
        if self._has_margins:
            inputs.append(terms.reduce("sum", terms("odd_target", (y_true,))))
        return terms(self._op, inputs)


class MeanSquaredError(_Plain):
    """Mean of ``(y_true - y_pred)**2``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.losses.MeanSquaredError()
    MeanSquaredError()
    """

    __slots__ = ()

    _op = "squared_error"


class MeanAbsoluteError(_Plain):
    """Mean of ``|y_true - y_pred|``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "absolute_error"


class MeanAbsolutePercentageError(_Plain):
    """Mean of ``100 * |y_true - y_pred| / max(|y_true|, 1e-7)``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "percentage_error"


class MeanSquaredLogarithmicError(_Plain):
    """Mean of ``(log(y_true + 1) - log(y_pred + 1))**2``, both at least 1e-7.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "squared_log_error"


class LogCosh(_Plain):
    """Mean of ``log(cosh(y_pred - y_true))``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "log_cosh"


class Poisson(_Plain):
    """Mean of ``y_pred - y_true * log(y_pred + 1e-7)``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "poisson"


class Huber(Loss):
    """Mean of ``error**2 / 2`` up to `delta`, ``delta * (|error| - delta / 2)`` beyond.

    Parameters
    ----------
    delta : float, default 1.0
        The absolute error at which the linear part starts, zero or more.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    References
    ----------
    Huber, "Robust estimation of a location parameter", Ann. Math. Statist. 1964.
    """

    __slots__ = ("delta",)

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str = "sum_over_batch_size",
        name: str | None = "huber_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.delta = nonnegative(delta, "Huber: delta")

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the element-wise losses."""
        return Terms(builder, self.name)(
            "huber", (y_true, y_pred), {"delta": self.delta}
        )


class Hinge(_Plain):
    """Mean of ``max(1 - y_true * y_pred, 0)``; targets are -1 and 1, or 0 and 1.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "hinge"
    _has_margins = True


class SquaredHinge(_Plain):
    """Mean of ``max(1 - y_true * y_pred, 0)**2``; targets are -1 and 1, or 0 and 1.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "squared_hinge"
    _has_margins = True


class CategoricalHinge(_Plain):
    """``max(max((1 - y_true) * y_pred) - sum(y_true * y_pred) + 1, 0)``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        terms = Terms(builder, self.name)
        hits = terms.reduce("sum", terms("multiply", (y_true, y_pred)), (-1,))
        misses = terms("categorical_hinge_miss", (y_true, y_pred))
        most = terms.reduce("max", misses, (-1,))
        return terms("categorical_hinge", (hits, most))


class KLDivergence(_Plain):
    """``sum(y_true * log(y_true / y_pred))``, both clipped to ``[1e-7, 1]``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        terms = Terms(builder, self.name)
        kind, read = "kl_divergence", y_pred
        for activation, logarithm in _LOGARITHMS.items():
            logits = terms.read_by(y_pred, activation)
            if logits is not None:
                kind, read = "kl_divergence_log", terms(logarithm, (logits,))
        return terms.reduce("sum", terms(kind, (y_true, read)), (-1,))


class CosineSimilarity(Loss):
    """Negative cosine of the angle between target and output.

    Parameters
    ----------
    axis : int, default -1
        The axis of the vectors; axis 0 is the batch.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If `axis` is 0.
    """

    __slots__ = ("axis",)

    def __init__(
        self,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.axis = integer(axis, "CosineSimilarity: axis", None)
        if axis == 0:
            raise ValueError("CosineSimilarity: axis must not be 0, the batch")

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        return cosines(Terms(builder, self.name), y_true, y_pred, self.axis, -1.0)


def cosines(terms: Terms, y_true: int, y_pred: int, axis: int, factor: float) -> int:
    """Append the cosines of the angles between vectors, times a factor."""
    sums = [
        terms.reduce("sum", terms("multiply", pair), (axis,))
        for pair in ((y_true, y_pred), (y_true, y_true), (y_pred, y_pred))
    ]
    return terms("cosine_similarity", sums, {"factor": factor})


class BinaryCrossentropy(Loss):
    """Mean of ``-y_true * log(y_pred) - (1 - y_true) * log(1 - y_pred)``.

    Parameters
    ----------
    from_logits : bool, default False
        Whether outputs are logits, without a sigmoid.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: targets become ``y_true * (1 - x) + x / 2``.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.losses.BinaryCrossentropy(from_logits=True)
    BinaryCrossentropy(from_logits=True, label_smoothing=0.0)
    """

    __slots__ = ("from_logits", "label_smoothing")

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._check_axis(axis)
        self.from_logits = bool(from_logits)
        self.label_smoothing = _smoothing(label_smoothing, self)

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the element-wise losses."""
        terms = Terms(builder, self.name)
        smoothing = {"smoothing": self.label_smoothing}
        logits = y_pred if self.from_logits else terms.logits(y_pred, "sigmoid", self)
        if logits is None:
            return terms("binary_cross_entropy", (y_true, y_pred), smoothing)
        return terms("binary_cross_entropy_logits", (y_true, logits), smoothing)


class BinaryFocalCrossentropy(Loss):
    """Binary cross-entropy times ``(1 - p)**gamma``, p the probability of the target.

    Parameters
    ----------
    apply_class_balancing : bool, default False
        Whether targets 1 have weight `alpha` and targets 0 weight ``1 - alpha``.
    alpha : float, default 0.25
        The weight of targets 1.
    gamma : float, default 2.0
        The focusing exponent, zero or more.
    from_logits : bool, default False
        Whether outputs are logits, without a sigmoid.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: targets become ``y_true * (1 - x) + x / 2``.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Lin, Goyal, Girshick, He and Dollar, "Focal loss for dense object detection",
    ICCV 2017.
    """

    __slots__ = (
        "alpha",
        "apply_class_balancing",
        "from_logits",
        "gamma",
        "label_smoothing",
    )

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._check_axis(axis)
        self.apply_class_balancing = bool(apply_class_balancing)
        self.alpha = real(alpha, "BinaryFocalCrossentropy: alpha")
        self.gamma = nonnegative(gamma, "BinaryFocalCrossentropy: gamma")
        self.from_logits = bool(from_logits)
        self.label_smoothing = _smoothing(label_smoothing, self)

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the element-wise losses."""
        terms = Terms(builder, self.name)
        attributes = {
            "smoothing": self.label_smoothing,
            "alpha": self.alpha,
            "gamma": self.gamma,
            "balanced": self.apply_class_balancing,
        }
        logits = y_pred if self.from_logits else terms.logits(y_pred, "sigmoid", self)
        if logits is None:
            return terms("binary_focal_cross_entropy", (y_true, y_pred), attributes)
        kind = "binary_focal_cross_entropy_logits"
        return terms(kind, (y_true, logits), attributes)


class CategoricalCrossentropy(Loss):
    """``-sum(y_true * log(y_pred))`` over the classes, the last axis.

    Parameters
    ----------
    from_logits : bool, default False
        Whether outputs are logits, without a softmax.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: targets become ``y_true * (1 - x) + x / classes``.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.losses.CategoricalCrossentropy(label_smoothing=0.1)
    CategoricalCrossentropy(from_logits=False, label_smoothing=0.1)
    """

    __slots__ = ("from_logits", "label_smoothing")

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._check_axis(axis)
        self.from_logits = bool(from_logits)
        self.label_smoothing = _smoothing(label_smoothing, self)

    def target(self, output: SymbolicTensor) -> Target:
        """Return a target of the output's shape; ValueError for a single class."""
        _classes_of(output, self)
        return super().target(output)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        terms = Terms(builder, self.name)
        smoothing = _spread(terms, y_pred, self.label_smoothing)
        logits = y_pred if self.from_logits else terms.logits(y_pred, "softmax", self)
        if logits is None:
            return _categorical(terms, y_true, y_pred, smoothing)
        logarithms = terms("log_softmax", (logits,), {"axis": -1})
        each = terms("categorical_cross_entropy_log", (y_true, logarithms), smoothing)
        return terms.reduce("sum", each, (-1,))


class CategoricalFocalCrossentropy(Loss):
    """``-sum(alpha * (1 - y_pred)**gamma * y_true * log(y_pred))`` over the classes.

    Parameters
    ----------
    alpha : float, default 0.25
        A factor of all classes.
    gamma : float, default 2.0
        The focusing exponent, zero or more.
    from_logits : bool, default False
        Whether outputs are logits, without a softmax.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: targets become ``y_true * (1 - x) + x / classes``.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Lin, Goyal, Girshick, He and Dollar, "Focal loss for dense object detection",
    ICCV 2017.
    """

    __slots__ = ("alpha", "from_logits", "gamma", "label_smoothing")

    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._check_axis(axis)
        self.alpha = real(alpha, "CategoricalFocalCrossentropy: alpha")
        self.gamma = nonnegative(gamma, "CategoricalFocalCrossentropy: gamma")
        self.from_logits = bool(from_logits)
        self.label_smoothing = _smoothing(label_smoothing, self)

    def target(self, output: SymbolicTensor) -> Target:
        """Return a target of the output's shape; ValueError for a single class."""
        _classes_of(output, self)
        return super().target(output)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        terms = Terms(builder, self.name)
        attributes = _spread(terms, y_pred, self.label_smoothing)
        attributes |= {"alpha": self.alpha, "gamma": self.gamma}
        kind = "categorical_focal_cross_entropy"
        logits = y_pred if self.from_logits else terms.logits(y_pred, "softmax", self)
        if logits is None:
            return _categorical(terms, y_true, y_pred, attributes, kind)
        logarithms = terms("log_softmax", (logits,), {"axis": -1})
        each = terms(f"{kind}_log", (y_true, logarithms), attributes)
        return terms.reduce("sum", each, (-1,))


class SparseCategoricalCrossentropy(Loss):
    """``-log(y_pred[label])`` of integer labels.

    Parameters
    ----------
    from_logits : bool, default False
        Whether outputs are logits, without a softmax.
    ignore_class : int, optional
        A label whose samples are left out of the mean.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    axis : int, default -1
        Only -1.
    name : str, optional
        The name. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    SparseCategoricalCrossentropy(from_logits=True)
    """

    __slots__ = ("from_logits", "ignore_class")

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str = "sum_over_batch_size",
        axis: int = -1,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._check_axis(axis)
        self.from_logits = bool(from_logits)
        self.ignore_class = (
            None
            if ignore_class is None
            else integer(ignore_class, "ignore_class", None)
        )

    def target(self, output: SymbolicTensor) -> Target:
        """Return integer labels, unchecked if the ignored class is not an output's."""
        classes, ignored = _classes_of(output, self), self.ignore_class
        beyond = ignored is not None and not 0 <= ignored < classes
        return Target(output.sample_shape[:-1], "int32", None if beyond else classes)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of all samples, including those of an ignored class."""
        terms = Terms(builder, self.name)
        logits = self._logits(terms, y_pred)
        if logits is not None:
            ignored = self.ignore_class
            attributes = {} if ignored is None else {"ignored": ignored}
            return terms("cross_entropy_rows", (logits, y_true), attributes)
        depth = terms.shape(y_pred)[-1]
        hot = terms("one_hot", (y_true,), {"depth": depth, "dtype": "float32"})
        return _categorical(terms, hot, y_pred, {})

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> int:
        """Append the ops of the loss; an unweighted mean is one fused op."""
        terms = Terms(builder, self.name)
        weights = self.counted(builder, y_true, sample_weight)
        if self.ignore_class is not None and weights is not None:
            values = self.values(builder, y_true, y_pred)
            counts = None
            if self.reduction in _MEANS:
                counts = self.counted(builder, y_true, None)
            elif self.reduction != "sum":
                counts = weights
            count = None if counts is None else terms.reduce("sum", counts)
            return self._reduced(terms, values, weights, count)
        logits = self._logits(terms, y_pred)
        plain = sample_weight is None and self.reduction != "sum"
        if logits is None or not plain:
            return super().trace(builder, y_true, y_pred, sample_weight)
        shape = terms.shape(logits)
        if len(shape) != 2:
            logits = terms(
                "reshape", (logits,), {"shape": (prod(shape[:-1]), shape[-1])}
            )
            y_true = terms("reshape", (y_true,), {"shape": (prod(shape[:-1]),)})
        kind = "softmax_cross_entropy" + ("" if builder.training else "_inference")
        return terms(kind, (logits, y_true), None, "loss")

    def _logits(self, terms: Terms, y_pred: int) -> int | None:
        return y_pred if self.from_logits else terms.logits(y_pred, "softmax", self)

    def _with_mask(
        self, builder: Builder, y_true: int, mask: int | None
    ) -> tuple[int, int | None]:
        """Give masked labels the ignored class: those of both are counted as one."""
        alike = mask is not None and builder.shape(mask) == builder.shape(y_true)
        if self.ignore_class is None or mask is None or not alike:
            return y_true, mask
        terms, value = Terms(builder, self.name), float(self.ignore_class)
        settings = {"shape": builder.shape(y_true), "value": value, "dtype": "float32"}
        ignored = terms("fill", (), settings)
        labels = terms("cast", (y_true,), {"dtype": "float32"})
        apart = terms("multiply", (terms("subtract", (labels, ignored)), mask))
        joined = terms("add", (apart, ignored))
        return terms("cast", (joined,), {"dtype": "int32"}), None

    def divisor(
        self, builder: Builder, y_true: int, sample_weight: int | None
    ) -> int | None:
        """Append the number of labels that count; see `Loss.divisor`."""
        if self.ignore_class is None:
            return super().divisor(builder, y_true, sample_weight)
        means = self.reduction in _MEANS
        counts = self.counted(builder, y_true, None if means else sample_weight)
        assert counts is not None  # a class is ignored
        return Terms(builder, self.name).reduce("sum", counts)

    def counted(
        self, builder: Builder, y_true: int, sample_weight: int | None
    ) -> int | None:
        """Append sample weights that are 0 for the ignored class.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true : int
            Id of the labels of a batch.
        sample_weight : int or None
            Id of the user's weights, which are multiplied in.

        Returns
        -------
        int or None
            Id of the weights; `sample_weight` if no class is ignored.
        """
        if self.ignore_class is None:
            return sample_weight
        terms = Terms(builder, self.name)
        labels = terms("cast", (y_true,), {"dtype": "float32"})
        counts = terms("differs", (labels,), {"value": float(self.ignore_class)})
        if sample_weight is None:
            return counts
        wide = terms.spread(sample_weight, terms.shape(counts))
        return terms("multiply", (counts, wide))

    def _settings(self) -> dict[str, Any]:
        result = super()._settings()
        if self.ignore_class is None:
            del result["ignore_class"]
        return result


class Tversky(Loss):
    """``1 - tp / (tp + alpha * fn + beta * fp)``, with sums over `axis`.

    ``tp = sum(y_true * y_pred)``, ``fn = sum(y_true) - tp``, ``fp = sum(y_pred) - tp``.

    Parameters
    ----------
    alpha, beta : float, default 0.5
        Weights of false negatives and of false positives, zero or more.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    axis : int or sequence of int, optional
        The axes to sum over. None: all, including the batch.
    dtype : str, optional
        ``"float32"`` or None.

    References
    ----------
    Salehi, Erdogmus and Gholipour, "Tversky loss function for image segmentation
    using 3D fully convolutional deep networks", MLMI 2017.
    """

    __slots__ = ("alpha", "axis", "beta")

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        axis: int | Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.alpha = nonnegative(alpha, "Tversky: alpha")
        self.beta = nonnegative(beta, "Tversky: beta")
        self.axis = _axes(axis)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        return _overlap(
            Terms(builder, self.name),
            y_true,
            y_pred,
            self.axis,
            self.alpha,
            self.beta,
            1e-7,
        )


class Dice(Loss):
    """``1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))``.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: the class's name in snake case.
    axis : int or sequence of int, optional
        The axes to sum over. None: all, including the batch.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("axis",)

    def __init__(
        self,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        axis: int | Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.axis = _axes(axis)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        return _overlap(
            Terms(builder, self.name), y_true, y_pred, self.axis, 0.5, 0.5, 5e-8
        )


def _overlap(
    terms: Terms,
    y_true: int,
    y_pred: int,
    axes: Sequence[int] | None,
    alpha: float,
    beta: float,
    epsilon: float,
) -> int:
    sums = [
        terms.reduce("sum", each, axes)
        for each in (terms("multiply", (y_true, y_pred)), y_true, y_pred)
    ]
    attributes = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
    return terms("tversky", sums, attributes)


class CTC(_Plain):
    """Loss of connectionist temporal classification.

    Targets are labels, of shape ``(batch, places)``, with zeros after them: class 0
    stands for blanks. The model's output has shape ``(batch, steps, classes)``, without
    an activation. All steps are read; see `memcfg.nn.ops.ctc_loss` for fewer.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        The name. None: ``"ctc"``.
    dtype : str, optional
        ``"float32"`` or None.

    References
    ----------
    Graves, Fernández, Gomez and Schmidhuber, "Connectionist temporal classification",
    ICML 2006.
    """

    __slots__ = ()

    def target(self, output: SymbolicTensor) -> Target:
        """Return labels, of which there are as many as steps, or fewer."""
        if len(output.sample_shape) != 2:
            raise ValueError(
                f"CTC needs an output of shape (batch, steps, classes), got "
                f"{output.shape}"
            )
        steps, classes = output.sample_shape
        return Target((steps,), "int32", classes, 0)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the loss of each sample."""
        terms = Terms(builder, self.name)
        samples, steps, _ = terms.shape(y_pred)
        labels = terms("cast", (y_true,), {"dtype": "float32"})
        labels = terms("not_equal_number", (labels,), {"number": 0.0})
        every = {"shape": (samples,), "value": float(steps), "dtype": "float32"}
        lengths = [
            terms("cast", (number,), {"dtype": "int32"})
            for number in (terms.reduce("sum", labels, (1,)), terms("fill", (), every))
        ]
        return terms("ctc_loss", (y_pred, y_true, *lengths), {"blank": 0})


class Circle(Loss):
    """Circle loss of embeddings of unit length, each compared with all of its batch.

    Losses are averaged over the samples that have another one of their class, and one
    of another class.

    Parameters
    ----------
    gamma : float, default 80.0
        The factor of similarities, above 0.
    margin : float, default 0.4
        The distance at which neither kind of pairs has more weight.
    remove_diagonal : bool, default True
        Whether a sample is not compared with itself.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, default "circle"
        The name.
    dtype : str, optional
        ``"float32"`` or None.

    References
    ----------
    Sun, Cheng, Zhang, Zhang, Zheng, Wang and Wei, "Circle loss", CVPR 2020.
    """

    __slots__ = ("gamma", "margin", "remove_diagonal")

    def __init__(
        self,
        gamma: float = 80.0,
        margin: float = 0.4,
        remove_diagonal: bool = True,
        reduction: str = "sum_over_batch_size",
        name: str | None = "circle",
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.gamma = real(gamma, "Circle: gamma")
        self.margin = real(margin, "Circle: margin")
        self.remove_diagonal = bool(remove_diagonal)

    def target(self, output: SymbolicTensor) -> Target:
        """Return labels of any number of classes."""
        if len(output.sample_shape) != 1:
            raise ValueError(
                f"Circle needs an output of shape (batch, size), got {output.shape}"
            )
        return Target((), "int32", None)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the loss of each sample, 0 where it has no pairs of a kind."""
        return self._between(builder, (y_true, y_pred), (y_true, y_pred))

    def _between(
        self, builder: Builder, samples: Sequence[int], others: Sequence[int]
    ) -> int:
        """Append the loss of each sample, compared with others: labels, embeddings."""
        terms = Terms(builder, self.name)
        both = samples[1], others[1]
        products = terms("matmul", both, {"transpose_b": True})
        distances = terms("affine", (products,), {"factor": -1.0, "term": 1.0})
        distances = terms("maximum_number", (distances,), {"number": 0.0})
        alike, unlike = self._pairs(terms, samples[0], others[0])
        near = self._logsumexp(terms, distances, alike, 1.0)
        far = self._logsumexp(terms, distances, unlike, -1.0)
        return terms("softplus", (terms("add", (near, far)),))

    def _pairs(self, terms: Terms, rows: int, columns: int) -> tuple[int, int]:
        """Append 1 for pairs of one class and of two classes, else 0."""
        (count,), (other,) = terms.shape(rows), terms.shape(columns)
        wide = []
        for labels, shape in ((rows, (count, 1)), (columns, (1, other))):
            number = terms("cast", (labels,), {"dtype": "float32"})
            number = terms("reshape", (number,), {"shape": shape})
            wide.append(terms("broadcast_to", (number,), {"shape": (count, other)}))
        alike = terms("equal", wide)
        unlike = terms("affine", (alike,), {"factor": -1.0, "term": 1.0})
        if self.remove_diagonal:
            below = terms("triangle", (alike,), {"lower": 1, "offset": -1})
            above = terms("triangle", (alike,), {"lower": 0, "offset": 1})
            alike = terms("add", (below, above))
        return alike, unlike

    def _logsumexp(self, terms: Terms, distances: int, pairs: int, sign: float) -> int:
        """Append the logarithm of the sum over the pairs of a kind."""
        margin, scale = self.margin, self.gamma
        first = margin if sign > 0 else 1 + margin
        weight = terms("affine", (distances,), {"factor": sign, "term": first})
        weight = terms("maximum_number", (weight,), {"number": 0.0})
        apart = margin if sign > 0 else 1 - margin
        apart_of = {"factor": sign * scale, "term": -sign * scale * apart}
        term = terms("multiply", (weight, terms("affine", (distances,), apart_of)))
        x = terms("where_or", (pairs, term), {"other": -inf})
        most = terms("stop_gradient", (terms.reduce("max", x, (1,), keepdims=True),))
        most = terms("replace_nonfinite", (most,), dict.fromkeys(_NONFINITE, 0.0))
        wide = terms("broadcast_to", (most,), {"shape": terms.shape(x)})
        powers = terms("exponential", (terms("subtract", (x, wide)),))
        total = terms("logarithm", (terms.reduce("sum", powers, (1,)),), {"term": -0.0})
        most = terms("reshape", (most,), {"shape": terms.shape(total)})
        return terms("add", (total, most))

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> int:
        """Append the ops of the loss, whose mean is that of what is above 0."""
        terms = Terms(builder, self.name)
        values = self.values(builder, y_true, y_pred)
        if self.reduction == "sum":
            return self._reduced(terms, values, sample_weight)
        known = terms("greater_number", (values,), {"number": 0.0})
        if self.reduction not in _MEANS and sample_weight is not None:
            known = terms("multiply", (known, sample_weight))
        count = terms.reduce("sum", known)
        return self._reduced(terms, values, sample_weight, count)

    def check_samples(self, builder: Builder, y_true: int, y_pred: int) -> None:
        """Raise NotImplementedError: samples are compared with all of their batch."""
        del builder, y_true, y_pred
        raise NotImplementedError(f"{self.name} is one number of a whole batch")


_NONFINITE = ("nan", "posinf", "neginf")


class CategoricalGeneralizedCrossEntropy(Loss):
    """``(1 - p**q) / q`` of the probability p of the label, robust to wrong labels.

    Parameters
    ----------
    q : float, default 0.5
        Between 0, a cross-entropy, and 1, a mean absolute error, both exclusive.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, default "categorical_generalized_cross_entropy"
        The name.
    dtype : str, optional
        ``"float32"`` or None.

    References
    ----------
    Zhang and Sabuncu, "Generalized cross entropy loss for training deep neural networks
    with noisy labels", NeurIPS 2018.
    """

    __slots__ = ("q",)

    def __init__(
        self,
        q: float = 0.5,
        reduction: str = "sum_over_batch_size",
        name: str | None = "categorical_generalized_cross_entropy",
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.q = real(q, "CategoricalGeneralizedCrossEntropy: q")
        if not 0 < self.q < 1:
            raise ValueError(
                f"CategoricalGeneralizedCrossEntropy: q must be in (0, 1), got {q!r}"
            )

    def target(self, output: SymbolicTensor) -> Target:
        """Return integer labels."""
        return Target(output.sample_shape[:-1], "int32", _classes_of(output, self))

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the loss of each sample."""
        terms = Terms(builder, self.name)
        logits = terms.logits(y_pred, "softmax", self)
        if logits is not None:
            cross = terms("cross_entropy_rows", (logits, y_true))  # -log(p)
            powers = terms("affine", (cross,), {"factor": -self.q, "term": -0.0})
            power = terms("exponential", (powers,))
        else:
            depth = terms.shape(y_pred)[-1]
            hot = terms("one_hot", (y_true,), {"depth": depth, "dtype": "float32"})
            p = terms.reduce("sum", terms("multiply", (y_pred, hot)), (-1,))
            p = terms("clip", (p,), {"low": 1e-7, "high": 1.0})
            power = terms("power", (p,), {"exponent": self.q})
        return terms("affine", (power,), {"factor": -1 / self.q, "term": 1 / self.q})


def _axes(axis: Any) -> tuple[int, ...] | None:
    if axis is None:
        return None
    several = axis if isinstance(axis, list | tuple) else (axis,)
    return tuple(integer(each, "axis", None) for each in several)


def _smoothing(value: Any, loss: Loss) -> float:
    number = real(value, f"{type(loss).__name__}: label_smoothing")
    if not 0 <= number <= 1:
        raise ValueError(
            f"{type(loss).__name__}: label_smoothing must be in [0, 1], got {value!r}"
        )
    return number


def _spread(terms: Terms, y_pred: int, smoothing: float) -> dict[str, float]:
    return {"smoothing": smoothing, "share": smoothing / terms.shape(y_pred)[-1]}


def _categorical(
    terms: Terms,
    y_true: int,
    y_pred: int,
    attributes: Mapping[str, Any],
    kind: str = "categorical_cross_entropy",
) -> int:
    """Append the losses of probabilities, normalized to sum to 1 first."""
    total = terms.reduce("sum", y_pred, (-1,), keepdims=True)
    wide = terms("broadcast_to", (total,), {"shape": terms.shape(y_pred)})
    return terms.reduce("sum", terms(kind, (y_true, y_pred, wide), attributes), (-1,))


def _classes_of(output: SymbolicTensor, loss: Loss) -> int:
    """Return the number of classes, the last axis; ValueError if it is 1."""
    classes = output.sample_shape[-1] if output.sample_shape else 1
    if classes == 1:
        raise ValueError(
            f"{type(loss).__name__} needs two or more classes, but the model's output, "
            f"of layer {output.name!r}, has shape {output.shape}: use "
            "BinaryCrossentropy, or one unit per class"
        )
    return classes


_PARAMETERS = ("name", "reduction", "dtype")  # that functions do not have


class Samples(Layer):
    """The numbers of samples of a loss or a metric, of targets and an output."""

    __slots__ = ("batch_size", "of")

    arity: ClassVar[int | None] = 2

    def __init__(self, of: Any, *, whole: bool) -> None:
        self.of = of  # which has `values`
        self.batch_size = 1 if whole else None  # one number of the whole batch
        super().__init__(dtype="float32")

    def _called(self) -> str:
        name: str = self.of.name
        return name

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops; one number of a batch of any size has one axis."""
        y_true, y_pred = inputs
        y_pred = scope.builder.cast(y_pred, "float32")
        made: int = self.of.values(scope.builder, y_true, y_pred)
        if self.batch_size is None:
            return made
        return scope.apply("reshape", (made,), {"shape": (1,)})[0]


def of_samples(kind: Any, required: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a loss or a metric as a function of targets and outputs.

    It takes the arguments of the class and returns a number for each sample.
    """
    own = [
        each.replace(default=each.empty) if name in required else each
        for name, each in inspect.signature(kind).parameters.items()
        if name not in _PARAMETERS
    ]
    names = ("y_true", "y_pred")
    both = [
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names
    ]
    signature = inspect.Signature([*both, *own])

    @operation
    def traced(y_true: Any, y_pred: Any, **options: Any) -> Any:
        made = kind(**options)
        y_true, y_pred = (
            each if isinstance(each, SymbolicTensor) else constant_tensor(each)
            for each in (y_true, y_pred)
        )
        axes = getattr(made, "axis", -1)
        whole = not y_pred.whole and (axes is None or len(y_pred.shape) == 1)
        target = made._matching(y_true, y_pred)
        if y_pred.sample_dtype == "int32":
            y_pred = in_dtype(y_pred, "float32")
        return Samples(made, whole=whole)([target, y_pred])

    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        tensors = [
            each if isinstance(each, SymbolicTensor | Variable) else array_of(each)
            for each in map(given.pop, names)
        ]
        return traced(*tensors, **given)

    name = snake_case(kind.__name__)
    summary, *_ = (inspect.getdoc(kind) or "").partition("\n")
    call.__name__ = call.__qualname__ = traced.__name__ = name
    call.__module__ = kind.__module__
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _DOCUMENTATION.format(summary=summary, kind=kind.__name__)
    call.__doc__ += "".join(
        f"{each.name} : {type(each.default).__name__}, default {each.default!r}\n"
        f"    As of `{kind.__name__}`.\n"
        for each in own
        if each.name not in required
    )
    call.__doc__ += "".join(
        f"{name} : float\n    As of `{kind.__name__}`.\n" for name in required
    )
    call.__doc__ += _RESULT
    made = takes_arguments(call)
    made.kind = kind  # type: ignore[attr-defined]
    return made


_DOCUMENTATION = """{summary}

The result, unlike that of `{kind}`, is not reduced.

Parameters
----------
y_true, y_pred : array_like or SymbolicTensor
    The targets of a batch and the model's output.
"""
_RESULT = """
Returns
-------
numpy.ndarray or SymbolicTensor
    A number for each sample, or for each step of each.
"""

binary_crossentropy = of_samples(BinaryCrossentropy)
binary_focal_crossentropy = of_samples(BinaryFocalCrossentropy)
categorical_crossentropy = of_samples(CategoricalCrossentropy)
categorical_focal_crossentropy = of_samples(CategoricalFocalCrossentropy)
categorical_generalized_cross_entropy = of_samples(
    CategoricalGeneralizedCrossEntropy, required=("q",)
)
categorical_hinge = of_samples(CategoricalHinge)
cosine_similarity = of_samples(CosineSimilarity)


class _Circles(Layer):
    """The circle losses of samples, compared with others."""

    __slots__ = ("of",)

    arity: ClassVar[int | None] = None

    def __init__(self, of: Circle) -> None:
        self.of = of
        super().__init__(dtype="float32")

    def _called(self) -> str:
        return "circle"

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops; inputs are labels and embeddings, and those of others."""
        return self.of._between(scope.builder, inputs[:2], inputs[2:])


@operation
def _circle(of: Circle, *tensors: Any) -> Any:
    def symbol(given: Any) -> Any:
        known = given is None or isinstance(given, SymbolicTensor)
        return given if known else constant_tensor(given)

    labels, embeddings, others, references = map(symbol, tensors)
    labels = in_dtype(in_shape(labels, embeddings.shape[:1]), "int32")
    references = embeddings if references is None else references
    if others is None:
        others = labels
    else:
        others = in_dtype(in_shape(others, references.shape[:1]), "int32")
    return _Circles(of)([labels, embeddings, others, references])


@takes_arguments
def circle(
    y_true: Any,
    y_pred: Any,
    ref_labels: Any = None,
    ref_embeddings: Any = None,
    remove_diagonal: bool = True,
    gamma: float = 80,
    margin: float = 0.4,
) -> Any:
    """Circle loss of embeddings of unit length, each compared with all others.

    The result, unlike that of `Circle`, is not reduced.

    Parameters
    ----------
    y_true : array_like or SymbolicTensor
        The labels, of shape (samples,).
    y_pred : array_like or SymbolicTensor
        The embeddings, of shape (samples, size).
    ref_labels, ref_embeddings : array_like or SymbolicTensor, optional
        Those that samples are compared with, by default the samples.
    remove_diagonal : bool, default True
        Whether a sample is not compared with that in its own place.
    gamma, margin : float
        As of `Circle`.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        A number for each sample.
    """
    tensors = [
        each
        if each is None or isinstance(each, SymbolicTensor | Variable)
        else np.asarray(each)
        for each in (y_true, y_pred, ref_labels, ref_embeddings)
    ]
    return _circle(Circle(gamma, margin, remove_diagonal), *tensors)


circle.kind = Circle  # type: ignore[attr-defined]
ctc = of_samples(CTC)
dice = of_samples(Dice)
hinge = of_samples(Hinge)
huber = of_samples(Huber)
kl_divergence = of_samples(KLDivergence)
log_cosh = of_samples(LogCosh)
mean_absolute_error = of_samples(MeanAbsoluteError)
mean_absolute_percentage_error = of_samples(MeanAbsolutePercentageError)
mean_squared_error = of_samples(MeanSquaredError)
mean_squared_logarithmic_error = of_samples(MeanSquaredLogarithmicError)
poisson = of_samples(Poisson)
sparse_categorical_crossentropy = of_samples(SparseCategoricalCrossentropy)
squared_hinge = of_samples(SquaredHinge)
tversky = of_samples(Tversky)


_LOSSES: dict[str, type[Loss]] = {
    name: globals()[name]
    for name in __all__
    if name not in ("Loss", "Target") and not name.islower()
}
_LOSSES |= {snake_case(name): each for name, each in _LOSSES.items()}
_LOSSES |= {
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
    "msle": MeanSquaredLogarithmicError,
    "bce": BinaryCrossentropy,
    "kld": KLDivergence,
    "logcosh": LogCosh,
}
KNOWN = tuple(dict.fromkeys(_LOSSES.values()))  # Keras's losses


def get_loss(loss: Any) -> Loss:
    """Return the loss of a name, class, instance or function."""
    if isinstance(loss, str):
        result = _LOSSES.get(loss) or _LOSSES.get(loss.lower())
        if result is None:
            raise unknown("loss", loss, sorted(n for n in _LOSSES if n.islower()))
        return result()
    kind = getattr(loss, "kind", loss)  # of a function such as mean_squared_error
    if isinstance(kind, type) and issubclass(kind, Loss):
        return kind() if kind is loss else kind(name=loss.__name__)
    if isinstance(loss, Loss) and type(loss).__call__ is Loss.__call__:
        return loss
    if not callable(loss):
        raise TypeError(
            "a loss must be a name such as 'mse', a Loss such as MeanSquaredError(), "
            f"or a function of y_true and y_pred, got {loss!r}"
        )
    return _Function(loss)


def _found(identifier: Any) -> Any:
    """Return a loss; the name of a function, such as "mse", is that of Keras's."""
    if isinstance(identifier, str) and identifier.lower() in _LOSSES:
        kind = _LOSSES.get(identifier, _LOSSES[identifier.lower()])
        if identifier != kind.__name__ and kind in _FUNCTIONS:
            return _FUNCTIONS[kind]
    return get_loss(identifier)


_FUNCTIONS = {
    each.kind: each for each in [*globals().values()] if hasattr(each, "kind")
}
serialize, deserialize, get = functions_of("losses", Loss, _found, "name")
__all__ += ["deserialize", "get", "serialize"]

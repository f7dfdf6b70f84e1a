"""What training minimises: the losses of Keras.

A loss of each sample, weighted and reduced to one number. Probabilities are clipped to
``[1e-7, 1 - 1e-7]``, as Keras does, and have no gradient beyond. Those that a softmax
or sigmoid of the model makes are not clipped: cross-entropies, focal ones too, and the
Kullback-Leibler divergence are computed from what it reads, so that a gradient is left
however wrong an answer is.

See docs/decisions/0012-keras-names.md.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, check_name, snake_case
from memcfg.nn._keras_names import absent
from memcfg.nn.layers._layer import trace_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.graph import Builder, Op
    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = [
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
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
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_MEANS = ("sum_over_batch_size", "mean")
_REDUCTIONS = (*_MEANS, "sum", "mean_with_sample_weight")
_LINEAR = ("dense", "bias", "conv2d")  # ops whose results are no probabilities
_LOGARITHMS = {"softmax": "log_softmax", "sigmoid": "log_sigmoid"}


class Target(NamedTuple):
    """What y is converted to for a loss or a metric.

    Parameters
    ----------
    shape : tuple of int
        Of one sample; ``()`` for a label.
    dtype : str
        ``"int32"`` for labels, or ``"float32"``.
    classes : int or None
        Labels are checked to be below it.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int | None


class Terms:
    """The ops of a loss or a metric, under its name."""

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
        """Append ``reduce_sum``, ``_mean`` or ``_max``; without axes, over all."""
        chosen = tuple(range(len(self.shape(tensor))) if axes is None else axes)
        attributes = {"axes": chosen, "keepdims": keepdims}
        return self(f"reduce_{how}", (tensor,), attributes, name)

    def producer(self, tensor: int) -> Op | None:
        """Return the op that made a tensor; None for an input."""
        ops = reversed(self.builder.ops)
        return next((op for op in ops if tensor in op.outputs), None)

    def read_by(self, y_pred: int, kind: str) -> int | None:
        """Return what the softmax or sigmoid read that made a tensor, or None."""
        op, last = self._activation(y_pred), (-1, len(self.shape(y_pred)) - 1)
        if op is None or op.type != kind or op.attributes.get("axis", -1) not in last:
            return None
        return op.inputs[0]

    def logits(self, y_pred: int, kind: str, loss: Loss) -> int | None:
        """Return `read_by`; ValueError if the model ends without an activation."""
        op = self._activation(y_pred)
        # Keras clips whatever it is given, and would train on noise in silence.
        if op is not None and op.type in _LINEAR:
            raise ValueError(
                f"{type(loss).__name__} reads probabilities, and the model's output is "
                f"that of a layer without activation: pass from_logits=True, or let "
                f"the model end with activation={kind!r}"
            )
        return self.read_by(y_pred, kind)

    def _activation(self, y_pred: int) -> Op | None:
        """Return what made a tensor, before a cast of bfloat16."""
        op = self.producer(y_pred)
        if op is not None and op.type == "cast":
            op = self.producer(op.inputs[0])
        return op

    def weighted(self, values: int, weight: int, how: str = "mean") -> int:
        """Append the values times their weights; a weight may be of several values."""
        shape, of = self.shape(values), self.shape(weight)
        if of[-1:] == (1,) and len(of) > len(shape):
            of = of[:-1]
            weight = self("reshape", (weight,), {"shape": of})
        if shape[: len(of)] != of:
            raise ValueError(
                f"sample weights of shape {of} do not fit losses of shape {shape}: "
                "one for each sample, or for each step of each sample"
            )
        if shape != of:
            values = self.reduce(how, values, range(len(of), len(shape)))
        return self("multiply", (values, weight))

    def spread(self, weight: int, shape: tuple[int, ...]) -> int:
        """Append a weight for each element of a shape that its own begins."""
        of = self.shape(weight)
        if of == shape:
            return weight
        column = {"shape": (*of, *(1 for _ in shape[len(of) :]))}
        narrow = self("reshape", (weight,), column)
        return self("broadcast_to", (narrow,), {"shape": shape})


class Loss(FixedAttributes):
    """Base class of the losses.

    A subclass says in `call` what the loss of each sample is, by operators; or with ops
    in `values`, in `elements` what that is the mean of, or traces by itself.

    Parameters
    ----------
    name : str, optional
        None: that of the class, as ``"sparse_categorical_crossentropy"``.
    reduction : str, default "sum_over_batch_size"
        How the losses of the samples become one number: their mean
        (``"sum_over_batch_size"``, ``"mean"``), the ``"sum"``, or the sum over that of
        the weights (``"mean_with_sample_weight"``).
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If the reduction is not known or leaves more than one number, or for another
        dtype.
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
                f"the reduction of a loss is {', '.join(map(repr, _REDUCTIONS))}, not "
                f"{reduction!r}: training minimises one number"
            )
        if dtype not in (None, "float32"):
            raise ValueError(f"{kind} computes float32, not {dtype!r}")
        self.name = snake_case(kind) if name is None else check_name(name)
        self.reduction = reduction

    def __call__(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Say what to do instead."""
        raise TypeError(
            f"{type(self).__name__} is a part of a training step, and computes no "
            "arrays: compile a model with it, and call model.evaluate(x, y)"
        )

    def target(self, output: SymbolicTensor) -> Target:
        """Return what y is of one sample.

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
            If the loss cannot read such an output.
        """
        return Target(output.sample_shape, "float32", None)

    def call(self, y_true: SymbolicTensor, y_pred: SymbolicTensor) -> SymbolicTensor:
        """Compute the loss of each sample; a subclass says how.

        Parameters
        ----------
        y_true, y_pred : SymbolicTensor
            The targets of a batch and the model's output, of one shape.

        Returns
        -------
        SymbolicTensor
            Of which the loss of a sample is the mean.
        """
        raise NotImplementedError(
            f"{type(self).__name__} says nowhere what it is: write `call`"
        )

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the ops of the loss of each sample.

        Parameters
        ----------
        builder : Builder
            Collects the ops; its `training` says whether gradients are asked for.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        int
            The id of an array whose first axis is the batch.
        """
        elements = self.elements(builder, y_true, y_pred)
        if elements is None:
            return trace_call(self.call, builder, self.name, (y_true, y_pred))
        return Terms(builder, self.name).reduce("mean", elements, (-1,))

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int | None:
        """Append the ops of what the loss of a sample is the mean of.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        int or None
            The id of an array of the output's shape; None: the loss is not a mean over
            the last axis.
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
            Collects the ops; its `training` says whether gradients are asked for.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.
        sample_weight : int or None
            Id of a float32 tensor of shape ``(batch,)``, with a mask
            ``(batch, time)``; None: all weigh the same.

        Returns
        -------
        int
            The id of one number.
        """
        terms = Terms(builder, self.name)
        if sample_weight is None and self.reduction != "sum":
            elements = self.elements(builder, y_true, y_pred)
            if elements is not None:  # the mean of means of as many
                return terms.reduce("mean", elements, None, "loss")
        values = self.values(builder, y_true, y_pred)
        return self._reduced(terms, values, sample_weight)

    def _reduced(
        self,
        terms: Terms,
        values: int,
        weight: int | None,
        count: int | None = None,  # a number to divide by instead of their count
    ) -> int:
        total = self.reduction == "sum"
        if terms.shape(values) == ():
            if weight is not None:
                raise ValueError(
                    f"{self.name} is one number of a whole batch, and weighs no "
                    "samples: say an axis, the axes of a sample"
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
        """Refuse other axes of classes."""
        if integer(axis, "axis", None) != -1:
            raise ValueError(
                f"{type(self).__name__}: classes are the last axis, axis=-1, not "
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
    """A function of the targets and of the model's output."""

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function
        super().__init__(getattr(function, "__name__", None))

    def call(self, y_true: SymbolicTensor, y_pred: SymbolicTensor) -> SymbolicTensor:
        """Call it."""
        made: SymbolicTensor = self.function(y_true, y_pred)
        return made


class _Plain(Loss):
    """A loss without settings of its own; most are the mean of one op's results.

    Hinges have targets -1 and 1. If all targets are 0 and 1, the op maps them: it also
    reads how many are neither.
    """

    __slots__ = ()

    _op: ClassVar[str] = ""  # of each target and output; empty: there is none
    _has_margins: ClassVar[bool] = False

    def __init__(
        self,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(name, reduction, dtype)

    def elements(self, builder: Builder, y_true: int, y_pred: int) -> int | None:
        """Append the losses of the elements, if there is an op of them."""
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "percentage_error"


class MeanSquaredLogarithmicError(_Plain):
    """Mean of ``(log(y_true + 1) - log(y_pred + 1))**2``, below 0 as of 1e-7.

    Parameters
    ----------
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _op = "poisson"


class Huber(Loss):
    """Mean of half a square up to `delta`, of a straight line beyond.

    Parameters
    ----------
    delta : float, default 1.0
        Where the line begins.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        """Append the losses of the elements."""
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
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
        None: as the class, in snake case.
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
    """The negative cosine of the angle between target and output.

    Parameters
    ----------
    axis : int, default -1
        Of the vectors; not that of the batch, 0.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
            raise ValueError("CosineSimilarity: axis 0 is the batch")

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples."""
        return cosines(Terms(builder, self.name), y_true, y_pred, self.axis, -1.0)


def cosines(terms: Terms, y_true: int, y_pred: int, axis: int, factor: float) -> int:
    """Append the cosines of vectors, times a factor."""
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
        Whether the model ends without a sigmoid.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: how far targets 0 and 1 are moved towards a half.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        """Append the losses of the elements."""
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
        Whether targets 1 weigh `alpha` and targets 0 ``1 - alpha``.
    alpha : float, default 0.25
        A weight.
    gamma : float, default 2.0
        Zero or more.
    from_logits : bool, default False
        Whether the model ends without a sigmoid.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: how far targets 0 and 1 are moved towards a half.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        """Append the losses of the elements."""
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
        Whether the model ends without a softmax.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: which part of the targets is spread over all classes.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        """Return a probability for each class."""
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
        A weight.
    gamma : float, default 2.0
        Zero or more.
    from_logits : bool, default False
        Whether the model ends without a softmax.
    label_smoothing : float, default 0.0
        In ``[0, 1]``: which part of the targets is spread over all classes.
    axis : int, default -1
        Only -1.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
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
        """Return a probability for each class."""
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
        Whether the model ends without a softmax.
    ignore_class : int, optional
        A label whose samples do not count.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    axis : int, default -1
        Only -1.
    name : str, optional
        None: as the class, in snake case.
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
        """Return a label; a class beyond those of the output may be ignored."""
        classes, ignored = _classes_of(output, self), self.ignore_class
        beyond = ignored is not None and not 0 <= ignored < classes
        return Target(output.sample_shape[:-1], "int32", None if beyond else classes)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the losses of the samples, including those of an ignored class."""
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
        """Append the ops; a plain mean of rows is one op."""
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

    def counted(
        self, builder: Builder, y_true: int, sample_weight: int | None
    ) -> int | None:
        """Append weights that are 0 where a class is ignored.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true : int
            Id of the labels of a batch.
        sample_weight : int or None
            Id of other weights.

        Returns
        -------
        int or None
            Id of the weights; those given if no class is ignored.
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
    """``1 - hits / (hits + alpha * missed + beta * false)``, of sums over `axis`.

    Parameters
    ----------
    alpha, beta : float, default 0.5
        How much it counts that an output is less than its target, and more.
    reduction : str, default "sum_over_batch_size"
        As for `Loss`.
    name : str, optional
        None: as the class, in snake case.
    axis : int or sequence of int, optional
        What is summed; None: all, the batch too.
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
        None: as the class, in snake case.
    axis : int or sequence of int, optional
        What is summed; None: all, the batch too.
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
    """Append the losses of probabilities, which are divided by their sum first."""
    total = terms.reduce("sum", y_pred, (-1,), keepdims=True)
    wide = terms("broadcast_to", (total,), {"shape": terms.shape(y_pred)})
    return terms.reduce("sum", terms(kind, (y_true, y_pred, wide), attributes), (-1,))


def _classes_of(output: SymbolicTensor, loss: Loss) -> int:
    """Return the length of the last axis, which must be of classes."""
    classes = output.sample_shape[-1] if output.sample_shape else 1
    if classes == 1:
        raise ValueError(
            f"{type(loss).__name__} chooses among classes, and the model's output, of "
            f"layer {output.name!r}, has shape {output.shape}: take "
            "BinaryCrossentropy, or a unit for each class"
        )
    return classes


_LOSSES: dict[str, type[Loss]] = {
    name: globals()[name] for name in __all__ if name not in ("Loss", "Target")
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
KNOWN = tuple(dict.fromkeys(_LOSSES.values()))  # Keras's


def get_loss(loss: Any) -> Loss:
    """Return the loss that an entry of `compile`'s argument means."""
    if isinstance(loss, str):
        result = _LOSSES.get(loss) or _LOSSES.get(loss.lower())
        if result is None:
            raise unknown("loss", loss, sorted(n for n in _LOSSES if n.islower()))
        return result()
    if isinstance(loss, type) and issubclass(loss, Loss):
        return loss()
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise TypeError(
            f"a loss is a name such as 'mse', a Loss such as MeanSquaredError(), or a "
            f"function of y_true and y_pred, not {loss!r}"
        )
    return _Function(loss)

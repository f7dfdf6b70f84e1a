"""Keras's metrics, computed along with the loss.

A step computes a few numbers for each metric, which are summed over the batches. The
value of the metric is computed from the sums when it is read.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from memcfg._checks import unknown
from memcfg.nn import losses
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, check_name, snake_case
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import Configured, functions_of, own_arguments
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import Layer, SymbolicTensor, Variable, WeightSpec
from memcfg.nn.layers._operators import constant_tensor
from memcfg.nn.losses import (
    Loss,
    Terms,
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_hinge,
    cosines,
    hinge,
    huber,
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    of_samples,
    poisson,
    sparse_categorical_crossentropy,
    squared_hinge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from memcfg.graph import Builder
    from memcfg.nn.layers._layer import Scope
    from memcfg.nn.losses import Target

    _Sums = Sequence[float | npt.NDArray[np.float64]]

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "BinaryIoU",
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "ConcordanceCorrelation",
    "CosineSimilarity",
    "F1Score",
    "FBetaScore",
    "FalseNegatives",
    "FalsePositives",
    "Hinge",
    "IoU",
    "KLDivergence",
    "LogCoshError",
    "Mean",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanIoU",
    "MeanMetricWrapper",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Metric",
    "OneHotIoU",
    "OneHotMeanIoU",
    "PearsonCorrelation",
    "Poisson",
    "Precision",
    "PrecisionAtRecall",
    "R2Score",
    "Recall",
    "RecallAtPrecision",
    "RootMeanSquaredError",
    "SensitivityAtSpecificity",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
    "SpecificityAtSensitivity",
    "SquaredHinge",
    "Sum",
    "TopKCategoricalAccuracy",
    "TrueNegatives",
    "TruePositives",
    "binary_accuracy",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_accuracy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "concordance_correlation",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "pearson_correlation",
    "poisson",
    "sparse_categorical_accuracy",
    "sparse_categorical_crossentropy",
    "sparse_top_k_categorical_accuracy",
    "squared_hinge",
    "top_k_categorical_accuracy",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_EPSILON = 1e-7


class _Counts:
    """Weighted counts of outputs above thresholds, by positive and negative target."""

    __slots__ = (
        "by_label",
        "class_id",
        "given",
        "label_weights",
        "marks",
        "thresholds",
        "top_k",
        "with_sigmoid",
    )

    def __init__(
        self,
        thresholds: Sequence[float],  # ascending
        class_id: int | None = None,
        *,
        top_k: int | None = None,  # others count as below all thresholds
        marks: bool = False,  # the largest count as 1, others as 0
        with_sigmoid: bool = False,
        by_label: bool = False,  # counts of each label, one after the other
        label_weights: Sequence[float] | None = None,
    ) -> None:
        self.given = [float(each) for each in thresholds]
        self.thresholds = np.asarray(thresholds, np.float32)
        self.class_id = None if class_id is None else integer(class_id, "class_id", 0)
        self.top_k = None if top_k is None else integer(top_k, "top_k")
        self.marks = marks
        self.with_sigmoid = with_sigmoid
        self.by_label = by_label
        self.label_weights = label_weights

    def trace(
        self, terms: Terms, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append both counts: the total, then those above each threshold."""
        units = terms.shape(y_pred)[-1]
        if self.with_sigmoid:
            y_pred = terms("sigmoid", (y_pred,))
        if self.top_k is not None:
            y_pred = self._largest(terms, y_pred, self.top_k)
        if self.class_id is not None:
            if len(terms.shape(y_pred)) < 2:
                raise ValueError(
                    f"{terms.name}: class_id is of outputs with an axis of classes, "
                    f"got {terms.shape(y_pred)}"
                )
            if self.class_id >= units:
                raise ValueError(
                    f"{terms.name}: class_id must be below the number of outputs, "
                    f"{units}, got {self.class_id}"
                )
            y_true, y_pred = (
                _columns(terms, each, self.class_id, self.class_id + 1)
                for each in (y_true, y_pred)
            )
        if self.label_weights is not None:
            sample_weight = self._label_weights(terms, y_pred, sample_weight)
        if not self.by_label:
            return self._counts(terms, y_true, y_pred, sample_weight)
        several = [
            self._counts(
                terms,
                _columns(terms, y_true, i, i + 1),
                _columns(terms, y_pred, i, i + 1),
                sample_weight,
            )
            for i in range(units)
        ]
        return tuple(
            terms("concatenate", each, {"axis": 0}) if units > 1 else each[0]
            for each in zip(*several, strict=True)
        )

    def _counts(
        self, terms: Terms, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        inputs = [y_true, y_pred]
        if sample_weight is not None:
            inputs.append(terms.fitted(sample_weight, terms.shape(y_pred)))
        bits = {"threshold_bits": tuple(map(int, self.thresholds.view(np.uint32)))}
        name = f"{terms.name}/counts"
        return terms.builder.apply("threshold_counts", inputs, bits, name=name)

    def _largest(self, terms: Terms, y_pred: int, count: int) -> int:
        """Append the largest outputs of a sample, and -1 for the others."""
        shape = terms.shape(y_pred)
        if count > shape[-1]:
            raise ValueError(
                f"{terms.name}: top_k must be at most the number of outputs, "
                f"{shape[-1]}, got {count}"
            )
        order = terms("order", (y_pred,), {"descending": 1})
        places = _columns(terms, order, 0, count)
        ones = _filled(terms, (*shape[:-1], count), 1.0)
        chosen = terms("put_along", (places, ones), {"length": shape[-1]})
        if self.marks:
            return chosen
        return terms("choose", (chosen, y_pred, _filled(terms, shape, -1.0)))

    def _label_weights(self, terms: Terms, y_pred: int, weight: int | None) -> int:
        """Append the weights of samples times those of labels."""
        shape, numbers = terms.shape(y_pred), np.array(self.label_weights, ">f4")
        data = {"shape": numbers.shape, "data": numbers.tobytes().hex()}
        made = terms("broadcast_to", (terms("constant", (), data),), {"shape": shape})
        if weight is None:
            return made
        return terms("multiply", (made, terms.spread(weight, shape)))


def _columns(terms: Terms, tensor: int, begin: int, end: int) -> int:
    """Append some places of the last axis."""
    *lead, _ = terms.shape(tensor)
    part = {
        "begin": (*(0 for _ in lead), begin),
        "end": (*lead, end),
        "strides": (*(1 for _ in lead), 1),
    }
    return terms("slice", (tensor,), part)


def _filled(terms: Terms, shape: tuple[int, ...], value: float) -> int:
    """Append a constant of a shape."""
    return terms("fill", (), {"shape": shape, "value": value, "dtype": "float32"})


def _four(sums: _Sums) -> tuple[Any, Any, Any, Any]:
    """Return true positives, false positives, true negatives and false negatives."""
    true, false = (np.asarray(each, np.float64) for each in sums)
    tp, fp = true[1:], false[1:]
    return tp, fp, false[0] - fp, true[0] - tp


class _OfMetric(Layer):
    """The sums of a metric of targets, an output and perhaps weights, as a call."""

    __slots__ = ("metric",)

    arity: ClassVar[int | None] = None

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        super().__init__()

    def _called(self) -> str:
        return self.metric.name

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True  # sums over the batch

    def trace(self, scope: Scope, inputs: Sequence[int]) -> tuple[int, ...]:
        """Append the ops of the metric."""
        return self.metric._trace_sums(scope, inputs)


def _of_own_sums(result: Callable[..., float]) -> Callable[..., float]:
    """Wrap a metric's `result`, which takes its own sums by default."""

    @wraps(result)
    def call(self: Metric, sums: _Sums | None = None) -> float:
        if sums is None:
            later = Variable.functions.result_of(self)
            if later is not None:
                return later  # type: ignore[no-any-return]
            sums = self._sums
        return 0.0 if sums is None else result(self, sums)

    return call


class _Total:
    """A number, or an array, of a metric's state, which is read only.

    It is of the batches that `update_state` added; a model's own are in its logs.
    """

    __slots__ = ("_metric", "_place", "name")

    dtype = "float32"

    def __init__(self, metric: Metric, place: int, name: str) -> None:
        self._metric, self._place, self.name = metric, place, name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; ``()`` before the first batch where it depends on that."""
        return self.numpy().shape

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return the value as an array."""
        return np.asarray(self._metric._totals()[self._place], np.float32)

    @property
    def value(self) -> npt.NDArray[np.float32]:
        """The value as an array."""
        return self.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        made = self.numpy()
        return made if dtype is None else made.astype(dtype)

    def __float__(self) -> float:
        return float(self.numpy())

    def __repr__(self) -> str:
        return f"<{self.name} of metric {self._metric.name!r}: {self.numpy()}>"


class _Held(Layer):
    """Holds the variables of a metric as weights."""

    __slots__ = ("kept",)

    _not_held: ClassVar[str] = (
        "which has the variables of a metric of your own: update it in train_step, or "
        "in the `call` of a model that has the metric as an attribute"
    )

    def __init__(self) -> None:
        super().__init__(trainable=False)
        self.kept: list[WeightSpec] = []

    def _called(self) -> str:
        return "metric"

    def add(self, spec: WeightSpec) -> Variable:
        """Add a variable; return it."""
        if any(each.name == spec.name for each in self.kept):
            raise ValueError(f"the metric already has a variable named {spec.name!r}")
        self.kept.append(spec)
        self._weight_specs = tuple(self.kept)
        return Variable(self, len(self.kept) - 1, spec.name)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, whose variables begin anew."""
        return super().__getstate__() | {"_weight_specs": self._weight_specs}


def _with_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor keep its arguments, which need not be attributes."""
    signature = inspect.signature(init)

    @wraps(init)
    def call(self: Any, *args: Any, **options: Any) -> None:
        if getattr(self, "_given", None) is None:  # the outermost constructor
            with suppress(TypeError):  # which `init` explains
                _, *given = signature.bind(self, *args, **options).arguments.items()
                object.__setattr__(self, "_given", dict(given))
        init(self, *args, **options)

    return call


class Metric(FixedAttributes, Configured):
    """Base class of the metrics.

    A subclass overrides `values`, whose mean is the metric, or `trace` and `result`:
    `trace` appends the numbers to sum over the batches, `result` takes the sums.
    Alternatively, as in Keras, it makes variables with `add_variable`, and overrides
    `update_state`, which assigns them, `result`, without arguments, and perhaps
    `reset_state`. A model that is compiled with such a metric trains and evaluates as
    one with steps of its own, whose batches do not run in micro-batches.

    Parameters
    ----------
    dtype : str, optional
        ``"float32"`` or None.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    of : Loss, optional
        The loss whose mean is the metric.

    Raises
    ------
    TypeError
        If the name is not a string.
    ValueError
        If the name is empty or contains a slash, or for another dtype.

    Examples
    --------
    >>> import memcfg as mc
    >>> huber = mc.nn.Metric(name="huber", of=mc.nn.losses.Huber(0.1))
    >>> class Largest(mc.nn.Metric):
    ...     def __init__(self):
    ...         super().__init__(name="largest")
    ...         self.most = self.add_variable(name="most")
    ...
    ...     def update_state(self, y_true, y_pred, sample_weight=None):
    ...         ops = mc.nn.ops
    ...         self.most.assign(ops.maximum(self.most, ops.max(y_pred)))
    ...
    ...     def result(self):
    ...         return self.most
    >>> import numpy as np
    >>> float(Largest()(np.zeros(2), np.array([2.0, 5.0])).numpy())
    5.0
    """

    __slots__ = ("_given", "_held", "_of", "_sums", "name")

    sum_count: ClassVar[int] = 2  # the number of ids that `trace` returns
    _labels: ClassVar[bool] = False  # whether targets are integer labels
    _direction: ClassVar[Any] = None  # "up" if larger is better, "down" if smaller is
    _names: ClassVar[tuple[str, ...]] = ("total", "count")  # of the totals
    # Whether a user's `update_state` says how batches are counted.
    updates_itself: ClassVar[bool] = False

    @_with_arguments
    def __init__(
        self,
        dtype: str | None = None,
        name: str | None = None,
        of: Loss | _Counts | None = None,
    ) -> None:
        kind = type(self).__name__
        if dtype not in (None, "float32"):
            raise ValueError(f"{kind}: dtype must be 'float32' or None, got {dtype!r}")
        self.name = snake_case(kind) if name is None else check_name(name)
        self._of = of
        self._sums: list[Any] | None = None  # of `update_state`
        self._held: _Held | None = None  # the variables, if there are some

    def __init_subclass__(cls, **options: Any) -> None:
        """Make `result` take the sums of `update_state` by default."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "__init__" in own:
            cls.__init__ = _with_arguments(cls.__init__)  # type: ignore[method-assign]
        ours = cls.__module__.startswith("memcfg.nn.")
        if "update_state" in own:
            cls.updates_itself = not ours
        if not ours and ("update_state" in own or "trace" in own):
            cls._names = ()  # the totals are the subclass's own
        if "result" in own and len(inspect.signature(own["result"]).parameters) > 1:
            cls.result = _of_own_sums(own["result"])  # type: ignore[method-assign]

    def add_variable(
        self,
        shape: Sequence[int] = (),
        initializer: Any = "zeros",
        dtype: str | None = None,
        aggregation: str | None = "sum",
        name: str | None = None,
    ) -> Variable:
        """Create a variable, in the constructor.

        Parameters
        ----------
        shape : sequence of int, default ()
            The shape.
        initializer : str or Initializer, default "zeros"
            What draws the first value.
        dtype : str, optional
            ``"float32"`` or None.
        aggregation : str, optional
            Ignored: a model is on one device.
        name : str, optional
            A name unique within the metric. By default ``"variable"``,
            ``"variable_1"``, ...

        Returns
        -------
        Variable
            The variable: `update_state` assigns it, and `result` reads it.

        Raises
        ------
        ValueError
            If an argument cannot be honoured, or the name is taken.
        """
        del aggregation
        if dtype not in (None, "float32"):
            raise ValueError(f"a variable must be float32, got {dtype!r}")
        if self._held is None:
            self._held = _Held()
        lengths = tuple(integer(n, "a length of a variable's shape") for n in shape)
        number = len(self._held.kept)
        if name is None:
            name = f"variable_{number}" if number else "variable"
        start = get_initializer("zeros" if initializer is None else initializer)
        return self._held.add(
            WeightSpec(check_name(name), lengths, start, trainable=False)
        )

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: Any = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> Variable:
        """Create a variable, as `add_variable` does.

        Parameters
        ----------
        shape, initializer, dtype, name : optional
            As of `add_variable`.

        Returns
        -------
        Variable
            The variable.

        Raises
        ------
        ValueError
            As of `add_variable`.
        """
        return self.add_variable(shape, initializer, dtype, name=name)

    @property
    def variables(self) -> list[Any]:
        """The variables that `add_variable` made, or Keras's of this metric, to read.

        Those of a metric of memcfg have a `name`, a `shape` and a value, `numpy()`, of
        the batches that `update_state` added.
        """
        own = [] if self._held is None else self._held.weights
        return [*(_Total(self, *each) for each in enumerate(self._names)), *own]

    @property
    def dtype(self) -> str:
        """The dtype of the result, ``"float32"``."""
        return "float32"

    def _totals(self) -> Sequence[Any]:
        """Return the values of Keras's variables of this metric, from the sums."""
        return [0.0] * len(self._names) if self._sums is None else self._sums

    if not TYPE_CHECKING:  # otherwise type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Return a total by its name, or explain a missing attribute."""
            names = type(self)._names
            if name in names:
                return _Total(self, names.index(name), name)
            return super().__getattr__(name)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as Keras writes them.

        Returns
        -------
        dict
            The arguments by name; objects among them as configurations. A subclass
            with arguments of its own returns them too.
        """
        return {"name": self.name, "dtype": "float32"} | own_arguments(self)

    @property
    def direction(self) -> str | None:
        """``"up"`` if larger is better, ``"down"`` if smaller is; None if unknown.

        A subclass sets it as in Keras, ``_direction = "up"``. The means of Keras's
        losses have ``"down"``.
        """
        own: str | None = self._direction
        return "down" if own is None and isinstance(self._of, losses.KNOWN) else own

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch to the metric, for loops of your own.

        A model's `fit` and `evaluate` have sums of their own. In a function, the batch
        is added when the function has run, and in the `call` of a layer when a step, a
        function or a call on arrays has run it.

        Parameters
        ----------
        y_true, y_pred : array_like or SymbolicTensor
            The targets of a batch and the model's output.
        sample_weight : array_like or SymbolicTensor, optional
            Weights of shape ``(batch,)``, or ``(batch, time)``.

        Raises
        ------
        TypeError
            If tensors are given that are not of a function.
        ValueError
            If the metric cannot read arrays of these shapes.
        """
        self._update([y_true, y_pred], sample_weight)

    def _update(self, given: list[Any], sample_weight: Any) -> None:
        """Add the numbers of arrays, or have those of tensors added."""
        if sample_weight is not None:
            given = [*given, sample_weight]
        traced = Variable.functions.is_tracing()
        if traced or any(isinstance(each, SymbolicTensor) for each in given):
            tensors = [
                each if isinstance(each, SymbolicTensor) else constant_tensor(each)
                for each in given
            ]
            if not Variable.functions.is_measured_later(tensors):
                Variable.functions.measure(self, self._sums_of(*tensors))
            return
        arrays = [np.asarray(each) for each in given]
        self._add(Variable.functions.at_once(self._sums_of, arrays, {}))

    def _add(self, new: Sequence[Any]) -> None:
        """Add the numbers of a batch."""
        sums = [np.asarray(each, np.float64) for each in new]
        if self._sums is not None:
            sums = [a + b for a, b in zip(self._sums, sums, strict=True)]
        self._sums = sums

    def reset_state(self) -> None:
        """Forget all batches of `update_state`: variables become 0, as in Keras."""
        self._sums = None
        for variable in () if self._held is None else self._held.weights:
            variable.assign(np.zeros(variable.shape, np.float32))

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> float:
        """Add a batch, as `update_state` does, and return the metric.

        Parameters
        ----------
        y_true, y_pred, sample_weight : array_like
            As of `update_state`.

        Returns
        -------
        float
            The metric of all batches since `reset_state`.

        Raises
        ------
        TypeError, ValueError
            As of `update_state`.
        """
        self.update_state(y_true, y_pred, sample_weight)
        return self.result()

    def _sums_of(self, y_true: Any, y_pred: Any, *weight: Any) -> Any:
        """Return the numbers of `trace` as tensors."""
        target = self._matching(y_true, y_pred)
        numbers = [losses.in_dtype(each, "float32") for each in (y_pred, *weight)]
        return _OfMetric(self)([target, *numbers])

    def _matching(self, y_true: Any, y_pred: Any) -> Any:
        """Return targets in the shape and the dtype that the metric needs."""
        labels = self._labels or isinstance(
            self._of, losses.SparseCategoricalCrossentropy
        )
        target = self.target(y_pred)
        dtype = target.dtype if target else "int32" if labels else "float32"
        of = y_pred.shape[1:-1] if labels else y_pred.shape[1:]
        shape = target.shape if target else of
        y_true = losses.in_shape(y_true, (*y_pred.shape[:1], *shape))
        return losses.in_dtype(y_true, dtype)

    @property
    def _reads_any(self) -> bool:
        """Whether it is the mean of a user's function, of targets of any shape."""
        return isinstance(self._of, Loss) and self._of.reads_any

    def _trace_sums(self, scope: Scope, given: Sequence[int]) -> tuple[int, ...]:
        """Append the numbers of what `update_state` takes."""
        y_true, y_pred, *weight = given
        builder = scope.builder
        y_pred = builder.cast(y_pred, "float32")
        own = weight[0] if weight else None
        weights = losses.masked(builder, own, scope.mask_of(1))
        return self.trace(builder, y_true, y_pred, weights)

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return the shape and dtype of the targets of one sample.

        Parameters
        ----------
        output : SymbolicTensor
            The model's output that the metric reads.

        Returns
        -------
        Target or None
            The target. None: the loss's target.

        Raises
        ------
        ValueError
            If the metric cannot read an output of this shape.
        """
        del output
        return None

    def check_logged(self, output: SymbolicTensor) -> None:
        """Raise ValueError if the result for an output is not one number.

        Parameters
        ----------
        output : SymbolicTensor
            The model's output that the metric reads.
        """
        if self._several(output):
            raise ValueError(
                f"{type(self).__name__}: a metric is one number in the logs: "
                f"{self._advice_of_several}"
            )

    _advice_of_several: ClassVar[str] = ""

    def _several(self, output: SymbolicTensor) -> bool:
        """Return whether the result is several numbers."""
        del output
        return False

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the ops of the metric.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.
        sample_weight : int or None
            Id of a float32 tensor of shape ``(batch,)``, or ``(batch, time)`` with a
            mask. None: all samples have the same weight.

        Returns
        -------
        tuple of int
            Ids of float32 scalars or vectors, which are summed over the batches.
        """
        of, terms = self._of, Terms(builder, self.name)
        labels = self._labels or isinstance(of, losses.SparseCategoricalCrossentropy)
        if labels:
            y_true = _as_labels(terms, y_true, y_pred)
        if not self._reads_any:
            self._check(builder, y_true, y_pred, labels)
        if isinstance(of, _Counts):
            return of.trace(terms, y_true, y_pred, sample_weight)
        values = self.values(builder, y_true, y_pred)
        if isinstance(of, losses.SparseCategoricalCrossentropy):
            sample_weight = of.counted(builder, y_true, sample_weight)
        if sample_weight is None:
            size = float(np.prod(terms.shape(values)))
            return terms.reduce("sum", values), _count(terms, size)
        sample_weight = terms.fitted(sample_weight, terms.shape(values))
        weighted = terms.weighted(values, sample_weight)
        return terms.reduce("sum", weighted), terms.reduce("sum", sample_weight)

    def is_mean(self, builder: Builder, y_true: int, y_pred: int) -> bool:
        """Return whether the metric of a batch is one number, a mean over its samples.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        bool
            False where sums over samples are added up.

        Raises
        ------
        NotImplementedError
            If it reads more of a batch than one sample at a time, so that it is not
            known from the metrics of parts.
        """
        kind, of = type(self), self._of
        own = kind.trace is not Metric.trace or kind.values is not Metric.values
        labels = self._labels or isinstance(of, losses.SparseCategoricalCrossentropy)
        if own or labels or not isinstance(of, Loss):
            return False
        of.check_samples(builder, y_true, y_pred)
        return of.is_mean(builder, y_true, y_pred)

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the ops of the values whose mean is the metric.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.

        Returns
        -------
        int
            Id of a tensor whose first axis is the batch.
        """
        if not isinstance(self._of, Loss):
            raise NotImplementedError(
                f"{type(self).__name__} does not define its values: override `values`, "
                "or `trace` and `result`"
            )
        elements = self._of.elements(builder, y_true, y_pred)
        if elements is not None:
            return elements
        return self._of.values(builder, y_true, y_pred)

    @_of_own_sums
    def result(self, sums: _Sums) -> float:
        """Compute the metric from its sums.

        Parameters
        ----------
        sums : sequence of float or numpy.ndarray, optional
            The numbers of `trace`, summed over the batches; by default those of
            `update_state`. A subclass that overrides this always gets them.

        Returns
        -------
        float
            The metric, as logs show it; 0.0 without a batch.
        """
        total, count = sums
        return float(total / count) if count else 0.0

    def _check(self, builder: Builder, y_true: int, y_pred: int, labels: bool) -> None:
        """Raise ValueError if the targets have another shape or dtype than needed."""
        shape, of = builder.shape(y_true), builder.shape(y_pred)
        if shape != (of[:-1] if labels else of) or labels != (
            builder.dtype(y_true) == "int32"
        ):
            wanted = "labels" if labels else "targets of the shape of the output"
            raise ValueError(
                f"the metric {self.name!r} ({type(self).__name__}) needs {wanted}, but "
                f"the loss reads {builder.dtype(y_true)} of shape {(None, *shape[1:])} "
                f"for an output of shape {(None, *of[1:])}"
            )


Layer.metric_type = Metric  # layers know the metrics that they hold


class _Plain(Metric):
    """A metric without settings of its own."""

    __slots__ = ()

    _loss: ClassVar[Any] = None  # the class of the loss whose mean is the metric

    def __init__(self, name: str | None = None, dtype: str | None = None) -> None:
        super().__init__(dtype, name, None if self._loss is None else self._loss())


class _OfOne(_OfMetric):
    """The sums of a metric of values."""

    __slots__ = ()

    arity: ClassVar[int | None] = 1


class _OfValues(_Plain):
    """A metric of values that `update_state` gets, without targets."""

    __slots__ = ()

    def update_state(  # type: ignore[override]
        self, values: Any, sample_weight: Any = None
    ) -> None:
        """Add values to the metric.

        Parameters
        ----------
        values : array_like or SymbolicTensor
            Numbers, or a tensor of a function, which is added when it has run.
        sample_weight : array_like or SymbolicTensor, optional
            Weights of the shape of the first axes of the values; values of further axes
            are averaged first.

        Raises
        ------
        TypeError
            If tensors are given that are not of a function.
        ValueError
            If the weights have another shape.
        """
        self._update([values], sample_weight)

    def __call__(  # type: ignore[override]
        self, values: Any, sample_weight: Any = None
    ) -> float:
        """Add values, as `update_state` does, and return the metric.

        Parameters
        ----------
        values, sample_weight : array_like or SymbolicTensor
            As of `update_state`.

        Returns
        -------
        float
            The metric of all values since `reset_state`.

        Raises
        ------
        TypeError, ValueError
            As of `update_state`.
        """
        self.update_state(values, sample_weight)
        return self.result()

    def _sums_of(self, *given: Any) -> Any:
        values, *weight = (losses.in_dtype(each, "float32") for each in given)
        return _OfMetric(self)([values, *weight]) if weight else _OfOne(self)(values)

    def target(self, output: SymbolicTensor) -> NoReturn:
        """Raise, since the metric is of values and not of targets.

        Parameters
        ----------
        output : SymbolicTensor
            A model's output.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"{type(self).__name__} is a metric of values, which a train_step of your "
            f"own passes to its update_state; compile cannot use it for {output!r}"
        )

    def _trace_sums(self, scope: Scope, given: Sequence[int]) -> tuple[int, ...]:
        terms = Terms(scope.builder, self.name)
        values, *weight = (scope.builder.cast(each, "float32") for each in given)
        shape = terms.shape(values)
        if weight:
            weight = [terms.fitted(weight[0], shape)]
        of = terms.shape(weight[0]) if weight else shape[:1]
        if shape[: len(of)] != of:
            raise ValueError(
                f"{type(self).__name__}: sample_weight must have the shape of the "
                f"first axes of values of shape {shape}, got {of}"
            )
        values = self._reduced(terms, values, len(of))
        if not weight:
            count = _count(terms, float(of[0]) if of else 1.0)
            return terms.reduce("sum", values), count
        values = self._reduced(terms, terms("multiply", (values, weight[0])), 1)
        weights = self._reduced(terms, weight[0], 1)
        return terms.reduce("sum", values), terms.reduce("sum", weights)

    _how: ClassVar[str] = "mean"

    def _reduced(self, terms: Terms, tensor: int, rank: int) -> int:
        """Append the reduction of all axes from a rank on."""
        axes = range(rank, len(terms.shape(tensor)))
        return terms.reduce(self._how, tensor, axes) if axes else tensor


class Mean(_OfValues):
    """The weighted mean of values, such as the losses of an epoch.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Examples
    --------
    >>> import memcfg as mc
    >>> mean = mc.nn.metrics.Mean()
    >>> mean.update_state([1, 3, 5, 7])
    >>> mean.result()
    4.0
    """

    __slots__ = ()


class Sum(_OfValues):
    """The weighted sum of values.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _how: ClassVar[str] = "sum"
    _names: ClassVar[tuple[str, ...]] = ("total",)

    def result(self, sums: _Sums) -> float:
        """Return the sum.

        Parameters
        ----------
        sums : sequence of float, optional
            As of `Metric.result`.

        Returns
        -------
        float
            The sum of all values since `reset_state`.
        """
        return float(sums[0])


class MeanSquaredError(_Plain):
    """The mean of ``(y_true - y_pred)**2``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.MeanSquaredError


class MeanAbsoluteError(_Plain):
    """The mean of ``|y_true - y_pred|``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.MeanAbsoluteError


class MeanAbsolutePercentageError(_Plain):
    """The mean of ``100 * |y_true - y_pred| / max(|y_true|, 1e-7)``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.MeanAbsolutePercentageError


class MeanSquaredLogarithmicError(_Plain):
    """The mean of ``(log(y_true + 1) - log(y_pred + 1))**2``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.MeanSquaredLogarithmicError


class LogCoshError(Metric):
    """The mean of ``log(cosh(y_pred - y_true))``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    def __init__(self, name: str | None = "logcosh", dtype: str | None = None) -> None:
        super().__init__(dtype, name, losses.LogCosh())


class Poisson(_Plain):
    """The mean of ``y_pred - y_true * log(y_pred)``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.Poisson


class KLDivergence(_Plain):
    """The mean of ``sum(y_true * log(y_true / y_pred))``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.KLDivergence


class Hinge(_Plain):
    """The mean of ``max(1 - y_true * y_pred, 0)``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.Hinge


class SquaredHinge(_Plain):
    """The mean of ``max(1 - y_true * y_pred, 0)**2``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.SquaredHinge


class CategoricalHinge(_Plain):
    """The mean of `losses.CategoricalHinge`.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.CategoricalHinge


class RootMeanSquaredError(_Plain):
    """The square root of the mean of ``(y_true - y_pred)**2``.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _loss = losses.MeanSquaredError

    def result(self, sums: _Sums) -> float:
        """Return the square root of the mean."""
        return float(np.sqrt(super().result(sums)))


class BinaryCrossentropy(Metric):
    """The mean of `losses.BinaryCrossentropy`.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    from_logits : bool, default False
        Whether outputs are logits, without a sigmoid.
    label_smoothing : float, default 0.0
        As for `losses.BinaryCrossentropy`.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        loss = losses.BinaryCrossentropy(from_logits, label_smoothing)
        super().__init__(dtype, name, loss)


class CategoricalCrossentropy(Metric):
    """The mean of `losses.CategoricalCrossentropy`.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    from_logits : bool, default False
        Whether outputs are logits, without a softmax.
    label_smoothing : float, default 0.0
        As for `losses.CategoricalCrossentropy`.
    axis : int, default -1
        Only -1.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
    ) -> None:
        loss = losses.CategoricalCrossentropy(from_logits, label_smoothing, axis)
        super().__init__(dtype, name, loss)


class SparseCategoricalCrossentropy(Metric):
    """The mean of `losses.SparseCategoricalCrossentropy`.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    from_logits : bool, default False
        Whether outputs are logits, without a softmax.
    ignore_class : int, optional
        A label whose samples are left out of the mean, as out of the loss. Keras leaves
        them out where there are sample weights, and else counts zeros for them.
    axis : int, default -1
        Only -1.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        loss = losses.SparseCategoricalCrossentropy(
            from_logits, ignore_class, axis=axis
        )
        super().__init__(dtype, name, loss)


class CosineSimilarity(Metric):
    """The mean cosine of the angle between target and output.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    axis : int, default -1
        The axis of the vectors; axis 0 is the batch.
    """

    __slots__ = ("axis",)

    _direction = "up"

    def __init__(
        self, name: str | None = None, dtype: str | None = None, axis: int = -1
    ) -> None:
        super().__init__(dtype, name)
        self.axis = losses.CosineSimilarity(axis).axis

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the cosines."""
        return cosines(Terms(builder, self.name), y_true, y_pred, self.axis, 1.0)


class _Correlation(Metric):
    """The mean of a correlation of targets and outputs along axes."""

    __slots__ = ("axis",)

    _direction = "up"

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        axis: int | Sequence[int] = -1,
    ) -> None:
        super().__init__(dtype, name)
        what = f"{type(self).__name__}: axis"
        several = axis if isinstance(axis, list | tuple) else (axis,)
        axes = tuple(integer(each, what, None) for each in several)
        self.axis = axes if isinstance(axis, list | tuple) else axes[0]

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append the correlations."""
        terms, rank = Terms(builder, self.name), len(builder.shape(y_pred))
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        if not axes or not all(-rank <= each < rank for each in axes):
            raise ValueError(
                f"{type(self).__name__}: axis={self.axis} names no axes of an output "
                f"of {rank} axes"
            )
        over, whole = sorted({each % rank for each in axes}), builder.shape(y_pred)

        def mean(tensor: int) -> int:
            return terms.reduce("mean", tensor, over)

        centred, means = [], []
        for each in (y_true, y_pred):
            middle = terms.reduce("mean", each, over, keepdims=True)
            wide = terms("broadcast_to", (middle,), {"shape": whole})
            centred.append(terms("subtract", (each, wide)))
            means.append(mean(each))
        t, p = centred
        both, a, b = (mean(terms("multiply", x)) for x in ((t, p), (t, t), (p, p)))
        return self._combined(terms, both, a, b, terms("subtract", means))

    def _combined(self, terms: Terms, both: int, a: int, b: int, apart: int) -> int:
        """Append the correlation of a covariance, two variances and their means."""
        raise NotImplementedError


class PearsonCorrelation(_Correlation):
    """The covariance of targets and outputs, by their standard deviations.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    axis : int or sequence of int, default -1
        The axes along which each correlation is; the metric is their mean.
    """

    __slots__ = ()

    def _combined(self, terms: Terms, both: int, a: int, b: int, apart: int) -> int:
        del apart
        roots = [terms("root", (each,), {"term": -0.0}) for each in (a, b)]
        return terms("divide", (both, terms("multiply", roots)))


class ConcordanceCorrelation(_Correlation):
    """Twice the covariance, by the variances and the squared distance of the means.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    axis : int or sequence of int, default -1
        The axes along which each correlation is; the metric is their mean.

    References
    ----------
    Lin, "A concordance correlation coefficient to evaluate reproducibility",
    Biometrics 45, 1989.
    """

    __slots__ = ()

    def _combined(self, terms: Terms, both: int, a: int, b: int, apart: int) -> int:
        total = terms("add", (a, terms("add", (b, terms("multiply", (apart, apart))))))
        least = terms("affine", (total,), {"factor": 1.0, "term": _EPSILON})
        twice = terms("affine", (both,), {"factor": 2.0, "term": -0.0})
        return terms("divide", (twice, least))


class Accuracy(_Plain):
    """The fraction of the outputs that equal their targets.

    In `compile` the name ``"accuracy"`` means another metric: `BinaryAccuracy` for
    outputs of one unit, `SparseCategoricalAccuracy` for integer labels, otherwise
    `CategoricalAccuracy`.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _direction = "up"

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 where output and target are equal, else 0."""
        return Terms(builder, self.name)("agreement", (y_true, y_pred))


class BinaryAccuracy(Metric):
    """The fraction of the binary targets that thresholded outputs equal.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    threshold : float, default 0.5
        Outputs above it count as 1, others as 0.
    """

    __slots__ = ("threshold",)

    _direction = "up"

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        threshold: float = 0.5,
    ) -> None:
        super().__init__(dtype, name)
        self.threshold = real(threshold, "BinaryAccuracy: threshold")

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 for each correct output, else 0."""
        terms = Terms(builder, self.name)
        threshold = {"threshold": self.threshold}
        return terms("binary_agreement", (y_true, y_pred), threshold)


class CategoricalAccuracy(_Plain):
    """The fraction of the one-hot targets whose class has the largest output.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _direction = "up"

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 for each correct output, else 0."""
        terms = Terms(builder, self.name)
        return terms("hits", (y_pred, terms("argmax", (y_true,))), {"k": 0})


class SparseCategoricalAccuracy(_Plain):
    """The fraction of the integer labels whose class has the largest output.

    Parameters
    ----------
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _direction = "up"

    _labels = True

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the number of correct outputs and the number of samples."""
        if sample_weight is not None or len(builder.shape(y_pred)) != 2:
            return super().trace(builder, y_true, y_pred, sample_weight)
        self._check(builder, y_true, y_pred, labels=True)
        terms = Terms(builder, self.name)
        right = terms("correct_count", (y_pred, y_true), name="correct_count")
        return right, _count(terms, float(builder.shape(y_true)[0]))

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 for each correct output, else 0."""
        terms = Terms(builder, self.name)
        return terms("hits", (y_pred, y_true), {"k": 0})


class TopKCategoricalAccuracy(Metric):
    """The fraction of the one-hot targets whose class is among the `k` largest outputs.

    Parameters
    ----------
    k : int, default 5
        The number of largest outputs.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("k",)

    _direction = "up"

    def __init__(
        self, k: int = 5, name: str | None = None, dtype: str | None = None
    ) -> None:
        super().__init__(dtype, name)
        self.k = integer(k, "TopKCategoricalAccuracy: k")

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return None, the loss's target; ValueError for fewer than `k` classes."""
        _check_classes(self, self.k, output)
        return None

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 for each correct output, else 0."""
        terms = Terms(builder, self.name)
        return terms("hits", (y_pred, terms("argmax", (y_true,))), {"k": self.k})


def _as_labels(terms: Terms, y_true: int, y_pred: int) -> int:
    """Append what makes labels of numbers that a user's loss reads, as Keras does."""
    of = terms.shape(y_pred)[:-1]
    if terms.builder.dtype(y_true) != "float32":
        return y_true
    if terms.shape(y_true) == (*of, 1):
        y_true = terms("reshape", (y_true,), {"shape": of})
    elif terms.shape(y_true) != of:
        return y_true
    return terms("cast", (y_true,), {"dtype": "int32"})


class SparseTopKCategoricalAccuracy(Metric):
    """The fraction of the integer labels whose class is among the `k` largest outputs.

    Parameters
    ----------
    k : int, default 5
        The number of largest outputs.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    from_sorted_ids : bool, default False
        Only False.

    Raises
    ------
    ValueError
        If `from_sorted_ids` is True.
    """

    __slots__ = ("k",)

    _direction = "up"

    _labels = True

    def __init__(
        self,
        k: int = 5,
        name: str | None = None,
        dtype: str | None = None,
        from_sorted_ids: bool = False,
    ) -> None:
        super().__init__(dtype, name)
        self.k = integer(k, "SparseTopKCategoricalAccuracy: k")
        if from_sorted_ids:
            raise ValueError(
                "SparseTopKCategoricalAccuracy: from_sorted_ids=True is not "
                "supported; outputs are scores of the classes"
            )

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return None, the loss's target; ValueError for fewer than `k` classes."""
        _check_classes(self, self.k, output)
        return None

    def values(self, builder: Builder, y_true: int, y_pred: int) -> int:
        """Append 1 for each correct output, else 0."""
        terms = Terms(builder, self.name)
        return terms("hits", (y_pred, y_true), {"k": self.k})


def _check_classes(metric: Metric, k: int, output: SymbolicTensor) -> None:
    classes = output.sample_shape[-1]
    if k > classes:
        raise ValueError(
            f"{type(metric).__name__}: every output is among the k={k} largest of "
            f"{classes} classes. Pass a smaller k"
        )


class _AtThresholds(Metric):
    """A metric of counts at a threshold, or at several."""

    __slots__ = ("thresholds",)

    _which: ClassVar[Any] = ()  # the counts of `_four` that `_names` names

    _advice_of_several = "pass one threshold, and use a metric for each threshold"

    def _count_at(self, thresholds: Any, name: Any, dtype: Any, **how: Any) -> None:
        """Initialise the metric with its thresholds; others are counted in order."""
        what = f"{type(self).__name__}: a threshold"
        if thresholds is None:
            thresholds = 0.5
        several = isinstance(thresholds, list | tuple)
        given = thresholds if several else (thresholds,)
        self.thresholds = [_unit(each, what) for each in given]
        if not self.thresholds:
            raise ValueError(f"{type(self).__name__}: there is no threshold")
        ascending = sorted(set(self.thresholds))
        Metric.__init__(self, dtype, name, _Counts(ascending, **how))

    def _several(self, output: SymbolicTensor) -> bool:
        del output
        return len(self.thresholds) > 1

    def _at_thresholds(self, values: Any) -> Any:
        """Return numbers by threshold in the order given; a float for one."""
        return float(values[0]) if len(self.thresholds) == 1 else self._in_order(values)

    def _in_order(self, values: Any) -> Any:
        """Return numbers by threshold in the order given."""
        assert isinstance(self._of, _Counts)
        given = np.asarray(self.thresholds, np.float32)
        return np.asarray(values)[np.searchsorted(self._of.thresholds, given)]

    def _totals(self) -> Sequence[Any]:
        if self._sums is None:
            return [np.zeros(len(self.thresholds))] * len(self._names)
        four = _four(self._sums)
        return [self._in_order(four[which]) for which in self._which]


class _Rate(_AtThresholds):
    """A ratio of counts at thresholds."""

    __slots__ = ("class_id", "top_k")

    _direction = "up"

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.class_id = class_id
        self.top_k = top_k
        marks = top_k is not None and thresholds is None
        how = {"class_id": class_id, "top_k": top_k, "marks": marks}
        self._count_at(thresholds, name, dtype, **how)


class Precision(_Rate):
    """The fraction of the outputs above the threshold whose target is 1.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5, or none with `top_k`.
    top_k : int, optional
        The number of largest outputs of a sample that may count as positive.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.metrics.Precision(thresholds=0.7).name
    'precision'
    """

    __slots__ = ()

    _names: ClassVar[tuple[str, ...]] = ("true_positives", "false_positives")
    _which: ClassVar[Any] = (0, 1)

    def result(self, sums: _Sums) -> Any:
        """Return the ratio, or an array of one for each threshold."""
        tp, fp, _tn, _fn = _four(sums)
        return self._at_thresholds(_divide(tp, tp + fp))


class Recall(_Rate):
    """The fraction of the targets 1 whose output is above the threshold.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5, or none with `top_k`.
    top_k : int, optional
        The number of largest outputs of a sample that may count as positive.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    __slots__ = ()

    _names: ClassVar[tuple[str, ...]] = ("true_positives", "false_negatives")
    _which: ClassVar[Any] = (0, 3)

    def result(self, sums: _Sums) -> Any:
        """Return the ratio, or an array of one for each threshold."""
        tp, _fp, _tn, fn = _four(sums)
        return self._at_thresholds(_divide(tp, tp + fn))


class _Count(_AtThresholds):
    """One of the counts of `_four`, selected by `_which`."""

    __slots__ = ()

    _names: ClassVar[tuple[str, ...]] = ("accumulator",)

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self._count_at(thresholds, name, dtype)

    def result(self, sums: _Sums) -> Any:
        """Return the count, or an array of one for each threshold."""
        return self._at_thresholds(_four(sums)[self._which[0]])


class TruePositives(_Count):
    """The number of targets 1 whose output is above the threshold.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _which: ClassVar[Any] = (0,)


class FalsePositives(_Count):
    """The number of targets 0 whose output is above the threshold.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _which: ClassVar[Any] = (1,)


class TrueNegatives(_Count):
    """The number of targets 0 whose output is not above the threshold.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _which: ClassVar[Any] = (2,)


class FalseNegatives(_Count):
    """The number of targets 1 whose output is not above the threshold.

    Parameters
    ----------
    thresholds : float or sequence of float, optional
        Thresholds in ``[0, 1]``; with several the result is an array, which logs cannot
        hold. None: 0.5.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ()

    _which: ClassVar[Any] = (3,)


def _evenly(metric: Metric, num_thresholds: int, class_id: int | None) -> _Counts:
    """Return counts at evenly spaced thresholds from 0 to 1; one threshold is 0.5."""
    integer(num_thresholds, f"{type(metric).__name__}: num_thresholds")
    many = num_thresholds > 1
    return _Counts(list(np.linspace(0, 1, num_thresholds)) if many else [0.5], class_id)


def _most(constrained: Any, least: float, dependent: Any) -> float:
    """Return the largest `dependent` rate where `constrained` is at least `least`."""
    return float(np.where(constrained >= least, dependent, 0).max(initial=0))


class _AtRates(Metric):
    """A metric of all four counts at many thresholds."""

    __slots__ = ()

    _names: ClassVar[tuple[str, ...]] = (
        "true_positives",
        "false_positives",
        "true_negatives",
        "false_negatives",
    )

    @property
    def thresholds(self) -> list[float]:
        """The thresholds."""
        assert isinstance(self._of, _Counts)
        return self._of.given

    @property
    def num_thresholds(self) -> int:
        """The number of thresholds."""
        return len(self.thresholds)

    def _totals(self) -> Sequence[Any]:
        """Return the four counts."""
        assert isinstance(self._of, _Counts)
        if self._sums is None:
            return [np.zeros(len(self._of.thresholds))] * 4
        return _four(self._sums)


class SensitivityAtSpecificity(_AtRates):
    """The highest sensitivity over the thresholds with at least a given specificity.

    Parameters
    ----------
    specificity : float
        The lowest allowed specificity, in ``[0, 1]``.
    num_thresholds : int, default 200
        The number of thresholds, evenly spaced from 0 to 1.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("specificity",)

    _direction = "up"

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.specificity = _unit(specificity, "SensitivityAtSpecificity: specificity")
        super().__init__(dtype, name, _evenly(self, num_thresholds, class_id))

    def result(self, sums: _Sums) -> float:
        """Return the highest rate; 0 if no threshold meets the constraint."""
        tp, fp, tn, fn = _four(sums)
        return _most(_divide(tn, tn + fp), self.specificity, _divide(tp, tp + fn))


class SpecificityAtSensitivity(_AtRates):
    """The highest specificity over the thresholds with at least a given sensitivity.

    Parameters
    ----------
    sensitivity : float
        The lowest allowed sensitivity, in ``[0, 1]``.
    num_thresholds : int, default 200
        The number of thresholds, evenly spaced from 0 to 1.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("sensitivity",)

    _direction = "up"

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.sensitivity = _unit(sensitivity, "SpecificityAtSensitivity: sensitivity")
        super().__init__(dtype, name, _evenly(self, num_thresholds, class_id))

    def result(self, sums: _Sums) -> float:
        """Return the highest rate; 0 if no threshold meets the constraint."""
        tp, fp, tn, fn = _four(sums)
        return _most(_divide(tp, tp + fn), self.sensitivity, _divide(tn, tn + fp))


class PrecisionAtRecall(_AtRates):
    """The highest precision over the thresholds with at least a given recall.

    Parameters
    ----------
    recall : float
        The lowest allowed recall, in ``[0, 1]``.
    num_thresholds : int, default 200
        The number of thresholds, evenly spaced from 0 to 1.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("recall",)

    _direction = "up"

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.recall = _unit(recall, "PrecisionAtRecall: recall")
        super().__init__(dtype, name, _evenly(self, num_thresholds, class_id))

    def result(self, sums: _Sums) -> float:
        """Return the highest rate; 0 if no threshold meets the constraint."""
        tp, fp, _tn, fn = _four(sums)
        return _most(_divide(tp, tp + fn), self.recall, _divide(tp, tp + fp))


class RecallAtPrecision(_AtRates):
    """The highest recall over the thresholds with at least a given precision.

    Parameters
    ----------
    precision : float
        The lowest allowed precision, in ``[0, 1]``.
    num_thresholds : int, default 200
        The number of thresholds, evenly spaced from 0 to 1.
    class_id : int, optional
        The unit of the output to consider. None: all.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("precision",)

    _direction = "up"

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.precision = _unit(precision, "RecallAtPrecision: precision")
        super().__init__(dtype, name, _evenly(self, num_thresholds, class_id))

    def result(self, sums: _Sums) -> float:
        """Return the highest rate; 0 if no threshold meets the constraint."""
        tp, fp, _tn, fn = _four(sums)
        return _most(_divide(tp, tp + fp), self.precision, _divide(tp, tp + fn))


class AUC(_AtRates):
    """The area under the ROC or precision-recall curve, from counts at thresholds.

    Targets have the shape of the output, or are integer labels of its classes, which
    count as one-hot.

    Parameters
    ----------
    num_thresholds : int, default 200
        The number of thresholds, evenly spaced from 0 to 1.
    curve : {"ROC", "PR", "PRGAIN"}, default "ROC"
        Sensitivity over false positive rate, precision over recall, or the gains of
        precision over those of recall.
    summation_method : {"interpolation", "majoring", "minoring"}
        Height of the area between two thresholds: interpolated (the default), the
        larger or the smaller of the two values.
    name : str, optional
        The name in logs. None: ``"auc"``.
    dtype : str, optional
        ``"float32"`` or None.
    thresholds : sequence of float, optional
        Thresholds in ``[0, 1]``, instead of `num_thresholds`.
    multi_label : bool, default False
        Whether each unit of the output is a label with an area of its own, whose mean
        is the metric; by default all are counted together.
    num_labels : int, optional
        The number of labels, which an output must have.
    label_weights : sequence of float, optional
        The weights of labels in the mean, or in the counts.
    from_logits : bool, default False
        Whether outputs are logits, without a sigmoid.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Davis and Goadrich, "The relationship between precision-recall and ROC curves",
    ICML 2006 (the interpolation of ``"PR"``).
    """

    __slots__ = (
        "curve",
        "from_logits",
        "label_weights",
        "multi_label",
        "num_labels",
        "summation_method",
    )

    _direction = "up"

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: str | None = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Sequence[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        self.multi_label = bool(multi_label)
        self.num_labels = (
            None if num_labels is None else integer(num_labels, "AUC: num_labels")
        )
        self.label_weights = (
            None
            if label_weights is None
            else tuple(
                nonnegative(each, "AUC: a label weight") for each in label_weights
            )
        )
        if curve not in ("ROC", "PR", "PRGAIN", "roc", "pr", "prgain"):
            raise ValueError(
                f"AUC: curve must be 'ROC', 'PR' or 'PRGAIN', got {curve!r}"
            )
        methods = ("interpolation", "majoring", "minoring")
        if str(summation_method).lower() not in methods:
            raise ValueError(
                f"AUC: summation_method must be {', '.join(map(repr, methods))}, got "
                f"{summation_method!r}"
            )
        if thresholds is not None:
            inner = sorted(_unit(each, "AUC: a threshold") for each in thresholds)
        else:
            integer(num_thresholds, "AUC: num_thresholds")
            if num_thresholds < 2:
                raise ValueError("AUC: num_thresholds must be above 1")
            inner = list(np.linspace(0, 1, num_thresholds)[1:-1])
        weights = None if self.multi_label else self.label_weights
        counts = _Counts(
            inner,
            with_sigmoid=bool(from_logits),
            by_label=self.multi_label,
            label_weights=weights,
        )
        super().__init__(dtype, "auc" if name is None else name, counts)
        self.curve = curve.upper()
        self.summation_method = summation_method.lower()
        self.from_logits = bool(from_logits)

    @property
    def thresholds(self) -> list[float]:
        """The thresholds, among them 0 and 1."""
        return [0.0, *super().thresholds, 1.0]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor; thresholds only if they were given.

        Returns
        -------
        dict
            As of `Metric.get_config`.
        """
        listed = getattr(self, "_given", {}).get("thresholds") is not None
        inner = self.thresholds[1:-1] if listed else None
        return super().get_config() | {"thresholds": inner}

    def _totals(self) -> Sequence[Any]:
        """Return the four counts, with one row a threshold; labels are columns."""
        if self._sums is None:
            return [np.zeros(self.num_thresholds)] * 4
        rows = (np.reshape(each, (-1, self.num_thresholds - 1)) for each in self._sums)
        tp, fp = (np.pad(each, ((0, 0), (0, 1))).T for each in rows)
        four = (tp, fp, fp[0] - fp, tp[0] - tp)
        return four if self.multi_label else [each[:, 0] for each in four]

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return None, the loss's target; ValueError for another number of labels."""
        shape = output.sample_shape
        named = {self.num_labels, len(self.label_weights or ()) or None} - {None}
        if self.multi_label and len(shape) != 1:
            raise ValueError(
                "AUC: multi_label=True needs outputs of shape (None, labels), got "
                f"{output.shape}"
            )
        if named - {*shape[-1:]}:
            raise ValueError(
                f"AUC: an output of shape {output.shape} does not have "
                f"{' and '.join(map(str, named))} labels"
            )
        return None

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the counts; see `Metric.trace`. Integer labels become one-hot."""
        classes = builder.shape(y_pred)[-1:]
        sparse = (*builder.shape(y_true), *classes) == builder.shape(y_pred)
        if sparse and builder.dtype(y_true) == "int32":
            terms = Terms(builder, self.name)
            y_true = terms("one_hot", (y_true,), {"depth": classes[0]})
        return super().trace(builder, y_true, y_pred, sample_weight)

    def _matching(self, y_true: Any, y_pred: Any) -> Any:
        """Return targets in the shape of the output, or labels of its classes."""
        shape, lead = tuple(y_true.shape), tuple(y_pred.shape[:-1])
        if y_pred.shape[-1] > 1 and lead and shape in (lead, (*lead, 1)):
            return losses.in_dtype(losses.in_shape(y_true, lead), "int32")
        return super()._matching(y_true, y_pred)

    def result(self, sums: _Sums) -> float:
        """Return the area, or the mean of those of labels."""
        if not self.multi_label:
            return self._area(*sums)
        rows = (np.reshape(each, (-1, self.num_thresholds - 1)) for each in sums)
        areas = np.array([self._area(*both) for both in zip(*rows, strict=True)])
        if self.label_weights is None:
            return float(areas.mean())
        weights = np.asarray(self.label_weights)
        return float(_divide((areas * weights).sum(), weights.sum()))

    def _area(self, *sums: Any) -> float:
        """Sum the areas between thresholds, including one below 0 and one above 1."""
        tp, fp = (np.append(np.asarray(each, np.float64), 0) for each in sums)
        tn, fn = fp[0] - fp, tp[0] - tp
        if self.curve == "PR" and self.summation_method == "interpolation":
            return float(_interpolated(tp, fp))
        recall = _divide(tp, tp + fn)
        if self.curve == "ROC":
            x, y = _divide(fp, fp + tn), recall
        elif self.curve == "PR":
            x, y = recall, _divide(tp, tp + fp)
        else:  # as in Keras: without true positives recall is 0 and precision is 1
            scale = _divide(tp + fn, tn + fp)
            gain = 1 - scale * _divide(fn, tp)
            x = np.maximum(np.where(tp == 0, 0, gain), 0)
            y = np.where(tp == 0, 1, 1 - scale * _divide(fp, tp))
        pairs = (y[:-1], y[1:])
        height = {
            "interpolation": (y[:-1] + y[1:]) / 2,
            "minoring": np.minimum(*pairs),
            "majoring": np.maximum(*pairs),
        }[self.summation_method]
        return float(((x[:-1] - x[1:]) * height).sum())


def _interpolated(tp: Any, fp: Any) -> Any:
    """Integrate precision over recall (Davis and Goadrich 2006, section 4).

    Between two thresholds true positives are linear in the number of positives.
    """
    positives = tp + fp
    dtp, dp = tp[:-1] - tp[1:], positives[:-1] - positives[1:]
    slope = _divide(dtp, np.maximum(dp, 0))
    intercept = tp[1:] - slope * positives[1:]
    both = (positives[:-1] > 0) & (positives[1:] > 0)
    ratio = np.where(both, _divide(positives[:-1], positives[1:]), 1)
    return _divide(slope * (dtp + intercept * np.log(ratio)), tp[0]).sum()


class _Score(Metric):
    """A score of precision and recall per class, and the average over classes."""

    __slots__ = ()

    _direction = "up"

    sum_count: ClassVar[int] = 3
    _names: ClassVar[tuple[str, ...]] = (
        "true_positives",
        "false_positives",
        "false_negatives",
        "weights",
    )
    average: str | None
    threshold: float | None

    def __init__(
        self,
        average: str | None,
        threshold: float | None,
        name: str | None,
        dtype: str | None,
    ) -> None:
        super().__init__(dtype, name)
        kind = type(self).__name__
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(
                f"{kind}: average must be 'micro', 'macro', 'weighted' or None, got "
                f"{average!r}"
            )
        self.average = average
        self.threshold = (
            None if threshold is None else _unit(threshold, f"{kind}: threshold")
        )

    def target(self, output: SymbolicTensor) -> Target | None:
        """Return None, the loss's target; ValueError for an output of more axes."""
        if len(output.sample_shape) != 1:
            raise ValueError(
                f"{type(self).__name__} needs outputs of shape (None, classes), got "
                f"{output.shape}"
            )
        return None

    _advice_of_several = "pass average='macro', 'micro' or 'weighted'"

    def _several(self, output: SymbolicTensor) -> bool:
        return self.average is None and output.sample_shape != (1,)

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append counts per class: true positives, positive outputs and targets."""
        self._check(builder, y_true, y_pred, labels=False)
        terms = Terms(builder, self.name)
        if self.threshold is not None:
            chosen = terms("above", (y_pred,), {"threshold": self.threshold})
        else:
            most = terms.reduce("max", y_pred, (-1,), keepdims=True)
            wide = terms("broadcast_to", (most,), {"shape": terms.shape(y_pred)})
            chosen = terms("is_most", (y_pred, wide))
        right = terms("multiply", (chosen, y_true))
        return tuple(
            terms.reduce("sum", _by_rows(terms, each, sample_weight), (0,))
            for each in (right, chosen, y_true)
        )

    def _totals(self) -> Sequence[Any]:
        if self._sums is None:
            return [0.0] * 4
        right, chosen, true = (np.asarray(each, np.float64) for each in self._sums)
        four = right, chosen - right, true - right, true
        return [each.sum() for each in four] if self.average == "micro" else four

    def _score(self, sums: _Sums, beta: float) -> Any:
        """Return the average F-beta score of the classes, or those of several."""
        counts = [np.asarray(each, np.float64) for each in sums]
        if self.average == "micro":
            counts = [each.sum(keepdims=True) for each in counts]
        right, chosen, true = counts
        precision = right / (chosen + _EPSILON)
        recall = right / (true + _EPSILON)
        factor = beta**2
        score = precision * recall / (factor * precision + recall + _EPSILON)
        score *= 1 + factor
        if self.average == "weighted":
            return float((score * true).sum() / (true.sum() + _EPSILON))
        if self.average is None and score.size > 1:
            return score
        return float(np.mean(score))


class FBetaScore(_Score):
    """The weighted harmonic mean of precision and recall.

    Parameters
    ----------
    average : {"micro", "macro", "weighted"} or None, default None
        Count all classes together, average their scores, or average them weighted by
        the number of targets. With None the result is an array of the scores, which
        logs cannot hold.
    beta : float, default 1.0
        The weight of recall relative to precision, above 0.
    threshold : float, optional
        In ``[0, 1]``: outputs above it are positive. None: only the largest output is.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """

    __slots__ = ("average", "beta", "threshold")

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = "fbeta_score",
        dtype: str | None = None,
    ) -> None:
        super().__init__(average, threshold, name, dtype)
        self.beta = real(beta, "FBetaScore: beta")
        if self.beta <= 0:
            raise ValueError(f"FBetaScore: beta must be positive, got {beta!r}")

    def result(self, sums: _Sums) -> Any:
        """Return the score."""
        return self._score(sums, self.beta)


class F1Score(_Score):
    """`FBetaScore` with a beta of 1.

    Parameters
    ----------
    average : str or None, default None
        As for `FBetaScore`.
    threshold : float, optional
        In ``[0, 1]``: outputs above it are positive. None: only the largest output is.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("average", "threshold")

    def __init__(
        self,
        average: str | None = None,
        threshold: float | None = None,
        name: str | None = "f1_score",
        dtype: str | None = None,
    ) -> None:
        super().__init__(average, threshold, name, dtype)

    def result(self, sums: _Sums) -> Any:
        """Return the score."""
        return self._score(sums, 1.0)


class R2Score(Metric):
    """The fraction of the targets' variance that the outputs explain; at most 1.

    Parameters
    ----------
    class_aggregation : {"uniform_average", "variance_weighted_average"} or None
        How the scores of the output's units are averaged; uniformly by default. With
        None the result is an array of the scores, which logs cannot hold.
    num_regressors : int, default 0
        The number of independent variables that the score is adjusted for, as in Keras
        by the number of targets. 0: the score is not adjusted.
    name : str, optional
        The name in logs.
    dtype : str, optional
        ``"float32"`` or None.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """

    __slots__ = ("class_aggregation", "num_regressors")

    _direction = "up"

    sum_count: ClassVar[int] = 5
    _names: ClassVar[tuple[str, ...]] = (
        "sum",
        "squared_sum",
        "residual",
        "count",
        "num_samples",
    )

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: str | None = None,
    ) -> None:
        super().__init__(dtype, name)
        known = ("uniform_average", "variance_weighted_average", None)
        if class_aggregation not in known:
            raise ValueError(
                "R2Score: class_aggregation must be 'uniform_average', "
                f"'variance_weighted_average' or None, got {class_aggregation!r}"
            )
        self.class_aggregation = class_aggregation
        self.num_regressors = integer(num_regressors, "R2Score: num_regressors", 0)

    _advice_of_several = "pass class_aggregation='uniform_average'"

    def _several(self, output: SymbolicTensor) -> bool:
        return self.class_aggregation is None and output.sample_shape != (1,)

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append sums: targets, their squares, squared errors, weights, their number.

        As in Keras, the last is of targets, not of samples.
        """
        self._check(builder, y_true, y_pred, labels=False)
        terms = Terms(builder, self.name)
        if len(terms.shape(y_true)) != 2:
            raise ValueError(
                "R2Score needs targets of shape (None, units), got "
                f"{terms.shape(y_true)}"
            )
        square = terms("multiply", (y_true, y_true))
        error = terms("squared_error", (y_true, y_pred))
        sums = (
            terms.reduce("sum", _by_rows(terms, each, sample_weight), (0,))
            for each in (y_true, square, error)
        )
        samples, units = terms.shape(y_true)
        number = _count(terms, float(samples * units))
        if sample_weight is None:
            return *sums, _count(terms, float(samples)), number
        return *sums, terms.reduce("sum", sample_weight), number

    def result(self, sums: _Sums) -> Any:
        """Return 1 minus the ratio of squared errors to variance, averaged."""
        each = (np.asarray(each, np.float64) for each in sums)
        total, squares, errors, count, number = each
        variance = squares - total * total / count
        with np.errstate(divide="ignore", invalid="ignore"):
            score = 1 - errors / variance
        score = np.where(np.isinf(score), 0, score)
        if self.class_aggregation == "uniform_average":
            score = score.mean()
        elif self.class_aggregation is not None:
            score = (variance * score).sum() / variance.sum()
        score = self._adjusted(score, float(number))
        return score if np.ndim(score) and np.size(score) > 1 else float(np.mean(score))

    def _adjusted(self, score: Any, number: float) -> Any:
        """Return the score adjusted for the independent variables, if it can be."""
        if self.num_regressors == 0:
            return score
        freedom = number - self.num_regressors - 1
        if freedom <= 0:
            warnings.warn(
                f"R2Score: {number:g} targets are too few to adjust the score for "
                f"num_regressors={self.num_regressors}: it is not adjusted",
                stacklevel=4,
            )
            return score
        return 1 - (1 - score) * (number - 1) / freedom


class MeanMetricWrapper(Metric):
    """The mean of a function of targets and outputs.

    Parameters
    ----------
    fn : callable
        ``fn(y_true, y_pred)`` returns a symbolic tensor with a number, or several, for
        each sample.
    name : str, optional
        The name in logs. None: the function's name.
    dtype : str, optional
        ``"float32"`` or None.
    **kwargs : object
        Further arguments of the function. With some the metric cannot be saved.

    Raises
    ------
    TypeError
        If `fn` is no function.
    """

    __slots__ = ("fn",)

    def __init__(
        self,
        fn: Any,
        name: str | None = None,
        dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        of = losses.get_loss(fn)
        if kwargs and type(of) is getattr(fn, "kind", None):
            of = type(of)(name=of.name, **kwargs)
        elif kwargs:
            bound: Any = partial(fn, **kwargs)
            bound.__name__ = of.name
            of = losses.get_loss(bound)
        super().__init__(dtype, of.name if name is None else name, of)
        self.fn = partial(fn, **kwargs) if kwargs else fn


class _Unions(Metric):
    """Intersection over union of some classes, from counts of pairs of classes."""

    __slots__ = (
        "axis",
        "ignore_class",
        "num_classes",
        "sparse_y_pred",
        "sparse_y_true",
        "target_class_ids",
    )

    _direction = "up"

    sum_count: ClassVar[int] = 1
    _names: ClassVar[tuple[str, ...]] = ("total_confusion_matrix",)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create a metric from its arguments, of which Keras has a dtype of labels."""
        given = {key: each for key, each in config.items() if each != "int32"}
        return super().from_config(given)

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: str | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__(dtype, name)
        kind = type(self).__name__
        self.num_classes = integer(num_classes, f"{kind}: num_classes")
        ids = [integer(i, f"{kind}: target_class_ids", 0) for i in target_class_ids]
        if not ids or max(ids) >= self.num_classes:
            raise ValueError(
                f"{kind}: target_class_ids must be below num_classes="
                f"{self.num_classes}, got {target_class_ids}"
            )
        self.target_class_ids = ids
        self.ignore_class = (
            None
            if ignore_class is None
            else integer(ignore_class, "ignore_class", None)
        )
        self.sparse_y_true = bool(sparse_y_true)
        self.sparse_y_pred = bool(sparse_y_pred)
        if axis != -1:
            raise ValueError(f"{kind}: axis must be -1, the last one, got {axis!r}")
        self.axis = -1

    def _classes(self, terms: Terms, tensor: int, sparse: bool) -> int:
        """Append the class of each element, as int32."""
        if not sparse:
            return terms("argmax", (tensor,))
        if terms.builder.dtype(tensor) == "int32":
            return tensor
        return terms("cast", (tensor,), {"dtype": "int32"})

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the numbers of elements of each pair of classes."""
        terms = Terms(builder, self.name)
        true = self._classes(terms, y_true, self.sparse_y_true)
        said = self._classes(terms, y_pred, self.sparse_y_pred)
        shape = min(terms.shape(true), terms.shape(said), key=len)
        if terms.shape(said) == (*shape, 1):
            said = terms("reshape", (said,), {"shape": shape})
        if terms.shape(true) == (*shape, 1):
            true = terms("reshape", (true,), {"shape": shape})
        if not terms.shape(said) == terms.shape(true) == shape:
            both = [(None, *terms.shape(each)[1:]) for each in (true, said)]
            raise ValueError(
                f"the metric {self.name!r} ({type(self).__name__}) needs a target for "
                f"each output, got classes of shapes {both[0]} and {both[1]}: see "
                "sparse_y_true and sparse_y_pred"
            )
        wide = {"shape": (int(np.prod(shape)), self.num_classes)}
        rows = []
        for each in (true, said):
            flat = terms("reshape", (each,), {"shape": wide["shape"][:1]})
            rows.append(terms("one_hot", (flat,), {"depth": self.num_classes}))
        counts = rows[0]
        weights = [] if sample_weight is None else [terms.spread(sample_weight, shape)]
        if self.ignore_class is not None:
            number = {"number": float(self.ignore_class)}
            real_ = terms("cast", (true,), {"dtype": "float32"})
            weights.append(terms("not_equal_number", (real_,), number))
        for weight in weights:
            column = terms("reshape", (weight,), {"shape": (wide["shape"][0], 1)})
            factor = terms("broadcast_to", (column,), wide)
            counts = terms("multiply", (counts, factor))
        pair = (counts, rows[1])
        return (terms("matmul", pair, {"transpose_a": True}),)

    def result(self, sums: _Sums) -> float:
        """Return the mean of the target classes that occur."""
        matrix = np.asarray(sums[0], np.float64)
        both = np.diag(matrix)
        either = matrix.sum(0) + matrix.sum(1) - both
        chosen = list(self.target_class_ids)
        occurs = either[chosen] > 0
        found = both[chosen][occurs] / (either[chosen][occurs] + _EPSILON)
        return float(found.mean()) if occurs.any() else 0.0


class IoU(_Unions):
    """Intersection over union of some classes, and the mean of theirs.

    A class's is the number of elements that are of it and said to be, by the number of
    those that are of it or said to be. Classes that occur in neither are left out.

    Parameters
    ----------
    num_classes : int
        The number of classes; elements of other targets or outputs do not count.
    target_class_ids : sequence of int
        The classes whose mean is returned.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    ignore_class : int, optional
        A class whose targets do not count.
    sparse_y_true : bool, default True
        Whether targets are classes, and not one-hot.
    sparse_y_pred : bool, default True
        Whether outputs are classes, and not a number for each class.
    axis : int, default -1
        The axis of classes; only the last is supported.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """

    __slots__ = ()

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: str | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        how = ignore_class, sparse_y_true, sparse_y_pred, axis
        super().__init__(num_classes, target_class_ids, name, dtype, *how)


class BinaryIoU(_Unions):
    """Intersection over union of binary targets and thresholded outputs.

    Parameters
    ----------
    target_class_ids : sequence of int, default (0, 1)
        The classes, 0 and 1, whose mean is returned.
    threshold : float, default 0.5
        Outputs of at least that are of class 1.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    """

    __slots__ = ("threshold",)

    def __init__(
        self,
        target_class_ids: Sequence[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype)
        self.threshold = real(threshold, "BinaryIoU: threshold")

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> tuple[int, ...]:
        """Append the numbers of elements of each pair of classes."""
        terms = Terms(builder, self.name)
        bound = {"number": self.threshold}
        said = terms("greater_equal_number", (y_pred,), bound)
        return super().trace(builder, y_true, said, sample_weight)


class MeanIoU(_Unions):
    """The mean of the intersections over unions of all classes.

    Parameters
    ----------
    num_classes : int
        The number of classes.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    ignore_class : int, optional
        A class whose targets do not count.
    sparse_y_true, sparse_y_pred : bool, default True
        Whether targets and outputs are classes, as for `IoU`.
    axis : int, default -1
        The axis of classes; only the last is supported.
    """

    __slots__ = ()

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: str | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        ids = range(integer(num_classes, "MeanIoU: num_classes"))
        how = ignore_class, sparse_y_true, sparse_y_pred, axis
        super().__init__(num_classes, ids, name, dtype, *how)


class OneHotIoU(_Unions):
    """Intersection over union of some classes, of one-hot targets.

    Parameters
    ----------
    num_classes : int
        The number of classes.
    target_class_ids : sequence of int
        The classes whose mean is returned.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    ignore_class : int, optional
        A class whose targets do not count.
    sparse_y_pred : bool, default False
        Whether outputs are classes, and not a number for each class.
    axis : int, default -1
        The axis of classes; only the last is supported.
    """

    __slots__ = ()

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: str | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        how = ignore_class, False, sparse_y_pred, axis
        super().__init__(num_classes, target_class_ids, name, dtype, *how)


class OneHotMeanIoU(_Unions):
    """The mean of the intersections over unions of all classes, of one-hot targets.

    Parameters
    ----------
    num_classes : int
        The number of classes.
    name : str, optional
        The name in logs. None: the class's name in snake case.
    dtype : str, optional
        ``"float32"`` or None.
    ignore_class : int, optional
        A class whose targets do not count.
    sparse_y_pred : bool, default False
        Whether outputs are classes, and not a number for each class.
    axis : int, default -1
        The axis of classes; only the last is supported.
    """

    __slots__ = ()

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: str | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        ids = range(integer(num_classes, "OneHotMeanIoU: num_classes"))
        how = ignore_class, False, sparse_y_pred, axis
        super().__init__(num_classes, ids, name, dtype, *how)


def _count(terms: Terms, size: float) -> int:
    """Append the number of samples, a constant."""
    value = {"shape": (), "value": size, "dtype": "float32"}
    return terms("fill", (), value, name="sample_count")


def _by_rows(terms: Terms, values: int, weight: int | None) -> int:
    """Append rows times their weights, or the rows if there are no weights."""
    if weight is None:
        return values
    wide = terms.spread(weight, terms.shape(values))
    return terms("multiply", (values, wide))


def _divide(a: Any, b: Any) -> Any:
    """Return a / b, and 0 where b is 0."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


def _unit(value: Any, what: str) -> float:
    number = real(value, what)
    if not 0 <= number <= 1:
        raise ValueError(f"{what} must be in [0, 1], got {value!r}")
    return number


binary_accuracy = of_samples(BinaryAccuracy)
categorical_accuracy = of_samples(CategoricalAccuracy)
concordance_correlation = of_samples(ConcordanceCorrelation)
pearson_correlation = of_samples(PearsonCorrelation)
sparse_categorical_accuracy = of_samples(SparseCategoricalAccuracy)
sparse_top_k_categorical_accuracy = of_samples(SparseTopKCategoricalAccuracy)
top_k_categorical_accuracy = of_samples(TopKCategoricalAccuracy)

_METRICS: dict[str, type[Metric]] = {
    name: globals()[name] for name in __all__ if name != "Metric" and not name.islower()
}
_METRICS |= {snake_case(name): each for name, each in _METRICS.items()}
_METRICS |= {
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
    "msle": MeanSquaredLogarithmicError,
    "bce": BinaryCrossentropy,
    "kld": KLDivergence,
    "logcosh": LogCoshError,
    "log_cosh": LogCoshError,
    "r2_score": R2Score,
    "auc": AUC,
    "f1_score": F1Score,
    "fbeta_score": FBetaScore,
}
_BY_OUTPUT: dict[str, tuple[type[Metric], type[Metric], type[Metric]]] = {
    **dict.fromkeys(
        ("accuracy", "acc"),
        (BinaryAccuracy, SparseCategoricalAccuracy, CategoricalAccuracy),
    ),
    **dict.fromkeys(
        ("crossentropy", "ce"),
        (BinaryCrossentropy, SparseCategoricalCrossentropy, CategoricalCrossentropy),
    ),
}


def is_by_output(metric: Any, output: SymbolicTensor) -> bool:
    """Return whether a name has several meanings, by the targets of an output."""
    name = metric.lower() if isinstance(metric, str) else ""
    return name in _BY_OUTPUT and output.sample_shape[-1:] != (1,)


def get_metric(
    metric: Any, output: SymbolicTensor | None = None, target: Target | None = None
) -> Metric:
    """Return the metric of a name, class, instance or function, for an output."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, Loss):
        return Metric(name=metric.name, of=metric)
    kind = getattr(metric, "kind", metric)  # of a function such as binary_accuracy
    if isinstance(kind, type) and issubclass(kind, Metric):
        return kind() if kind is metric else kind(name=metric.__name__)
    if callable(metric):
        return get_metric(losses.get_loss(metric))
    if not isinstance(metric, str):
        raise TypeError(
            "a metric must be a name such as 'accuracy', a Metric, or a function of "
            f"y_true and y_pred, got {metric!r}"
        )
    if metric.lower() in _BY_OUTPUT:
        kinds = _BY_OUTPUT[metric.lower()]
        if output is not None and output.sample_shape[-1:] == (1,):
            return kinds[0](name=metric)
        labels = target is None or target.dtype == "int32"
        return kinds[1 if labels else 2](name=metric)
    result = _METRICS.get(metric) or _METRICS.get(metric.lower())
    if result is None:
        known = sorted({*_BY_OUTPUT, *(name for name in _METRICS if name.islower())})
        raise unknown("metric", metric, known)
    try:
        return result(name=metric)
    except TypeError:
        raise ValueError(
            f"the metric {metric!r} needs arguments: pass a {result.__name__}(...)"
        ) from None


serialize, deserialize, get = functions_of("metrics", Metric, get_metric)
__all__ += ["deserialize", "get", "serialize"]

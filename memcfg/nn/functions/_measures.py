"""Metrics in functions: their sums are results of the program, added after it ran."""

from __future__ import annotations

import operator
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from memcfg.nn.functions._recorder import current
from memcfg.nn.layers._layer import Layer, Node, current_call, sums_of_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.layers._layer import Scope, SymbolicTensor
    from memcfg.nn.metrics import Metric

__all__ = ["MetricResult", "measure", "note_call", "result_of"]


class MetricResult:
    """The value that a metric will have when the function has run.

    A function may return it, and gets a float in its place. What it computes from such
    values and numbers is another one.
    """

    def __init__(self, name: str, number: Callable[[], float]) -> None:
        self._name = name  # of the first metric
        self.number = number  # once the function has run

    def __repr__(self) -> str:
        return f"<the result of metric {self._name!r} after the function>"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"the result of metric {self._name!r} is known after the function has run: "
            "return it, combine it with numbers and other results, or compute with "
            "tensors"
        )

    def _combined(self, compute: Any, *others: Any) -> MetricResult:
        for each in others:
            if not isinstance(each, MetricResult | Real):
                self._refuse()

        def number() -> float:
            values = (x.number() if isinstance(x, MetricResult) else x for x in others)
            return compute(self.number(), *values)  # type: ignore[no-any-return]

        return MetricResult(self._name, number)

    __float__ = __int__ = __bool__ = __array__ = _refuse
    __array_ufunc__ = None  # numbers of NumPy leave the operators to this class

    def __add__(self, other: Any) -> MetricResult:
        return self._combined(operator.add, other)

    def __sub__(self, other: Any) -> MetricResult:
        return self._combined(operator.sub, other)

    def __mul__(self, other: Any) -> MetricResult:
        return self._combined(operator.mul, other)

    def __truediv__(self, other: Any) -> MetricResult:
        return self._combined(_divided, other)

    def __pow__(self, other: Any) -> MetricResult:
        return self._combined(operator.pow, other)

    def __rsub__(self, other: Any) -> MetricResult:
        return self._combined(lambda own, other: other - own, other)

    def __rtruediv__(self, other: Any) -> MetricResult:
        return self._combined(lambda own, other: _divided(other, own), other)

    def __neg__(self) -> MetricResult:
        return self._combined(operator.neg)

    __radd__, __rmul__ = __add__, __mul__


def _divided(a: float, b: float) -> float:
    """Divide as tensors do, without an error for zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float64(a) / np.float64(b))


def measure(metric: Metric, tensors: Sequence[SymbolicTensor]) -> None:
    """Have the numbers of a metric added when the function that is traced has run.

    In the `call` of a layer, they are added where a function calls the layer.
    """
    call, recording = current_call(), current()
    operands = [each for tensor in tensors for each in tensor.node.inputs]
    if call is not None and not call.refused:
        call.sums.append((metric, tuple(tensors)))
        return
    if call is not None or recording is None or not all(x.whole for x in operands):
        raise TypeError(
            f"{type(metric).__name__}.update_state takes arrays, or tensors of a "
            "function that memcfg.function or Model.train_step traces, or of the "
            "`call` of a layer, or of a model of your own that has the metric as an "
            "attribute"
        )
    recording.measured.append((metric, tuple(tensors)))


class SumsOfCall(Layer):
    """The numbers that a call of a layer adds to metrics; it is made for one node."""

    __slots__ = ("node",)

    arity: ClassVar[int | None] = None

    def __init__(self, call: Node) -> None:
        super().__init__()
        self.node = call

    def trace(self, scope: Scope, inputs: Sequence[int]) -> list[int]:
        """Return the numbers; inputs are the results of the call."""
        del inputs
        return [each for _, several in scope.sums_of(self.node) for each in several]


def note_call(node: Node) -> None:
    """Have what a call in a function adds to metrics added when it has run."""
    recording = current()
    if recording is None or current_call() is not None:
        return
    recording.noted.append(node)
    found = sums_of_call(node)
    if not found:
        return
    results = [(shape, "float32") for _, shapes in found for shape in shapes]
    made = iter(Node(SumsOfCall(node), node.outputs, results, whole=True).outputs)
    for metric, shapes in found:
        recording.measured.append((metric, tuple(next(made) for _ in shapes)))


def result_of(metric: Metric) -> Any:
    """Return what stands for a metric's value in a function; None outside of one."""
    return None if current() is None else MetricResult(metric.name, metric.result)

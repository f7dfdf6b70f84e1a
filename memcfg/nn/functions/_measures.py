"""Metrics in functions: their sums are results of the program, added after it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memcfg.nn.functions._recorder import current

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import SymbolicTensor
    from memcfg.nn.metrics import Metric

__all__ = ["MetricResult", "measure", "result_of"]


class MetricResult:
    """The value that a metric will have when the function has run.

    A function may return it, and gets a float in its place.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def __repr__(self) -> str:
        return f"<the result of metric {self.metric.name!r} after the function>"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"the result of metric {self.metric.name!r} is known after the function "
            "has run: return it, or compute with tensors"
        )

    __float__ = __int__ = __bool__ = __array__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __neg__ = _refuse


def measure(metric: Metric, tensors: Sequence[SymbolicTensor]) -> None:
    """Have the numbers of a metric added when the function that is traced has run."""
    recording = current()
    if recording is None or not all(each.whole for each in tensors):
        raise TypeError(
            f"{type(metric).__name__}.update_state takes arrays, or tensors of a "
            "function that memcfg.function or Model.train_step traces, or of the "
            "`call` of a Model of your own: the `call` of a layer returns what is to "
            "be measured there"
        )
    recording.measured.append((metric, tuple(tensors)))


def result_of(metric: Metric) -> Any:
    """Return what stands for a metric's value in a function; None outside of one."""
    return None if current() is None else MetricResult(metric)

"""Functions of a number that are called in each step, such as a user's schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.functions import _at_once
from memcfg.nn.functions._function import Function
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OfNumber"]


class OfNumber:
    """Call a function of an int; if it calls ops, trace it once and compute by NumPy.

    Ops at once would plan and load a program each, some milliseconds in all. The ops'
    NumPy meaning takes some microseconds each, and no memory of the device.
    """

    def __init__(self, call: Callable[[int], Any]) -> None:
        self._call = call
        self._graph: Any = None
        self._has_ops: bool | None = None  # None: it has not been called

    def __call__(self, number: int) -> Any:
        """Return the result for a number."""
        if self._has_ops is None:
            before = _at_once.count
            result = self._call(number)
            self._has_ops = _at_once.count > before and self._is_traced(number)
            if not self._has_ops:
                return _number(result)
        if not self._has_ops:
            return _number(self._call(number))
        graph = self._graph
        rooms = [np.full(each.shape, number, each.dtype) for each in graph.tensors]
        with np.errstate(all="ignore"):
            for op in graph.ops:
                inputs = [rooms[each] for each in op.inputs]
                outputs = [rooms[each] for each in op.outputs]
                op_type(op.type).numpy(op.attributes, inputs, outputs)
        return rooms[graph.keep[0]][()]

    def _is_traced(self, number: int) -> bool:
        """Trace the function; return whether it has one number and no conditions."""
        function = Function(self._call, warns=False)
        try:
            graph = function.graph(np.array(number, np.int32))
        except (TypeError, ValueError):  # Python's conditions on the number, perhaps
            return False
        finally:
            function.close()
        starts = [i for i, maker in enumerate(graph.producer) if maker is None]
        numbers = [graph.tensors[each].shape for each in (*starts, *graph.keep)]
        if len(starts) != 1 or numbers != [()] * len(numbers) or len(graph.keep) != 1:
            return False
        self._graph = graph
        return True


def _number(result: Any) -> Any:
    """Return a result as a number, if it is an array of one without axes."""
    return result[()] if isinstance(result, np.ndarray) and not result.ndim else result

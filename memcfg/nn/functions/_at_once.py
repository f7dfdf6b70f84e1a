"""Layers, ops and losses on arrays: each call is a function of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.functions._function import Function
from memcfg.nn.functions._recorder import current
from memcfg.nn.layers._layer import Layer, filled_in, pattern
from memcfg.nn.layers._operators import constant_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["at_once"]

_KEPT = 64  # ops whose programs are kept
_CACHE = "at once"  # the key of a layer's function in its cache


def at_once(call: Callable[..., Any], args: Any, options: Any) -> Any:
    """Call a function of symbolic tensors on arrays; return arrays.

    It keeps no memory of the device. In a function that is being traced, the arrays are
    constants.
    """
    if current() is None:
        function = _function_of(call)
        try:
            return function(*args, **options)
        finally:
            function.close()
    leaves: list[Any] = []
    args, options = pattern((args, options), leaves, (np.ndarray, np.generic))
    tensors = [constant_tensor(each) for each in leaves]
    return call(*filled_in(args, tensors), **filled_in(options, tensors))


def _function_of(call: Callable[..., Any]) -> Function:
    if not isinstance(call, Layer):
        return _of_callable(call)
    if _CACHE not in call._inner:
        call._inner[_CACHE] = Function(call)
    result: Function = call._inner[_CACHE]
    return result


@lru_cache(_KEPT)
def _of_callable(call: Callable[..., Any]) -> Function:
    return Function(call)

"""Users' functions, called as tf.data calls them.

Nothing that they raise is taken for the end of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data.elements._convert import as_element
from memcfg.data.elements._structure import call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["apply", "as_result", "composed", "is_unpacked", "stopped"]


_SCALARS = frozenset(np.dtype(code).type for code in "?bBhHiIlLqQefdFD")
_DTYPES = frozenset(map(np.dtype, _SCALARS))  # in the machine's byte order


def apply(function: Callable[..., Any], element: Any) -> Any:
    """Apply a user's function to an element."""
    try:
        result = call(function, element)
    except StopIteration as error:
        raise stopped() from error
    return as_result(result)


def as_result(result: Any) -> Any:
    """Convert what a user's function returned."""
    kind = type(result)
    if kind is tuple:
        if all(map(_is_leaf, result)):
            return result
    elif _is_leaf(result):
        return result
    return as_element(tuple(result) if isinstance(result, list) else result)


def _is_leaf(value: Any) -> bool:
    """Tell quickly whether a value needs no conversion; False: it may need one."""
    kind = type(value)
    if kind is np.ndarray:
        return value.ndim > 0 and value.dtype in _DTYPES
    return kind in _SCALARS


def is_unpacked(element: Any) -> bool:
    """Tell whether an element is several arguments of a function, as tf.data has it."""
    return isinstance(element, tuple) and not hasattr(element, "_fields")


def stopped() -> RuntimeError:
    """Make the error that stands for a StopIteration of a user's function."""
    return RuntimeError("the function of map raised StopIteration")


def composed(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Make one function of several."""
    first, *others = functions
    if not others:
        return first

    def function(*args: Any) -> Any:
        result = first(*args)
        for other in others:
            result = call(other, as_result(result))
        return result

    return function

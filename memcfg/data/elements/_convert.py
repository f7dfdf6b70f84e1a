"""Conversion of users' values, and of the results of their functions, to arrays.

As in tf.data, a Python int becomes int32 (int64 if it does not fit) and a float becomes
float32. Arrays keep their dtypes, and text keeps its NumPy dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

# Imported here because its constants would lie in a workspace if loaded later.
from numpy.ma import MaskedArray

from memcfg.data.elements._structure import call, is_nest, map_structure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_INT32 = np.iinfo(np.int32)
_INT64 = np.iinfo(np.int64)
_FLOAT32 = float(2**128 - 2**103)  # smallest number that rounds to infinity
_PLAIN = frozenset(map(np.dtype, "?bhilqBHILQefdFD"))  # native byte order
_NUMBERS = frozenset(dtype.type for dtype in _PLAIN)
_READY = _NUMBERS | {np.bytes_, np.str_}
_SCALARS = (bool, int, float, complex, str, bytes)


def as_element(value: Any) -> Any:
    """Convert a nest of users' values to an element."""
    kind = type(value)
    if kind is tuple:
        if all(map(_is_ready, value)):
            return value  # the usual case
        return tuple([as_element(part) for part in value])
    if _is_ready(value):
        return value
    if kind is dict:
        return {key: as_element(part) for key, part in value.items()}
    if is_nest(value):
        return map_structure(_as_element_leaf, value)
    return _as_element_leaf(value)


def _is_ready(value: Any) -> bool:
    """Return True if a value surely needs no conversion; a quick check."""
    kind = type(value)
    if kind is np.ndarray:
        return value.ndim > 0 and value.dtype in _PLAIN
    return kind in _READY


def apply(function: Callable[..., Any] | None, element: Any) -> Any:
    """Apply a user's function, if there is one, to an element."""
    if function is None:
        return element
    try:
        result = call(function, element)
    except StopIteration as error:
        raise stopped() from error
    return as_result(result)


def as_result(result: Any) -> Any:
    """Convert the result of a user's function; a list becomes a tuple."""
    return as_element(tuple(result) if isinstance(result, list) else result)


def stopped() -> RuntimeError:
    """Return the error that replaces a StopIteration of a user's function."""
    return RuntimeError("the function of map raised StopIteration")


def composed(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the composition of functions, the first of which is called first."""
    first, *others = functions
    if not others:
        return first

    def function(*args: Any) -> Any:
        result = first(*args)
        for other in others:
            result = call(other, as_result(result))
        return result

    return function


def as_leaf(value: Any, *, swap: bool = True) -> npt.NDArray[Any]:
    """Convert a leaf to an array."""
    if type(value) is np.ndarray and value.dtype in _PLAIN:
        return value
    number = _as_number(value)
    if number is not None:
        return np.asarray(number)
    result = _narrow(as_array(value), value)
    if swap and not result.dtype.isnative:
        return result.astype(result.dtype.newbyteorder("="))
    return result


def as_array(value: Any) -> npt.NDArray[Any]:
    """Convert a leaf as NumPy does."""
    if isinstance(value, MaskedArray):
        raise TypeError("a dataset takes no masked arrays: fill its masked elements")
    listed = isinstance(value, list | tuple | range)
    if not (listed or isinstance(value, _SCALARS) or hasattr(value, "__array__")):
        raise TypeError(
            "an element's leaf is an array, a number, text, or a list of these, not "
            f"{type(value).__name__} ({value!r:.80})"
        )
    try:
        result = np.asarray(value)
    except ValueError as error:
        arrays = listed and any(isinstance(row, np.ndarray) for row in value)
        hint = "; arrays side by side are a tuple: (x, y)" if arrays else ""
        raise ValueError(
            f"a list must be rectangular, with rows of one length{hint}: {value!r:.120}"
        ) from error
    if result.dtype == object and {type(each) for each in result.flat} == {str}:
        result = result.astype(str)  # a column of a data frame
    _check_dtype(result, value)
    return result


def as_scalars(array: npt.NDArray[Any]) -> Any:
    """Convert an array without axes to a NumPy scalar; return others unchanged."""
    return array if array.ndim else array[()]


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as_element_leaf(value: Any) -> Any:
    if type(value) is bytes:
        return np.bytes_(value)  # an array would drop zeros at its end
    number = _as_number(value)
    return as_scalars(as_leaf(value)) if number is None else number


def _as_number(value: Any) -> np.generic | None:
    """Convert a Python number; return None for anything else."""
    kind = type(value)
    if kind is int:
        if _INT32.min <= value <= _INT32.max:
            return np.int32(value)
        if not _INT64.min <= value <= _INT64.max:
            raise ValueError(f"an integer does not fit int64: {value!r:.80}")
        return np.int64(value)
    if kind is float:
        if _FLOAT32 <= abs(value) < math.inf:
            raise _too_large(value)
        return np.float32(value)
    return np.bool_(value) if kind is bool else None


def _check_dtype(array: npt.NDArray[Any], value: Any) -> None:
    """Raise for dtypes that elements cannot have: objects and structured dtypes."""
    if isinstance(value, np.ndarray | np.generic):
        what = f"dtype {array.dtype}"
    else:
        what = f"{value!r:.80}"
        if array.dtype.kind in "Ouf" and array.size and _is_integers(value):
            raise ValueError(f"an integer does not fit int64: {what}")
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise TypeError(
            f"a dataset holds numbers, text and dates, in arrays or lists, not {what}"
        )


def _narrow(array: npt.NDArray[Any], value: Any) -> npt.NDArray[Any]:
    """Convert an array of Python numbers to the dtype that tf.data gives them."""
    if hasattr(value, "__array__"):
        return array
    kinds = set(_kinds(value))
    if any(issubclass(kind, np.ndarray) for kind in kinds):
        return array
    if array.size == 0 and not kinds:
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        return _integers(array)
    if array.dtype == np.float64 and np.float64 not in kinds:
        return _floats(array, value)
    return array


def _is_integers(value: Any) -> bool:
    """Return whether a value consists of Python ints, which NumPy may make floats."""
    return all(kind in (int, bool) for kind in _kinds(value))


def _kinds(value: Any) -> Iterator[type]:
    """Yield the classes of the leaves of nested lists, or of a value not in a list."""
    if isinstance(value, range):
        yield int
    elif not isinstance(value, list | tuple):
        yield type(value)
    else:
        for kind in (kinds := set(map(type, value))):
            if not issubclass(kind, list | tuple | range):
                yield kind
        if any(issubclass(kind, list | tuple | range) for kind in kinds):
            for item in value:
                if isinstance(item, list | tuple | range):
                    yield from set(_kinds(item))


def _integers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max):
        return array.astype(np.int32, copy=False)
    return array.astype(np.int64, copy=False)


def _floats(array: npt.NDArray[Any], value: Any) -> npt.NDArray[Any]:
    if np.any(np.isfinite(array) & (np.abs(array) >= _FLOAT32)):
        raise _too_large(value)
    return array.astype(np.float32)


def _too_large(value: Any) -> ValueError:
    return ValueError(
        "a Python float becomes float32, but this one is out of its range: "
        f"{value!r:.80}; use np.float64"
    )

"""Elements by index, and elements put at indices."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import Variable
from memcfg.nn.layers._operators import (
    AlongLast,
    Function,
    Gather,
    Several,
    as_tensor,
)
from memcfg.nn.ops._along_axes import max as max_of
from memcfg.nn.ops._along_axes import min as min_of
from memcfg.nn.ops._along_axes import prod as prod_of
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._declaring import (
    as_dtype_of,
    axis_of,
    documented,
    lengths_of,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._of_elements import (
    add,
    equal,
    maximum,
    minimum,
    multiply,
    negative,
    where,
)
from memcfg.nn.ops._shapes import expand_dims, get_item, moveaxis, vector_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "bincount",
    "isin",
    "multi_hot",
    "one_hot",
    "scatter",
    "scatter_update",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "take",
    "take_along_axis",
]


@documented
def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Return elements along an axis; an index out of range gives NaN."""
    x = tensor_of(x, "take")
    if axis is None and x.whole and len(x.shape) > 1:
        if isinstance(indices, SymbolicTensor):
            raise ValueError("take: rows of a weight must be taken along axis=0")
        x = vector_of(x)
    axis = 0 if axis is None and x.whole else axis
    if isinstance(indices, SymbolicTensor):
        return _taken_rows(x, indices, axis_of(x, axis))
    place = axis_of(x, axis)
    if np.ndim(indices) == 0:
        index = integer(np.asarray(indices).item(), "an index", None)
        return get_item(x, (*[slice(None)] * place, index))
    places = np.asarray(indices, np.int32)
    if places.size == 0:
        raise ValueError("take: no index is given")
    flat = as_tensor(places.reshape(-1), "take: indices")
    return _taken_along(x, flat, place, places.shape)


def _taken_rows(x: SymbolicTensor, indices: SymbolicTensor, place: int) -> Any:
    """Return elements at symbolic indices, which rows alone have with a batch."""
    if not x.whole:
        raise TypeError(
            f"take: symbolic indices can only select rows of a weight, got {x!r}: use "
            "ops.take_along_axis"
        )
    if not place:
        return Gather()([x, indices])
    if not indices.whole:
        raise ValueError("take: rows of a weight must be taken along axis=0")
    return _taken_along(x, vector_of(indices), place, lengths_of(indices))


def _taken_along(x: Any, flat: Any, place: int, shape: Any) -> Any:
    """Return elements along an axis at flat indices of a shape."""
    rest = [n for i, n in enumerate(lengths_of(x)) if i != place]
    taken = AlongLast("take_along")([moveaxis(x, place, -1), flat])
    taken = reshaped(taken, [*rest, *shape])
    source = list(range(len(rest), len(rest) + len(shape)))
    return moveaxis(taken, source, list(range(place, place + len(shape))))


@documented
def take_along_axis(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Return elements at places along an axis; an index out of range gives NaN."""
    x = tensor_of(x, "take_along_axis")
    places = as_tensor(indices, "take_along_axis: indices")
    if axis is None:
        x, places, axis = vector_of(x), vector_of(places), 0
    place = axis_of(x, axis)
    if len(places.shape) != len(x.shape):
        raise ValueError(
            f"take_along_axis: {x!r} and indices of shape {places.shape} must have the "
            "same rank"
        )
    last = len(x.shape) - 1
    if place != last:
        x = moveaxis(x, place, last)
        order = [i for i in range(last + 1) if i != place] + [place]
        places = Function("transpose", {"axes": tuple(order)})(places)
    taken = AlongLast("take_along")([x, places])
    return moveaxis(taken, last, place)


@documented
def one_hot(x: Any, num_classes: int, axis: int = -1, dtype: str | None = None) -> Any:
    """Return one-hot vectors of integers along a new axis."""
    x = tensor_of(x, "one_hot")
    place = axis_of(x, axis, len(x.shape) + 1)
    depth = integer(num_classes, "one_hot: num_classes")
    made = Function("one_hot", {"depth": depth, "dtype": dtype or "float32"})(x)
    return moveaxis(made, len(x.shape), place)


@documented
def multi_hot(
    inputs: Any,
    num_classes: int | None = None,
    axis: int = -1,
    dtype: str | None = None,
) -> Any:
    """Return 1 for each class that is among the integers of the last axis, else 0."""
    x = tensor_of(inputs, "multi_hot")
    depth = integer(num_classes, "multi_hot: num_classes")
    last = len(x.shape) - 1
    if axis not in (-1, last):
        raise ValueError(f"multi_hot: axis must be -1, got {axis}")
    return max_of(one_hot(x, depth, dtype=dtype), axis_of(x, last))


# Elements put at indices, of tensors without a batch


def _rows(indices: Any, shape: Any, name: str) -> tuple[np.ndarray, int, int]:
    """Return flat indices, their number of axes, and the number of their places."""
    places = np.asarray(indices)
    if isinstance(indices, SymbolicTensor) or places.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: indices must be an array of integers, got {indices!r}: for "
            "symbolic rows use ops.segment_sum"
        )
    count = places.shape[-1]
    lead = tuple(shape[:count])
    places = places.reshape(-1, count)
    if (places < 0).any() or (places >= lead).any():
        raise ValueError(f"{name}: indices are out of range for shape {tuple(shape)}")
    flat = np.ravel_multi_index(tuple(places.T), lead).astype(np.int32)
    return flat, count, prod(lead)


def _added(flat: Any, values: Any, rows: int) -> Any:
    """Return rows of values added at flat indices; of integers exactly."""
    if values.sample_dtype == "int32":
        return _of_members(values, flat, rows, 0, sum_of, "scatter")
    return Several("scatter_add", {"rows": rows})([as_tensor(flat, "indices"), values])


def _whole(value: Any, name: str) -> SymbolicTensor:
    x = as_tensor(value, name)
    if not x.whole:
        raise ValueError(
            f"{name}: axis 0 of {x!r} is the batch, whose samples are computed apart: "
            "use ops.where, ops.slice_update or ops.one_hot"
        )
    return x


@documented
def scatter(indices: Any, values: Any, shape: Any) -> Any:
    """Return zeros of a shape with values added at an array of indices."""
    values = _whole(tensor_of(values, "scatter"), "scatter")
    flat, count, rows = _rows(indices, shape, "scatter")
    rest = [*shape][count:]
    made = _added(flat, reshaped(values, [len(flat), *rest]), rows)
    return reshaped(made, [*shape])


@documented
def scatter_update(
    inputs: Any, indices: Any, updates: Any, reduction: str | None = None
) -> Any:
    """Return the input with values in place of those at an array of indices."""
    x, new = _whole(inputs, "scatter_update"), _whole(updates, "scatter_update")
    new = as_dtype_of(new, x)
    lengths = [*x.shape]
    flat, count, rows = _rows(indices, lengths, "scatter_update")
    rest = lengths[count:]
    new = reshaped(new, [len(flat), *rest])
    table = reshaped(x, [rows, *rest])
    if reduction == "add":
        return reshaped(add(table, _added(flat, new, rows)), lengths)
    known = {"max": maximum, "min": minimum, "mul": multiply}
    if reduction is not None and reduction not in known:
        raise ValueError(
            "scatter_update: reduction must be None, 'add', 'max', 'min' or 'mul', "
            f"got {reduction!r}"
        )
    if len({*flat.tolist()}) < len(flat):
        raise ValueError(
            "scatter_update: an index stands twice, and which update wins is open: "
            "use reduction='add', or different indices"
        )
    if reduction is not None:
        old = Several("gather")([table, as_tensor(flat, "indices")])
        new = known[reduction](old, new)
    hits = np.zeros([rows, *[1] * len(rest)], np.float32)
    hits[flat] = 1
    return reshaped(where(hits, _added(flat, new, rows), table), lengths)


def _segments(data: Any, ids: Any, count: Any, name: str) -> tuple[Any, Any, int]:
    x = _whole(tensor_of(data, name), name)
    if count is None and isinstance(ids, SymbolicTensor):
        raise ValueError(f"{name}: num_segments must be given: shapes are static")
    if count is None:
        count = int(np.max(np.asarray(ids))) + 1
    places = _whole(ids, name)
    if len(places.shape) != 1 or places.shape[0] != x.shape[0]:
        raise ValueError(f"{name}: one segment is needed for each row of {x!r}")
    return x, places, integer(count, f"{name}: num_segments")


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let an op of arrays find out how many segments there are."""

    @functools.wraps(function)
    def call(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        sorted: bool = False,  # noqa: A002
    ) -> Any:
        known = not isinstance(segment_ids, SymbolicTensor | Variable)
        if num_segments is None and known and np.size(segment_ids):
            num_segments = int(np.max(np.asarray(segment_ids))) + 1
        return function(data, segment_ids, num_segments, sorted)

    return call


@_counted
@documented
def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    sorted: bool = False,  # noqa: A002
) -> Any:
    """Return the sums of the rows of each segment, of a tensor without a batch."""
    del sorted
    x, places, count = _segments(data, segment_ids, num_segments, "segment_sum")
    return _added(places, x, count)


def _of_members(
    data: Any, ids: Any, count: Any, other: float, reduce: Any, name: str
) -> Any:
    """Reduce over all rows, with another number in place of those not in a segment."""
    x, places, count = _segments(data, ids, count, name)
    hot = Function("one_hot", {"depth": count, "dtype": "float32"})(places)
    mask = reshaped(
        Function("transpose", {"axes": (1, 0)})(hot),
        [count, x.shape[0], *[1] * (len(x.shape) - 1)],
    )
    return reduce(where(mask, expand_dims(x, 0), other), 1)


@_counted
@documented
def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    sorted: bool = False,  # noqa: A002
) -> Any:
    """Return the maxima of the rows of each segment.

    One without rows has -inf, or the least integer.
    """
    del sorted
    given = data, segment_ids, num_segments
    whole = tensor_of(data, "segment_max").sample_dtype == "int32"
    other = -(2**31) if whole else -np.inf
    return _of_members(*given, other, max_of, "segment_max")


@_counted
@documented
def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    sorted: bool = False,  # noqa: A002
) -> Any:
    """Return the minima of the rows of each segment.

    One without rows has inf, or the greatest integer.
    """
    if tensor_of(data, "segment_min").sample_dtype == "int32":
        given = data, segment_ids, num_segments
        return _of_members(*given, 2**31 - 1, min_of, "segment_min")
    return negative(segment_max(negative(data), segment_ids, num_segments, sorted))


@_counted
@documented
def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    sorted: bool = False,  # noqa: A002
) -> Any:
    """Return the products of the rows of each segment; 1 for one without rows."""
    del sorted
    given = data, segment_ids, num_segments
    return _of_members(*given, 1, prod_of, "segment_prod")


@documented
def isin(x1: Any, x2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """Return 1 where an element of x1 is among an array of numbers, else 0."""
    del assume_unique
    x = tensor_of(x1, "isin")
    known = as_tensor(x2, "isin")
    if not known.whole:
        raise ValueError("isin: x2 must have no batch")
    hits = equal(expand_dims(x, len(x.shape)), vector_of(known))
    found = max_of(hits, len(x.shape))
    return 1.0 - found if invert else found


@documented
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Return how often each integer below minlength occurs along the last axis."""
    x = tensor_of(x, "bincount")
    depth = integer(minlength, "bincount: minlength, the length of the result")
    hot = one_hot(x, depth)
    if weights is not None:
        hot = multiply(hot, expand_dims(as_tensor(weights, "bincount"), -1))
    counts = Function("reduce_sum", {"axes": (len(x.shape) - 1,), "keepdims": False})(
        hot
    )
    if weights is not None:
        return counts
    return Function("cast", {"dtype": "int32"})(counts)

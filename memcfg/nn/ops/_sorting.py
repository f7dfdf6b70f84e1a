"""Sorting, ranks and quantiles along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memcfg.nn._argument_checks import constant, integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._operators import AlongLast, Function, as_tensor
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._declaring import (
    axes_of,
    axis_of,
    documented,
    lengths_of,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._indexing import take_along_axis
from memcfg.nn.ops._of_elements import (
    cast,
    ceil,
    equal,
    floor,
    greater,
    greater_equal,
    isnan,
    less,
    maximum,
    multiply,
    stop_gradient,
    where,
)
from memcfg.nn.ops._shapes import expand_dims, moveaxis, part, vector_of

__all__ = [
    "argpartition",
    "argsort",
    "digitize",
    "histogram",
    "in_top_k",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
    "searchsorted",
    "sort",
    "top_k",
]


def _order(x: SymbolicTensor, descending: bool = False) -> Any:
    """Return the places that sort along the last axis."""
    return Function("order", {"descending": int(descending)})(x)


def _along_last(x: Any, axis: Any, name: str) -> tuple[SymbolicTensor, int]:
    """Return a tensor with an axis moved to the end, and that axis."""
    x = tensor_of(x, name)
    if axis is None:
        return vector_of(x), 0
    place = axis_of(x, axis)
    return moveaxis(x, place, -1), place


@documented
def argsort(x: Any, axis: int | None = -1) -> Any:
    """Return the indices that sort along an axis, in int32; NaN comes last."""
    x, place = _along_last(x, axis, "argsort")
    return moveaxis(_order(x), -1, place)


@documented
def argpartition(x: Any, kth: int, axis: int = -1) -> Any:
    """Return indices that put the k-th smallest element in its place: sorting ones."""
    integer(kth, "argpartition: kth", None)
    return argsort(x, axis)


@documented
def sort(x: Any, axis: int | None = -1) -> Any:
    """Return the elements in ascending order along an axis; NaN comes last."""
    x, place = _along_last(x, axis, "sort")
    return moveaxis(AlongLast("take_along")([x, _order(x)]), -1, place)


@documented
def top_k(x: Any, k: int, sorted: bool = True) -> Any:  # noqa: A002
    """Return the k largest elements along the last axis, and their indices."""
    del sorted  # they always are
    x = tensor_of(x, "top_k")
    length = int(x.shape[axis_of(x, -1)] or 1)
    if integer(k, "top_k: k") > length:
        raise ValueError(f"top_k: k is {k}, and the last axis of {x!r} has {length}")
    last = len(x.shape) - 1
    places = part(_order(x, descending=True), last, 0, k)
    return AlongLast("take_along")([x, places]), places


@documented
def in_top_k(targets: Any, predictions: Any, k: int) -> Any:
    """Return 1 where fewer than k predictions are larger than the target's, else 0."""
    scores = tensor_of(predictions, "in_top_k")
    places = expand_dims(as_tensor(targets, "in_top_k"), -1)
    own = take_along_axis(scores, places, -1)
    last = len(scores.shape) - 1
    larger = sum_of(greater(scores, own), last)
    finite = sum_of(less(abs(own), math.inf), last)
    return multiply(less(larger, float(integer(k, "in_top_k: k"))), finite)


_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantiles(
    x: Any, q: Any, axis: Any, method: str, keepdims: bool, ignore: bool, name: str
) -> Any:
    """Return quantiles along axes, of all numbers or of those that are not NaN."""
    if method not in _METHODS:
        raise ValueError(f"{name}: method must be one of {_METHODS}, got {method!r}")
    x = tensor_of(x, name)
    if x.sample_dtype == "int32":
        x = cast(x, "float32")  # differences of integers would wrap around
    axes = axes_of(x, axis)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    lengths = lengths_of(x)
    kept = [1 if i in axes else n for i, n in enumerate(lengths)]
    x = reordered(x, [*rest, *axes])
    x = reshaped(x, [*(lengths[i] for i in rest), math.prod(lengths[i] for i in axes)])
    last = len(rest)
    ordered = sort(x, last) if last or x.whole else x
    count = sum_of(1.0 - isnan(x), last, keepdims=True)
    length = float(x.shape[-1])
    share = np.asarray(q, np.float32)
    if (share < 0).any() or (share > 1).any():
        raise ValueError(f"{name}: q must be within its bounds, got {q!r}")
    found = []
    for each in share.reshape(-1).tolist():
        place = maximum((count if ignore else 0.0 * count + length) - 1.0, 0.0) * each
        found.append(_at(ordered, stop_gradient(place), method))
    if not ignore:
        found = [where(less(count, length), math.nan, value) for value in found]
    shape = kept if keepdims else [lengths[i] for i in rest]
    if share.ndim == 0:
        return reshaped(found[0], shape)
    if not x.whole:
        raise ValueError(
            f"{name}: several q give a new axis before the batch: pass one number at a "
            "time and stack the results"
        )
    from memcfg.nn.ops._shapes import stack

    return stack([reshaped(value, shape) for value in found], 0)


def _at(ordered: Any, place: Any, method: str) -> Any:
    """Return elements at places that may lie between two indices."""
    if method == "nearest":
        whole = Function("round", {})(place)
        return AlongLast("take_along")([ordered, cast(whole, "int32")])
    low = AlongLast("take_along")([ordered, cast(floor(place), "int32")])
    if method == "lower":
        return low
    high = AlongLast("take_along")([ordered, cast(ceil(place), "int32")])
    if method == "higher":
        return high
    if method == "midpoint":
        return (low + high) * 0.5
    share = place - floor(place)
    return where(equal(share, 0.0), low, low + (high - low) * share)


@documented
def quantile(
    x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Return quantiles along axes; NaN where there is a NaN."""
    return _quantiles(x, q, axis, method, keepdims, False, "quantile")


@documented
def percentile(
    x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Return percentiles along axes; NaN where there is a NaN."""
    share = np.asarray(q) / 100
    return _quantiles(x, share, axis, method, keepdims, False, "percentile")


@documented
def median(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the medians along axes; NaN where there is a NaN."""
    return _quantiles(x, 0.5, axis, "linear", keepdims, False, "median")


@documented
def nanquantile(
    x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Return quantiles along axes without NaN."""
    return _quantiles(x, q, axis, method, keepdims, True, "nanquantile")


@documented
def nanpercentile(
    x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Return percentiles along axes without NaN."""
    share = np.asarray(q) / 100
    return _quantiles(x, share, axis, method, keepdims, True, "nanpercentile")


@documented
def nanmedian(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the medians along axes without NaN."""
    return _quantiles(x, 0.5, axis, "linear", keepdims, True, "nanmedian")


@documented
def searchsorted(sorted_sequence: Any, values: Any, side: str = "left") -> Any:
    """Return where values would be inserted in a sorted vector, in int32."""
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    known = as_tensor(sorted_sequence, "searchsorted")
    if not known.whole or len(known.shape) != 1:
        raise ValueError(f"searchsorted: {known!r} must be a vector without a batch")
    x = as_tensor(values, "searchsorted")
    if not (
        isinstance(values, SymbolicTensor)
        or isinstance(sorted_sequence, SymbolicTensor)
    ):
        raise TypeError("searchsorted needs a symbolic tensor: use NumPy for arrays")
    apart = expand_dims(x, len(x.shape))
    before = (greater if side == "left" else greater_equal)(apart, known)
    return cast(sum_of(before, len(x.shape)), "int32")


@documented
def digitize(x: Any, bins: Any) -> Any:
    """Return the index of the bin of each element, in int32."""
    return searchsorted(np.asarray(bins, np.float32), tensor_of(x, "digitize"), "right")


@documented
def histogram(x: Any, bins: int = 10, range: Any = None) -> Any:  # noqa: A002
    """Return how many elements without a batch are in each of equal bins, and edges."""
    x = tensor_of(x, "histogram")
    if range is None:
        raise ValueError("histogram: range must be given: edges are static")
    low, high = (constant(each, "histogram: range") for each in range)
    edges = np.linspace(low, high, integer(bins, "histogram: bins") + 1).astype("f4")
    flat = expand_dims(vector_of(x), 1)
    above = greater_equal(flat, edges[:-1])
    below = less(
        flat, np.append(edges[1:-1], np.nextafter(edges[-1], np.float32(np.inf)))
    )
    return cast(sum_of(multiply(above, below), 0), "int32"), edges

"""Reductions along axes, by sums, maxima and products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import constant, integer
from memcfg.nn.layers._operators import Joined, OutputsOfOne, as_tensor
from memcfg.nn.ops._declaring import (
    axes_of,
    axis_of,
    documented,
    lengths_of,
    reduced,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._of_elements import (
    absolute,
    bitwise_not,
    cast,
    equal,
    exp,
    isclose,
    isfinite,
    isnan,
    log,
    log10,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    sqrt,
    square,
    stop_gradient,
    subtract,
    where,
)

if TYPE_CHECKING:
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "all",
    "allclose",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "average",
    "count_nonzero",
    "diff",
    "logsumexp",
    "max",
    "mean",
    "min",
    "moments",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "norm",
    "normalize",
    "prod",
    "psnr",
    "ptp",
    "std",
    "sum",
    "trapezoid",
    "var",
]


@documented
def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return the sums along axes."""
    return reduced("sum", x, axis, keepdims)


@documented
def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the means along axes."""
    return reduced("mean", x, axis, keepdims)


@documented
def max(  # noqa: A001
    x: Any, axis: Any = None, keepdims: bool = False, initial: Any = None
) -> Any:
    """Return the maxima along axes."""
    made = reduced("max", x, axis, keepdims)
    return made if initial is None else maximum(made, initial)


@documented
def min(  # noqa: A001
    x: Any, axis: Any = None, keepdims: bool = False, initial: Any = None
) -> Any:
    """Return the minima along axes."""
    opposite = _opposite(x)
    made = opposite(reduced("max", opposite(x), axis, keepdims))
    return made if initial is None else minimum(made, initial)


def _opposite(x: Any) -> Any:
    """Return what reverses the order of numbers: -x, or of integers -x - 1."""
    return bitwise_not if tensor_of(x, "min").sample_dtype == "int32" else negative


amax, amin = max, min


@documented
def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the variances along axes."""
    return mean(square(x - mean(x, axis, keepdims=True)), axis, keepdims)


@documented
def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the standard deviations along axes."""
    return sqrt(var(x, axis, keepdims))


def _part(x: SymbolicTensor, axis: int, begin: int, end: int) -> Any:
    whole = [slice(None)] * axis
    return x[(*whole, slice(begin, end))]


@documented
def prod(
    x: Any, axis: Any = None, keepdims: bool = False, dtype: str | None = None
) -> Any:
    """Return the products along axes; each element's gradient is that of the others."""
    x = tensor_of(x, "prod")
    axes = axes_of(x, axis)
    lengths = lengths_of(x)
    for each in axes:
        length = lengths[each]
        while length > 1:  # the product of both halves, with the odd one at the end
            half = length // 2
            y = _part(x, each, 0, half) * _part(x, each, half, 2 * half)
            if length % 2:
                last = _part(x, each, length - 1, length)
                last = _part(y, each, half - 1, half) * last
                if half > 1:
                    last = Joined(each)([_part(y, each, 0, half - 1), last])
                y = last
            x, length = y, half
    lengths = lengths_of(x)
    if not keepdims:
        lengths = [n for place, n in enumerate(lengths) if place not in axes]
    return _as_dtype(reshaped(x, lengths), dtype)


def _as_dtype(x: Any, dtype: str | None) -> Any:
    return x if dtype in (None, "float32") else cast(x, dtype)


@documented
def any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return 1 where an element along the axes is not 0, else 0."""
    return max(not_equal(x, 0.0), axis, keepdims)


@documented
def all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return 1 where no element along the axes is 0, else 0."""
    return min(not_equal(x, 0.0), axis, keepdims)


@documented
def count_nonzero(x: Any, axis: Any = None) -> Any:
    """Return how many elements along the axes are not 0, in int32."""
    return cast(sum(not_equal(x, 0.0), axis), "int32")


@documented
def allclose(
    x1: Any,
    x2: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Any:
    """Return 1 if all elements are close, of tensors without a batch or in a loss."""
    return all(isclose(x1, x2, rtol, atol, equal_nan))


def _first_place(hits: Any, axis: int, keepdims: bool) -> Any:
    """Return the first index along an axis where a tensor of 1 and 0 is 1, in int32."""
    length = lengths_of(hits)[axis]
    shape = [1] * len(hits.shape)
    shape[axis] = length
    if length >= 2**24:
        raise ValueError(f"an axis of length {length}: places are known below 2**24")
    left = as_tensor(
        np.arange(length, 0, -1, dtype=np.float32).reshape(shape), "places"
    )
    most = max(hits * left, axis, keepdims)
    return cast(subtract(float(length), most), "int32")


def _of_one_axis(x: Any, axis: Any, name: str) -> tuple[SymbolicTensor, int]:
    """Return a tensor and an axis of it; None means the only axis of a flat one."""
    x = tensor_of(x, name)
    if axis is None:
        if not x.whole:
            axes_of(x, None)
        return reshaped(x, [math.prod(lengths_of(x))]), 0
    return x, axis_of(x, axis)


@documented
def argmax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the index of the first maximum, or of the first NaN, in int32."""
    whole = tensor_of(x, "argmax")
    x, place = _of_one_axis(x, axis, "argmax")
    x = stop_gradient(x)
    most = max(x, place, keepdims=True)
    hits = maximum(equal(x, most), isnan(x))
    found = _first_place(hits, place, keepdims)
    return (
        reshaped(found, [1] * len(whole.shape)) if keepdims and axis is None else found
    )


@documented
def argmin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the index of the first minimum, or of the first NaN, in int32."""
    return argmax(_opposite(x)(x), axis, keepdims)


@documented
def ptp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the maximum less the minimum along axes."""
    return max(x, axis, keepdims) - min(x, axis, keepdims)


@documented
def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return ``log(sum(exp(x)))`` along axes without overflow."""
    most = stop_gradient(max(x, axis, keepdims=True))
    most = where(isfinite(most), most, 0.0)
    result = log(sum(exp(x - most), axis, keepdims=True)) + most
    return result if keepdims else sum(result, axis)


@documented
def average(x: Any, axis: Any = None, weights: Any = None) -> Any:
    """Return the weighted means along axes."""
    if weights is None:
        return mean(x, axis)
    weights = as_tensor(weights, "average: weights")
    if len(weights.shape) == 1 < len(x.shape):  # along one axis
        place = axis_of(x, axis)
        shape = [1] * len(x.shape)
        shape[place] = weights.shape[0]
        weights = reshaped(weights, shape)
    return sum(multiply(x, weights), axis) / sum(weights + 0.0 * x, axis)


@documented
def moments(x: Any, axes: Any, keepdims: bool = False) -> Any:
    """Return means and variances along axes."""
    middle = mean(x, axes, keepdims=True)
    spread = mean(square(x - middle), axes, keepdims)
    return (middle if keepdims else mean(x, axes)), spread


@documented
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    """Return the norm of the vectors along an axis, or of matrices along two."""
    x = tensor_of(x, "norm")
    if x.sample_dtype == "int32":
        x = cast(x, "float32")
    axes = axes_of(x, axis)
    if ord in (None, "fro") or (ord == 2 and len(axes) == 1):
        if ord == "fro" and len(axes) != 2:
            raise ValueError(f"norm: 'fro' is of matrices: two axes, got {axis}")
        return sqrt(sum(square(x), axes, keepdims))
    if len(axes) == 2:
        return _norm_of_matrices(x, ord, axes, keepdims)
    if len(axes) > 2 or isinstance(ord, str):
        raise ValueError(
            f"norm: ord must be None, 'fro' or a number, of one or two axes; got "
            f"{ord!r} of axes {axes}"
        )
    if ord == math.inf:
        return max(absolute(x), axes, keepdims)
    if ord == -math.inf:
        return min(absolute(x), axes, keepdims)
    if ord == 0:
        return sum(not_equal(x, 0.0), axes, keepdims)
    if ord == 1:
        return sum(absolute(x), axes, keepdims)
    exponent = constant(ord, "norm: ord")
    return power(sum(power(absolute(x), exponent), axes, keepdims), 1 / exponent)


def _norm_of_matrices(x: Any, order: Any, axes: Any, keepdims: bool) -> Any:
    """Return the largest or smallest sum of absolute values of columns or rows."""
    rows, columns = axes
    if order in (2, -2, "nuc"):
        return _norm_of_values(x, order, axes, keepdims)
    if order not in (1, -1, math.inf, -math.inf):
        raise ValueError(
            "norm: ord of matrices must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, "
            f"got {order!r}"
        )
    along = rows if order in (1, -1) else columns
    other = columns if along == rows else rows
    sums = sum(absolute(x), along, keepdims=True)
    result = (max if order > 0 else min)(sums, other, keepdims=True)
    return result if keepdims else sum(result, axes)


def _norm_of_values(x: Any, order: Any, axes: Any, keepdims: bool) -> Any:
    """Return the largest or smallest singular value of matrices, or their sum."""
    lengths = lengths_of(x)
    rest = [i for i in range(len(lengths)) if i not in axes]
    values = OutputsOfOne("svd", {})(reordered(x, [*rest, *axes]))[1]
    result = (sum if order == "nuc" else max if order == 2 else min)(values, -1)
    kept = [1 if i in axes else n for i, n in enumerate(lengths)]
    return reshaped(result, kept) if keepdims else result


@documented
def normalize(
    x: Any, axis: int = -1, order: float = 2, epsilon: float | None = None
) -> Any:
    """Divide by the norm along an axis, or by epsilon where that is larger."""
    least = 1e-7 if epsilon is None else constant(epsilon, "normalize: epsilon")
    length = norm(x, order, axis, keepdims=True)
    return x / maximum(length, least)


@documented
def psnr(x1: Any, x2: Any, max_val: float) -> Any:
    """Return the peak signal-to-noise ratio in decibels, of a batch in a loss."""
    error = mean(square(subtract(x1, x2)))
    peak = 20 * math.log10(constant(max_val, "psnr: max_val"))
    return peak - 10 * log10(error)


@documented
def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    """Return the n-th differences of neighbours along an axis."""
    place = axis_of(tensor_of(a, "diff"), axis)
    for _ in range(integer(n, "diff: n", 0)):
        length = lengths_of(a)[place]
        if length < 2:
            raise ValueError(f"diff: axis {axis} of {a!r} has one element")
        a = _part(a, place, 1, length) - _part(a, place, 0, length - 1)
    return a


@documented
def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """Integrate along an axis by the trapezoidal rule."""
    y = tensor_of(y, "trapezoid")
    if y.sample_dtype == "int32":
        y = cast(y, "float32")  # sums of integers would wrap around
    place = axis_of(y, axis)
    length = lengths_of(y)[place]
    means = (_part(y, place, 1, length) + _part(y, place, 0, length - 1)) * 0.5
    if x is None:
        return sum(means * constant(dx, "trapezoid: dx"), place)
    x = as_tensor(x, "trapezoid: x")
    if len(x.shape) == 1:
        shape = [1] * len(y.shape)
        shape[place] = length
        x = reshaped(x, shape)
    return sum(means * diff(x, axis=place), place)


# Reductions that ignore NaN


def _known(x: Any) -> Any:
    return subtract(1.0, isnan(x))


@documented
def nansum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the sums along axes without NaN."""
    return sum(where(isnan(x), 0, x), axis, keepdims)


@documented
def nanprod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the products along axes without NaN."""
    return prod(where(isnan(x), 1, x), axis, keepdims)


@documented
def nanmean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the means along axes without NaN."""
    return nansum(x, axis, keepdims) / sum(_known(x), axis, keepdims)


@documented
def nanvar(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the variances along axes without NaN."""
    known = _known(x)
    apart = (where(known, x, 0.0) - nanmean(x, axis, keepdims=True)) * known
    return sum(square(apart), axis, keepdims) / sum(known, axis, keepdims)


@documented
def nanstd(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the standard deviations along axes without NaN."""
    return sqrt(nanvar(x, axis, keepdims))


@documented
def nanmax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the maxima along axes without NaN; NaN where there is nothing else."""
    if tensor_of(x, "nanmax").sample_dtype == "int32":
        return max(x, axis, keepdims)
    most = max(where(isnan(x), -math.inf, x), axis, keepdims)
    return where(max(_known(x), axis, keepdims), most, math.nan)


@documented
def nanmin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the minima along axes without NaN; NaN where there is nothing else."""
    if tensor_of(x, "nanmin").sample_dtype == "int32":
        return min(x, axis, keepdims)
    return negative(nanmax(negative(x), axis, keepdims))


@documented
def nanargmax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the index of the first maximum without NaN, or -1, in int32."""
    x, place = _of_one_axis(x, axis, "nanargmax")
    x = stop_gradient(x)
    known = _known(x)
    most = max(where(known, x, -math.inf), place, keepdims=True)
    hits = equal(x, most)
    # All are NaN: the place after the last one, which there is not.
    found = cast(_first_place(hits, place, keepdims), "float32")
    return cast(where(max(known, place, keepdims), found, -1.0), "int32")


@documented
def nanargmin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the index of the first minimum without NaN, or -1, in int32."""
    return nanargmax(negative(x), axis, keepdims)

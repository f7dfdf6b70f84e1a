"""Keras's ops on symbolic tensors, for users' own layers, models and losses.

Each op is a layer, as an operator is. Axis 0 is the batch; no op splits or reduces it,
except in a loss. Results have no mask, as in Keras 3. Comparisons return float32, 1
where the condition holds and 0 elsewhere.
"""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn import activations
from memcfg.nn._argument_checks import constant, integer
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn.activations import (
    celu,
    elu,
    hard_shrink,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_shrink,
    softmax,
    softplus,
    softsign,
    swish,
    tanh,
    tanh_shrink,
)
from memcfg.nn.layers import Concatenate, Permute, Reshape, SymbolicTensor
from memcfg.nn.layers import _operators as operators
from memcfg.nn.layers._layer import WeightTensor, in_loss, operation
from memcfg.nn.layers._operators import (
    Function,
    Gather,
    OfBatch,
    Pointwise,
    Power,
    Reciprocal,
)
from memcfg.nn.layers._whole import of_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "abs",
    "absolute",
    "add",
    "amax",
    "amin",
    "cast",
    "celu",
    "clip",
    "concatenate",
    "divide",
    "elu",
    "equal",
    "exp",
    "expand_dims",
    "flip",
    "gelu",
    "get_item",
    "greater",
    "greater_equal",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_sigmoid",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "ndim",
    "negative",
    "not_equal",
    "one_hot",
    "power",
    "reciprocal",
    "relu",
    "relu6",
    "reshape",
    "rsqrt",
    "selu",
    "shape",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "swish",
    "take",
    "tanh",
    "tanh_shrink",
    "transpose",
    "true_divide",
    "var",
    "where",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_PARAMETERS = {
    "x": "SymbolicTensor\n    The input.",
    "x1": "SymbolicTensor or float\n    The first operand.",
    "x2": "SymbolicTensor or float\n    The second; axes of length 1 are broadcast.",
    "variable": "SymbolicTensor\n    The input.",
    "key": "object\n    Integers, slices, None and ``...``; the batch comes first.",
    "xs": "sequence of SymbolicTensor\n    The tensors.",
    "axis": "int or tuple of int\n    The axis; axis 0, the batch, is not allowed. In "
    "a loss None reduces all\n    axes including the batch, and sample weights cannot "
    "be used.",
    "axes": "tuple of int\n    The axis of x for each axis of the result, 0 first.",
    "keepdims": "bool, default False\n    Whether to keep reduced axes, with length 1.",
    "condition": "SymbolicTensor\n    Not 0 where to take x1.",
    "newshape": "tuple of int\n    The new shape; the first length is -1 or None.",
    "dtype": 'str\n    ``"float32"`` or ``"int32"``.',
    "num_classes": "int\n    The length of the last axis.",
    "indices": "SymbolicTensor or int\n    An index, or symbolic rows of a weight.",
    "indices_or_sections": "int or sequence of int\n    The number of parts, or the "
    "indices where to split.",
    "x_min": "float\n    The minimum.",
    "x_max": "float\n    The maximum.",
    "source": "int\n    The axis to move.",
    "destination": "int\n    Its new position.",
    "axis1": "int\n    The first axis.",
    "axis2": "int\n    The second axis.",
    "approximate": "bool, default True\n    Whether to approximate with tanh.",
}


def _documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Append the numpydoc section of the parameters; make the function an operation."""
    names = inspect.signature(function).parameters
    lines = "\n".join(f"{name} : {_PARAMETERS[name]}" for name in names)
    function.__doc__ = f"{function.__doc__}\n\nParameters\n----------\n{lines}\n"
    return operation(of_whole(takes_arguments(function)))


def _axis(x: SymbolicTensor, axis: Any, rank: int | None = None) -> int:
    """Return a nonnegative axis; ValueError if it is the batch or out of range."""
    rank = len(x.shape) if rank is None else rank
    result = integer(axis, "an axis", None)
    weight = isinstance(x, WeightTensor)
    if not -rank <= result < rank or (result % rank == 0 and not weight):
        raise ValueError(
            f"axis {axis} is out of range for {x!r}: axes are 1 to {rank - 1}; axis 0 "
            "is the batch"
        )
    return result % rank


def _binary(kind: str, x1: Any, x2: Any) -> Any:
    made: Any = NotImplemented
    if isinstance(x1, SymbolicTensor) or isinstance(x2, SymbolicTensor):
        made = operators.binary(kind, x1, x2)
    if made is NotImplemented:
        raise TypeError(
            f"{kind} needs symbolic tensors or numbers, got {x1!r} and {x2!r}"
        )
    return made


def _reduced(how: str, x: SymbolicTensor, axis: Any, keepdims: bool) -> Any:
    if axis is None and in_loss.get():
        return OfBatch(f"reduce_{how}", bool(keepdims))(x)
    if axis is None:
        raise ValueError(
            f"{x!r} cannot be reduced along all axes, which include the batch, except "
            "in a loss: pass axis=-1, or the axes of a sample"
        )
    several = axis if isinstance(axis, list | tuple) else (axis,)
    axes = tuple(sorted(_axis(x, each) for each in several))
    return Function(f"reduce_{how}", {"axes": axes, "keepdims": bool(keepdims)})(x)


@_documented
def absolute(x: Any) -> Any:
    """Return the absolute value of each element."""
    return operators.absolute(x)


abs = absolute  # noqa: A001  (Keras's name)


@_documented
def negative(x: Any) -> Any:
    """Return ``-x``."""
    return operators.negative(x)


@_documented
def get_item(x: Any, key: Any) -> Any:
    """Return ``x[key]``."""
    return operators.get_item(x, key)


@_documented
def add(x1: Any, x2: Any) -> Any:
    """Return ``x1 + x2``."""
    return _binary("add", x1, x2)


@_documented
def subtract(x1: Any, x2: Any) -> Any:
    """Return ``x1 - x2``."""
    return _binary("subtract", x1, x2)


@_documented
def multiply(x1: Any, x2: Any) -> Any:
    """Return ``x1 * x2``."""
    return _binary("multiply", x1, x2)


@_documented
def divide(x1: Any, x2: Any) -> Any:
    """Return ``x1 / x2``."""
    return _binary("divide", x1, x2)


true_divide = divide


@_documented
def matmul(x1: Any, x2: Any) -> Any:
    """Return the matrix product over the last two axes."""
    return _binary("matmul", x1, x2)


@_documented
def maximum(x1: Any, x2: Any) -> Any:
    """Return the element-wise maximum."""
    return _binary("maximum", x1, x2)


@_documented
def minimum(x1: Any, x2: Any) -> Any:
    """Return the element-wise minimum."""
    return _binary("minimum", x1, x2)


@_documented
def power(x1: Any, x2: Any) -> Any:
    """Return ``x1 ** x2`` for a number x2."""
    return _binary("power", x1, x2)


@_documented
def square(x: Any) -> Any:
    """Return ``x * x``."""
    return Power(2)(x)


@_documented
def sqrt(x: Any) -> Any:
    """Return the square root of each element."""
    return Power(0.5)(x)


@_documented
def rsqrt(x: Any) -> Any:
    """Return ``1 / sqrt(x)``."""
    return Function("reciprocal_root", {})(x)


@_documented
def reciprocal(x: Any) -> Any:
    """Return ``1 / x``."""
    return Reciprocal()(x)


@_documented
def exp(x: Any) -> Any:
    """Return the exponential of each element."""
    return activations.exponential(x)


@_documented
def log(x: Any) -> Any:
    """Return the natural logarithm of each element."""
    return Function("logarithm", {"term": -0.0})(x)


@_documented
def log1p(x: Any) -> Any:
    """Return the natural logarithm of ``1 + x``."""
    return Function("log1p", {})(x)


@_documented
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return x times the standard normal distribution function of x."""
    return activations.gelu(x, approximate)


@_documented
def clip(x: Any, x_min: Any, x_max: Any) -> Any:
    """Return x clipped to ``[x_min, x_max]``."""
    if isinstance(x_min, SymbolicTensor) or isinstance(x_max, SymbolicTensor):
        return minimum(maximum(x, x_min), x_max)
    bounds = {
        "low": constant(x_min, "clip: x_min"),
        "high": constant(x_max, "clip: x_max"),
    }
    return Function("clip", bounds)(x)


@_documented
def not_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where the elements differ, else 0."""
    return _binary("not_equal", x1, x2)


@_documented
def equal(x1: Any, x2: Any) -> Any:
    """Return 1 where the elements are equal, else 0."""
    return _binary("equal", x1, x2)


@_documented
def greater(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 > x2``, else 0."""
    return _binary("greater", x1, x2)


@_documented
def less(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 < x2``, else 0."""
    return _binary("less", x1, x2)


@_documented
def greater_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 >= x2``, else 0."""
    return _binary("greater_equal", x1, x2)


@_documented
def less_equal(x1: Any, x2: Any) -> Any:
    """Return 1 where ``x1 <= x2``, else 0."""
    return _binary("less_equal", x1, x2)


@_documented
def where(condition: Any, x1: Any, x2: Any) -> Any:
    """Return x1 where the condition is not 0, else x2."""
    if isinstance(x1, SymbolicTensor) and isinstance(x2, SymbolicTensor):
        return Pointwise("where")([condition, x1, x2])
    if isinstance(x1, SymbolicTensor):
        other = {"other": constant(x2, "where: x2")}
        return Pointwise("where_or", other)([condition, x1])
    value = {"value": constant(x1, "where: x1")}
    if isinstance(x2, SymbolicTensor):
        return Pointwise("where_not", value)([condition, x2])
    both = value | {"other": constant(x2, "where: x2")}
    return Function("where_numbers", both)(condition)


@_documented
def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return the sums along axes."""
    return _reduced("sum", x, axis, keepdims)


@_documented
def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the means along axes."""
    return _reduced("mean", x, axis, keepdims)


@_documented
def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return the maxima along axes."""
    return _reduced("max", x, axis, keepdims)


@_documented
def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Return the minima along axes."""
    return negative(_reduced("max", negative(x), axis, keepdims))


amax, amin = max, min


@_documented
def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the variances along axes."""
    return mean(square(x - mean(x, axis, keepdims=True)), axis, keepdims)


@_documented
def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the standard deviations along axes."""
    return sqrt(var(x, axis, keepdims))


@_documented
def shape(x: Any) -> tuple[int | None, ...]:
    """Return the shape; None stands for a batch of any size."""
    result: tuple[int | None, ...] = x.shape
    return result


@_documented
def ndim(x: Any) -> int:
    """Return the number of axes."""
    return len(x.shape)


@_documented
def reshape(x: Any, newshape: Sequence[int | None]) -> Any:
    """Change the shape of each sample."""
    first, *rest = newshape
    if first not in (-1, None, x.shape[0]):
        raise ValueError(
            f"reshape: axis 0 of {x!r} is the batch and cannot change: the new shape "
            f"must start with -1, got {first}"
        )
    return Reshape(tuple(rest))(x)


@_documented
def expand_dims(x: Any, axis: int) -> Any:
    """Insert an axis of length 1."""
    place = _axis(x, axis, len(x.shape) + 1)
    lengths = list(x.sample_shape)
    lengths.insert(place - 1, 1)
    return Reshape(tuple(lengths))(x)


@_documented
def squeeze(x: Any, axis: Any = None) -> Any:
    """Remove axes of length 1, by default all of them."""
    several = axis if isinstance(axis, list | tuple) else (axis,)
    gone = {_axis(x, each) for each in several if each is not None}
    lengths = dict(enumerate(x.sample_shape, 1))
    gone = gone or {place for place, length in lengths.items() if length == 1}
    if any(lengths[place] != 1 for place in gone):
        raise ValueError(f"squeeze: axis {axis} of {x!r} does not have length 1")
    return Reshape(tuple(n for place, n in lengths.items() if place not in gone))(x)


@_documented
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Reorder the axes."""
    if axes is None or axes[0] != 0:
        raise ValueError(
            f"transpose: axis 0 of {x!r} is the batch and must stay first: pass "
            f"axes=(0, ...), got {axes}"
        )
    return Permute(tuple(axes[1:]))(x)


@_documented
def moveaxis(x: Any, source: int, destination: int) -> Any:
    """Move an axis to another position."""
    order = list(range(len(x.shape)))
    order.remove(place := _axis(x, source))
    order.insert(_axis(x, destination), place)
    return transpose(x, order)


@_documented
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Swap two axes."""
    order = list(range(len(x.shape)))
    a, b = _axis(x, axis1), _axis(x, axis2)
    order[a], order[b] = b, a
    return transpose(x, order)


@_documented
def flip(x: Any, axis: Any = None) -> Any:
    """Reverse the elements along axes."""
    several = axis if isinstance(axis, list | tuple) else (axis,)
    return Function("reverse", {"axes": tuple(_axis(x, each) for each in several)})(x)


@_documented
def concatenate(xs: Sequence[Any], axis: int = 0) -> Any:
    """Join tensors along an axis."""
    return Concatenate(_axis(xs[0], axis))(list(xs)) if len(xs) > 1 else xs[0]


@_documented
def stack(x: Any, axis: int = 0) -> Any:
    """Join tensors along a new axis."""
    place = _axis(x[0], axis, len(x[0].shape) + 1)
    return concatenate([expand_dims(each, place) for each in x], place)


@_documented
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split a tensor into parts along an axis."""
    place = _axis(x, axis)
    length = x.shape[place]
    ends = indices_or_sections
    if not isinstance(ends, list | tuple | np.ndarray):
        count = integer(ends, "split: a number of parts")
        if length % count:
            raise ValueError(
                f"split: length {length} cannot be split into {count} equal parts"
            )
        ends = range(length // count, length, length // count)
    whole = [slice(None)] * place
    bounds = [0, *map(int, ends), length]
    return [get_item(x, (*whole, slice(a, b))) for a, b in pairwise(bounds)]


@_documented
def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Return one element along an axis, or rows of a weight."""
    if isinstance(x, WeightTensor) and isinstance(indices, SymbolicTensor):
        if axis not in (None, 0) or (axis is None and len(x.shape) > 1):
            raise ValueError("take: rows of a weight must be taken along axis=0")
        return Gather()([x, indices])
    if isinstance(indices, SymbolicTensor):
        raise TypeError(
            f"take: symbolic indices can only select rows of a weight, got {x!r}"
        )
    place = _axis(x, axis)
    return get_item(x, (*[slice(None)] * place, integer(indices, "an index", None)))


@_documented
def stop_gradient(variable: Any) -> Any:
    """Return a tensor of the same values that gradients take for a constant."""
    return Function("stop_gradient", {})(variable)


@_documented
def one_hot(x: Any, num_classes: int, axis: int = -1, dtype: str | None = None) -> Any:
    """Return one-hot rows of integers along a new last axis."""
    if axis not in (-1, len(x.shape)):
        raise ValueError(f"one_hot: axis must be -1, got {axis}")
    depth = integer(num_classes, "one_hot: num_classes")
    return Function("one_hot", {"depth": depth, "dtype": dtype or "float32"})(x)


@_documented
def cast(x: Any, dtype: str) -> Any:
    """Convert the elements to another dtype."""
    if dtype not in ("float32", "bfloat16", "int32"):
        raise ValueError(
            f"cast: dtype must be float32, bfloat16 or int32, got {dtype!r}"
        )
    return Function("cast", {"dtype": dtype})(x)

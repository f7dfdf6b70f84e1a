"""How ops are declared: documentation, checks of axes and operands, layers."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers import _operators as operators
from memcfg.nn.layers._layer import in_loss, operation
from memcfg.nn.layers._operators import (
    ForEachSample,
    Function,
    OfBatch,
    OfWeight,
    Pointwise,
    as_tensor,
    check_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "aligned",
    "axes_of",
    "axis_of",
    "binary",
    "combined",
    "described",
    "documented",
    "lengths_of",
    "of_one",
    "of_two",
    "reduced",
    "reordered",
    "reshaped",
    "tensor_of",
]

_PARAMETERS = {
    "x": "SymbolicTensor\n    The input.",
    "x1": "SymbolicTensor, array_like or float\n    The first operand.",
    "x2": "SymbolicTensor, array_like or float\n    The second; axes of length 1 are "
    "broadcast.",
    "key": "object\n    Integers, slices, None and ``...``; the batch comes first.",
    "xs": "sequence of SymbolicTensor\n    The tensors.",
    "axis": "int or tuple of int\n    The axis; axis 0, the batch, is not allowed. In "
    "a loss None reduces all\n    axes including the batch, and sample weights cannot "
    "be used.",
    "axes": "int or tuple of int\n    The axes, in order.",
    "keepdims": "bool, default False\n    Whether to keep reduced axes, with length 1.",
    "condition": "SymbolicTensor\n    Not 0 where to take x1.",
    "newshape": "tuple of int\n    The new shape; the first length is -1 or None.",
    "shape": "tuple of int\n    The shape; the length of the batch is -1 or None.",
    "dtype": 'str\n    ``"float32"`` or ``"int32"``.',
    "num_classes": "int\n    The length of the new axis.",
    "indices": "SymbolicTensor, array_like or int\n    The indices; negative ones "
    "count from the end.",
    "indices_or_sections": "int or sequence of int\n    The number of parts, or the "
    "indices where to split.",
    "x_min": "float\n    The minimum.",
    "x_max": "float\n    The maximum.",
    "source": "int or sequence of int\n    The axes to move.",
    "destination": "int or sequence of int\n    Their new positions.",
    "axis1": "int\n    The first axis.",
    "axis2": "int\n    The second axis.",
    "approximate": "bool, default True\n    Whether to approximate with tanh.",
    "decimals": "int, default 0\n    Digits after the decimal point.",
    "nan": "float, default 0.0\n    Takes the place of NaN.",
    "posinf": "float, optional\n    Takes the place of infinity; by default the "
    "largest float32.",
    "neginf": "float, optional\n    Takes the place of -infinity; by default the "
    "smallest float32.",
    "rtol": "float, default 1e-5\n    The tolerance relative to x2.",
    "atol": "float, default 1e-8\n    The absolute tolerance.",
    "equal_nan": "bool, default False\n    Whether NaN is close to NaN.",
    "threshold": "float\n    The largest number that is replaced.",
    "default_value": "float\n    What replaces it.",
    "b": "float, default 4\n    How smooth the bend at 0 is.",
    "weights": "SymbolicTensor or array_like, optional\n    The weights; by default "
    "all are equal.",
    "ord": "int, float or str, optional\n    The order: a number, inf, -inf, or "
    '``"fro"``; by default 2.',
    "order": "int or float, default 2\n    The order of the norm.",
    "epsilon": "float, optional\n    Added to, or the least of, what is divided by.",
    "max_val": "float\n    The largest value that the signal may have.",
    "n": "int\n    How often, or how many.",
    "a": "SymbolicTensor\n    The input.",
    "y": "SymbolicTensor\n    The second input.",
    "dx": "float, default 1.0\n    The distance between neighbours.",
    "repeats": "int or sequence of int\n    How often to repeat, for each axis.",
    "shift": "int or sequence of int\n    The places by which elements move.",
    "pad_width": "int or sequence of (int, int)\n    Lengths before and after, for "
    "each axis; those of the batch are 0.",
    "mode": "str\n    How it is done, by Keras's names.",
    "constant_values": "float, optional\n    The padding, 0 by default.",
    "k": "int\n    The diagonal, or the number of elements.",
    "offset": "int, default 0\n    The diagonal: above the main one if positive.",
    "num": "int, optional\n    The number of elements or of parts.",
    "variable": "SymbolicTensor\n    The input.",
    "block_size": "int\n    The side of a block.",
    "data_format": 'str\n    ``"channels_last"``.',
    "pattern": "str\n    Axes by name before and after ``->``, in parentheses where "
    "they are joined.",
    "start_indices": "sequence of int\n    The first index along each axis.",
    "updates": "SymbolicTensor or array_like\n    What replaces the part.",
}


def documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Append the numpydoc section of the parameters; make the function an operation.

    An op that has nothing to do still drops the mask of its input.
    """
    own = described(function)

    @functools.wraps(own)
    def call(*args: Any, **options: Any) -> Any:
        made = own(*args, **options)
        if isinstance(made, SymbolicTensor) and any(
            made is each for each in (*args, *options.values())
        ):
            return Function("reshape", {"shape": tuple(lengths_of(made))})(made)
        return made

    return operation(call)


def described(function: Callable[..., Any]) -> Callable[..., Any]:
    """Append the numpydoc section of the parameters of a function, even of arrays."""
    names = inspect.signature(function).parameters
    lines = "\n".join(
        f"{name} : {_PARAMETERS.get(name, 'object' + chr(10) + '    As in Keras.')}"
        for name in names
    )
    function.__doc__ = f"{function.__doc__}\n\nParameters\n----------\n{lines}\n"
    return takes_arguments(function)


def tensor_of(x: Any, name: str) -> SymbolicTensor:
    """Return a symbolic tensor; TypeError for anything else."""
    if not isinstance(x, SymbolicTensor):
        raise TypeError(
            f"{name} needs a symbolic tensor, got {type(x).__name__}: use NumPy for "
            "arrays"
        )
    return x


def lengths_of(x: SymbolicTensor) -> list[Any]:
    """Return the shape, with None for a batch of any size."""
    return [*x.shape] if x.whole else [None, *x.sample_shape]


def axis_of(x: SymbolicTensor, axis: Any, rank: int | None = None) -> int:
    """Return a nonnegative axis; ValueError if it is the batch or out of range."""
    rank = len(x.shape) if rank is None else rank
    result = integer(axis, "an axis", None)
    if not -rank <= result < rank or (result % rank == 0 and not x.whole):
        least = 0 if x.whole else 1
        raise ValueError(
            f"axis {axis} is out of range for {x!r}: axes are {least} to {rank - 1}"
            f"{'' if x.whole else '; axis 0 is the batch'}"
        )
    return result % rank


def axes_of(x: SymbolicTensor, axis: Any) -> tuple[int, ...]:
    """Return distinct axes in ascending order; None means all of a whole tensor."""
    if axis is None and x.whole:
        return tuple(range(len(x.shape)))
    if axis is None:
        raise ValueError(
            f"{x!r} cannot be reduced along all axes, which include the batch, except "
            "in a loss: pass axis=-1, or the axes of a sample"
        )
    several = axis if isinstance(axis, list | tuple) else (axis,)
    axes = sorted(axis_of(x, each) for each in several)
    if len({*axes}) < len(axes):
        raise ValueError(f"axes {axis} of {x!r} name one axis twice")
    return tuple(axes)


def reduced(how: str, x: Any, axis: Any, keepdims: bool) -> Any:
    """Return a sum, mean or maximum along axes."""
    x = tensor_of(x, how)
    if axis is None and in_loss.get() and not x.whole:
        return OfBatch(f"reduce_{how}", bool(keepdims))(x)
    axes = axes_of(x, axis)
    return Function(f"reduce_{how}", {"axes": axes, "keepdims": bool(keepdims)})(x)


def binary(kind: str, x1: Any, x2: Any) -> Any:
    """Return the result of an operator."""
    made: Any = NotImplemented
    if isinstance(x1, SymbolicTensor) or isinstance(x2, SymbolicTensor):
        made = operators.binary(kind, x1, x2)
    if made is NotImplemented:
        raise TypeError(
            f"{kind} needs symbolic tensors or numbers, got {x1!r} and {x2!r}"
        )
    return made


def combined(op: str, operands: Sequence[Any], attributes: Any = None) -> Any:
    """Return an element-wise op of tensors, arrays and numbers, after broadcasting."""
    if not any(isinstance(each, SymbolicTensor) for each in operands):
        raise TypeError(f"{op} needs a symbolic tensor, got {operands!r}")
    tensors = [as_tensor(each, op, floats=True) for each in operands]
    if any(each.whole for each in tensors):
        check_batch(op, tensors)
        return OfWeight(op, attributes)(tensors)
    ranks = {len(each.shape) for each in tensors}
    if len(ranks) > 1:
        shapes = " and ".join(str(each.shape) for each in tensors)
        raise ValueError(
            f"{op}: operands must have the same rank, got shapes {shapes}: add an "
            "axis, as in h[:, None]"
        )
    return Pointwise(op, attributes)(tensors)


def aligned(x: SymbolicTensor, like: SymbolicTensor) -> SymbolicTensor:
    """Return x, repeated for each sample if it has no batch and the other one has."""
    if x.whole and not like.whole:
        made: SymbolicTensor = ForEachSample()([x, like])
        return made
    return x


def reshaped(x: SymbolicTensor, lengths: Sequence[Any]) -> Any:
    """Return x in another shape, of which None is the batch."""
    if list(lengths) == lengths_of(x):
        return x
    return Function("reshape", {"shape": tuple(lengths)})(x)


def reordered(x: SymbolicTensor, axes: Sequence[int]) -> Any:
    """Return x with its axes in another order."""
    if list(axes) == sorted(axes):
        return x
    return Function("transpose", {"axes": tuple(axes)})(x)


def of_one(name: str, op: str, summary: str) -> Any:
    """Return the function of an element-wise op of one tensor."""

    def function(x: Any) -> Any:
        return Function(op, {})(tensor_of(x, name))

    return _named(function, name, summary)


def of_two(name: str, op: str, summary: str) -> Any:
    """Return the function of an element-wise op of two tensors or numbers."""

    def function(x1: Any, x2: Any) -> Any:
        return binary(op, x1, x2)

    return _named(function, name, summary)


def _named(function: Callable[..., Any], name: str, summary: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "memcfg.nn.ops"
    function.__doc__ = summary
    return documented(function)

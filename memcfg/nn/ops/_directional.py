"""`jvp`: derivatives along a direction, by derivatives of gradients."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import (
    Variable,
    filled_in,
    operation,
    pattern,
)
from memcfg.nn.layers._operators import as_tensor
from memcfg.nn.ops._along_axes import sum as sum_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["jvp"]

_NUMBERS = (SymbolicTensor, Variable, np.ndarray, np.generic, int, float)


def jvp(
    fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return a function's results, and their derivatives along a direction.

    Parameters
    ----------
    fun : callable
        Takes float32 tensors, or lists or dicts of them, and returns such.
    primals : sequence of SymbolicTensor or array_like
        The arguments, of a function or arrays.
    tangents : sequence of SymbolicTensor or array_like
        The direction: by what each argument moves, of its shape.
    has_aux : bool, default False
        Whether `fun` returns a pair of results and something else.

    Returns
    -------
    tuple
        The results and their derivatives, and with `has_aux` what else there is.

    Raises
    ------
    TypeError
        If an argument or a result is no float32 tensor of a function.
    ValueError
        If a tangent has another shape than its argument.
    NotImplementedError
        If the gradient of an op has no derivative.

    Notes
    -----
    The product of a vector ``u`` with the Jacobian is linear in ``u``, and its
    derivative by ``u`` along the tangents is the result. Of a function with one number
    ``sum(memcfg.grad(f)(x) * v)`` is the same with half the ops.

    References
    ----------
    Townsend, "A new trick for calculating Jacobian vector products", 2017.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> x, v = np.float32([3, 4]), np.float32([1, 10])
    >>> mc.nn.ops.jvp(lambda x: x * x, (x,), (v,))
    (array([ 9., 16.], dtype=float32), array([ 6., 80.], dtype=float32))
    """
    given: list[Any] = []
    form = pattern((primals, tangents), given, _NUMBERS)
    arrays = [
        np.asarray(each, np.float32) if isinstance(each, int | float) else each
        for each in given
    ]
    primals, tangents = filled_in(form, arrays)
    made: tuple[Any, ...] = _along(fun, primals, tangents, bool(has_aux))
    return made


@operation
def _along(
    fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool
) -> tuple[Any, ...]:
    """Return what `jvp` does, of tensors of a function."""
    starts, moves = _tensors(primals), _tensors(tangents)
    shapes = [[each.whole_shape for each in group] for group in (starts, moves)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"jvp: tangents must have the shapes of the arguments, {shapes[0]}, got "
            f"{shapes[1]}"
        )
    made = fun(*filled_in(pattern(primals, [], _NUMBERS), starts))
    made, rest = made if has_aux else (made, None)
    ends: list[Any] = []
    form = pattern(made, ends, _NUMBERS)
    ends = [as_tensor(each, "jvp", floats=True) for each in ends]
    found = _derivatives(ends, starts, moves)
    results = filled_in(form, ends), filled_in(form, found)
    return (*results, rest) if has_aux else results


def _tensors(given: Any) -> list[Any]:
    leaves: list[Any] = []
    pattern(given, leaves, _NUMBERS)
    return [as_tensor(each, "jvp", floats=True) for each in leaves]


def _derivatives(ends: list[Any], starts: list[Any], moves: list[Any]) -> list[Any]:
    """Return the derivatives of tensors along a direction."""
    by = Variable.functions.derivatives
    weights = [as_tensor(np.ones(x.whole_shape, np.float32), "jvp") for x in ends]
    total = reduce(add, (sum_of(x * w) for x, w in zip(ends, weights, strict=True)))
    slopes = by(total, starts, "jvp", zeros=True)
    along = reduce(add, (sum_of(x * v) for x, v in zip(slopes, moves, strict=True)))
    return by(along, weights, "jvp", zeros=True)  # type: ignore[no-any-return]

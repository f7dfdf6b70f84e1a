"""Control flow that Python runs while a layer is traced.

Conditions and numbers of steps are Python's; each step is traced once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import named_operation
from memcfg.nn.ops._declaring import axis_of, tensor_of
from memcfg.nn.ops._shapes import concatenate, part, stack, unstack

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = [
    "associative_scan",
    "cond",
    "fori_loop",
    "map",
    "scan",
    "switch",
    "vectorized_map",
    "while_loop",
]


def _known(value: Any, name: str) -> Any:
    if isinstance(value, SymbolicTensor):
        raise TypeError(
            f"{name}: {value!r} has no value while the program is made: choose "
            "elements with ops.where(condition, a, b)"
        )
    return value


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Return the result of one of two functions, by a Python condition.

    Parameters
    ----------
    pred : bool
        The condition; the other function is not called.
    true_fn, false_fn : callable
        Functions without arguments.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    TypeError
        If `pred` is a symbolic tensor: use `where`.
    """
    return true_fn() if _known(pred, "cond") else false_fn()


def switch(index: Any, branches: Any, *operands: Any) -> Any:
    """Return the result of one of several functions, by a Python index.

    Parameters
    ----------
    index : int
        The index of the function, clipped to those that there are.
    branches : sequence of callable
        Functions of the operands.
    *operands : object
        Arguments of the function.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    TypeError
        If `index` is no integer.
    """
    place = integer(_known(index, "switch"), "switch: index", None)
    return branches[max(0, min(place, len(branches) - 1))](*operands)


def fori_loop(
    lower: int, upper: int, body_fun: Callable[[int, Any], Any], init_val: Any
) -> Any:
    """Repeat a function; each step is traced.

    Parameters
    ----------
    lower, upper : int
        The first number, and the one after the last.
    body_fun : callable
        ``body_fun(number, value)`` returns the next value.
    init_val : object
        The first value.

    Returns
    -------
    object
        The last value.

    Raises
    ------
    TypeError
        If a bound is no integer.
    """
    value = init_val
    first, last = (
        integer(_known(each, "fori_loop"), "fori_loop: a bound", None)
        for each in (lower, upper)
    )
    for number in range(first, last):
        value = body_fun(number, value)
    return value


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: int | None = None,
) -> Any:
    """Repeat a function while a Python condition holds; each step is traced.

    Parameters
    ----------
    cond : callable
        ``cond(*loop_vars)`` returns whether to go on.
    body : callable
        ``body(*loop_vars)`` returns the next ones.
    loop_vars : sequence or object
        The first ones.
    maximum_iterations : int, optional
        The most steps.

    Returns
    -------
    sequence or object
        The last ones.

    Raises
    ------
    TypeError
        If the condition depends on a symbolic tensor.
    """
    several = isinstance(loop_vars, list | tuple)
    values = tuple(loop_vars) if several else (loop_vars,)
    steps = 0
    while maximum_iterations is None or steps < maximum_iterations:
        if not _known(cond(*values), "while_loop"):
            break
        made = body(*values)
        values = tuple(made) if isinstance(made, list | tuple) else (made,)
        steps += 1
    return values if several else values[0]


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _joined(results: list[Any], axis: int) -> Any:
    """Stack the results of all steps, which may be several tensors each."""
    first = results[0]
    if isinstance(first, list | tuple):
        return type(first)(
            stack(list(each), axis) for each in zip(*results, strict=True)
        )
    return None if first is None else stack(results, axis)


@named_operation
def map(f: Callable[[Any], Any], xs: Any) -> Any:  # noqa: A001  (Keras's name)
    """Apply a function to each part along axis 0 of tensors without a batch.

    Parameters
    ----------
    f : callable
        The function, traced for each part.
    xs : SymbolicTensor or sequence of SymbolicTensor
        The tensors.

    Returns
    -------
    SymbolicTensor or sequence of SymbolicTensor
        The results along a new axis 0.

    Raises
    ------
    ValueError
        If a tensor has a batch, all samples of which a layer computes at once.
    """
    parts = [unstack(tensor_of(each, "map")) for each in _tensors(xs)]
    several = isinstance(xs, list | tuple)
    steps = zip(*parts, strict=True)
    return _joined([f(type(xs)(each) if several else each[0]) for each in steps], 0)


@named_operation
def vectorized_map(function: Callable[[Any], Any], elements: Any) -> Any:
    """Apply a function to each part along axis 0, as `map` does.

    Parameters
    ----------
    function : callable
        The function, traced for each part.
    elements : SymbolicTensor or sequence of SymbolicTensor
        The tensors, without a batch.

    Returns
    -------
    SymbolicTensor or sequence of SymbolicTensor
        The results along a new axis 0.
    """
    return map(function, elements)


@named_operation
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: Any = 1,
) -> Any:
    """Carry a value through the parts along axis 0 of tensors without a batch.

    Parameters
    ----------
    f : callable
        ``f(carry, x)`` returns the next carry and a result; traced for each step.
    init : object
        The first carry.
    xs : SymbolicTensor or sequence of SymbolicTensor, optional
        The tensors; without them, x is None.
    length : int, optional
        The number of steps, needed without `xs`.
    reverse : bool, default False
        Whether to start at the end.
    unroll : int or bool, default 1
        Has no effect: all steps are traced.

    Returns
    -------
    tuple
        The last carry, and the results along a new axis 0.

    Raises
    ------
    ValueError
        If a tensor has a batch, or there are no steps.
    """
    del unroll
    if xs is None:
        steps: list[Any] = [None] * integer(length, "scan: length")
    else:
        parts = [unstack(tensor_of(each, "scan")) for each in _tensors(xs)]
        several = isinstance(xs, list | tuple)
        steps = [
            type(xs)(each) if several else each[0] for each in zip(*parts, strict=True)
        ]
    if length not in (None, len(steps)):
        raise ValueError(f"scan: {len(steps)} steps, and length is {length}")
    carry, results = init, []
    for each in reversed(steps) if reverse else steps:
        carry, made = f(carry, each)
        results.append(made)
    return carry, _joined(results[::-1] if reverse else results, 0)


@named_operation
def associative_scan(
    f: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """Combine each part along an axis with all before it.

    Parameters
    ----------
    f : callable
        Combines two tensors, element by element along the axis; it is associative.
    elems : SymbolicTensor or sequence of SymbolicTensor
        The tensors; `f` takes and returns the same structure.
    reverse : bool, default False
        Whether to combine with all after it.
    axis : int, default 0
        The axis; axis 0 of a batch is not allowed.

    Returns
    -------
    SymbolicTensor or sequence of SymbolicTensor
        The combinations, in the shapes of the tensors.
    """
    tensors = [tensor_of(each, "associative_scan") for each in _tensors(elems)]
    several = isinstance(elems, list | tuple)
    places = [axis_of(each, axis) for each in tensors]
    length = int(tensors[0].shape[places[0]] or 1)

    def cut(begin: int, end: int) -> list[Any]:
        return [part(x, i, begin, end) for x, i in zip(tensors, places, strict=True)]

    def packed(values: list[Any]) -> Any:
        return type(elems)(values) if several else values[0]

    by = 1
    while by < length:  # each is combined with what is `by` before it
        early, late = cut(0, length - by), cut(by, length)
        if reverse:
            made = _tensors(f(packed(late), packed(early)))
            ends = [[m, e] for m, e in zip(made, cut(length - by, length), strict=True)]
        else:
            made = _tensors(f(packed(early), packed(late)))
            ends = [[s, m] for s, m in zip(cut(0, by), made, strict=True)]
        tensors = [concatenate(e, i) for e, i in zip(ends, places, strict=True)]
        by *= 2
    return packed(tensors)

"""Control flow while a layer or a function is traced.

Numbers of steps are Python's, and each step is traced. By a condition of Python one
branch is traced; by a tensor, all branches are computed and their results selected.
"""

from __future__ import annotations

import functools
import re
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import (
    Variable,
    filled_in,
    named_operation,
    operation,
    pattern,
)
from memcfg.nn.layers._operators import as_tensor
from memcfg.nn.ops._declaring import axis_of, tensor_of
from memcfg.nn.ops._of_elements import bitwise_and, bitwise_xor, cast, where
from memcfg.nn.ops._shapes import (
    broadcast_to,
    concatenate,
    part,
    reshape,
    stack,
    unstack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "associative_scan",
    "cond",
    "fori_loop",
    "map",
    "scan",
    "switch",
    "vectorize",
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


_LEAVES = (SymbolicTensor, Variable, np.ndarray, np.generic, int, float)


def _scalar(value: Any, name: str) -> Any:
    """Return a tensor of one number without axes; TypeError for others."""
    if not value.whole or prod(value.shape) != 1:
        raise TypeError(
            f"{name}: {value!r} is not one number, and each sample would have its own "
            "branch: choose elements with ops.where(condition, a, b)"
        )
    return value if not value.shape else reshape(value, ())


def _branch(function: Callable[..., Any], operands: Sequence[Any], name: str) -> Any:
    """Return the result of a branch; ValueError if it also updates weights."""
    functions = Variable.functions
    before = functions.count_effects()
    made = function(*operands)
    if functions.count_effects() != before:
        raise ValueError(
            f"{name}: a branch updates weights or metrics. All branches are computed, "
            "and their results selected by a tensor, so it would always: assign "
            "ops.where(condition, new, old), beside the branches"
        )
    return made


def _selected(condition: Any, these: Any, others: Any, name: str) -> Any:
    """Return nested results of one branch where a condition holds, else the others."""
    first: list[Any] = []
    second: list[Any] = []
    structure = pattern(these, first, _LEAVES)
    if structure != pattern(others, second, _LEAVES):
        raise TypeError(
            f"{name}: branches must return results of one structure, got {these!r} and "
            f"{others!r}"
        )
    pairs = zip(first, second, strict=True)
    return filled_in(structure, [_either(condition, *pair, name) for pair in pairs])


def _either(condition: Any, this: Any, other: Any, name: str) -> Any:
    """Return this where a condition holds, else the other; integers by their bits."""
    if this is other or (np.isscalar(this) and np.isscalar(other) and this == other):
        return this
    this, other = (
        as_tensor(np.asarray(x) if isinstance(x, Variable) else x, name)
        for x in (this, other)
    )
    kinds = {this.sample_dtype, other.sample_dtype}
    if this.shape != other.shape or len(kinds) > 1:
        raise TypeError(
            f"{name}: branches must return tensors of one shape and dtype, got "
            f"{this.shape} {this.sample_dtype} and {other.shape} {other.sample_dtype}"
        )
    if kinds == {"float32"}:
        return where(condition, this, other)
    bits = cast(where(condition, -1.0, 0.0), "int32")
    return bitwise_xor(other, bitwise_and(bitwise_xor(this, other), bits))


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Return the result of one of two functions, by a condition.

    Parameters
    ----------
    pred : bool or SymbolicTensor
        The condition. By one of Python, the other function is not called. By a tensor
        of one number, both are computed, and the results selected by `where`.
    true_fn, false_fn : callable
        Functions without arguments. By a tensor, both return tensors of the same
        shapes and dtypes, in one structure.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    TypeError
        If `pred` has several numbers, or the results differ in structure or shape.
    ValueError
        If by a tensor a function updates weights, which would happen in any case.

    Notes
    -----
    The gradient of the result that is not selected is 0, unless it is infinite or NaN:
    0 times those is NaN, as with `where`.
    """
    if not isinstance(pred, SymbolicTensor):
        return true_fn() if pred else false_fn()
    pred = _scalar(pred, "cond")
    this = _branch(true_fn, (), "cond")
    return _selected(pred, this, _branch(false_fn, (), "cond"), "cond")


def switch(index: Any, branches: Any, *operands: Any) -> Any:
    """Return the result of one of several functions, by an index.

    Parameters
    ----------
    index : int or SymbolicTensor
        The index of the function, clipped to those that there are. By a tensor of one
        number, all are computed, and the results selected, as in `cond`.
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
    TypeError, ValueError
        As of `cond`, if `index` is not an integer, or there is no function.
    """
    if not len(branches):
        raise ValueError("switch: branches is empty: pass at least one function")
    if isinstance(index, SymbolicTensor):
        if index.sample_dtype != "int32":
            raise TypeError(
                f"switch: index {index!r} is not of integers: pass "
                "ops.cast(index, 'int32')"
            )
        index = cast(_scalar(index, "switch"), "float32")
        results = [_branch(each, operands, "switch") for each in branches]
        made = results[0]
        for number, each in enumerate(results[1:], start=1):
            made = _selected(index > number - 0.5, each, made, "switch")
        return made
    place = integer(index, "switch: index", None)
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
    """Repeat a function while a condition holds; each step is traced.

    Parameters
    ----------
    cond : callable
        ``cond(*loop_vars)`` returns whether to go on. If it returns a tensor,
        `maximum_iterations` steps are computed, and those after the end change nothing.
    body : callable
        ``body(*loop_vars)`` returns the next ones.
    loop_vars : sequence or object
        The first ones; in loops by a tensor, numbers of Python become tensors.
    maximum_iterations : int, optional
        The most steps; needed if the condition is a tensor.

    Returns
    -------
    sequence or object
        The last ones.

    Raises
    ------
    TypeError, ValueError
        As of `cond`, or if the condition is a tensor, and the steps have no maximum.
    """
    if maximum_iterations is not None:
        integer(maximum_iterations, "while_loop: maximum_iterations", 0)
    several = isinstance(loop_vars, list | tuple)
    values = tuple(loop_vars) if several else (loop_vars,)
    steps = 0
    goes_on: Any = None  # a tensor, once a condition has been one
    while maximum_iterations is None or steps < maximum_iterations:
        holds = cond(*values)
        if isinstance(holds, SymbolicTensor):
            if maximum_iterations is None:
                raise TypeError(
                    "while_loop: the condition is a tensor, which has no value while "
                    "the program is made: pass maximum_iterations"
                )
            holds = _scalar(holds, "while_loop")
            goes_on = holds if goes_on is None else where(goes_on, holds, 0.0)
        elif not holds:
            break
        by_tensor = goes_on is not None
        made = _branch(body, values, "while_loop") if by_tensor else body(*values)
        made = tuple(made) if isinstance(made, list | tuple) else (made,)
        if by_tensor:
            made = _selected(goes_on, made, _as_tensors(values, made), "while_loop")
        values = made
        steps += 1
    return values if several else values[0]


def _as_tensors(values: Any, like: Any) -> Any:
    """Return numbers of Python as tensors of the dtypes of the next values."""
    first: list[Any] = []
    second: list[Any] = []
    structure = pattern(values, first, _LEAVES)
    if structure != pattern(like, second, _LEAVES):
        return values  # refused where they are selected
    pairs = zip(first, second, strict=True)
    return filled_in(structure, [_of_dtype(*pair) for pair in pairs])


def _of_dtype(value: Any, like: Any) -> Any:
    floats = getattr(like, "sample_dtype", "") == "float32" or isinstance(like, float)
    return float(value) if floats and isinstance(value, int) else value


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


def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Any = None,
    signature: str | None = None,
) -> Callable[..., Any]:
    """Return a function that calls another for each element of its arguments.

    Each call is traced, so a program of many elements is long: whole tensors are better
    where the function allows them.

    Parameters
    ----------
    pyfunc : callable
        Takes tensors of the core axes of `signature`, by default scalars, and returns
        one or a tuple of them.
    excluded : set of int, optional
        Positions of arguments that are passed as they are.
    signature : str, optional
        The core axes of arguments and results, such as ``"(m,n),(n)->(m)"``.

    Returns
    -------
    callable
        Takes tensors or arrays without a batch, whose other axes are broadcast.

    Raises
    ------
    TypeError
        If `pyfunc` is not callable.
    ValueError
        If `signature` cannot be read, or arguments do not fit it.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> dots = mc.nn.ops.vectorize(
    ...     lambda a, b: mc.nn.ops.sum(a * b), signature="(n),(n)->()")
    >>> dots(np.float32([[1, 2], [3, 4]]), np.float32([10, 1])).tolist()
    [12.0, 34.0]
    """
    if not callable(pyfunc):
        raise TypeError(f"vectorize: pyfunc must be a function, got {pyfunc!r}")
    kept = frozenset(excluded or ())
    cores = None if signature is None else _core_axes(signature)

    def calls(*args: Any) -> Any:
        return _for_each(pyfunc, list(args), kept, cores)

    at_once = operation(calls)

    @functools.wraps(pyfunc)
    def call(*args: Any) -> Any:
        return at_once(
            *(each if i in kept else _as_array(each) for i, each in enumerate(args))
        )

    return call


def _as_array(given: Any) -> Any:
    """Return a tensor, or numbers as an array of float32 or int32."""
    if isinstance(given, SymbolicTensor | Variable):
        return given
    array = np.asarray(given)
    return array.astype(np.int32 if array.dtype.kind in "iub" else np.float32)


def _core_axes(signature: str) -> list[int]:
    """Return the number of core axes of each argument."""
    sides = signature.replace(" ", "").split("->")
    parts = [re.findall(r"\(([^()]*)\)", side) for side in sides]
    again = ["->".join(",".join(f"({p})" for p in part) for part in parts)]
    if len(sides) != 2 or again != [signature.replace(" ", "")]:
        raise ValueError(
            f"vectorize: a signature is like '(m,n),(n)->(m)', not {signature!r}"
        )
    return [len([x for x in part.split(",") if x]) for part in parts[0]]


def _for_each(
    function: Callable[..., Any], args: list[Any], kept: Any, cores: list[int] | None
) -> Any:
    """Call a function for each element of the axes before the core ones."""
    places = [i for i in range(len(args)) if i not in kept]
    if cores is not None and len(cores) != len(places):
        raise ValueError(
            f"vectorize: the signature has {len(cores)} arguments, and "
            f"{len(places)} are given"
        )
    tensors = [as_tensor(args[i], "vectorize") for i in places]
    split = [
        len(x.whole_shape) - (0 if cores is None else cores[i])
        for i, x in enumerate(tensors)
    ]
    if min(split, default=0) < 0:
        raise ValueError(
            "vectorize: an argument has fewer axes than the signature: "
            f"{[x.whole_shape for x in tensors]}"
        )
    outer = [x.whole_shape[:n] for x, n in zip(tensors, split, strict=True)]
    shape = np.broadcast_shapes(*outer)
    rows = []
    for x, n in zip(tensors, split, strict=True):
        core = x.whole_shape[n:]
        wide = broadcast_to(
            reshape(x, (*[1] * (len(shape) - n), *x.whole_shape)), (*shape, *core)
        )
        rows.append(unstack(reshape(wide, (prod(shape), *core))))
    results = []
    for row in zip(*rows, strict=True):
        for place, each in zip(places, row, strict=True):
            args[place] = each
        results.append(function(*args))
    joined = _joined(results, 0)
    if isinstance(joined, list | tuple):
        return type(joined)(reshape(x, (*shape, *x.whole_shape[1:])) for x in joined)
    return reshape(joined, (*shape, *joined.whole_shape[1:]))


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

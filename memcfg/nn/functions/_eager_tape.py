"""Gradients of what is computed at once, outside of a function.

Each call on arrays is computed, and noted as the same call of symbolic tensors. When
gradients are asked for, one program computes them from the arrays that were given. It
draws the numbers that the calls drew, and leaves moving averages alone, which the calls
have moved.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from memcfg._core import scope_out
from memcfg.nn.functions._function_graph import Calls
from memcfg.nn.functions._function_state import FunctionState
from memcfg.nn.functions._recorder import Recording, resumed
from memcfg.nn.layers._layer import (
    OPERATIONS,
    SymbolicTensor,
    Variable,
    filled_in,
    next_order,
    pattern,
    start_of,
)
from memcfg.nn.layers._operators import get_item
from memcfg.nn.training._compile_config import PLANNED, get_policy, get_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EagerTape", "TapedArray", "active_tape"]

_ARRAYS = (np.ndarray, np.generic)
_OPERATORS = {"true_divide": "divide"}  # ufuncs whose op has another name
_active: ContextVar[EagerTape | None] = ContextVar("tape", default=None)


def active_tape() -> EagerTape | None:
    """Return the tape that notes calls on arrays, or None."""
    return _active.get()


class TapedArray(np.ndarray[Any, Any]):
    """An array that a tape has seen; what NumPy has an op for is noted, too.

    Gradients that are computed after the tape are such arrays, too, which none has
    seen.
    """

    symbol: SymbolicTensor | None = None
    tape: EagerTape | None = None  # whose symbol it is

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values, which are constants for the tape."""
        return np.asarray(self)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **more: Any
    ) -> Any:
        """Compute a ufunc as an op while a tape is active, else as NumPy does."""
        name = _OPERATORS.get(ufunc.__name__, ufunc.__name__)
        if active_tape() is not None and method == "__call__" and not more:
            if name in _BINARY:
                return SymbolicTensor.operators.binary(name, *inputs)
            if name in _UFUNCS:
                return OPERATIONS[name](*inputs)
        plain = [_plain(each) for each in inputs]
        if "out" in more:
            more["out"] = tuple(_plain(each) for each in more["out"])
        return getattr(ufunc, method)(*plain, **more)

    def __array_function__(
        self, function: Any, types: Any, args: Any, options: Any
    ) -> Any:
        """Compute a function as the op of its name while a tape is active."""
        name = _FUNCTIONS.get(function.__name__, function.__name__)
        if active_tape() is not None and name in _NOTED:
            return _as_op(name, name, args, options)
        return super().__array_function__(function, types, args, options)

    def __getitem__(self, key: Any) -> Any:
        if active_tape() is None:
            return _plain(self)[key]
        if isinstance(key, tuple):
            return get_item(self, tuple(_known_index(each) for each in key))
        return get_item(self, _known_index(key))

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getattribute__(self, name: str) -> Any:
        if name in _METHODS and active_tape() is not None:
            if name == "T":
                return OPERATIONS["transpose"](self)
            return partial(_method, self, name)
        return super().__getattribute__(name)


def _known_index(key: Any) -> Any:
    """Return an array that is an integer, such as that of `argmax`, as a number."""
    whole = isinstance(key, np.ndarray) and key.ndim == 0 and key.dtype.kind in "iu"
    return int(_plain(key)) if whole else key


def _method(x: TapedArray, name: str, *args: Any, **options: Any) -> Any:
    """Compute a method of an array as an op."""
    if name in ("reshape", "transpose") and args:  # axes may be listed one by one
        one = len(args) == 1 and not isinstance(args[0], int)
        args = (args[0] if one else args,)
    return _as_op(name, _METHODS[name], (x, *args), options)


def _as_op(
    name: str, kind: str, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Compute a function of NumPy as an op; what only NumPy takes must have no effect.

    Arguments are given by name from the first one on that only NumPy takes, behind
    which the op may have others in its place.
    """
    op = OPERATIONS[kind]
    alone = _OF_NUMPY.keys() - signature(op).parameters.keys()
    names = _parameters(getattr(np, name, None) or getattr(np, kind))
    first = next((i for i, each in enumerate(names) if each in alone), len(args))
    given = {**dict(zip(names[first:], args[first:], strict=False)), **options}
    for key in given.keys() & alone:
        value = given.pop(key)
        if not any(value is each or _equal(value, each) for each in _OF_NUMPY[key]):
            raise TypeError(
                f"a tape does not see {name} with {key}={value!r}: use the functions "
                "of memcfg.nn.ops, or np.asarray(x) for a constant"
            )
    return op(*args[:first], **given)


def _equal(value: Any, other: Any) -> bool:
    """Return whether words or numbers are equal; arrays are not."""
    return isinstance(value, str | int) and value == other


def _parameters(function: Any) -> list[str]:
    """Return the names of arguments by position; none if they are not known."""
    try:
        given = signature(function).parameters.values()
    except ValueError:  # of some functions in C
        return []
    if any(each.kind is each.VAR_POSITIONAL for each in given):
        return []
    return [each.name for each in given if each.kind is not each.KEYWORD_ONLY]


_BINARY = frozenset({"add", "subtract", "multiply", "divide", "power", "matmul"})
# Methods, and the ops that compute them.
_METHODS = {
    name: name
    for name in (
        *("sum", "mean", "max", "min", "prod", "std", "var", "cumsum", "clip", "dot"),
        *("reshape", "ravel", "transpose", "T", "squeeze", "swapaxes", "repeat"),
        *("take", "trace", "diagonal", "round"),
    )
} | {"flatten": "ravel", "astype": "cast"}
_FUNCTIONS = {"amax": "max", "amin": "min", "round_": "round"}
# Functions of NumPy that are ops of the same name and the same first arguments.
_NOTED = frozenset(
    {
        *(_METHODS.keys() - {"T", "flatten", "astype"}),
        *("concatenate", "stack", "where", "expand_dims", "einsum", "tensordot"),
        *("outer", "inner", "vdot", "hstack", "vstack", "moveaxis", "flip", "roll"),
        *("tile", "pad", "split", "average", "diff", "cross"),
    }
)
# Arguments that ops have not, and the values with which they have no effect.
_OF_NUMPY: dict[str, tuple[Any, ...]] = {
    "out": (None,),
    "dtype": (None,),
    "order": (None, "C", "K"),
    "ddof": (0,),
    "where": (True,),
    "initial": (None,),
    "copy": (True, False, None),
    "casting": (None, "unsafe", "same_kind"),
    "mode": (None, "raise"),
}
_UFUNCS = frozenset(
    {
        *("negative", "absolute", "exp", "log", "sqrt", "square", "tanh", "sin", "cos"),
        *("log1p", "expm1", "reciprocal", "maximum", "minimum", "sign", "tan"),
        *("arctan", "arcsin", "arccos", "sinh", "cosh", "exp2", "log2", "log10"),
        *("floor", "ceil", "logaddexp", "arctan2", "hypot"),
    }
)


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, TapedArray) else value


class EagerTape:
    """The calls on arrays of a `GradientTape`, and of tapes within it."""

    def __init__(self) -> None:
        self.recording = Recording(moves=False)
        self._starts: dict[SymbolicTensor, np.ndarray[Any, Any]] = {}
        self._known: dict[int, tuple[Any, SymbolicTensor]] = {}  # arrays by id

    def __enter__(self) -> Self:
        self._token = _active.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _active.reset(self._token)

    def note(self, call: Any, args: Any, options: Any, values: Any, number: int) -> Any:
        """Note a call; return its values as arrays that the tape has seen.

        `number` is that by which the call has drawn. A call without arrays, which
        draws, makes constants.
        """
        leaves: list[Any] = []
        args, options = pattern((args, options), leaves, _ARRAYS)
        if not leaves:
            return values
        symbols = [self.symbol(each) for each in leaves]
        self.recording.segments.append((next_order(), number))
        with resumed(self.recording):
            made = call(*filled_in(args, symbols), **filled_in(options, symbols))
        tensors: list[SymbolicTensor] = []
        arrays: list[Any] = []
        pattern(made, tensors)
        structure = pattern(values, arrays, _ARRAYS)
        return filled_in(structure, self._seen(arrays, tensors))

    def _seen(self, arrays: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        result = []
        for array, tensor in zip(arrays, tensors, strict=True):
            taped = np.asarray(array).view(TapedArray)
            taped.symbol, taped.tape = tensor, self
            result.append(taped)
        return result

    def value(self, variable: Variable) -> Any:
        """Return the value of a weight as an array that the tape has seen."""
        symbol = self.recording.symbol(variable)
        return self._seen([variable.numpy()], [symbol])[0]

    def watched(self, array: Any) -> Any:
        """Return an array whose operators the tape sees."""
        if isinstance(array, TapedArray):
            return array
        symbol = self.symbol(array)
        return self._seen([self._starts[symbol]], [symbol])[0]

    def has_made(self, array: Any) -> bool:
        """Return whether an array was computed while the tape was active."""
        return isinstance(array, TapedArray) and array.tape is self

    def symbol(self, array: Any) -> SymbolicTensor:
        """Return the tensor that stands for an array; a new one is an input."""
        if isinstance(array, TapedArray) and array.tape is self:
            assert array.symbol is not None  # they are set together
            return array.symbol
        if id(array) not in self._known:
            value = np.asarray(array)
            whole = value.dtype.kind in "iu"
            value = value.astype(np.int32 if whole else np.float32, copy=False)
            start = start_of(value.shape, value.dtype.name)
            self._starts[start] = value
            self._known[id(array)] = array, start
        return self._known[id(array)][1]

    def computed(self, tensors: Sequence[SymbolicTensor]) -> list[Any]:
        """Return the values of tensors, which the tape sees if it is still active."""
        if not tensors:
            return []
        settings = get_policy(None), get_times("nominal", PLANNED), 1
        calls = Calls("gradients", list(self._starts), tensors, None, self.recording)
        state = FunctionState("gradient_tape", *settings)
        with scope_out():
            try:
                state.load(calls)
                values = state.run(calls, list(self._starts.values()), guard=False)[1]
            finally:
                state.close()
        values = values[: len(tensors)]
        if active_tape() is self:
            return self._seen(values, tensors)
        return [np.asarray(each).view(TapedArray) for each in values]

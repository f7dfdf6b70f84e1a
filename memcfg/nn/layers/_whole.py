"""Ops of tensors without a batch, whose axis 0 is like any other.

`memcfg.nn.ops` leaves axis 0, the batch, alone. For a tensor without a batch an op is
applied to a batch whose only sample it is, and axes are counted accordingly.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from memcfg.nn.layers._layer import Layer, Scope, SymbolicTensor, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["of_whole"]


class AsSample(Layer):
    """Make a tensor the only sample of a batch."""

    __slots__ = ()

    batch_size = 1

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return False

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append a reshape."""
        shape = scope.builder.shape(inputs[0])
        return scope.apply("reshape", inputs, {"shape": (1, *shape)})[0]


class OnlySample(Layer):
    """Return the only sample of a batch as a tensor without a batch."""

    __slots__ = ()

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append a reshape."""
        shape = scope.builder.shape(inputs[0])
        return scope.apply("reshape", inputs, {"shape": shape[1:]})[0]


def of_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an op so that it takes tensors without a batch, too."""
    signature = inspect.signature(function)
    moved = [name for name in signature.parameters if name in _MOVED]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        tensors = list(_tensors((*args, *options.values())))
        if not tensors or not all(is_whole(each) for each in tensors):
            return function(*args, **options)
        if not moved:
            return function(*args, **options)
        rank = max(len(each.shape) for each in tensors)
        try:
            bound = signature.bind(*args, **options)
        except TypeError:
            return function(*args, **options)  # which says what is wrong
        bound.apply_defaults()
        if _leaves_first_axis(bound.arguments, moved, rank):
            return function(*args, **options)
        layer, given = AsSample(), dict(bound.arguments)
        for name, value in given.items():
            if name not in moved:
                given[name] = _mapped(value, layer)
            elif value is not None or function.__name__ not in _BY_LENGTH:
                given[name] = _MOVED[name](value, rank)
        result = function(*_positional(signature, given), **_named(signature, given))
        return _mapped(result, lambda tensor: OnlySample()(tensor))

    return call


def _positional(signature: inspect.Signature, given: dict[str, Any]) -> list[Any]:
    kinds = signature.parameters
    return [v for k, v in given.items() if kinds[k].kind is not kinds[k].KEYWORD_ONLY]


def _named(signature: inspect.Signature, given: dict[str, Any]) -> dict[str, Any]:
    kinds = signature.parameters
    return {k: v for k, v in given.items() if kinds[k].kind is kinds[k].KEYWORD_ONLY}


def _tensors(value: Any) -> Any:
    if isinstance(value, SymbolicTensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, SymbolicTensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(each, function) for each in value])
    return value


def _leaves_first_axis(given: dict[str, Any], moved: list[str], rank: int) -> bool:
    """Return whether axis 0 stays as it is, as an op on samples requires."""
    if moved != ["axis"] or not rank:
        return False
    axis = given["axis"]
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    return all(isinstance(each, int) and -rank < each < rank and each for each in axes)


def _axis(axis: Any, rank: int) -> Any:
    if axis is None:
        return tuple(range(1, rank + 1))
    if isinstance(axis, list | tuple):
        return tuple(_axis(each, rank) for each in axis)
    is_count = isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0
    return axis + 1 if is_count else axis


def _order(axes: Any, rank: int) -> Any:
    """Return the order of axes for a transpose."""
    if axes is None:
        return (0, *range(rank, 0, -1))
    if not isinstance(axes, list | tuple):
        return axes
    return (0, *(each % rank + 1 if isinstance(each, int) else each for each in axes))


def _shape(shape: Any, rank: int) -> Any:
    del rank
    lengths = shape if isinstance(shape, list | tuple) else (shape,)
    return (-1, *lengths)


def _key(key: Any, rank: int) -> Any:
    del rank
    return (slice(None), *(key if isinstance(key, tuple) else (key,)))


_BY_LENGTH = ("squeeze",)  # whose axes are those of length 1 by default

# How an argument of an op counts axes, by its name: of its value and of the rank.
_MOVED: dict[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(("axis", "axis1", "axis2", "source", "destination"), _axis),
    "axes": _order,
    "newshape": _shape,
    "key": _key,
}

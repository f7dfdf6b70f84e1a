"""Layers, ops, losses and updates on arrays: each call is a function of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.functions._assignments import apply_gradients
from memcfg.nn.functions._eager_tape import active_tape
from memcfg.nn.functions._function import Function
from memcfg.nn.functions._losses import keep_added, with_losses
from memcfg.nn.functions._recorder import current
from memcfg.nn.layers._layer import Layer, current_call, filled_in, pattern
from memcfg.nn.layers._operators import constant_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.layers._layer import Variable
    from memcfg.nn.optimizers import Optimizer

__all__ = ["at_once", "update_at_once"]

_KEPT = 64  # ops whose programs are kept
_CACHE = "at once"  # the key of a layer's function in its cache
_functions: dict[Any, Function] = {}  # of ops, least recently used first
count = 0  # of calls


def at_once(call: Callable[..., Any], args: Any, options: Any) -> Any:
    """Call a function of symbolic tensors on arrays; return arrays.

    It keeps no memory of the device. In a function that is being traced, the arrays are
    constants, and so are those that a `call` gives to a layer, whose weights train.
    """
    in_call = current_call() is not None and isinstance(call, Layer)
    if current() is None and not in_call:
        global count
        count += 1
        function, tape = _function_of(call), active_tape()
        number = function.run_count
        try:
            values = function(*args, **options)
        finally:
            function.close()
        if isinstance(call, Layer):
            values, added = values
            keep_added(call, added)
        if tape is None:
            return values
        return tape.note(call, args, options, values, number)
    leaves: list[Any] = []
    args, options = pattern((args, options), leaves, (np.ndarray, np.generic))
    tensors = [constant_tensor(each) for each in leaves]
    return call(*filled_in(args, tensors), **filled_in(options, tensors))


def _function_of(call: Callable[..., Any]) -> Function:
    """Return the function of an op or a layer, made if it is not known."""
    known, key = (
        (call._inner, _CACHE) if isinstance(call, Layer) else (_functions, call)
    )
    result: Function | None = known.pop(key, None)
    if result is None:
        made = with_losses(call) if isinstance(call, Layer) else call
        result = Function(made, warns=False)
    known[key] = result
    while len(_functions) > _KEPT:
        _functions.pop(next(iter(_functions)), None)
    return result


class _Updates:
    """The function of an optimizer's updates, which holds the optimizer's state."""

    def __init__(self, optimizer: Optimizer) -> None:
        variables: dict[tuple[int, int], Variable] = {}

        def update(gradients: list[Any], keys: list[tuple[int, int]]) -> None:
            apply_gradients(optimizer, gradients, [variables[key] for key in keys])

        update.__name__ = optimizer.name
        self._variables = variables
        self._function = Function(update, warns=False)

    def run(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        """Update weights by arrays."""
        keys = [(id(each._layer), each._index) for each in variables]
        self._variables.update(zip(keys, variables, strict=True))
        arrays = [None if each is None else np.asarray(each) for each in gradients]
        self._function(arrays, keys)


def update_at_once(
    optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Variable]
) -> None:
    """Update weights by arrays, outside of a function."""
    if optimizer._updates is None:
        optimizer._updates = _Updates(optimizer)
    optimizer._updates.run(gradients, variables)

"""The base of layers that compute on arrays alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn.layers._layer import Layer, SymbolicTensor, pattern

if TYPE_CHECKING:
    from memcfg.nn.layers._layer import Scope

MODES = ("int", "one_hot", "multi_hot", "count")
_OLD_NAMES = {"binary": "multi_hot", "tf-idf": "tf_idf"}


class _DataLayer(Layer):
    """A layer that is a step of `Dataset.map`; part of a model if it has `trace`."""

    __slots__ = ()

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on arrays, or lists, of data."""
        symbols: list[Any] = []
        pattern((inputs, more, options), symbols)
        if symbols and type(self).trace is not Layer.trace:
            return super().__call__(inputs, *more, **options)
        if symbols:
            raise TypeError(
                f"{type(self).__name__} computes on arrays, not in a model: call it in "
                "Dataset.map, before the data reach the model"
            )
        return self.call(inputs, *more, **options)


def mode_of(given: Any, known: tuple[str, ...], layer: str) -> str:
    """Return the name of an output mode; ValueError if it is unknown."""
    name = _OLD_NAMES.get(given, given)
    if name not in known:
        raise unknown("output_mode", str(given), known, f"{layer}: ")
    return str(name)


def encoded(
    indices: Any, mode: str, depth: int, dtype: Any, weights: Any = None
) -> np.ndarray:
    """Return numbers as they are, or as rows with ones or counts.

    Numbers outside of ``range(depth)`` are not counted.
    """
    numbers = np.asarray(indices)
    if mode == "int":
        return numbers.astype(dtype, copy=False)
    if numbers.ndim == 0:
        numbers = numbers[None]
    if mode == "one_hot":
        if numbers.ndim > 1 and numbers.shape[-1] == 1:
            numbers = numbers[..., 0]
        ones: np.ndarray = numbers[..., None] == np.arange(depth)
        return ones.astype(dtype)
    rows = numbers.reshape(-1, numbers.shape[-1]) if numbers.size else numbers
    result = np.zeros((*numbers.shape[:-1], depth), dtype)
    if not numbers.size:
        return result
    places, columns = np.nonzero((rows >= 0) & (rows < depth))
    target = result.reshape(-1, depth), (places, rows[places, columns])
    if mode == "multi_hot":
        target[0][target[1]] = 1
    else:
        added = 1 if weights is None else weights.reshape(rows.shape)[places, columns]
        np.add.at(*target, added)
    return result


def trace_encoded(scope: Scope, indices: int, mode: str, depth: int) -> int:
    """Append the encoding of int32 numbers; those out of range are not counted."""
    if mode == "int":
        return indices
    shape = scope.builder.shape(indices)
    if mode == "one_hot" and shape[-1] == 1:
        (indices,) = scope.apply("reshape", (indices,), {"shape": shape[:-1]})
    (rows,) = scope.apply("one_hot", (indices,), {"depth": depth, "dtype": "float32"})
    if mode == "one_hot":
        return rows
    how = "reduce_max" if mode == "multi_hot" else "reduce_sum"
    axes = {"axes": (len(shape) - 1,), "keepdims": False}
    return scope.apply(how, (rows,), axes)[0]


def batches_of(data: Any, steps: int | None, what: str) -> Any:
    """Yield the batches of data that a layer adapts to."""
    if isinstance(data, SymbolicTensor):
        raise TypeError(f"{what} adapts to arrays, not to {data!r}")
    if isinstance(data, np.ndarray | list | tuple | str | bytes):
        if steps is not None:
            raise ValueError(f"{what}: steps goes with a dataset of batches")
        yield data
        return
    for number, batch in enumerate(data):
        if steps is not None and number >= steps:
            return
        yield batch[0] if isinstance(batch, tuple) else batch

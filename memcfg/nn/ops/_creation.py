"""New arrays, which are constants where they meet symbolic tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import constant, integer
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._layer import (
    SymbolicTensor,
    Variable,
    current_call,
    has_batch_size,
)
from memcfg.nn.layers._operators import Filled, Function, RowNumbers
from memcfg.nn.ops._declaring import described
from memcfg.nn.ops._shapes import broadcast_to, reshape, stack

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "arange",
    "array",
    "bartlett",
    "blackman",
    "convert_to_numpy",
    "convert_to_tensor",
    "dtype",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "geomspace",
    "hamming",
    "hanning",
    "identity",
    "is_tensor",
    "kaiser",
    "linspace",
    "logspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tri",
    "unravel_index",
    "vander",
    "zeros",
    "zeros_like",
]


def _array(value: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of numbers in the dtype, by default as Keras has it."""
    array = np.asarray(value)
    if dtype is None:
        dtype = {"f": np.float32, "i": np.int32, "u": np.int32}.get(array.dtype.kind)
    return array if dtype is None else array.astype(dtype)


@described
def array(x: Any, dtype: str | None = None) -> Any:
    """Return a new array; floats become float32, integers int32."""
    return x if isinstance(x, SymbolicTensor) else _array(x, dtype).copy()


@described
def convert_to_tensor(x: Any, dtype: str | None = None) -> Any:
    """Return an array of numbers, which a tape sees, or a symbolic tensor as it is."""
    if isinstance(x, SymbolicTensor) or has_batch_size(x):
        return x
    return Variable.functions.watched(x if _is_seen(x, dtype) else array(x, dtype))


def _is_seen(x: Any, dtype: Any) -> bool:
    """Return whether a tape has made an array of the dtype."""
    if type(x) in (np.ndarray, list, tuple) or not isinstance(x, np.ndarray):
        return False
    return dtype is None or x.dtype == dtype


@described
def convert_to_numpy(x: Any) -> Any:
    """Return a NumPy array; a symbolic tensor has no values."""
    return np.asarray(x)


@described
def is_tensor(x: Any) -> bool:
    """Return whether x is a symbolic tensor or an array."""
    return isinstance(x, SymbolicTensor | np.ndarray | np.generic)


@described
def dtype(x: Any) -> str:
    """Return the name of the dtype."""
    return str(x.dtype)


@described
def arange(
    start: Any,
    stop: Any = None,
    step: float | None = None,
    dtype: Any = None,
) -> Any:
    """Return numbers from start to below stop; int32 if all arguments are integers."""
    if start is None:
        raise TypeError(
            "arange: start must be a number, got None, such as the length of an axis "
            "of None: read x.shape in the `call` of a layer, which is traced for each, "
            "and ops.shape(x)[0] for the batch"
        )
    low, high = (0, start) if stop is None else (start, stop)
    if isinstance(high, BatchSize) and low == 0 and step in (None, 1):
        numbers = RowNumbers(high.rows)(high.like)
        if dtype is None or np.dtype(dtype).kind in "iu":
            return numbers
        return Function("cast", {"dtype": "float32"})(numbers)
    return _array(np.arange(low, high, 1 if step is None else step), dtype)


@described
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return numbers at equal distances."""
    made, step = np.linspace(start, stop, num, endpoint, retstep=True, axis=axis)
    result = made.astype(dtype or np.float32)
    return (result, np.float32(step)) if retstep else result


@described
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return powers of the base whose exponents have equal distances."""
    made = np.logspace(start, stop, num, endpoint, base, axis=axis)
    return made.astype(dtype or np.float32)


@described
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return numbers each of which is the same multiple of the one before."""
    made = np.geomspace(start, stop, num, endpoint, axis=axis)
    return made.astype(dtype or np.float32)


@described
def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """Return a matrix with ones on the k-th diagonal."""
    return np.eye(N, M, k, dtype=dtype or np.float32)


@described
def identity(n: int, dtype: Any = None) -> Any:
    """Return a square matrix with ones on the diagonal."""
    return np.identity(n, dtype or np.float32)


@described
def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """Return a matrix with ones up to the k-th diagonal."""
    return np.tri(N, M, k, dtype=dtype or np.float32)


def _filled(shape: Any, value: Any, dtype: Any) -> Any:
    """Return an array, or a tensor of the `call` if the shape begins with None."""
    known = isinstance(shape, int | np.integer) or not has_batch_size(shape)
    if isinstance(shape, BatchSize):
        shape = (shape,)
    if known and (not isinstance(shape, list | tuple) or None not in shape):
        return (
            _array(np.full(shape, value), None)
            if dtype is None
            else np.full(shape, value, dtype)
        )
    size, call = shape[0], current_call()
    if size is None and call is not None:
        size = BatchSize(call.starts[0])
    rest = shape[1:]
    if not isinstance(size, BatchSize) or None in rest or has_batch_size(rest):
        raise ValueError(
            f"a length of None is that of the batch, in a `call` and in the first "
            f"place of a shape: got {tuple(shape)}"
        )
    whole = dtype is not None and np.dtype(dtype).kind in "iu"
    lengths = tuple(integer(each, "a length") for each in rest)
    number, kind = constant(value, "the number"), "int32" if whole else "float32"
    return Filled(number, kind, lengths, size.rows)(size.like)


@described
def zeros(shape: Any, dtype: Any = None) -> Any:
    """Return zeros; in a `call`, the first length may be that of the batch, None."""
    return _filled(shape, 0, dtype or np.float32)


empty = zeros


@described
def ones(shape: Any, dtype: Any = None) -> Any:
    """Return ones; in a `call`, the first length may be that of the batch, None."""
    return _filled(shape, 1, dtype or np.float32)


@described
def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return one number in a shape, which may begin with None as that of `ones`."""
    return _filled(shape, fill_value, dtype)


@described
def full_like(x: Any, fill_value: float, dtype: Any = None) -> Any:
    """Return one number in the shape of x."""
    if not isinstance(x, SymbolicTensor):
        return np.full_like(_array(x), fill_value, dtype=dtype)
    target = str(dtype or x.sample_dtype)
    return Filled(constant(fill_value, "full_like: fill_value"), target)(x)


@described
def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Return zeros in the shape of x."""
    return full_like(x, 0.0, dtype)


empty_like = zeros_like


@described
def ones_like(x: Any, dtype: Any = None) -> Any:
    """Return ones in the shape of x."""
    return full_like(x, 1.0, dtype)


@described
def bartlett(x: int) -> Any:
    """Return a triangular window of so many points."""
    return np.bartlett(x).astype(np.float32)


@described
def blackman(x: int) -> Any:
    """Return Blackman's window of so many points."""
    return np.blackman(x).astype(np.float32)


@described
def hamming(x: int) -> Any:
    """Return Hamming's window of so many points."""
    return np.hamming(x).astype(np.float32)


@described
def hanning(x: int) -> Any:
    """Return Hann's window of so many points."""
    return np.hanning(x).astype(np.float32)


@described
def kaiser(x: int, beta: float) -> Any:
    """Return Kaiser's window of so many points."""
    return np.kaiser(x, beta).astype(np.float32)


@described
def unravel_index(indices: Any, shape: Sequence[int]) -> Any:
    """Return the index along each axis for flat indices, as arrays."""
    return tuple(each.astype(np.int32) for each in np.unravel_index(indices, shape))


def meshgrid(*x: Any, indexing: str = "xy") -> list[Any]:
    """Return the coordinates of a grid, one array or tensor for each axis.

    Parameters
    ----------
    *x : array_like or SymbolicTensor
        The vectors, without a batch.
    indexing : {"xy", "ij"}, default "xy"
        Whether the first two axes are swapped.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    if not any(isinstance(each, SymbolicTensor) for each in x):
        grid: Any = np.meshgrid
        made = grid(*(_array(each) for each in x), indexing=indexing)
        return [np.ascontiguousarray(each) for each in made]
    order = list(range(len(x)))
    if indexing == "xy" and len(x) > 1:
        order[:2] = [1, 0]
    lengths = [
        np.shape(each)[0]
        if not isinstance(each, SymbolicTensor)
        else int(each.shape[0] or 0)
        for each in x
    ]
    shape = [lengths[place] for place in order]
    result = []
    for place, each in enumerate(x):
        if isinstance(each, SymbolicTensor) and not each.whole:
            raise ValueError(f"meshgrid: {each!r} has a batch: use ops.broadcast_to")
        flat = [1] * len(x)
        flat[order.index(place)] = lengths[place]
        if isinstance(each, SymbolicTensor):
            result.append(broadcast_to(reshape(each, flat), shape))
        else:
            result.append(np.broadcast_to(np.reshape(_array(each), flat), shape).copy())
    return result


@described
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Return the powers of a vector without a batch, one in each column."""
    if not isinstance(x, SymbolicTensor):
        return _array(np.vander(np.asarray(x), N, increasing))
    columns = x.shape[-1] if N is None else N
    powers = [ones_like(x)]
    for _ in range(int(columns or 1) - 1):
        powers.append(powers[-1] * x)
    return stack(powers if increasing else powers[::-1], len(x.shape))

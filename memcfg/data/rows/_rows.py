"""Data that can be indexed by row: columns, rows across them, and passes over rows.

A column hides how its values are stored: in an array, in a file (`_file_rows`), or
computed. Readers read the inputs of batches: elements, or rows to be gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from memcfg._cached import cached_property
from memcfg.data.elements._convert import read_only
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import (
    flatten,
    is_flat_tuple,
    is_nest,
    map_structure,
    pack,
    packer,
)
from memcfg.data.engine._run import closing, kept
from memcfg.workspaces import check_valid, is_attached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcfg.data.rows._file_rows import FileColumn, RowNumbers

    _Column: TypeAlias = "ArrayColumn | RangeColumn | FileColumn"


_CHUNK = 8192  # row numbers at a time: 64 KiB
_AT_ONCE = 1 << 20  # bytes of rows gathered at a time


class ArrayColumn:
    """The rows of an array of any strides and byte order, which is not copied.

    A column is one leaf of every element. `take` gathers values into a new array;
    `value` and `values` return read-only views where they can.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._checked = is_attached(array)
        self._given = array
        self._array = read_only(np.asarray(array))
        self._native = array.dtype.newbyteorder("=")
        self._swaps = not array.dtype.isnative
        flags = self._array.flags
        self._plain = flags.c_contiguous and flags.aligned and not self._swaps

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self._array.shape[1:], self._native)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        self._check()
        result = np.empty((len(rows), *self._array.shape[1:]), self._native)
        if self._plain:
            # mode="clip": with the default, take() gathers into a copy of `out` first.
            self._array.take(rows, axis=0, out=result, mode="clip")
        elif len(rows) and _is_consecutive(rows):
            np.copyto(result, self._array[rows[0] : rows[-1] + 1])
        else:  # take() would copy the whole array first
            for index, row in enumerate(rows.tolist()):
                result[index] = self._array[row]
        return result

    def value(self, row: int) -> Any:
        self._check()
        return self._in_order(self._array[row])

    def values(self, count: int) -> Iterator[Any]:
        self._check()
        if self._checked or self._swaps:
            return map(self.value, range(count))
        return iter(self._array[:count])

    def _check(self) -> None:
        if self._checked:
            check_valid(self._given, "read a row of it")

    def _in_order(self, row: Any) -> Any:
        """Convert a row to native byte order; NumPy scalars have it."""
        return row.astype(self._native) if self._swaps and row.ndim else row


class RangeColumn:
    """Evenly spaced numbers; numbers beyond the dtype wrap around, as in tf.data."""

    def __init__(self, numbers: range, dtype: np.dtype[Any]) -> None:
        self._numbers = numbers
        self._dtype = dtype

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((), self._dtype)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        result = rows * np.int64(self._numbers.step)
        result += np.int64(self._numbers.start)
        return result.astype(self._dtype, copy=False)

    def value(self, row: int) -> Any:
        return np.int64(self._numbers[row]).astype(self._dtype)

    def values(self, count: int) -> Iterator[Any]:
        exact = map(np.int64, self._numbers[:count])
        if self._dtype == np.int64:
            return exact
        return (number.astype(self._dtype) for number in exact)


@dataclass(frozen=True, eq=False)
class Rows:
    """A nest of columns of one length."""

    columns: Any
    count: int

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached properties: functions can't be pickled."""
        return {"columns": self.columns, "count": self.count}

    @cached_property
    def _leaves(self) -> list[_Column]:
        return flatten(self.columns)

    @cached_property
    def _pack(self) -> Callable[[Sequence[Any]], Any]:
        return packer(self.columns)

    @property
    def spec(self) -> Any:
        return map_structure(lambda column: column.spec, self.columns)

    def take(self, rows: RowNumbers) -> Any:
        """Gather rows into new arrays, in the current workspace if there is one."""
        if not is_nest(self.columns):
            return self.columns.take(rows)
        return self._pack([column.take(rows) for column in self._leaves])

    def element(self, row: int) -> Any:
        """Return one element; arrays that are views of the columns are read-only."""
        if not is_nest(self.columns):
            return self.columns.value(row)
        return self._pack([column.value(row) for column in self._leaves])

    def elements(self) -> Iterator[Any]:
        """Iterate over all elements in order; for tuples without Python per element."""
        if not is_nest(self.columns):
            column: _Column = self.columns
            return column.values(self.count)
        leaves = zip(*(one.values(self.count) for one in self._leaves), strict=True)
        return leaves if is_flat_tuple(self.columns) else map(self._pack, leaves)


@dataclass(frozen=True, slots=True)
class RowStream:
    """A pass over rows: their numbers, in non-empty chunks.

    A chunk is valid until the next one is pulled: its memory is reused.
    """

    source: Rows
    chunks: Iterator[RowNumbers]


def range_rows(numbers: range, dtype: npt.DTypeLike) -> Rows:
    result = np.dtype(dtype)
    if result.kind not in "iufc":
        raise TypeError(f"a range must have a numeric dtype, not {result}")
    return Rows(RangeColumn(numbers, result), len(numbers))


def in_order(count: int) -> Iterator[RowNumbers]:
    """Yield the numbers 0 to ``count - 1`` in chunks, for a `RowStream`."""
    numbers = np.arange(min(count, _CHUNK), dtype=np.int64)
    for start in range(0, count, _CHUNK):
        if start:
            numbers += _CHUNK
        yield numbers[: count - start]


def elements_of(stream: RowStream) -> Iterator[Any]:
    for chunk in kept(stream.chunks):
        for row in chunk.tolist():
            yield stream.source.element(row)


class IteratorReader:
    """Reads elements of an iterator; one thread at a time may read."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def read(self, count: int) -> list[Any]:
        """Read the next elements."""
        return list(islice(self._source, count))

    def elements(self, items: list[Any]) -> Iterator[Any]:
        """Iterate over items that `read` returned; threads may do so in parallel."""
        return iter(items)

    def begin(self, count: int) -> Iterator[Any]:
        """Iterate over the next elements, read one at a time."""
        return islice(self._source, count)

    def close(self) -> None:
        with closing(self._source):
            self._source = iter(())


class RowReader:
    """Reads row numbers, and gathers many rows at a time."""

    def __init__(self, stream: RowStream) -> None:
        self._source = stream.source
        self._chunks = kept(stream.chunks)
        self._left: list[int] = []
        self._at_once = 1  # rows gathered at a time; adapted to the size of a row

    def read(self, count: int) -> list[Any]:
        """Read the next row numbers."""
        while len(self._left) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._left += chunk.tolist()
        items = self._left[:count]
        del self._left[:count]
        return items

    def elements(self, items: list[int]) -> Iterator[Any]:
        """Gather the rows that `read` returned, and iterate over them."""
        begin = 0
        while begin < len(items):
            end = begin + self._at_once
            yield from self._gathered(items[begin:end])
            begin = end

    def begin(self, count: int) -> Iterator[Any]:
        """Gather the next rows, and iterate over them."""
        return self.elements(self.read(count))

    def close(self) -> None:
        with closing(self._chunks):
            self._chunks, self._left = iter(()), []

    def _gathered(self, numbers: list[int]) -> Iterator[Any]:
        batch = self._source.take(np.array(numbers, np.int64))
        leaves = flatten(batch)
        for leaf in leaves:
            leaf.flags.writeable = False  # as in a pass without gathering
        nbytes = sum(leaf.nbytes for leaf in leaves) // len(numbers)
        self._at_once = max(1, _AT_ONCE // max(1, nbytes))
        return rows_of(batch)


ElementReader: TypeAlias = IteratorReader | RowReader


def rows_of(batch: Any) -> Iterator[Any]:
    """Iterate over the rows of a batch, with as little Python per row as possible."""
    leaves = flatten(batch)
    for index, leaf in enumerate(leaves):
        if not leaf.ndim:
            raise ValueError(
                f"unbatch needs arrays with a first axis: component {index} is a number"
            )
        if len(leaf) != len(leaves[0]):
            raise ValueError(
                "unbatch needs components of one length: component 0 has "
                f"{len(leaves[0])} rows, component {index} has {len(leaf)}"
            )
    if not is_nest(batch):
        return iter(batch)
    rows = zip(*leaves, strict=True)
    if is_flat_tuple(batch):
        return rows
    form = map_structure(lambda _: None, batch)
    return (pack(form, row) for row in rows)


def _is_consecutive(rows: RowNumbers) -> bool:
    """Return whether each row number is the one before plus 1."""
    if rows[-1] - rows[0] != len(rows) - 1:
        return False
    return bool((rows[1:] - rows[:-1] == 1).all())

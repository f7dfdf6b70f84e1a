"""Small elements that lie together in one block of memory, which is given back whole.

Each by itself would lie among arrays of others, and when it goes, its pages would stay
with those: free bytes in pieces that no larger request can use.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg._core import scope_out
from memcfg._core._holders import pools_below, undemanding
from memcfg.data.elements._convert import read_only
from memcfg.data.elements._structure import flatten, map_structure, packer
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Layout", "Row", "Slab", "block_bytes", "kinds_of"]

_BLOCK = 64 << 10  # bytes of a slab: 16 pages, and the time to copy one is 5 us
_PART = 16  # of a limit that a slab may be at most

_Bytes = npt.NDArray[np.uint8]


def kinds_of(element: Any) -> tuple[Any, ...]:
    """Return what elements of one structure and layout have in common."""
    return tuple(map(_kind, flatten(element)))


def block_bytes(resource: Any) -> int:
    """Return the bytes of a slab in a resource: a small part of its limit."""
    limits: list[int | None] = [pool.limit for pool in pools_below(resource)]
    return min([_BLOCK, *(limit // _PART for limit in limits if limit is not None)])


class _Place(NamedTuple):
    """Where an array lies in an element; a byte string has no dtype."""

    offset: int
    nbytes: int
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()


class Layout:
    """Where the arrays of an element lie, for all elements with arrays as these."""

    def __init__(self, element: Any) -> None:
        self.nbytes = 0  # of an element, each array rounded up as in a pool
        self._form = map_structure(lambda _: None, element)
        self._pack: Callable[[Sequence[Any]], Any] = packer(self._form)
        leaves = flatten(element)
        self._kinds = kinds_of(element)
        self._places = [self._placed(leaf) for leaf in leaves]

    def _placed(self, leaf: Any) -> _Place | None:
        """Return the next place, for an array or a byte string."""
        offset = self.nbytes
        if isinstance(leaf, np.ndarray):
            place = _Place(offset, leaf.nbytes, leaf.dtype, leaf.shape)
        elif type(leaf) is np.bytes_:
            place = _Place(offset, len(leaf))
        else:
            return None
        self.nbytes += align_up(max(1, place.nbytes))
        return place

    def is_of(self, element: Any) -> bool:
        """Return whether an element has this layout."""
        leaves = flatten(element)
        return (
            len(leaves) == len(self._kinds)
            and all(map(_has_kind, leaves, self._kinds))
            and map_structure(lambda _: None, element) == self._form
        )

    def write(self, element: Any, row: _Bytes) -> tuple[Any, ...]:
        """Copy an element into its bytes; return its leaves that are no arrays."""
        others = []
        for leaf, place in zip(flatten(element), self._places, strict=True):
            if place is None:
                others.append(leaf)
            elif place.dtype is None:
                row[place.offset : place.offset + place.nbytes] = np.frombuffer(
                    leaf, np.uint8
                )
            elif place.nbytes:
                _array(row, 0, place)[...] = leaf
        return tuple(others)

    def read(self, rows: _Bytes, begin: int, others: Sequence[Any]) -> Any:
        """Return a copy of an element, whose arrays nobody can make writable."""
        return self._pack([*self._leaves(rows, begin, iter(others), _copy)])

    def view(self, rows: _Bytes, begin: int, others: Sequence[Any]) -> Any:
        """Return an element of views of rows that nobody can make writable."""
        return self._pack([*self._leaves(rows, begin, iter(others), _view)])

    def _leaves(
        self,
        rows: _Bytes,
        begin: int,
        others: Iterator[Any],
        given: Callable[[_Bytes, int, _Place], npt.NDArray[Any]],
    ) -> Iterator[Any]:
        for place in self._places:
            if place is None:
                yield next(others)
            elif place.dtype is None:
                first = begin + place.offset
                yield np.bytes_(rows[first : first + place.nbytes].tobytes())
            elif not place.nbytes:
                yield read_only(np.empty(place.shape, place.dtype))
            else:
                yield given(rows, begin, place)


class Slab:
    """Elements one behind the other in one array; all of them go at once.

    One thread adds, any may read or drop. Each change is one operation of a list.
    """

    __slots__ = ("_rows", "_used", "numbers")

    def __init__(self, rows: _Bytes) -> None:
        self._rows = [rows]  # empty: dropped
        self._used = 0
        self.numbers: list[int] = []  # of its elements in the whole

    @classmethod
    def made(cls, row_bytes: int, count: int) -> Slab | None:
        """Return a slab for `count` rows, or as many as there is memory for.

        None if there is none for one row; others are not asked for any.
        """
        while count:
            try:
                with scope_out(), undemanding():
                    return cls(np.empty(count * row_bytes, np.uint8))
            except MemoryError:
                count //= 2
        return None

    @property
    def nbytes(self) -> int:
        """The bytes that dropping it would free."""
        return sum(align_up(rows.nbytes) for rows in self._rows)

    def add(self, number: int, element: Any, layout: Layout) -> Row | None:
        """Copy an element behind the last one; None if there is no room, or no slab."""
        rows, begin = self._array(), self._used
        end = begin + layout.nbytes
        if rows is None or end > rows.nbytes:
            return None
        others = layout.write(element, rows[begin:end])
        self._used = end
        self.numbers.append(number)
        return Row(self, begin, layout, others)

    def trim(self) -> None:
        """Give back what is not used, if there is memory for a copy of the rest."""
        rows = self._array()
        if rows is None or self._used == rows.nbytes:
            return
        try:
            with scope_out(), undemanding():
                copy = rows[: self._used].copy()
        except MemoryError:
            return
        with suppress(IndexError):  # it was dropped meanwhile
            self._rows[0] = copy

    def seal(self) -> None:
        """Let elements be read without a copy: none is added, and none dropped."""
        rows = self._array()
        if rows is not None:
            rows.flags.writeable = False  # views cannot be made writable either

    def drop(self) -> int:
        """Free all elements; return the bytes."""
        try:
            rows = self._rows.pop()
        except IndexError:
            return 0
        return align_up(rows.nbytes)

    def read(self, begin: int, layout: Layout, others: Sequence[Any]) -> Any | None:
        """Return an element, which nobody can write to; None if it was dropped.

        It is a copy, which may outlive the slab, unless that was sealed.
        """
        rows = self._array()
        if rows is None:
            return None
        if not rows.flags.writeable:
            return layout.view(rows, begin, others)
        with scope_out():
            return layout.read(rows, begin, others)

    def _array(self) -> _Bytes | None:
        for rows in self._rows:  # which another thread may empty
            return rows
        return None


class Row(NamedTuple):
    """An element in a slab."""

    group: Slab
    begin: int
    layout: Layout
    others: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return self.layout.nbytes

    def read(self) -> Any | None:
        """Return the element as its slab does; None if it was dropped."""
        return self.group.read(self.begin, self.layout, self.others)


def _array(rows: _Bytes, begin: int, place: _Place) -> npt.NDArray[Any]:
    return np.ndarray(place.shape, place.dtype, rows.data, begin + place.offset)


def _copy(rows: _Bytes, begin: int, place: _Place) -> npt.NDArray[Any]:
    copy = _array(rows, begin, place).copy()
    copy.flags.writeable = False
    return copy.view()


def _view(rows: _Bytes, begin: int, place: _Place) -> npt.NDArray[Any]:
    first = begin + place.offset
    lying = rows[first : first + place.nbytes]
    assert place.dtype is not None
    return lying.view(place.dtype).reshape(place.shape)


def _kind(leaf: Any) -> Any:
    """Return what two leaves have in common that take the same place."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype, leaf.shape
    return len(leaf) if type(leaf) is np.bytes_ else None


def _has_kind(leaf: Any, kind: Any) -> bool:
    return bool(_kind(leaf) == kind)

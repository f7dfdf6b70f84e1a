"""Batches that one thread makes of elements.

Temporaries of an element lie in a scratch workspace, which is reused for the next
element; the batch lies in the consumer's workspace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import current_scope, scope_out
from memcfg._core.rows import RowWriter
from memcfg.data.elements._convert import apply, as_result, stopped
from memcfg.data.elements._structure import (
    flatten,
    is_unpacked,
    map_structure,
    pack,
    same_structure,
)
from memcfg.data.engine._batch_blocks import scratch
from memcfg.data.engine._run import closing
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import ElementReader

_END = object()
TEXT = "SU"  # kinds of dtypes whose size may differ from element to element


class Form:
    """Structure, shapes and dtypes that the elements of a batch have in common.

    `numbers` is the structure, with the index of each leaf.
    """

    __slots__ = ("dtypes", "numbers", "shapes")

    def __init__(self, element: Any) -> None:
        leaves = flatten(element)
        self.shapes = [leaf.shape for leaf in leaves]
        self.dtypes = [leaf.dtype for leaf in leaves]
        self.numbers = pack(element, range(len(leaves)))

    @property
    def has_text(self) -> bool:
        """Whether a leaf is text, whose length may differ from element to element."""
        return any(dtype.kind in TEXT for dtype in self.dtypes)

    def fits(self, element: Any) -> bool:
        return same_structure(self.numbers, element) and all(
            leaf.shape == shape and leaf.dtype == dtype
            for leaf, shape, dtype in zip(
                flatten(element), self.shapes, self.dtypes, strict=True
            )
        )

    def widen(self, element: Any) -> None:
        for index, leaf in enumerate(self.leaves(element)):
            mine = self.dtypes[index]
            if mine.kind in TEXT and leaf.dtype.kind == mine.kind:
                self.dtypes[index] = max(mine, leaf.dtype, key=lambda d: d.itemsize)

    def nbytes(self, rows: int) -> int:
        """Return the bytes that the arrays of a batch take in a workspace."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        sizes = [max(1, rows * prod(shape) * dtype.itemsize) for shape, dtype in pairs]
        return sum(map(align_up, sizes))

    def leaves(self, element: Any) -> Sequence[Any]:
        """List the leaves of an element, converted or not."""
        if same_structure(self.numbers, element):
            return flatten(element)
        kinds = map_structure(lambda leaf: type(leaf).__name__, element)
        raise TypeError(
            "the elements of a batch must have the same structure: the first is "
            f"{self}, another is {kinds}"
        )

    def pack(self, leaves: Sequence[Any]) -> Any:
        return pack(self.numbers, leaves)

    def __str__(self) -> str:
        pairs = zip(self.dtypes, self.shapes, strict=True)
        return str(self.pack([f"{dtype}{list(shape)}" for dtype, shape in pairs]))


class BatchArrays:
    """Arrays with a row for each element of a batch, made in the current workspace.

    An element is written as soon as it is made; no list of elements is kept. Its leaves
    need not have been converted: a leaf with the shape and dtype of the first element's
    is written directly, any other is converted and compared.
    """

    __slots__ = ("_arrays", "_rows", "form")

    def __init__(self, form: Form, rows: int) -> None:
        self.form = form
        self._rows = rows
        self._arrays = [
            np.empty((rows, *shape), dtype)
            for shape, dtype in zip(form.shapes, form.dtypes, strict=True)
        ]

    def put(self, row: int, element: Any) -> None:
        """Write an element; ValueError or TypeError if it differs from the first."""
        for index, leaf in enumerate(self.form.leaves(element)):
            self._check(index, row, leaf)
            self._arrays[index][row] = leaf

    def fill(
        self,
        row: int,
        elements: Iterator[Any],
        function: Callable[..., Any] | None,
        *,
        unpack: bool,
        stop: int | None = None,
    ) -> int:
        """Write elements into rows, until the last row or the last element.

        The function is applied to each; its results need not have been converted.
        Returns the number of the row after the last one written.
        """
        writer = RowWriter(tuple(self._arrays), self.form.numbers)
        stop = self._rows if stop is None else stop
        while True:
            try:
                row, left = writer.fill(row, stop, elements, function, unpack)
            except StopIteration as error:
                raise stopped() from error
            if not left:
                return row
            self.put(row, as_result(left[0]))
            del left
            row += 1

    def elements(self, begin: int, end: int) -> list[Any]:
        pack = self.form.pack
        return [pack([each[row] for each in self._arrays]) for row in range(begin, end)]

    def batch(self, count: int) -> Any:
        if count == self._rows:
            return self.form.pack(self._arrays)
        return self.form.pack([array[:count] for array in self._arrays])

    def _check(self, index: int, row: int, leaf: Any) -> None:
        shape, dtype = self.form.shapes[index], self.form.dtypes[index]
        if leaf.shape != shape:
            raise ValueError(
                f"cannot batch arrays of different shapes in component {index}: "
                f"element 0 has shape {list(shape)}, element {row} has shape "
                f"{list(leaf.shape)}; use padded_batch"
            )
        if leaf.dtype != dtype and not (
            leaf.dtype.kind == dtype.kind and dtype.kind in TEXT
        ):
            raise TypeError(
                f"cannot batch arrays of different dtypes in component {index}: "
                f"element 0 is {dtype}, element {row} is {leaf.dtype}"
            )


class BatchMaker(ABC):
    """Makes batches of elements, to which a function is applied if there is one.

    A context manager that releases its memory at the end. `is_certain`: there are known
    to be enough elements for a whole batch.
    """

    def __init__(
        self,
        run: Run,
        max_size: int,
        min_size: int,
        function: Callable[..., Any] | None = None,
        *,
        is_certain: bool = False,
    ) -> None:
        self.max_size = max_size
        self.min_size = min_size
        self.function = function
        self.is_certain = is_certain
        self._run = run
        self._scratch = scratch(run)

    def make(self, reader: ElementReader) -> Any:
        """Make a batch in the current workspace; None at the end."""
        outer = current_scope()
        target = scope_out() if outer is None else outer.inside()
        with self._scratch if self.is_certain else scope_out():
            elements = reader.begin(self.max_size)
            with closing(elements):
                return self.made(elements, target)

    @abstractmethod
    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        """Make a batch of arrays in `target`, entered once; None at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.destroy()


class StackingMaker(BatchMaker):
    """Makes batches of elements of equal structure, shapes and dtypes.

    Elements are written to the batch as they come. They are collected in a list first
    if there may be too few for a whole batch, or if they have text, as the longest text
    sets the dtype of the array.
    """

    form: Form | None = None  # of the elements of the last batch

    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        first = next(elements, _END)
        if first is _END:
            return None
        unpack = is_unpacked(first)
        first = apply(self.function, first)
        if self.form is None or not self.form.fits(first):
            self.form = Form(first)
        if self.form.has_text or not self.is_certain:
            return self._collected(first, elements, target)
        with target:
            arrays = BatchArrays(self.form, self.max_size)
        arrays.put(0, first)
        del first  # so that the next element can use its memory
        count = arrays.fill(1, elements, self.function, unpack=unpack)
        return arrays.batch(count) if count >= self.min_size else None

    def _collected(
        self, first: Any, elements: Iterator[Any], target: AbstractContextManager[Any]
    ) -> Any:
        others = map(partial(apply, self.function), islice(elements, self.max_size - 1))
        result = [first, *others]
        if len(result) < self.min_size:
            return None
        self.is_certain = len(result) == self.max_size
        with target:
            return stacked_elements(result)


def stacked_elements(elements: list[Any]) -> Any:
    """Make a batch of a list of elements, in the current workspace."""
    form = Form(elements[0])
    if form.has_text:
        for element in elements:
            form.widen(element)
    arrays = BatchArrays(form, len(elements))
    for row, element in enumerate(elements):
        arrays.put(row, element)
    return arrays.batch(len(elements))

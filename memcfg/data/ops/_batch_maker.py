"""A batch made of elements, one after the other, by one thread.

What is made on the way to an element lies in a workspace of its own, which is used
again for the next element, and the batch lies where its consumer wants it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg._core.numpy_memory import current_scope
from memcfg.data._closing import closing
from memcfg.data.elements._batch_arrays import BatchArrays, Form
from memcfg.data.elements._user_functions import apply, is_unpacked, stopped
from memcfg.data.engine._batch_blocks import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._readers import ElementReader

__all__ = ["BatchMaker", "StackingMaker", "stacked_elements"]

_END = object()


class BatchMaker(ABC):
    """Makes batches of elements, each first given to a function if there is one.

    A context manager, at whose end its memory is released. `is_certain`: it is known
    that there are elements for a whole batch.
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
        """Make a batch, where arrays are made now; None at the end."""
        outer = current_scope()
        target = self._run.outside() if outer is None else outer.inside()
        with self._scratch if self.is_certain else self._run.outside():
            elements = reader.begin(self.max_size)
            with closing(elements):
                return self.made(elements, target)

    @abstractmethod
    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        """Make a batch of arrays in `target`, entered once; None at the end."""

    def applied(self, element: Any) -> Any:
        """Apply the function, if there is one."""
        return element if self.function is None else apply(self.function, element)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.destroy()


class StackingMaker(BatchMaker):
    """Makes batches of elements that are alike.

    A batch is filled while its elements come. It is collected first as long as nobody
    knows whether there are elements for a whole batch, since there may be far fewer;
    and if it has text, since the longest says how wide the array is.
    """

    form: Form | None = None  # of the elements of the last batch

    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        """Make a batch."""
        first = next(elements, _END)
        if first is _END:
            return None
        unpack = is_unpacked(first)
        first = self.applied(first)
        if self.form is None or not self.form.fits(first):
            self.form = Form(first)
        if self.form.has_text or not self.is_certain:
            return self._collected(first, elements, target)
        with target:
            arrays = BatchArrays(self.form, self.max_size)
        arrays.put(0, first)
        del first  # its memory is the next element's
        try:
            count = arrays.fill(1, elements, self.function, unpack=unpack)
        except StopIteration as error:
            raise stopped() from error
        return arrays.batch(count) if count >= self.min_size else None

    def _collected(
        self, first: Any, elements: Iterator[Any], target: AbstractContextManager[Any]
    ) -> Any:
        others = map(self.applied, islice(elements, self.max_size - 1))
        found = [first, *others]
        if len(found) < self.min_size:
            return None
        self.is_certain = len(found) == self.max_size
        with target:
            return stacked_elements(found)


def stacked_elements(elements: list[Any]) -> Any:
    """Make a batch of elements that are all there, where arrays are made now."""
    form = Form(elements[0])
    if form.has_text:
        for element in elements:
            form.widen(element)
    arrays = BatchArrays(form, len(elements))
    for row, element in enumerate(elements):
        arrays.put(row, element)
    return arrays.batch(len(elements))

"""A batch made of elements, one after the other.

Owns where that happens: what is made on the way to an element lies in a workspace of
its own, which is used again for the next element, and the batch lies where its consumer
wants it. Refuses to know threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg._core.numpy_memory import current_scope
from memcfg.data._closing import closing
from memcfg.data.elements._columns import Columns
from memcfg.data.elements._form import Form
from memcfg.data.elements._user_functions import apply, is_unpacked, stopped
from memcfg.data.engine._block_pool import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._readers import Drawer

__all__ = ["Filler", "Maker", "stacked_elements"]

_END = object()


class Maker(ABC):
    """Makes batches of elements; one thread at a time uses it.

    A context manager, at whose end its memory is given back.

    Parameters
    ----------
    run : Run
        The pass.
    room : int
        Elements a batch, at most.
    least : int
        Elements a batch, at least.
    function : callable or None
        Applied to each element first. None: elements are taken as they are.
    is_certain : bool
        Whether it is known that there are elements for a whole batch.
    """

    def __init__(
        self,
        run: Run,
        room: int,
        least: int,
        function: Callable[..., Any] | None = None,
        *,
        is_certain: bool = False,
    ) -> None:
        self.room = room
        self.least = least
        self.function = function
        self.is_certain = is_certain
        self._run = run
        self._scratch = scratch(run)

    def make(self, drawer: Drawer) -> Any:
        """Make a batch, where arrays are made now.

        Parameters
        ----------
        drawer : Drawer
            Where the elements come from.

        Returns
        -------
        nest of numpy.ndarray or None
            None at the end.

        Raises
        ------
        ValueError
            If shapes differ.
        TypeError
            If dtypes or structures differ.
        ResourceExhaustedError
            If there is no room for it.
        BaseException
            What the elements' source or the function raised.
        """
        outer = current_scope()
        place = self._run.outside() if outer is None else outer.inside()
        with self._scratch if self.is_certain else self._run.outside():
            elements = drawer.begin(self.room)
            with closing(elements):
                return self.made(elements, place)

    @abstractmethod
    def made(self, elements: Iterator[Any], place: AbstractContextManager[Any]) -> Any:
        """Make a batch, in the workspace of what is made on the way.

        Parameters
        ----------
        elements : iterator
            Where the elements come from.
        place : context manager
            Where the batch's arrays are to be made; to be entered once.

        Returns
        -------
        nest of numpy.ndarray or None
            None at the end.
        """

    def applied(self, element: Any) -> Any:
        """Apply the function, if there is one.

        Parameters
        ----------
        element : nest
            An element.

        Returns
        -------
        nest
            What becomes of it.
        """
        return element if self.function is None else apply(self.function, element)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.destroy()


class Filler(Maker):
    """Makes batches of elements that are alike.

    Attributes
    ----------
    form : Form or None
        What those of the last batch had in common.

    Notes
    -----
    A batch is filled while its elements come. It is collected first

    * as long as nobody knows whether there are elements for a whole batch, since there
      may be room for much more of them than there are;
    * if it has text, since the longest says how wide the array is.
    """

    form: Form | None = None

    def made(self, elements: Iterator[Any], place: AbstractContextManager[Any]) -> Any:
        """Make a batch.

        Parameters
        ----------
        elements : iterator
            Where the elements come from.
        place : context manager
            Where the batch's arrays are to be made.

        Returns
        -------
        nest of numpy.ndarray or None
            None at the end.
        """
        first = next(elements, _END)
        if first is _END:
            return None
        unpack = is_unpacked(first)
        first = self.applied(first)
        if self.form is None or not self.form.fits(first):
            self.form = Form(first)
        if self.form.has_text or not self.is_certain:
            return self._collected(first, elements, place)
        with place:
            columns = Columns(self.form, self.room)
        columns.put(0, first)
        del first  # its room is the next element's
        try:
            count = columns.fill(1, elements, self.function, unpack=unpack)
        except StopIteration as error:
            raise stopped() from error
        return columns.batch(count) if count >= self.least else None

    def _collected(
        self, first: Any, elements: Iterator[Any], place: AbstractContextManager[Any]
    ) -> Any:
        others = map(self.applied, islice(elements, self.room - 1))
        found = [first, *others]
        if len(found) < self.least:
            return None
        self.is_certain = len(found) == self.room
        with place:
            return stacked_elements(found)


def stacked_elements(elements: list[Any]) -> Any:
    """Make a batch of elements that are all there, where arrays are made now.

    Parameters
    ----------
    elements : list
        At least one.

    Returns
    -------
    nest of numpy.ndarray
        The batch.

    Raises
    ------
    ValueError
        If shapes differ.
    TypeError
        If dtypes or structures differ.
    """
    form = Form(elements[0])
    if form.has_text:
        for element in elements:
            form.widen(element)
    columns = Columns(form, len(elements))
    for row, element in enumerate(elements):
        columns.put(row, element)
    return columns.batch(len(elements))

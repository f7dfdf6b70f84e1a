"""Passes over the datasets that a function makes of elements, in turns.

Owns the cycle, which is tf.data's: so many places, each with a pass. In a turn some
elements are taken from one, and a place whose pass was at its end has the next one in
its next turn. A pass of which exactly so many were left ends in a turn that takes
nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from memcfg.data._closing import closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._node import Node

__all__ = ["Inner", "Inners", "Turn", "in_turns"]

# What was taken; whether that is the end; what was raised behind it.
Turn: TypeAlias = tuple[list[Any], bool, BaseException | None]

_END = object()


class Inner:
    """The pass over the dataset that is made of an element.

    It begins when an element is taken from it. One thread takes at a time; it may be
    closed meanwhile.

    Parameters
    ----------
    element : nest of numpy.ndarray
        What the dataset is made of; it lies in no workspace.
    map_func : callable
        Makes it.
    run : Run
        The outer pass.
    """

    def __init__(self, element: Any, map_func: Callable[[Any], Node], run: Run) -> None:
        self._element = element
        self._map_func = map_func
        self._run = run.part()
        self._elements: Iterator[Any] | None = None
        self._taking = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._elements is None:
            self._elements = self._begin()
        return next(self._elements)

    def take(self, count: int) -> Turn:
        """Take elements, in any thread.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        tuple
            A list of them, whether there are no more, and what was raised behind them.
        """
        taken: list[Any] = []
        failure: BaseException | None = None
        with self._taking:
            if not self._closed:
                try:
                    with self._run.allocator():  # which tells why there is no memory
                        taken.extend(islice(self, count))  # keeps what came before
                except BaseException as error:
                    failure = error
        if self._closed:
            self.close()
        try:
            return taken, len(taken) < count, failure
        finally:
            del failure  # it refers to this frame by now

    def close(self) -> None:
        """End the pass, and all that it started; a thread that takes does it then."""
        self._closed = True
        self._run.close()
        if self._taking.acquire(blocking=False):
            try:
                with closing(self._elements or iter(())):
                    self._elements = iter(())
            finally:
                self._taking.release()

    def _begin(self) -> Iterator[Any]:
        try:
            with self._run.outside():
                node = self._map_func(self._element)
            return node.elements(self._run)
        except StopIteration as error:  # it would look like the end
            raise RuntimeError("a map_func raised StopIteration") from error


class Inners:
    """Where inner passes come from.

    Parameters
    ----------
    elements : iterator
        What inner datasets are made of.
    map_func : callable
        Makes one.
    run : Run
        The outer pass.
    """

    def __init__(
        self, elements: Iterator[Any], map_func: Callable[[Any], Node], run: Run
    ) -> None:
        self.run = run
        self._elements = elements
        self._map_func = map_func

    def __iter__(self) -> Iterator[Inner]:
        return self

    def __next__(self) -> Inner:
        with self.run.outside():
            element = next(self._elements)
        return Inner(element, self._map_func, self.run)

    def close(self) -> None:
        """Close the iterator."""
        with closing(self._elements):
            pass


def in_turns(inners: Inners, places: int, block_length: int) -> Iterator[Any]:
    """Yield the elements of inner passes in turns.

    Parameters
    ----------
    inners : Inners
        The passes. It is closed at the end.
    places : int
        How many take turns.
    block_length : int
        How many elements are taken in a turn.

    Yields
    ------
    nest of numpy.ndarray
        An element.
    """
    turns = _Turns(inners, places)
    with closing(inners, turns):
        for inner in turns:
            for _ in range(block_length):
                element = next(inner, _END)
                if element is _END:
                    turns.end(inner)
                    break
                yield element
                del element


class _Turns:
    """The places, from the one whose turn comes next."""

    def __init__(self, inners: Inners, places: int) -> None:
        self._inners = inners
        self._unused = places  # those that had no turn; they come first
        self._places: deque[Inner | None] = deque()  # None: it is free

    def __iter__(self) -> Iterator[Inner]:
        return self

    def __next__(self) -> Inner:
        while not self._inners.run.closed and (self._unused or self._places):
            inner = self._in_place() or next(self._inners, None)
            if inner is not None:
                self._places.append(inner)
                return inner
            self._unused = 0
            self._places = deque(filter(None, self._places))
        raise StopIteration

    def _in_place(self) -> Inner | None:
        if not self._unused:
            return self._places.popleft()
        self._unused -= 1
        return None

    def end(self, inner: Inner) -> None:
        """Free the place of this turn."""
        self._places[-1] = None
        inner.close()

    def close(self) -> None:
        """End all inner passes."""
        places, self._places = self._places, deque()
        with closing(*filter(None, places)):
            pass

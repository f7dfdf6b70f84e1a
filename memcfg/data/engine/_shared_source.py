"""The step before, read by several threads.

Owns whose turn it is, and that who reads last closes. Refuses to know what is read.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from memcfg._core._live import Living
from memcfg.data.engine._condition import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Tap"]

S = TypeVar("S")
R = TypeVar("R")


class Tap(Generic[S]):
    """The step before, which threads read from in turns.

    Parameters
    ----------
    source : object
        What is read from; closed at the end, by the last one who reads.

    Attributes
    ----------
    ended : bool
        Whether nothing is to be read any more.
    """

    def __init__(self, source: S) -> None:
        self.ended = False
        self._source: S | None = source
        self._closed = False
        self._next = 0
        self._make_locks()
        _taps.add(self)

    def _make_locks(self) -> None:
        self._reading = threading.Lock()
        self._lock = threading.RLock()
        self._changed = Bell(self._lock)

    def forked(self) -> None:
        """Be closed in a forked child: the threads that read are not there."""
        self.ended = self._closed = True
        self._make_locks()

    def read(self, number: int, reader: Callable[[S], R]) -> R | None:
        """Read in a turn.

        Parameters
        ----------
        number : int
            Whose turn; they come in this order.
        reader : callable
            Takes the source.

        Returns
        -------
        object or None
            What the reader returned; None if it was not called any more.
        """
        self._changed.wait(lambda: self._next == number or self._closed)
        if self._closed:
            return None
        try:
            return self.read_alone(reader)
        finally:
            with self._lock:
                self._next += 1
                self._changed.ring()

    def read_alone(self, reader: Callable[[S], R]) -> R | None:
        """Read while nobody has a turn.

        Parameters
        ----------
        reader : callable
            Takes the source.

        Returns
        -------
        object or None
            What the reader returned; None if it was not called any more.
        """
        with self._reading:
            source = self._source
            found = None if source is None or self._closed else reader(source)
            del source
        if self._closed:
            self._release()
        return found

    def close(self) -> None:
        """Read no more; who reads now closes the source then."""
        self.ended = self._closed = True
        self._changed.ring()
        self._release()

    def _release(self) -> None:
        if self._reading.acquire(blocking=False):
            try:
                close = getattr(self._source, "close", None)
                self._source = None
                if close is not None:
                    close()
            finally:
                self._reading.release()


_taps: Living[Tap[Any]] = Living()


def _forked() -> None:
    for tap in _taps.alive():
        tap.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

"""Threads that do what they are given, in the order in which it was given.

Owns the threads: their start, and their end with their consumer or the interpreter.
Refuses to know what they do.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from memcfg.data.engine._producer import PATIENCE
from memcfg.data.engine._task_queue import Desk, Ticket, desks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    _Allocator = Callable[[], AbstractContextManager[Any]]

__all__ = ["Ticket", "Workers"]

T = TypeVar("T")

_AT_EXIT = 1.0  # seconds that the end of the interpreter waits for all threads


class Workers:
    """Some threads; they are started when there is something to do.

    Parameters
    ----------
    count : int
        How many at most.
    name : str
        For the threads and for messages.
    allocator : callable
        Makes a context manager that holds while a task is done.

    Notes
    -----
    The threads do not refer to this object: when nobody else does, they end.
    """

    def __init__(self, count: int, name: str, allocator: _Allocator) -> None:
        self._desk = Desk(count, name)
        self._thread = partial(_thread, self._desk, allocator)
        self._finalizer = weakref.finalize(self, self._desk.close)
        self._finalizer.atexit = False  # `_stop_all` does that

    @property
    def count(self) -> int:
        """How many threads there are at most; it may be changed."""
        return self._desk.count

    @count.setter
    def count(self, count: int) -> None:
        self._desk.resize(count)

    def submit(self, call: Callable[[], T]) -> Ticket[T]:
        """Give the threads something to do.

        Parameters
        ----------
        call : callable
            What to do.

        Returns
        -------
        Ticket
            For what comes of it.
        """
        ticket = Ticket(self._desk, call)
        self._desk.hand_in(ticket, self._thread)
        return ticket

    def first(self, tickets: Iterable[Ticket[T]]) -> Ticket[T]:
        """Wait until one of some tickets is done.

        Parameters
        ----------
        tickets : iterable of Ticket
            At least one.

        Returns
        -------
        Ticket
            The first in line that is done; any, if the threads were stopped.
        """
        tickets = list(tickets)
        self._desk.wait(tickets)
        return next((ticket for ticket in tickets if ticket.done), tickets[0])

    def stop(self, *, wait: bool, patience: float = PATIENCE) -> bool:
        """End the threads; tasks that wait are dropped.

        Parameters
        ----------
        wait : bool
            Whether to wait until they have ended. Each ends when its task returns.
        patience : float, default 5
            Seconds to wait at most; a warning tells when that was too short.

        Returns
        -------
        bool
            Whether all have ended.
        """
        self._desk.close()
        return self._desk.join(patience) if wait else not self._desk.alive()


def _thread(desk: Desk, allocator: _Allocator) -> threading.Thread:
    name = f"memcfg-data-{desk.name}"
    return threading.Thread(
        target=_work, args=(desk, allocator), name=name, daemon=True
    )


def _work(desk: Desk, allocator: _Allocator) -> None:
    while (ticket := desk.next_task()) is not None:
        ticket.act(allocator)
        desk.finish(ticket)
        del ticket  # and what came of it: the consumer has it


def _stop_all() -> None:
    """Have no thread run into the end of the interpreter."""
    end = time.monotonic() + _AT_EXIT
    left = desks.alive()
    for desk in left:
        desk.close()
    for desk in left:
        for thread in desk.alive():
            thread.join(max(0.0, end - time.monotonic()))


atexit.register(_stop_all)

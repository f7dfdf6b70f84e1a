"""What threads are given to do, and what comes of it.

Owns the desk between threads and their consumer: order, waiting, and the end by the
consumer or by a fork. Refuses to start threads of its own accord.

Invariants: as many threads as tasks wait for, at most `Desk.count`; a task that was
taken is finished, one that waits when the desk is closed is dropped.

As in `_line`, a finalizer may run in a thread that holds the lock, so the lock is
re-entrant, and what finalizers call never waits.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from memcfg._core._live import Living
from memcfg.data.engine._condition import Bell

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["Desk", "Ticket", "desks"]

T = TypeVar("T")

_LOOK = 1.0  # seconds between two looks at whether threads are alive


class Ticket(Generic[T]):
    """What a thread is to do, and then what came of it.

    Parameters
    ----------
    desk : Desk
        Where it was handed in.
    call : callable
        What to do.
    """

    def __init__(self, desk: Desk, call: Callable[[], T]) -> None:
        self._desk = desk
        self._call: Callable[[], T] | None = call
        self._value: Any = None
        self._failure: BaseException | None = None
        self.done = False

    def act(self, allocator: Callable[[], AbstractContextManager[Any]]) -> None:
        """Do it; what is raised is kept for `result`.

        Parameters
        ----------
        allocator : callable
            Makes a context manager that holds meanwhile.
        """
        call, self._call = self._call, None
        try:
            if call is not None:
                with allocator():
                    self._value = call()
        except BaseException as error:
            self._failure = error

    def result(self) -> T:
        """Wait until it is done, and return what came of it, once.

        Returns
        -------
        object
            What the task returned.

        Raises
        ------
        StopIteration
            If the threads were stopped.
        RuntimeError
            If the task raised StopIteration, in a forked child, or if the threads are
            gone without a word.
        BaseException
            What the task raised.
        """
        self._desk.wait([self])
        if not self.done:
            raise StopIteration
        value: T = self._value
        self._value = None
        failure, self._failure = self._failure, None
        if failure is None:
            return value
        try:
            if isinstance(failure, StopIteration):
                raise RuntimeError(f"a task of {self._desk.name} raised StopIteration")
            raise failure
        finally:
            del failure  # it refers to this frame by now


class Desk:
    """What threads and their consumer share.

    Parameters
    ----------
    count : int
        How many threads there are at most.
    name : str
        For messages.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self.name = name
        self._process = os.getpid()
        self._stopped = False
        self._begin()
        desks.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._given = Bell(self._lock)
        self._finished = Bell(self._lock)
        self._tasks: deque[Ticket[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def forked(self) -> None:
        """Be stopped in a forked child, with no thread and nothing to do."""
        self._stopped = True
        self._begin()

    def hand_in(
        self, ticket: Ticket[Any], thread: Callable[[], threading.Thread]
    ) -> None:
        """Add a task; it is dropped if the desk is closed.

        Parameters
        ----------
        ticket : Ticket
            The task.
        thread : callable
            Makes a thread, if it takes another one. To start it is to wait for it, and
            it may run a finalizer that closes this desk: the lock is not held then.
        """
        self._check_process()
        with self._lock:
            if self._stopped:
                return
            self._tasks.append(ticket)
            if self._idle >= len(self._tasks) or len(self._threads) >= self.count:
                self._given.ring()
                return
            another = thread()
            self._threads.append(another)
        try:
            another.start()
        except RuntimeError:  # the system has no thread left
            self._threads.remove(another)
            raise

    def next_task(self) -> Ticket[Any] | None:
        """Wait for something to do.

        Returns
        -------
        Ticket or None
            None: the thread is not needed any more.
        """
        idle = 0
        while True:
            with self._lock:
                self._idle -= idle
                if self._stopped:
                    return None
                if len(self._threads) > self.count:
                    self._threads.remove(threading.current_thread())
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                self._idle += 1
            idle = 1
            self._given.wait(self._has_news)

    def _has_news(self) -> bool:
        """Whether a thread that waits is to look again."""
        too_many = len(self._threads) > self.count
        return self._stopped or too_many or bool(self._tasks)

    def finish(self, ticket: Ticket[Any]) -> None:
        """Say that a task is done.

        Parameters
        ----------
        ticket : Ticket
            The task.
        """
        with self._lock:
            ticket.done = True
            self._finished.ring()

    def wait(self, tickets: list[Ticket[Any]]) -> None:
        """Wait until one is done, or the desk is closed.

        Parameters
        ----------
        tickets : list of Ticket
            The tasks.

        Raises
        ------
        RuntimeError
            In a forked child, or if the threads are gone without a word.
        """
        self._check_process()

        def is_over() -> bool:
            return self._stopped or any(ticket.done for ticket in tickets)

        while not self._finished.wait(is_over, _LOOK):
            if not (self.alive() or is_over()):
                raise RuntimeError(f"the threads of {self.name} died without a word")

    def resize(self, count: int) -> None:
        """Have another number of threads; those that are too many leave.

        Parameters
        ----------
        count : int
            How many at most.
        """
        with self._lock:
            self.count = count
            self._given.ring()

    def close(self) -> None:
        """Have the threads end; tasks that wait are dropped."""
        with self._lock:
            self._stopped = True
            self._given.ring()
            self._finished.ring()
            tasks, self._tasks = self._tasks, deque()
        del tasks  # with the lock released: finalizers may run

    def alive(self) -> list[threading.Thread]:
        """List the threads that have not ended.

        Returns
        -------
        list of threading.Thread
            As of now.
        """
        return [thread for thread in list(self._threads) if thread.is_alive()]

    def join(self, patience: float) -> bool:
        """Wait until the threads have ended, and warn if they do not.

        Parameters
        ----------
        patience : float
            Seconds.

        Returns
        -------
        bool
            Whether they have.
        """
        end = time.monotonic() + patience
        for thread in self.alive():
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        left = [one for one in self.alive() if one is not threading.current_thread()]
        if left:
            warnings.warn(
                f"{self.name} is still at work after {patience:g} s; its threads end "
                "when that is done",
                RuntimeWarning,
                stacklevel=3,
            )
        return not left

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.name} has its threads in the process that was forked: make a "
                "new iterator in this one"
            )


desks: Living[Desk] = Living()


def _forked() -> None:
    for desk in desks.alive():
        desk.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

"""What queues of threads share: a lock that outlives forks, and waiting for a change.

A finalizer may run between any two instructions of a thread that holds the lock, so the
lock is re-entrant, and what finalizers call never waits.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg._core import fork_count

if TYPE_CHECKING:
    from collections.abc import Callable


class Shared:
    """The base of what threads share; in the child of a fork it begins anew, ended."""

    name: str
    in_child = False  # of a fork

    def begin(self) -> None:
        """Make all that a thread of the parent may have held."""
        self._forks = fork_count()
        self._lock = threading.RLock()

    def notice_fork(self) -> None:
        if fork_count() != self._forks:
            self.in_child = True
            self.begin()

    def check_process(self) -> None:
        """RuntimeError in the child of a fork."""
        self.notice_fork()
        if self.in_child:
            raise RuntimeError(
                f"{self.name} has its threads in the process that was forked: make a "
                "new iterator in this one"
            )


class Condition:
    """Wakes those who wait.

    `threading.Condition` is entered and left by functions, and an interrupt in one of
    them leaves its lock held for ever. A ``with`` statement of the lock itself is
    divided by nothing, so here nobody waits while the lock is held. The lock is
    re-entrant: a finalizer may notify in a thread that holds it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._waiters: list[threading.Lock] = []

    def notify_all(self) -> None:
        with self._lock:
            for waiter in self._waiters:
                with suppress(RuntimeError):  # a finalizer notified meanwhile
                    waiter.release()
            self._waiters.clear()

    def wait_for(self, predicate: Callable[[], object], timeout: float = -1.0) -> bool:
        """Wait, without the lock, until something is so; False after the timeout.

        The predicate is called with the lock held. The timeout, in seconds, restarts
        with each notification; a negative one never ends.
        """
        while True:
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                # First, since a finalizer may notify while the predicate is called.
                self._waiters.append(waiter)
            try:
                with self._lock:
                    holds = bool(predicate())
                if holds or not waiter.acquire(timeout=timeout):
                    return holds
            finally:
                with self._lock, suppress(ValueError):
                    self._waiters.remove(waiter)


def raise_failure(holder: Any) -> None:
    """Raise what something keeps as its `failure`, if anything; it is dropped there."""
    failure, holder.failure = holder.failure, None
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame by now

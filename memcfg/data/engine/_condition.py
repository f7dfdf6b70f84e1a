"""The base of thread queues: a lock that is renewed after forks, and a condition.

A finalizer may run between any two instructions of a thread that holds the lock, so the
lock is re-entrant, and functions that finalizers call never wait.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg._core import fork_count

if TYPE_CHECKING:
    from collections.abc import Callable


class Shared:
    """Base class of objects shared by threads; ended in the child of a fork."""

    name: str
    in_child = False  # of a fork

    def begin(self) -> None:
        """Create new locks: a thread of a parent process may hold the old ones."""
        self._forks = fork_count()
        self._lock = threading.RLock()

    def notice_fork(self) -> None:
        if fork_count() != self._forks:
            self.in_child = True
            self.begin()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork."""
        self.notice_fork()
        if self.in_child:
            raise RuntimeError(
                f"the threads of {self.name} are in the process that was forked: make "
                "a new iterator in this process"
            )


class Condition:
    """A condition variable that is safe against interrupts.

    `threading.Condition` acquires its lock in Python functions, and an interrupt in one
    of them leaves the lock held for ever. A ``with`` statement of the lock itself
    cannot be interrupted, so waiting here happens without the lock. The lock is
    re-entrant: a finalizer may notify in a thread that holds it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._waiters: list[threading.Lock] = []

    def notify_all(self) -> None:
        with self._lock:
            for waiter in self._waiters:
                with suppress(RuntimeError):  # already released by a finalizer
                    waiter.release()
            self._waiters.clear()

    def wait_for(self, predicate: Callable[[], object], timeout: float = -1.0) -> bool:
        """Wait until the predicate holds; return False after the timeout.

        The predicate is called with the lock held. The timeout, in seconds, restarts
        with each notification; a negative one is unlimited.
        """
        while True:
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                # Before the predicate, during which a finalizer may notify.
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
    """Raise and clear the holder's `failure`, if there is one."""
    failure, holder.failure = holder.failure, None
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback refers to this frame: break the cycle

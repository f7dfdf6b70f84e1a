"""Waiting for a change of what a lock guards, wherever a signal or a fork comes."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg._core import fork_count

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Condition", "Guard"]


class Guard:
    """A lock that is a new one in the child of a fork.

    There, the thread that held it may not be. Whoever has a guard does nothing in a
    child but refuse, so it does not matter that a lock was made in the middle.
    """

    def __init__(self, make: Callable[[], Any] = threading.RLock) -> None:
        self._make = make
        self._made = self._forks = fork_count()
        self._lock = make()

    @property
    def in_child(self) -> bool:
        """Whether the process was forked since the guard was made."""
        return fork_count() != self._made

    @property
    def lock(self) -> Any:
        """The lock, for a ``with`` statement."""
        if self._forks != (forks := fork_count()):
            self._lock, self._forks = self._make(), forks
        return self._lock


class Condition:
    """Wakes those who wait.

    `threading.Condition` is entered and left by functions, and an interrupt in one of
    them leaves its lock held for ever. A ``with`` statement of the lock itself is
    divided by nothing, so here nobody waits while the lock is held. The lock is
    re-entrant: a finalizer may notify in a thread that holds it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._waiters: list[threading.Lock] = []

    def notify_all(self) -> None:
        """Have all who wait look again."""
        with self._guard.lock:
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
            with self._guard.lock:
                if predicate():
                    return True
                waiter = threading.Lock()
                waiter.acquire()
                self._waiters.append(waiter)
            if not waiter.acquire(timeout=timeout):
                with self._guard.lock, suppress(ValueError):
                    self._waiters.remove(waiter)
                return False

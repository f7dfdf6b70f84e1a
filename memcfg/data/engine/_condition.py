"""Waiting for a change of what a lock guards, wherever a signal interrupts."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Condition"]


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
        """Have all who wait look again."""
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
            with self._lock:
                if predicate():
                    return True
                waiter = threading.Lock()
                waiter.acquire()
                self._waiters.append(waiter)
            if not waiter.acquire(timeout=timeout):
                with self._lock, suppress(ValueError):
                    self._waiters.remove(waiter)
                return False

"""Waiting for a change of what a lock guards, wherever a signal interrupts.

`threading.Condition` is not made for that: it is entered and left by functions, and an
interrupt in one of them leaves its lock held for ever. A ``with`` statement of the lock
itself is divided by nothing. So here nobody waits while the lock is held.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bell"]


class Bell:
    """Wakes those who wait.

    Parameters
    ----------
    lock : threading.RLock
        Guards what they wait for. Re-entrant: a finalizer may ring in a thread that
        holds it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._waiters: list[threading.Lock] = []

    def ring(self) -> None:
        """Have all who wait look again."""
        with self._lock:
            for waiter in self._waiters:
                with suppress(RuntimeError):  # a finalizer rang meanwhile
                    waiter.release()
            self._waiters.clear()

    def wait(self, is_over: Callable[[], object], patience: float = -1.0) -> bool:
        """Wait, without the lock, until something is so.

        Parameters
        ----------
        is_over : callable
            Whether it is; called with the lock held.
        patience : float, default -1.0
            Seconds; negative: any number.

        Returns
        -------
        bool
            Whether it is so. False: nobody has rung for that long.
        """
        while True:
            with self._lock:
                if is_over():
                    return True
                waiter = threading.Lock()
                waiter.acquire()
                self._waiters.append(waiter)
            if not waiter.acquire(timeout=patience):
                with self._lock, suppress(ValueError):
                    self._waiters.remove(waiter)
                return False

"""The lock of a model: one step at a time, in turns.

Owns fairness between threads that use one model. Refuses to know what is locked.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock, RLock, get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["TurnLock"]


class TurnLock:
    """A re-entrant lock that a loop cannot keep to itself.

    A thread that releases a plain lock and takes it again a moment later nearly
    always gets it before a thread that was waiting has woken up: a `predict` would
    wait for the end of a `fit`, not for the end of its step. Whoever waits here
    stands in a doorway meanwhile, through which the thread that releases must pass
    before it can take the lock again.

    Invariant: `_depth` is how often `_holder` holds `_lock`.
    """

    def __init__(self) -> None:
        self._doorway = Lock()
        self._lock = RLock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> Self:
        if self._holder != get_ident():  # else nobody but this thread changes it
            self._wait()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            self._lock.release()

    def _wait(self) -> None:
        try:
            with self._doorway:
                self._lock.acquire()
            self._holder = get_ident()
        except BaseException:  # interrupted: leave nothing locked
            self._holder = None if self._holder == get_ident() else self._holder
            with suppress(RuntimeError):  # it was not ours yet
                self._lock.release()
            raise

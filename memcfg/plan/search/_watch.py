"""Deadlines, cancellation and progress reports of planning."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PERIOD = 0.05  # seconds between two polls of the callables
_end = ContextVar("_end", default=math.inf)  # deadline in seconds of `time.thread_time`


class PlanningTimeError(Exception):
    """A policy needs more time than its caller gives it.

    It is no PlanError: a policy that tries several methods must not take it for the
    failure of one.
    """


@contextmanager
def planning_until(end: float) -> Iterator[None]:
    """Make memcfg's policies raise PlanningTimeError once a deadline has passed.

    Parameters
    ----------
    end : float
        Seconds on the clock of `time.thread_time`. Policies look at it between two
        searches, each of which takes some tenths of a second in a large graph; `exact`,
        the solver of mixed-integer programs and policies of users do not.
    """
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def check_planning_time() -> None:
    """Raise PlanningTimeError once the time of `planning_until` is over."""
    if time.thread_time() > _end.get():
        raise PlanningTimeError("planning takes longer than its caller waits")


@dataclass
class Watch:
    """A deadline and two callables that searches poll to learn whether to end.

    Once a watch is over, it stays over.

    Parameters
    ----------
    until : float, default inf
        The deadline, in seconds of `time.perf_counter`.
    cancel : callable, optional
        Called without arguments, now and then; returns whether the search should end.
    progress : callable, optional
        Called with the method that runs, and the seconds of the best plan so far or
        None.
    """

    until: float = math.inf
    cancel: Callable[[], bool] | None = None
    progress: Callable[[str, float | None], None] | None = None
    is_ended: bool = field(default=False, init=False)  # set by `is_over`, for good
    _now: tuple[str, float | None] = field(default=("", None), init=False)
    _next: float = field(default=-math.inf, init=False)

    def begin(self, method: str, best: float | None) -> None:
        """Set what is reported as running.

        Parameters
        ----------
        method : str
            The method.
        best : float or None
            Seconds of the best plan so far.
        """
        self._now = method, best
        self._next = -math.inf

    def is_over(self) -> bool:
        """Return whether the search should end."""
        now = time.perf_counter()
        if not self.is_ended and now >= self._next:
            self._next = now + _PERIOD
            if self.progress is not None:
                self.progress(*self._now)
            cancelled = self.cancel is not None and bool(self.cancel())
            self.is_ended = cancelled or now >= self.until
        return self.is_ended


def check_time_limit(seconds: object) -> None:
    """Raise an error unless a time limit is None or a positive number."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a time limit is a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"a time limit must be positive, not {seconds}")

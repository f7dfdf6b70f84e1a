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
_end = ContextVar("_end", default=math.inf)  # deadline on `planning_clock`
_waited = ContextVar("_waited", default=0.0)  # seconds in `waiting`


def planning_clock() -> float:
    """Return the seconds that this thread has computed, or waited for a solver."""
    return time.thread_time() + _waited.get()


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time of a block, in which another thread computes, as planning."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _waited.set(_waited.get() + time.perf_counter() - began)


@contextmanager
def planning_until(end: float) -> Iterator[None]:
    """Bound the time of planning in a block.

    `exact`, the methods that solve integer programs, and `auto` with a time limit end
    with the best plan so far. The others raise TimeoutError between two searches, each
    of which takes some tenths of a second in a large graph.

    Parameters
    ----------
    end : float
        Seconds on `planning_clock`. An earlier deadline of an outer block stays.
    """
    token = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Return the time that a policy may still take; infinity if nothing bounds it.

    A model whose plan does not fit has its policy plan other limits and batches, which
    the `memcfg.errors.InfeasiblePlanError` then names. Their time is bounded:
    `memcfg.config.set_alternatives_seconds`. A policy that may take long asks now and
    then. When no time is left, it returns the best plan that fits so far, or raises
    TimeoutError, as the policies of `memcfg.plan` do.

    Returns
    -------
    float
        Processor seconds of this thread, those that it waits for a solver included;
        not positive when the time is over.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.plan.seconds_left()
    inf
    """
    return _end.get() - planning_clock()


def check_planning_time() -> None:
    """Raise TimeoutError once the time of `planning_until` is over."""
    if seconds_left() <= 0:
        raise TimeoutError("planning takes longer than its caller waits")


@dataclass
class Watch:
    """A deadline and two callables that searches poll to learn whether to end.

    The deadline of `planning_until` counts, too. Once a watch is over, it stays over.

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

    def leave(self, seconds: float) -> None:
        """Let the search end earlier, so that something can follow.

        Parameters
        ----------
        seconds : float
            The time that this takes.
        """
        self.until -= seconds

    def is_over(self) -> bool:
        """Return whether the search should end."""
        now = time.perf_counter()
        if not self.is_ended and now >= self._next:
            self._next = now + _PERIOD
            if self.progress is not None:
                self.progress(*self._now)
            cancelled = self.cancel is not None and bool(self.cancel())
            self.is_ended = cancelled or now >= self.until or seconds_left() <= 0
        return self.is_ended


def check_time_limit(seconds: object) -> None:
    """Raise an error unless a time limit is None or a positive number."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a time limit is a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"a time limit must be positive, not {seconds}")

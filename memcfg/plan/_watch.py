"""Who waits for a plan: until when, whether still, and what they are told."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PERIOD = 0.05  # seconds between two questions


@dataclass
class Watch:
    """A clock and two callables, which searches ask now and then whether to end.

    Once it is over, it stays so.
    """

    until: float = math.inf  # on the clock of `time.perf_counter`
    cancel: Callable[[], bool] | None = None
    progress: Callable[[str, float | None], None] | None = None
    is_ended: bool = field(default=False, init=False)  # whether somebody was told so
    _now: tuple[str, float | None] = field(default=("", None), init=False)
    _next: float = field(default=-math.inf, init=False)

    def begin(self, method: str, best: float | None) -> None:
        """Say which method is at work, and the seconds of the best plan until then."""
        self._now = method, best
        self._next = -math.inf

    def is_over(self) -> bool:
        """Whether a search is to end."""
        now = time.perf_counter()
        if not self.is_ended and now >= self._next:
            self._next = now + _PERIOD
            if self.progress is not None:
                self.progress(*self._now)
            cancelled = self.cancel is not None and bool(self.cancel())
            self.is_ended = cancelled or now >= self.until
        return self.is_ended


def check_time_limit(seconds: object) -> None:
    """Refuse a time limit that is no positive number, nor None."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a time limit is a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"a time limit must be positive, not {seconds}")

"""The division of a program's budget between a model and its loader.

A model is planned first, and the loader takes what is left. If the model then waits for
elements that a cache has no memory for, another division is tried: a plan that leaves
room for all of them. The faster one is kept. Losses and weights do not depend on it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.nn.inputs._feed import Feed
    from memcfg.nn.training._session import Session

__all__ = ["LoaderShare"]

_WAITING = 0.05  # the part of an epoch from which on waiting is worth a trial
_EPOCHS = 3  # that a trial needs: one fills the cache, one is timed, one gains
_GAIN = 0.02  # the part of an epoch's time that the other division has to save


class LoaderShare:
    """Try once whether an epoch is faster if the loader gets more memory."""

    def __init__(self, session: Session, feed: Feed) -> None:
        self._session = session
        self._feed = feed
        self._filling = True  # the first pass makes what is cached
        self._before: float | None = None  # seconds of an epoch before the trial
        self._had = 0  # bytes of the loader before it
        self._over = False
        self._begun = 0.0

    def begin_epoch(self) -> None:
        """Begin to time an epoch."""
        self._begun = time.perf_counter()

    def end_epoch(self, left: int) -> None:
        """Evaluate the epoch that has ended; `left` epochs follow."""
        seconds = time.perf_counter() - self._begun
        if self._filling or self._over:
            self._filling = False
        elif self._before is not None:
            self._over = True
            slow = seconds > (1 - _GAIN) * self._before
            # With all bytes left to it, the model would take more than it had.
            if slow and not self._session.leave(self._had):
                self._session.leave(0)
        elif left >= _EPOCHS and self._waited() > _WAITING * seconds:
            self._try(seconds)

    def _try(self, seconds: float) -> None:
        device = self._session.executor.device
        if device.host_pool is not device.pool:
            return
        holders = device.pool.holders
        wanted = holders.wanted_bytes if holders.margin_bytes else 0
        if wanted:
            self._had = holders.spare_bytes
            whole = self._had + wanted
            ring = self._feed.source.promised(self._session.wanted())
            leaves = self._session.leave(whole + ring) or self._session.leave(whole)
            self._over = not leaves
            self._filling, self._before = not self._over, seconds

    def _waited(self) -> float:
        """Return how long the last pass made the model wait, in seconds."""
        report = self._feed.source.report()
        if report is None:
            return 0.0
        return max((stage.waited_seconds for stage in report.stages), default=0.0)

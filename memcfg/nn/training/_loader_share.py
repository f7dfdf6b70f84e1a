"""The division of a program's budget between a model and its loader.

A model is planned first, and the loader takes what is left. If the model then waits,
and a cache or a ring of batches has less than it asked for, other divisions are
predicted: the waiting time that would remain, and the time that the slower plan adds.
The best one is tried for an epoch, and the faster one is kept. Losses and weights do
not depend on it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.data import PipelineReport
    from memcfg.nn.inputs._feed import Feed
    from memcfg.nn.training._session import Session

__all__ = ["LoaderShare"]

_WAITING = 0.05  # the part of an epoch from which on waiting is worth a trial
_EPOCHS = 3  # that a trial needs: one fills the cache, one is timed, one gains
_GAIN = 0.02  # the part of an epoch's time that the other division has to save
_PARTS = 1.0, 0.5, 0.25  # of what the loader wants, that a division gives it


class LoaderShare:
    """Try once whether an epoch is faster if the loader gets more memory."""

    def __init__(self, session: Session, feed: Feed) -> None:
        self._session = session
        self._feed = feed
        self._filling = True  # the first pass makes what is cached
        self._before: float | None = None  # seconds of an epoch before the trial
        self._had = 0  # bytes that the model left before it
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
        elif left >= _EPOCHS:
            report = self._feed.source.report()
            if report is not None and _waited(report) > _WAITING * seconds:
                self._try(report, seconds)

    def _try(self, report: PipelineReport, seconds: float) -> None:
        """Leave the loader the bytes with which an epoch would be fastest, if any."""
        executor = self._session.executor
        device = executor.device
        if device.host_pool is not device.pool or not device.pool.holders.margin_bytes:
            return
        missing = sum(stage.missing_bytes for stage in report.stages)
        lead = self._session.lead
        if not missing or lead is None:
            return
        waited = min(_waited(report), seconds)
        self._had = max(0, (executor.budget_bytes() or 0) - executor.nbytes)
        chosen, least = 0, (1 - _GAIN) * seconds
        for part in _PARTS:
            still = (1 - part) * waited
            if still + (seconds - waited) >= least:  # if steps take no longer
                break
            nbytes = self._had + int(part * missing)
            longer = executor.slowdown(nbytes, lead.label)
            if (predicted := still + longer * (seconds - waited)) < least:
                chosen, least = nbytes, predicted
        self._over = not (chosen and self._session.leave(chosen))
        self._filling, self._before = not self._over, seconds


def _waited(report: PipelineReport) -> float:
    """Return how long a pass made the model wait, in seconds."""
    return max((stage.waited_seconds for stage in report.stages), default=0.0)

"""When Python's cyclic garbage collector runs, besides when it decides so itself.

Owns the timer thread, the pauses, and the time of the last collection. Refuses words
for users and their checks: `memcfg.workspaces.gc` has them.

Two locks. `_change` guards the settings, is held for a few instructions, and never
while garbage is collected, since finalizers may call anything here. `_work` is held
during collections, so that others can wait for the end of one. Both are re-entrant, for
the finalizers that run inside.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Collector"]

_GRACE = 1.0  # seconds to wait for a collection at work, whose finalizers may hang
_INTERVALS = 100  # times between calls that an average is taken of


@dataclass(eq=False)
class _Pause:
    """What one pause found and did, to be put back.

    A pause that ends before a newer one leaves both to it. So the last one to end puts
    back what the first one found, in whatever order threads leave theirs.
    """

    enabled: bool
    froze: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def put_back(self) -> None:
        if self.froze:
            gc.unfreeze()
        (gc.enable if self.enabled else gc.disable)()

    def leave_to(self, newer: _Pause) -> None:
        newer.enabled = self.enabled
        newer.froze |= self.froze


class Collector:
    """The settings of one process, and the thread that acts on them.

    Invariant: the timer collects only while it is `_thread` and there is no pause.
    """

    def __init__(self) -> None:
        self.window_ms = 100
        self.frequency = 0
        self.collected_at: float | None = None  # seconds since 1970
        self.intervals_ms: deque[float] | None = None  # None: not noted
        self._last = -float("inf")  # monotonic seconds, as all that follow
        self._last_call: float | None = None
        self._calls = 0
        self._thread: threading.Thread | None = None
        self._pauses: list[_Pause] = []
        self._collecting: list[int] = []  # the threads inside `collect`
        self._make_locks()

    def _make_locks(self) -> None:
        self._change = threading.Condition(threading.RLock())
        self._work = threading.RLock()

    @property
    def is_periodic(self) -> bool:
        """Whether a living thread collects every window."""
        with self._change:
            alive = self._thread is not None and self._thread.is_alive()
            return alive and self.window_ms > 0

    @property
    def is_paused(self) -> bool:
        """Whether at least one pause is in force."""
        return bool(self._pauses)

    def set_window(self, window_ms: int) -> None:
        """Change the window, also the one that the timer waits for."""
        with self._change:
            self.window_ms = window_ms
            self._change.notify_all()

    def start(self) -> None:
        """Start the timer, unless it runs.

        No lock is held meanwhile: it waits for the thread, which may run finalizers.
        """
        with self._change:
            if self._is_wanted(self._thread):
                return
            thread = threading.Thread(target=self._run, name="memcfg-gc", daemon=True)
            self._thread = thread
        try:
            thread.start()
        except BaseException:
            with self._change:
                if self._thread is thread:
                    self._thread = None
            raise

    @staticmethod
    def _is_wanted(thread: threading.Thread | None) -> bool:
        """Tell whether a thread runs, or is about to be started by somebody."""
        return thread is not None and (thread.ident is None or thread.is_alive())

    def stop(self) -> None:
        """Stop the timer; a collection that is at work comes to its end first."""
        with self._between_collections(), self._change:
            self._thread = None
            self._change.notify_all()

    def finish(self) -> None:
        """Stop the timer at the end of the interpreter, and see it gone."""
        thread = self._thread
        self.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_GRACE)

    def collect(self) -> int:
        """Collect now, and note the time."""
        with self._change:
            self._collecting.append(threading.get_ident())
        try:
            with self._between_collections():
                return gc.collect()
        finally:
            with self._change:
                self._collecting.remove(threading.get_ident())
                self._last = time.monotonic()
                self.collected_at = time.time()

    def collect_occasionally(self) -> bool:
        """Collect if this call is the one in `frequency`, and the window has passed.

        The window begins when a collection ends, so none is due while one is at work.
        """
        with self._change:
            now = time.monotonic()
            self._note_call(now)
            if self.frequency == 0:
                return False
            self._calls += 1
            ended = now if self._collecting else self._last
            early = now <= ended + self.window_ms / 1000
            if self._calls % self.frequency or early or self._pauses:
                return False
            self._last = now  # no second thread collects for this window
        self.collect()
        return True

    def set_frequency(self, frequency: int) -> None:
        """Change how many calls make an occasion, and count from the beginning."""
        with self._change:
            self.frequency = frequency
            self._calls = 0

    def set_averaging(self, *, enabled: bool) -> None:
        """Begin to note the times between calls, or forget them."""
        with self._change:
            if enabled and self.intervals_ms is None:
                self.intervals_ms = deque(maxlen=_INTERVALS)
            elif not enabled:
                self.intervals_ms = None
            self._last_call = None

    def mean_interval_ms(self) -> float | None:
        """Return the mean time between calls; None where none was noted."""
        with self._change:
            if not self.intervals_ms:
                return None
            return sum(self.intervals_ms) / len(self.intervals_ms)

    def _note_call(self, now: float) -> None:
        if self.intervals_ms is not None:
            if self._last_call is not None:
                self.intervals_ms.append((now - self._last_call) * 1000)
            self._last_call = now

    @contextlib.contextmanager
    def paused(self, *, freeze: bool) -> Iterator[None]:
        """Let nothing collect by itself inside."""
        pause = _Pause(gc.isenabled())
        try:
            self._begin(pause, freeze=freeze)
            yield
        finally:
            self._end(pause)

    def _begin(self, pause: _Pause, *, freeze: bool) -> None:
        with self._between_collections(), self._change:
            pause.enabled = gc.isenabled()
            self._pauses.append(pause)
            gc.disable()
            if freeze and gc.get_freeze_count() == 0:
                gc.freeze()
                pause.froze = True

    def _end(self, pause: _Pause) -> None:
        with self._change:
            if pause not in self._pauses:
                return  # it had not begun when it was interrupted
            place = self._pauses.index(pause)
            del self._pauses[place]
            if place == len(self._pauses):
                pause.put_back()
            else:
                pause.leave_to(self._pauses[place])

    def _run(self) -> None:
        while self._wait_for_the_window():
            with self._work:
                if self._thread is threading.current_thread() and not self._pauses:
                    self.collect()

    def _wait_for_the_window(self) -> bool:
        """Wait until it is time; False: this thread is no longer wanted."""
        began = time.monotonic()
        with self._change:
            while self._thread is threading.current_thread():
                left = began + self.window_ms / 1000 - time.monotonic()
                if self.window_ms and left <= 0:
                    return True
                self._change.wait(left if self.window_ms else None)
            return False

    @contextlib.contextmanager
    def _between_collections(self) -> Iterator[None]:
        """Wait for the collection that is at work, if any, and hold off the next."""
        held = self._work.acquire(timeout=_GRACE)
        try:
            yield
        finally:
            if held:
                self._work.release()

    def before_fork(self) -> None:
        """Wait for the collection that is at work, which could not go on in the child.

        Python's lists of objects would end in the stack of a thread that is not there,
        and its collector would take itself to be at work for ever.
        """
        self._work.acquire(timeout=_GRACE)
        self._change.acquire(timeout=_GRACE)

    def after_fork_in_parent(self) -> None:
        """Let the timer go on."""
        for lock in self._change, self._work:
            with contextlib.suppress(RuntimeError):  # not held: the wait was too long
                lock.release()

    def after_fork_in_child(self) -> None:
        """Begin with new locks, no timer, and the pauses of this thread alone."""
        self._make_locks()
        self._thread = None
        here = threading.get_ident()
        self._collecting = [each for each in self._collecting if each == here]
        for pause in [each for each in self._pauses if each.thread != here]:
            self._end(pause)


def register(collector: Collector) -> None:
    """Have forks tell a collector.

    Parameters
    ----------
    collector : Collector
        It lives as long as the process.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=collector.before_fork,
            after_in_parent=collector.after_fork_in_parent,
            after_in_child=collector.after_fork_in_child,
        )

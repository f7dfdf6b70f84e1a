"""The base of parallel steps: their threads, and the source that these share."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from memcfg._checks import count, flag
from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import AUTOTUNE, TunedParallelism
from memcfg.data.engine._condition import Condition, Shared
from memcfg.data.engine._run import closing
from memcfg.data.engine._thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future

S = TypeVar("S")
R = TypeVar("R")

WORTH = 1e-3  # min. seconds of work of a task, so that submitting it costs little


def checked_calls(calls: int | None, deterministic: bool | None) -> int | None:
    """Check the arguments of a step that may be parallel; return the threads."""
    if deterministic is not None:
        flag(deterministic, "deterministic")
    if calls is not None:
        if calls == AUTOTUNE:
            return AUTOTUNE
        return count(calls, "num_parallel_calls")
    if deterministic is not None:
        warnings.warn(
            "deterministic has no effect without num_parallel_calls: give both or none",
            UserWarning,
            stacklevel=4,
        )
    return None


def chunk_length(seconds: float, limit: int) -> int:
    """Return the number of elements of a task, given the seconds of an element.

    It is the number that takes about `WORTH` seconds, from 1 to `limit`.
    """
    return max(1, min(limit, int(WORTH / max(seconds, 1e-9))))


class SharedSource(Shared, Generic[S]):
    """A source that several threads read, in the order of the numbers they reserved.

    After `close`, the thread that is reading closes the source.
    """

    def __init__(self, source: S) -> None:
        self._source: S | None = source
        self._reserved = 0  # numbers handed out
        self._next = 0  # number that may read next
        self.begin()

    def begin(self) -> None:
        """Create the locks; closed in the child of a fork, which has no threads."""
        super().begin()
        self._reading = threading.Lock()
        self._changed = Condition(self._lock)
        self.ended = self._closed = self.in_child  # ended: no read returns anything

    def reserve(self) -> int:
        """Return the next number; only one thread at a time may call this."""
        number = self._reserved
        self._reserved += 1
        return number

    def read(self, number: int, reader: Callable[[S], R]) -> R | None:
        """Wait for the turn of `number` and read; return None if closed by then."""
        self.notice_fork()
        self._changed.wait_for(lambda: self._next == number or self._closed)
        if self._closed:
            return None
        try:
            return self.read_alone(reader)
        finally:
            with self._lock:
                self._next += 1
                self._changed.notify_all()

    def read_alone(self, reader: Callable[[S], R]) -> R | None:
        """Read regardless of numbers; return None if closed."""
        self.notice_fork()
        with self._reading:
            source = self._source
            result = None if source is None or self._closed else reader(source)
            del source
        if self._closed:
            self._release()
        return result

    def close(self) -> None:
        """End reading; if a thread is reading, it closes the source afterwards."""
        self.notice_fork()
        self.ended = self._closed = True
        self._changed.notify_all()
        self._release()

    def _release(self) -> None:
        if self._reading.acquire(blocking=False):
            try:
                with closing(self._source):
                    self._source = None
            finally:
                self._reading.release()

    @contextmanager
    def failing(self, part: Any) -> Iterator[None]:
        """Store what a block raises as the `failure` of a part, and end reading."""
        try:
            yield
        except BaseException as error:
            part.failure = None if self._closed else error
            self.ended = True


def drop(futures: Iterable[Future[Any]]) -> None:
    """Break the cycles of parts that are not read: a traceback refers to its part."""
    for future in futures:
        if future.done:
            with suppress(BaseException):
                future.result().failure = None


class StepThreads:
    """The threads of a step, whose number the user or AUTOTUNE chooses."""

    def __init__(
        self,
        run: Run,
        calls: int,
        name: str,
        deterministic: bool | None,
        source: SharedSource[Any] | None = None,
    ) -> None:
        asked = run.options.deterministic if deterministic is None else deterministic
        self.ordered = asked is not False  # whether elements keep the source's order
        self.items = 0  # delivered
        self.waited = 0.0  # seconds
        self.ahead = 0  # elements or batches in work, for the report
        self.held: Callable[[], int] = int  # bytes, for the report
        self._name = name
        self._source = source  # closed with the threads
        self.tuned: TunedParallelism | None = None
        if calls == AUTOTUNE:
            self.tuned = TunedParallelism(run, run.tuned_state(name))
            size = self.tuned.parallelism
        else:
            size = run.budget.reserve_threads(self, calls)
        self.pool = ThreadPool(size, name, run.allocator)
        run.on_close(self)
        run.stages.append(self.report)

    @property
    def works(self) -> bool:
        """Whether threads do the work; otherwise the consumer does."""
        return self.tuned is None or self.pool.size > 1

    def next_of(self, futures: Iterable[Future[R]]) -> Future[R]:
        """Return the next future: the first in order, or the first that is done."""
        return next(iter(futures)) if self.ordered else self.pool.first_done(futures)

    def delivered(self, items: int, waited: float) -> None:
        """Record delivered items and waited seconds; adapt the number of threads."""
        self.items += items
        self.waited += waited
        if self.tuned is not None:
            self.tuned.consumed(items)
            if self.pool.size != self.tuned.parallelism:
                self.pool.size = self.tuned.parallelism

    def stop(self, *, wait: bool) -> bool:
        """End the threads; return whether they have ended."""
        if self._source is not None:
            self._source.close()
        return self.pool.stop(wait=wait)

    def report(self) -> StageReport:
        return StageReport(
            name=self._name,
            autotuned=self.tuned is not None,
            parallelism=self.pool.size,
            buffer_size=self.ahead,
            items=self.items,
            waited_seconds=self.waited,
            nbytes=self.held(),
        )

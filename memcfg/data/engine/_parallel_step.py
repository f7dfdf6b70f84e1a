"""What parallel steps share: their threads, and the step before that these read."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
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

WORTH = 1e-3  # seconds of work that are worth handing over


def checked_calls(calls: int | None, deterministic: bool | None) -> int | None:
    """Read the arguments of a step that may be parallel; the number of threads."""
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
    """Return how many elements, each of so many seconds, a thread is to take at a time.

    So many that handing them over costs little against the function, and no more.
    """
    return max(1, min(limit, int(WORTH / max(seconds, 1e-9))))


class SharedSource(Shared, Generic[S]):
    """The step before, which several threads read, each read in the order of a number.

    It is closed at the end, by the last one who reads.
    """

    def __init__(self, source: S) -> None:
        self._source: S | None = source
        self._reserved = 0  # numbers
        self._next = 0  # to read
        self.begin()

    def begin(self) -> None:
        """Be open; closed in the child of a fork, which has no thread that reads."""
        super().begin()
        self._reading = threading.Lock()
        self._changed = Condition(self._lock)
        self.ended = self._closed = self.in_child  # nothing is to be read any more

    def reserve(self) -> int:
        """Return the next number; one thread at a time reserves."""
        number = self._reserved
        self._reserved += 1
        return number

    def read(self, number: int, reader: Callable[[S], R]) -> R | None:
        """Read when the number comes; None if it is closed by then."""
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
        """Read while no number is waited for; None if it is closed."""
        self.notice_fork()
        with self._reading:
            source = self._source
            result = None if source is None or self._closed else reader(source)
            del source
        if self._closed:
            self._release()
        return result

    def close(self) -> None:
        """Read no more; who reads now closes the source then."""
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
        """Keep what a block raises as the `failure` of a part; nothing is read then."""
        try:
            yield
        except BaseException as error:
            part.failure = error
            self.ended = True


class StepThreads:
    """The threads of a step: as many as the user says, or as AUTOTUNE has it."""

    def __init__(
        self,
        run: Run,
        calls: int,
        name: str,
        deterministic: bool | None,
        source: SharedSource[Any] | None = None,
    ) -> None:
        asked = run.options.deterministic if deterministic is None else deterministic
        self.ordered = asked is not False  # whether elements come in their order
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
        """Whether there are threads; else the consumer does the work."""
        return self.tuned is None or self.pool.size > 1

    def next_of(self, futures: Iterable[Future[R]]) -> Future[R]:
        """Return what comes next: the first in order, or the first that is done."""
        return next(iter(futures)) if self.ordered else self.pool.first_done(futures)

    def delivered(self, items: int, waited: float) -> None:
        """Note what has been handed on, and change the number of threads."""
        self.items += items
        self.waited += waited
        if self.tuned is not None:
            self.tuned.consumed(items)
            if self.pool.size != self.tuned.parallelism:
                self.pool.size = self.tuned.parallelism

    def stop(self, *, wait: bool) -> bool:
        """End the threads; True: they have ended."""
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

"""A pool of threads that run tasks in the order in which they were submitted.

Invariants: a thread is started for a waiting task unless one is idle, up to
`_TaskQueue.size`; when the queue is closed, running tasks finish and waiting ones are
dropped.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from memcfg._core._live import Living
from memcfg.data.engine._condition import Condition, Shared, raise_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    _Allocator = Callable[[], AbstractContextManager[Any]]

T = TypeVar("T")

CLOSE_TIMEOUT = 5.0  # seconds that a close waits for a thread
EXIT_TIMEOUT = 1.0  # seconds that the end of the interpreter waits for all threads
_ALIVE = 1.0  # seconds between two checks that threads are alive


class Future(Generic[T]):
    """A task, and its result when it is done."""

    def __init__(self, queue: _TaskQueue, call: Callable[[], T]) -> None:
        self._queue = queue
        self._call: Callable[[], T] | None = call
        self._value: Any = None
        self.failure: BaseException | None = None
        self.done = False

    def run(self, allocator: _Allocator) -> None:
        """Call the function; keep its exception for `result`."""
        call, self._call = self._call, None
        try:
            if call is not None:
                with allocator():
                    self._value = call()
        except BaseException as error:
            self.failure = error

    def result(self) -> T:
        """Wait and return the result, only once; StopIteration if it was dropped."""
        self._queue.wait([self])
        if not self.done:
            raise StopIteration
        value: T = self._value
        self._value = None
        if isinstance(self.failure, StopIteration):
            name = self._queue.name
            self.failure = RuntimeError(f"a task of {name} raised StopIteration")
        raise_failure(self)
        return value


class _TaskQueue(Shared):
    """The queue of threads and their consumer; holds no reference to the pool."""

    def __init__(self, size: int, name: str) -> None:
        self.size = size
        self.name = name
        self.begin()
        running.add(self)

    def begin(self) -> None:
        super().begin()
        self._submitted = Condition(self._lock)
        self._finished = Condition(self._lock)
        self._closed = self.in_child
        self._tasks: deque[Future[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def submit(
        self, future: Future[Any], thread: Callable[[], threading.Thread]
    ) -> None:
        """Add a task, and start a thread if none is idle; drop the task if closed."""
        self.check_process()
        with self._lock:
            if self._closed:
                return
            self._tasks.append(future)
            if self._idle >= len(self._tasks) or len(self._threads) >= self.size:
                self._submitted.notify_all()
                return
            another = thread()
            self._threads.append(another)
        try:
            another.start()
        except RuntimeError:  # the system's limit of threads
            self._threads.remove(another)
            raise

    def next_task(self) -> Future[Any] | None:
        """Wait for a task; None: the calling thread must end."""
        idle = 0
        self.notice_fork()
        while True:
            with self._lock:
                self._idle -= idle
                if self._closed:
                    return None
                if len(self._threads) > self.size:
                    self._threads.remove(threading.current_thread())
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                self._idle += 1
            idle = 1
            self._submitted.wait_for(
                lambda: self._closed or len(self._threads) > self.size or self._tasks
            )

    def finish(self, future: Future[Any]) -> None:
        self.notice_fork()
        with self._lock:
            future.done = True
            self._finished.notify_all()

    def wait(self, futures: list[Future[Any]]) -> None:
        """Wait until one of the futures is done, or the queue is closed."""
        self.check_process()

        def is_over() -> bool:
            return self._closed or any(future.done for future in futures)

        while not self._finished.wait_for(is_over, _ALIVE):
            if not (self.alive() or is_over()):
                raise RuntimeError(f"the threads of {self.name} exited unexpectedly")

    def resize(self, size: int) -> None:
        """Set the max. number of threads; surplus threads end."""
        self.notice_fork()
        with self._lock:
            self.size = size
            self._submitted.notify_all()

    def close(self) -> None:
        """End the threads; drop waiting tasks."""
        self.notice_fork()
        with self._lock:
            self._closed = True
            self._submitted.notify_all()
            self._finished.notify_all()
            tasks, self._tasks = self._tasks, deque()
        del tasks  # with the lock released: finalizers may run

    def alive(self) -> list[threading.Thread]:
        return [thread for thread in list(self._threads) if thread.is_alive()]


class ThreadPool:
    """A pool of threads that are started on demand.

    Its threads hold no reference to it, so that garbage collection of the pool ends
    them.
    """

    def __init__(self, size: int, name: str, allocator: _Allocator) -> None:
        self._queue = _TaskQueue(size, name)
        self._thread = partial(_thread, self._queue, allocator)
        self._finalizer = weakref.finalize(self, self._queue.close)
        self._finalizer.atexit = False  # `_stop_all` does that

    @property
    def size(self) -> int:
        """Max. number of threads; may be set."""
        return self._queue.size

    @size.setter
    def size(self, size: int) -> None:
        self._queue.resize(size)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Submit a function to be called by a thread."""
        future = Future(self._queue, call)
        self._queue.submit(future, self._thread)
        return future

    def first_done(self, futures: Iterable[Future[T]]) -> Future[T]:
        """Wait until one of some futures is done; the first if the pool is stopped."""
        futures = list(futures)
        self._queue.wait(futures)
        return next((future for future in futures if future.done), futures[0])

    def stop(self, *, wait: bool, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End the threads, drop waiting tasks; return whether threads have ended."""
        self._queue.close()
        left = self._queue.alive()
        message = (
            f"{self._queue.name} is still at work after {timeout:g} s; its threads end "
            "when that is done"
        )
        return join(left, timeout, message) if wait else not left


def _thread(queue: _TaskQueue, allocator: _Allocator) -> threading.Thread:
    name = f"memcfg-data-{queue.name}"
    return threading.Thread(
        target=_work, args=(queue, allocator), name=name, daemon=True
    )


def _work(queue: _TaskQueue, allocator: _Allocator) -> None:
    while (future := queue.next_task()) is not None:
        future.run(allocator)
        queue.finish(future)
        del future  # and its result: the consumer has it


class _Running(Protocol):
    """An object with threads that are ended at interpreter exit."""

    def close(self) -> None: ...
    def alive(self) -> list[threading.Thread]: ...


running: Living[_Running] = Living()


def join(
    threads: list[threading.Thread], timeout: float, message: str | None = None
) -> bool:
    """Join threads other than the current one; warn if they have not ended in time."""
    end = time.monotonic() + timeout
    others = [each for each in threads if each is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    ended = not any(thread.is_alive() for thread in others)
    if message and not ended:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return ended


def _stop_all() -> None:
    """End all threads before the interpreter exits."""
    left = running.alive()
    for each in left:
        each.close()
    join([thread for each in left for thread in each.alive()], EXIT_TIMEOUT)


atexit.register(_stop_all)

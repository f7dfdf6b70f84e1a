"""A background thread that prepares items ahead, into a bounded queue and a ring.

Invariants of the queue: ``len(queue) < depth.capacity`` when an item is begun; a
failure follows the last item; no item is added after the end.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from memcfg.data.engine._condition import Condition, Shared, raise_failure
from memcfg.data.engine._thread_pool import CLOSE_TIMEOUT, join, running
from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self, TypeAlias

    from memcfg.data.engine._autotune import TunedDepth
    from memcfg.data.engine._device_rings import DeviceRings

    _Depth: TypeAlias = "FixedDepth | TunedDepth"
    _Allocator = Callable[[], AbstractContextManager[Any]]

_ALIVE = 1.0  # seconds between two checks that a thread is alive
_END = object()


class FixedDepth:
    """A fixed capacity of a queue, at least 1."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.asked = capacity

    def learned(self, item_bytes: int) -> None:
        """Ignore the bytes of an item."""

    def allocation_failed(self, fits: int) -> bool:
        """Return False: the capacity cannot shrink, so the failure is an error."""
        return False

    def consumed(self, waiting: int, waited: float) -> None:
        """Ignore the waiting items and seconds."""


class BoundedQueue(Shared):
    """A queue from one producer thread to any number of consumers."""

    def __init__(self, depth: _Depth, name: str) -> None:
        self.depth = depth
        self.name = name
        self.delivered = 0  # items
        self.waited = 0.0  # seconds, all consumers
        self._ended = False  # no item will be added
        self._started = False
        self.begin()

    def begin(self) -> None:
        super().begin()
        self._filled = Condition(self._lock)
        self._emptied = Condition(self._lock)
        self.stopped = self.in_child  # items are dropped
        self.failure: BaseException | None = None
        self._items: deque[Any] = deque()
        self._consumers = 0  # waiting

    def __len__(self) -> int:
        return len(self._items)

    def start_once(self, start: Callable[[], None]) -> None:
        """Call a function that starts the thread, unless started or stopped already.

        The call is made without the lock: it waits for the thread, which may run a
        finalizer that stops this queue.
        """
        self.notice_fork()
        with self._lock:
            if self._started or self.stopped:
                return
            self._started = True
        try:
            start()
        except BaseException:
            self._started = False
            raise

    def wait_until_wanted(self) -> bool:
        """Wait until it is empty and a consumer waits; return False if stopped."""
        return self._wait_until(lambda: self._consumers and not self._items)

    def capacity(self, ring: DeviceRings | None) -> float:
        """Return how many items may wait, given the blocks that a ring may have."""
        most = float("inf") if ring is None else ring.max_waiting
        return min(self.depth.capacity, most)

    def wait_until_not_full(self, ring: DeviceRings | None = None) -> bool:
        """Wait until there is room for an item; return False if stopped."""
        return self._wait_until(lambda: len(self._items) < self.capacity(ring))

    def _wait_until(self, is_so: Callable[[], object]) -> bool:
        self.notice_fork()
        self._emptied.wait_for(lambda: self.stopped or is_so())
        return not self.stopped

    def put(self, item: Any) -> None:
        """Add an item; it is dropped if the queue is stopped."""
        self.notice_fork()
        with self._lock:
            if not self.stopped:
                self._items.append(item)
                self._filled.notify_all()

    def end(self, failure: BaseException | None = None) -> None:
        """Mark the end of the items; a failure is raised after the last one."""
        self.notice_fork()
        with self._lock:
            if not self.stopped:
                self.failure = failure
            self._ended = True
            self._filled.notify_all()

    def get(self, is_alive: Callable[[], bool]) -> Any:
        """Take the next item; StopIteration at the end.

        RuntimeError in a forked child, or if the thread has died without ending the
        queue; or the exception that ended the thread.
        """
        self.check_process()
        waiting, waited = len(self._items), 0.0
        while True:
            with self._lock:
                items = self._items  # a signal's handler may stop the queue meanwhile
                if items:
                    item = items.popleft()
                    self.delivered += 1
                    self.waited += waited
                    self.depth.consumed(waiting, waited)
                    self._emptied.notify_all()
                    return item
                if self._is_known():
                    raise_failure(self)
                    raise StopIteration
            waited += self._wait_for_item(is_alive)

    def has_next(self, is_alive: Callable[[], bool]) -> bool:
        """Wait for the next item or the end; return whether it is an item or error."""
        self.check_process()
        while True:
            with self._lock:
                if self._is_known():
                    return bool(self._items) or self.failure is not None
            self.waited += self._wait_for_item(is_alive)

    def stop(self) -> None:
        """Drop all items, present and future."""
        self.notice_fork()
        with self._lock:
            self.stopped = True
            self.failure = None
            self._filled.notify_all()
            self._emptied.notify_all()
            items, self._items = self._items, deque()
        del items  # with the lock released: finalizers may run

    def _wait_for_item(self, is_alive: Callable[[], bool]) -> float:
        began = time.perf_counter()
        with self._lock:
            self._consumers += 1
        try:
            self._emptied.notify_all()
            while not self._filled.wait_for(self._is_known, _ALIVE):
                if not (is_alive() or self._is_known()):
                    self._ended = True
                    raise RuntimeError(f"the thread of {self.name} exited unexpectedly")
        finally:
            with self._lock:
                self._consumers -= 1
        return time.perf_counter() - began

    def _is_known(self) -> bool:
        """Return whether a consumer need not wait: there is an item, or the end."""
        return bool(self._items) or self._ended or self.stopped


class Producer:
    """An iterator over items that a thread makes ahead.

    The thread holds no reference to the producer, so that garbage collection of the
    producer ends the thread.
    """

    def __init__(
        self,
        source: Iterator[Any],
        depth: _Depth,
        name: str,
        *,
        ring: DeviceRings | None,
        allocator: _Allocator,
    ) -> None:
        self.queue = BoundedQueue(depth, name)
        work = _Work(self.queue, source, ring)
        self.thread = threading.Thread(
            target=work.run, args=(allocator,), name=f"memcfg-data-{name}", daemon=True
        )
        self._finalizer = weakref.finalize(self, self.queue.stop)
        self._finalizer.atexit = False  # `_stop_all` does that

    def start(self) -> None:
        """Start the thread if it is not started; the first `get` does so, too."""
        self.queue.start_once(self._start)

    def _start(self) -> None:
        self.thread.start()
        running.add(self)

    def get(self) -> Any:
        self.start()
        return self.queue.get(self.thread.is_alive)

    def has_next(self) -> bool:
        """Wait for the next item or the end; return whether it is an item or error."""
        self.start()
        return self.queue.has_next(self.thread.is_alive)

    def close(self) -> None:
        """End the thread without waiting, as `close` of a generator does."""
        self.stop(wait=False)

    def alive(self) -> list[threading.Thread]:
        return [self.thread] if self.thread.is_alive() else []

    def __iter__(self) -> Self:
        return self

    __next__ = get

    def stop(self, *, wait: bool, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End the thread, which releases the ring; return whether it has ended."""
        self.queue.stop()
        if wait:
            message = (
                f"{self.queue.name} is still making an item after {timeout:g} s; its "
                "thread ends, and releases its memory, when that is done"
            )
            join(self.alive(), timeout, message)
        return not self.alive()


class _Work:
    """The work of the thread; holds no reference to the producer."""

    def __init__(
        self, queue: BoundedQueue, source: Iterator[Any], ring: DeviceRings | None
    ) -> None:
        self._queue = queue
        self._source = source
        self._ring = ring

    def run(self, allocator: _Allocator) -> None:
        failure = _error_of(allocator, self._work)
        closing = _error_of(allocator, self._close)
        self._queue.end(closing if failure is None else failure)
        del failure, closing  # their tracebacks refer to these frames: break the cycle

    def _work(self) -> None:
        queue, ring = self._queue, self._ring
        while queue.wait_until_not_full(ring) and (ring is None or self._fit(ring)):
            with ring or nullcontext():
                item = next(self._source, _END)
            if ring is not None:
                queue.depth.learned(ring.block_bytes)
            if item is _END:
                return
            queue.put(item)
            del item

    def _fit(self, ring: DeviceRings) -> bool:
        """Allocate blocks for the queue's capacity, or as many as there is memory for.

        After a failure, retry when the queue is empty and a consumer waits: it has
        released the preceding batch by then.
        """
        depth, tried = self._queue.depth, False
        while True:
            try:
                ring.fit(depth.capacity)
            except ResourceExhaustedError:
                if tried and not depth.allocation_failed(ring.fits):
                    raise
            else:
                return True
            if not tried and not self._queue.wait_until_wanted():
                return False
            tried = True

    def _close(self) -> None:
        """Close the source and release the ring, in the thread that used them."""
        with ExitStack() as stack:
            if self._ring is not None:
                stack.callback(self._ring.destroy)
            close = getattr(self._source, "close", None)
            del self._source
            if close is not None:
                close()


def _error_of(allocator: _Allocator, act: Callable[[], None]) -> BaseException | None:
    try:
        with allocator():
            act()
    except BaseException as error:
        return error
    return None

"""A background thread that prepares items ahead, into a bounded queue and a ring."""

from __future__ import annotations

import threading
import warnings
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from memcfg.data.engine._bounded_queue import BoundedQueue
from memcfg.data.engine._thread_pool import CLOSE_TIMEOUT, running
from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.data.engine._batch_blocks import Ring
    from memcfg.data.engine._bounded_queue import Depth

    _Allocator = Callable[[], AbstractContextManager[Any]]

__all__ = ["Producer"]

_END = object()


class Producer:
    """Items made by a thread, taken in order.

    Nothing that the thread refers to refers to the producer: one that is
    garbage-collected ends.
    """

    def __init__(
        self,
        source: Iterator[Any],
        depth: Depth,
        name: str,
        *,
        ring: Ring | None,
        allocator: _Allocator,
        finished: Callable[[Any], Any] | None = None,
    ) -> None:
        self.queue = BoundedQueue(depth, name)
        work = _Work(self.queue, source, ring, finished)
        self.thread = threading.Thread(
            target=work.run, args=(allocator,), name=f"memcfg-data-{name}", daemon=True
        )
        self._finalizer = weakref.finalize(self, self.queue.stop)
        self._finalizer.atexit = False  # `_stop_all` does that

    def start(self) -> None:
        """Start the thread, unless that was done; the first `get` does it too."""
        self.queue.start_once(self._start)

    def _start(self) -> None:
        self.thread.start()
        running.add(self)

    def get(self) -> Any:
        """Take the next item, as `BoundedQueue.get`."""
        self.start()
        return self.queue.get(self.thread.is_alive)

    def has_next(self) -> bool:
        """Tell whether `get` has an item or an error; wait until that is known."""
        self.start()
        return self.queue.has_next(self.thread.is_alive)

    def close(self) -> None:
        """End the thread without waiting, as the end of a generator."""
        self.stop(wait=False)

    def alive(self) -> list[threading.Thread]:
        """List the thread if it has not ended."""
        return [self.thread] if self.thread.is_alive() else []

    def __iter__(self) -> Self:
        return self

    __next__ = get

    def stop(self, *, wait: bool, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End the thread, which releases the ring; True: it has ended."""
        self.queue.stop()
        known = self.thread.ident
        if wait and known not in (None, threading.get_ident()):
            self.thread.join(timeout)
            if self.thread.is_alive():
                warnings.warn(
                    f"{self.queue.name} is still making an item after {timeout:g} s; "
                    "its thread ends, and releases its memory, when that is done",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return not self.thread.is_alive()


class _Work:
    """What the thread does; knows everything but the producer."""

    def __init__(
        self,
        queue: BoundedQueue,
        source: Iterator[Any],
        ring: Ring | None,
        finished: Callable[[Any], Any] | None,
    ) -> None:
        self._queue = queue
        self._source = source
        self._ring = ring
        self._finished = finished  # applied to each item

    def run(self, allocator: _Allocator) -> None:
        failure = _error_of(allocator, self._work)
        closing = _error_of(allocator, self._close)
        self._queue.end(closing if failure is None else failure)
        del failure, closing  # they refer to frames that refer to all of this

    def _work(self) -> None:
        while self._queue.wait_until_not_full() and self._make():
            pass

    def _make(self) -> bool:
        """Make an item and put it into the queue; False at the end."""
        item = self._pull() if self._ring is None else self._in_ring(self._ring)
        if item is _END:
            return False
        self._queue.put(item)
        return True

    def _in_ring(self, ring: Ring) -> Any:
        if not self._fit(ring):
            return _END
        with ring:
            item = self._pull()
        self._queue.depth.learned(ring.block_bytes)
        return item

    def _fit(self, ring: Ring) -> bool:
        """Give the ring as many blocks as the queue has items, or as there is memory.

        A failure stands only when the queue is empty and a consumer waits: it has let
        go of the batch before by then.
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

    def _pull(self) -> Any:
        item = next(self._source, _END)
        if item is _END or self._finished is None:
            return item
        try:
            return self._finished(item)
        except StopIteration as error:
            raise RuntimeError(f"{self._finished!r} raised StopIteration") from error

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

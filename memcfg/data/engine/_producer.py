"""A background thread that prepares items ahead.

Owns the thread: its start, its end in every case, and the ring that it fills. Refuses
to know what it prepares.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from memcfg._core._live import Living
from memcfg.data.engine._bounded_queue import Line
from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.data.engine._bounded_queue import Depth
    from memcfg.data.engine._ring import Ring

__all__ = ["PATIENCE", "Producer"]

_END = object()
PATIENCE = 5.0  # seconds that a close waits for a thread
_AT_EXIT = 1.0  # seconds that the end of the interpreter waits for all threads


class Producer:
    """Items made by a thread, taken in order.

    Parameters
    ----------
    source : iterator
        Makes the items; only the thread calls it. If it has ``close()``, the thread
        calls that at the end.
    depth : Depth
        How many items may wait.
    name : str
        For the thread and for messages.
    ring : Ring or None
        Where the arrays of the items lie. None: where `allocator` puts them.
    allocator : callable
        Makes a context manager that holds while the thread runs.
    finished : callable, optional
        Applied to each item by the thread, inside of the ring's cycle.

    Notes
    -----
    The thread refers to the line, the source and the ring, not to the producer: when
    nobody refers to the producer any more, the thread ends by itself, and gives the
    ring back.
    """

    def __init__(
        self,
        source: Iterator[Any],
        depth: Depth,
        name: str,
        *,
        ring: Ring | None,
        allocator: Callable[[], AbstractContextManager[Any]],
        finished: Callable[[Any], Any] | None = None,
    ) -> None:
        self.line = Line(depth, name)
        self.ring = ring
        work = _Work(self.line, source, ring, finished)
        self._thread = threading.Thread(
            target=work.run, args=(allocator,), name=f"memcfg-data-{name}", daemon=True
        )
        self._finalizer = weakref.finalize(self, self.line.stop)
        self._finalizer.atexit = False  # `_stop_all` does that

    def start(self) -> None:
        """Start the thread, unless that was done; the first `get` does it too."""
        self.line.begin(self._start)

    def _start(self) -> None:
        self._thread.start()
        _running.add(self)

    @property
    def thread(self) -> threading.Thread:
        """The thread."""
        return self._thread

    def get(self) -> Any:
        """Take the next item.

        Returns
        -------
        object
            The item.

        Raises
        ------
        StopIteration
            At the end, or after `stop`.
        RuntimeError
            In a forked child.
        BaseException
            What the source raised, behind the items that it made before.
        """
        self.line.begin(self._start)
        return self.line.get(self._thread.is_alive)

    def has_next(self) -> bool:
        """Tell whether `get` has an item or an error; wait until that is known.

        Returns
        -------
        bool
            False at the end.
        """
        self.line.begin(self._start)
        return self.line.has_next(self._thread.is_alive)

    def close(self) -> None:
        """End the thread without waiting, as the end of a generator."""
        self.stop(wait=False)

    def __iter__(self) -> Self:
        return self

    __next__ = get

    def stop(self, *, wait: bool, patience: float = PATIENCE) -> bool:
        """End the thread, which gives the ring back.

        Parameters
        ----------
        wait : bool
            Whether to wait until it has ended. It ends when the source returns.
        patience : float, default 5
            Seconds to wait at most; a warning tells when that was too short.

        Returns
        -------
        bool
            Whether the thread has ended.
        """
        self.line.stop()
        known = self._thread.ident
        if wait and known not in (None, threading.get_ident()):
            self._thread.join(patience)
            if self._thread.is_alive():
                warnings.warn(
                    f"{self.line.name} is still making an item after {patience:g} s; "
                    "its thread ends, and gives its memory back, when that is done",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return not self._thread.is_alive()


class _Work:
    """What the thread does; knows everything but the producer."""

    def __init__(
        self,
        line: Line,
        source: Iterator[Any],
        ring: Ring | None,
        finished: Callable[[Any], Any] | None,
    ) -> None:
        self._line = line
        self._source = source
        self._ring = ring
        self._finished = finished

    def run(self, allocator: Callable[[], AbstractContextManager[Any]]) -> None:
        failure = _error_of(allocator, self._work)
        closing = _error_of(allocator, self._let_go)
        self._line.end(closing if failure is None else failure)
        del failure, closing  # they refer to frames that refer to all of this

    def _work(self) -> None:
        while self._line.wait_for_room() and self._make():
            pass

    def _make(self) -> bool:
        """Make an item and put it in line; False at the end."""
        item = self._pull() if self._ring is None else self._in_ring(self._ring)
        if item is _END:
            return False
        self._line.put(item)
        return True

    def _in_ring(self, ring: Ring) -> Any:
        if not self._fit(ring):
            return _END
        with ring:
            item = self._pull()
        self._line.depth.learned(ring.block_bytes)
        return item

    def _fit(self, ring: Ring) -> bool:
        """Give the ring as many blocks as the line is deep, or as there is room for.

        A consumer that takes an item lets go of the one before, which may be what the
        room is needed for. So a refusal stands only when nothing waits in line.

        False: no item is wanted any more.
        """
        depth, tried = self._line.depth, False
        while True:
            try:
                ring.fit(depth.capacity)
            except ResourceExhaustedError:
                if tried and not depth.refused(ring.fits):
                    raise
            else:
                return True
            if not tried and not self._line.wait_until_wanted():
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

    def _let_go(self) -> None:
        """Close the source and give the ring back, in the thread that used them."""
        with ExitStack() as stack:
            if self._ring is not None:
                stack.callback(self._ring.destroy)
            close = getattr(self._source, "close", None)
            del self._source
            if close is not None:
                close()


def _error_of(
    allocator: Callable[[], AbstractContextManager[Any]], act: Callable[[], None]
) -> BaseException | None:
    try:
        with allocator():
            act()
    except BaseException as error:
        return error
    return None


_running: Living[Producer] = Living()


def _stop_all() -> None:
    """Have no thread run into the end of the interpreter."""
    producers = _running.alive()
    for producer in producers:
        producer.stop(wait=False)
    end = time.monotonic() + _AT_EXIT
    for producer in producers:
        producer.thread.join(max(0.0, end - time.monotonic()))


atexit.register(_stop_all)

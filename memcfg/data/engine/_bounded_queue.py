"""What a background thread and its consumer share: a line of finished items.

Owns order, waiting, and the end: by exhaustion, by failure, by the consumer, by a fork.
Refuses to make items.

Invariants: ``len(items) < depth.capacity`` when an item is begun; a failure comes last;
after the end nothing is added.

A finalizer may run between any two instructions of a thread that holds the lock, so the
lock is re-entrant, and what finalizers call never waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from memcfg._core._live import Living
from memcfg.data.engine._condition import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Depth", "FixedDepth", "Line"]

_LOOK = 1.0  # seconds between two looks at whether a thread is alive


class Depth(Protocol):
    """How many items may wait."""

    @property
    def capacity(self) -> int:
        """How many, at least 1."""

    def learned(self, item_bytes: int) -> None:
        """Note what an item takes.

        Parameters
        ----------
        item_bytes : int
            Bytes.
        """

    def refused(self, fits: int) -> bool:
        """Note that there is no memory for so many items.

        Parameters
        ----------
        fits : int
            For how many there is; 0 or less: for none that waits.

        Returns
        -------
        bool
            Whether the capacity is at most `fits` now. False: the refusal is an error.
        """

    def consumed(self, waiting: int, waited: float) -> None:
        """Note that the consumer came, and choose the capacity anew.

        Parameters
        ----------
        waiting : int
            How many items waited when it came.
        waited : float
            Seconds that it waited for one.
        """


class FixedDepth:
    """A depth that stays.

    Parameters
    ----------
    capacity : int
        How many items may wait, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def learned(self, item_bytes: int) -> None:
        """Do nothing.

        Parameters
        ----------
        item_bytes : int
            Not used.
        """

    def refused(self, fits: int) -> bool:
        """Insist.

        Parameters
        ----------
        fits : int
            Not used.

        Returns
        -------
        bool
            False.
        """
        return False

    def consumed(self, waiting: int, waited: float) -> None:
        """Do nothing.

        Parameters
        ----------
        waiting : int
            Not used.
        waited : float
            Not used.
        """


class Line:
    """Items in order, from one thread to another.

    Parameters
    ----------
    depth : Depth
        How many items may wait.
    name : str
        For messages.

    Attributes
    ----------
    taken : int
        How many items the consumer got.
    waited : float
        Seconds that the consumer waited in all.
    """

    def __init__(self, depth: Depth, name: str) -> None:
        self.depth = depth
        self.name = name
        self.taken = 0
        self.waited = 0.0
        self._items: deque[Any] = deque()
        self._failure: BaseException | None = None
        self._ended = False  # no item will be added
        self._stopped = False  # nobody wants any
        self._begun = False
        self._wanting = 0  # consumers that wait
        self._process = os.getpid()
        self._make_locks()
        _lines.add(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        self._filled = Bell(self._lock)
        self._emptied = Bell(self._lock)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def stopped(self) -> bool:
        """Whether nobody wants items any more."""
        return self._stopped

    def begin(self, start: Callable[[], None]) -> None:
        """Have the thread started, unless it was, or nobody wants items any more.

        Parameters
        ----------
        start : callable
            Starts it. It waits for the thread, which may run a finalizer that stops
            this line, so the lock is not held.
        """
        with self._lock:
            if self._begun or self._stopped:
                return
            self._begun = True
        try:
            start()
        except BaseException:
            self._begun = False
            raise

    def wait_until_wanted(self) -> bool:
        """Wait until all items are taken, and the consumer waits for one.

        Returns
        -------
        bool
            False if none is wanted any more.
        """
        self._emptied.wait(lambda: self._stopped or (self._wanting and not self._items))
        return not self._stopped

    def wait_for_room(self) -> bool:
        """Wait until an item may be begun.

        Returns
        -------
        bool
            False if none is wanted any more.
        """
        self._emptied.wait(
            lambda: self._stopped or len(self._items) < self.depth.capacity
        )
        return not self._stopped

    def put(self, item: Any) -> None:
        """Add an item; it is dropped if nobody wants it any more.

        Parameters
        ----------
        item : object
            Anything.
        """
        with self._lock:
            if not self._stopped:
                self._items.append(item)
                self._filled.ring()

    def end(self, failure: BaseException | None = None) -> None:
        """Say that no item will follow.

        Parameters
        ----------
        failure : BaseException, optional
            To be raised behind the items that are there.
        """
        with self._lock:
            if not self._stopped:
                self._failure = failure
            self._ended = True
            self._filled.ring()

    def get(self, is_alive: Callable[[], bool]) -> Any:
        """Take the next item, in order.

        Parameters
        ----------
        is_alive : callable
            Whether somebody is there to add items.

        Returns
        -------
        object
            The item.

        Raises
        ------
        StopIteration
            At the end, or when the line was stopped.
        RuntimeError
            In a forked child, or if the thread is gone without a word.
        BaseException
            What ended the thread.
        """
        self._check_process()
        waiting, waited = len(self._items), 0.0
        while True:
            with self._lock:
                items = self._items  # a signal's handler may stop the line meanwhile
                if items:
                    item = items.popleft()
                    self.taken += 1
                    self.waited += waited
                    self.depth.consumed(waiting, waited)
                    self._emptied.ring()
                    return item
                if self._is_settled():
                    failure, self._failure = self._failure, None
                    break
            waited += self._wait_for_item(is_alive)
        if failure is None:
            raise StopIteration
        try:
            raise failure
        finally:
            del failure  # it refers to this frame by now

    def has_next(self, is_alive: Callable[[], bool]) -> bool:
        """Tell whether `get` will return or raise something of interest.

        Parameters
        ----------
        is_alive : callable
            Whether somebody is there to add items.

        Returns
        -------
        bool
            False at the end. It waits until that is known.

        Raises
        ------
        RuntimeError
            In a forked child, or if the thread is gone without a word.
        """
        self._check_process()
        while True:
            with self._lock:
                if self._is_settled():
                    return bool(self._items) or self._failure is not None
            self.waited += self._wait_for_item(is_alive)

    def stop(self) -> None:
        """Want no item any more; those that are there are dropped."""
        with self._lock:
            self._stopped = True
            self._failure = None
            self._filled.ring()
            self._emptied.ring()
            items, self._items = self._items, deque()
        del items  # with the lock released: finalizers may run

    def _wait_for_item(self, is_alive: Callable[[], bool]) -> float:
        began = time.perf_counter()
        with self._lock:
            self._wanting += 1
        try:
            self._emptied.ring()
            while not self._filled.wait(self._is_settled, _LOOK):
                if not (is_alive() or self._is_settled()):
                    self._ended = True
                    raise RuntimeError(f"the thread of {self.name} died without a word")
        finally:
            with self._lock:
                self._wanting -= 1
        return time.perf_counter() - began

    def _is_settled(self) -> bool:
        """Whether a consumer knows what comes."""
        return bool(self._items) or self._ended or self._stopped

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.name} has its thread in the process that was forked: make a "
                "new iterator in this one"
            )

    def forked(self) -> None:
        """Begin anew in a forked child, with no thread and nothing in line."""
        self._make_locks()
        self._stopped = True
        self._wanting = 0
        self._items = deque()
        self._failure = None


_lines: Living[Line] = Living()


def _forked() -> None:
    for line in _lines.alive():
        line.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

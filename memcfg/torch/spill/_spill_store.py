"""Where a planned step's tensors go: regions of bytes, under a limit."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from memcfg._core import fork_count
from memcfg.errors import ResourceExhaustedError
from memcfg.graph import Tier

if TYPE_CHECKING:
    import torch

    from memcfg.devices import SpillPlace


class Copy(Protocol):
    """Bytes on their way."""

    def wait(self) -> None:
        """Have whoever reads them, or takes their place, wait."""

    def settle(self) -> None:
        """Wait until nothing is on its way."""


class _Room:
    """The memory of a region, which ends when nobody has it."""

    __slots__ = ("__weakref__", "memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes


class Region:
    """Bytes of a tier for the copies of one step.

    Its store has them back when this is garbage-collected, so whatever ends a step
    early gives them back: whoever has a copy there holds the region.
    """

    __slots__ = ("_forks", "_room", "memory", "nbytes", "store")

    def __init__(self, store: Store, room: _Room) -> None:
        self.store = store
        self._room = room
        self.memory = room.memory
        self.nbytes = room.nbytes
        self._forks = fork_count()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork: its parent writes there."""
        if self._forks != fork_count():
            raise RuntimeError(
                "this process was forked between forward and backward, and only its "
                "parent can read what left: run forward again"
            )

    def __del__(self) -> None:
        if getattr(self, "_forks", None) == fork_count():  # None: not yet made
            self.store.free.append(self._room)


class Store(ABC):
    """Regions under a limit, made before a step and used by one after another.

    Parameters
    ----------
    spill : SpillPlace
        Where, and how many bytes at most.
    bytes_per_second : float
        What plans take a lane to copy.
    """

    name: str  # of the tier
    device: torch.device  # whose tensors leave

    def __init__(self, spill: SpillPlace, bytes_per_second: float) -> None:
        self._limit = spill.limit_bytes
        self.tier = Tier(self.name, bytes_per_second, spill.limit_bytes, True)
        self.free: deque[_Room] = deque()
        # What an interrupt has let go of at any line is then not counted.
        self._rooms: list[weakref.ref[_Room]] = []
        self._lock = threading.Lock()
        self._forks = fork_count()
        _all.add(self)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Store:
        return self

    @property
    def nbytes(self) -> int:
        """The bytes of all regions there are."""
        rooms = [each() for each in self._rooms]
        return sum(each.nbytes for each in rooms if each is not None)

    def reserve(self, nbytes: int) -> None:
        """Have a region ready: OSError or ResourceExhaustedError without room."""
        self.take(nbytes)

    def take(self, nbytes: int) -> Region:
        """Give a region of so many bytes, or more, to a step."""
        with self._lock:
            if self._forks != fork_count():  # all there is are the parent's
                self._forks = fork_count()
                self.free.clear()
                self._rooms = []
                self.start()
            there = []
            while self.free:  # others may append meanwhile
                there.append(self.free.popleft())
            fitting = [each for each in there if each.nbytes >= nbytes]
            if fitting:
                taken = min(fitting, key=lambda each: each.nbytes)
                there.remove(taken)
                self.free.extend(there)
                return Region(self, taken)
            there.clear()  # too small for this step; made anew for others
            self._rooms = [each for each in self._rooms if each() is not None]
            if self._limit is not None and self.nbytes + nbytes > self._limit:
                raise ResourceExhaustedError(
                    f"The tier {self.name!r} of planned steps is full: other steps "
                    "have run forward, and not yet backward.",
                    requested_bytes=nbytes,
                    in_use_bytes=self.nbytes,
                    limit_bytes=self._limit,
                    device=str(self.device),
                    hint="Run backward before the next forward, or raise spill_limit.",
                )
            room = _Room(self.make(nbytes), nbytes)
            self._rooms.append(weakref.ref(room))
            return Region(self, room)

    @abstractmethod
    def start(self) -> None:
        """Make what copies."""

    @abstractmethod
    def make(self, nbytes: int) -> Any:
        """Make the memory of a region; OSError if there is none."""

    @abstractmethod
    def copy_out(self, region: Region, offset: int, storage: Any) -> Copy:
        """Begin to copy a storage, which stays as it is meanwhile."""

    @abstractmethod
    def copy_in(self, region: Region, offset: int, storage: Any) -> Copy:
        """Begin to copy what was copied out to another storage."""


_all: weakref.WeakSet[Store] = weakref.WeakSet()


def _renew_locks() -> None:
    """Make new locks in the child of a fork, where no thread holds them."""
    for each in _all:
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

"""Where a planned step's tensors go: regions of bytes, under a limit."""

from __future__ import annotations

import threading
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


class Region:
    """Bytes of a tier for the copies of one step.

    Its store has them back when this is garbage-collected, so whatever ends a step
    early gives them back: whoever has a copy there holds the region.
    """

    __slots__ = ("_forks", "memory", "nbytes", "store")

    def __init__(self, store: Store, memory: Any, nbytes: int) -> None:
        self.store = store
        self.memory = memory
        self.nbytes = nbytes
        self._forks = fork_count()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork: its parent writes there."""
        if self._forks != fork_count():
            raise RuntimeError(
                "this process was forked between forward and backward, and only its "
                "parent can read what left: run forward again"
            )

    def __del__(self) -> None:
        if self._forks == fork_count():
            self.store.free.append((self.nbytes, self.memory))


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
        self.free: deque[tuple[int, Any]] = deque()
        self.nbytes = 0  # of all regions there are
        self._lock = threading.Lock()
        self._forks = fork_count()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Store:
        return self

    def reserve(self, nbytes: int) -> None:
        """Have a region ready: OSError or ResourceExhaustedError without room."""
        self.take(nbytes)

    def take(self, nbytes: int) -> Region:
        """Give a region of so many bytes, or more, to a step."""
        with self._lock:
            if self._forks != fork_count():  # all there is are the parent's
                self._forks = fork_count()
                self.free.clear()
                self.nbytes = 0
                self.start()
            there = []
            while self.free:  # others may append meanwhile
                there.append(self.free.popleft())
            fitting = [each for each in there if each[0] >= nbytes]
            if fitting:
                taken = min(fitting, key=lambda each: each[0])
                there.remove(taken)
                self.free.extend(there)
                return Region(self, taken[1], taken[0])
            for size, _ in there:  # too small for this step; made anew for others
                self.nbytes -= size
            there.clear()
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
            memory = self.make(nbytes)
            self.nbytes += nbytes
            return Region(self, memory, nbytes)

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

"""Extents of memory under a limit for tensors that leave, and the copies to them.

A planned step takes one extent for each pass, `memcfg.torch.saved_tensors` one for each
storage. An extent is returned when it is garbage-collected, so its bytes are freed even
after an error or an interrupt.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from memcfg._core import fork_count
from memcfg.graph import Tier
from memcfg.units import align_up

if TYPE_CHECKING:
    import torch

    from memcfg.torch.spill._media import Medium, Moving

_PAGE = 4096  # bytes: each extent begins on a page


class Copy:
    """A copy in progress between a tensor and an extent.

    It keeps both alive until it has been waited for. Dropping it earlier waits, since
    the memory may be reused next.
    """

    __slots__ = ("_moving", "_tensor", "extent")

    def __init__(self, moving: Moving, tensor: torch.Tensor, extent: Extent) -> None:
        self._moving: Moving | None = moving
        self._tensor: torch.Tensor | None = tensor
        self.extent = extent

    def wait(self) -> None:
        """Make readers and the next users of the memory wait, or raise OSError."""
        if self._moving is not None:
            self._moving.wait()
            self._moving = self._tensor = None

    def __del__(self) -> None:
        # None before the copy is made, and once it was waited for
        moving = getattr(self, "_moving", None)
        if moving is not None:
            moving.settle()
            self._moving = moving = None  # assigned before the tensor


class Extent:
    """Bytes of a store, which are returned to it when this is garbage-collected."""

    __slots__ = ("__weakref__", "_space", "nbytes", "offset")

    def __init__(self, space: _Space, offset: int, nbytes: int) -> None:
        self._space = space
        self.offset = offset
        self.nbytes = nbytes

    @property
    def is_ours(self) -> bool:
        """Whether this process took it, and not the parent that it was forked from."""
        return self._space.forks == fork_count()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork, since its parent writes there."""
        if not self.is_ours:
            raise RuntimeError(
                "this process was forked after tensors had left, which only its parent "
                "can read: run forward again"
            )

    def copy_out(self, source: torch.Tensor, at: int = 0) -> Copy:
        """Begin to copy out the bytes of a uint8 tensor, which must not change."""
        self.check_process()
        space = self._space
        made = space.medium.copy_out(space.memory, self.offset + at, source)
        return Copy(made, source, self)

    def copy_in(self, target: torch.Tensor, at: int = 0) -> Copy:
        """Begin to copy the bytes back to another tensor."""
        self.check_process()
        space = self._space
        made = space.medium.copy_in(space.memory, self.offset + at, target)
        return Copy(made, target, self)


class _Space:
    """One piece of memory, divided into extents by first fit.

    Only live extents are recorded; free bytes lie between them. A single assignment
    thus takes bytes, and an interrupt leaves nothing half done. Collecting an extent
    runs no Python code of memcfg, as it may happen in any thread, while any lock is
    held.
    """

    def __init__(self, medium: Medium, nbytes: int) -> None:
        self.medium = medium
        self.nbytes = nbytes
        self.forks = fork_count()
        self._live: dict[ref[Extent], tuple[int, int]] = {}  # offset and bytes
        self._gone: deque[ref[Extent]] = deque()
        self.memory = medium.make(nbytes)

    @property
    def in_use(self) -> int:
        """The bytes of extents that are alive."""
        self._settle()
        return sum(nbytes for _, nbytes in self._live.values())

    def take(self, nbytes: int) -> Extent | None:
        """Return the first free bytes that are enough, or None."""
        self._settle()
        start = 0
        for end, size in [*sorted(self._live.values()), (self.nbytes, 0)]:
            if end - start >= nbytes:
                made = Extent(self, start, min(end - start, align_up(nbytes, _PAGE)))
                weak = ref(made, self._gone.append)
                self._live[weak] = start, made.nbytes
                return made
            start = end + size
        return None

    def _settle(self) -> None:
        """Free the bytes of extents that were garbage-collected."""
        while self._gone:
            with suppress(TypeError):  # an extent that never had bytes has no hash
                self._live.pop(self._gone[0], None)
            self._gone.popleft()


class Store:
    """Extents of memory outside a device, under a limit.

    Memory is allocated when no free extent is large enough, in pieces of the requested
    size or of `least_bytes`. It is reused for later extents.

    Parameters
    ----------
    medium : Medium
        The kind of memory, and what copies.
    limit_bytes : int or None, default None
        The most bytes to allocate; None for no limit.
    least_bytes : int, default 0
        The smallest size of a piece, in bytes.
    """

    def __init__(
        self, medium: Medium, limit_bytes: int | None = None, *, least_bytes: int = 0
    ) -> None:
        self.medium = medium
        self.limit_bytes = limit_bytes
        self._least = least_bytes
        self._spaces: list[_Space] = []
        self._lock = threading.Lock()
        self._forks = fork_count()
        _all.add(self)

    @cached_property
    def tier(self) -> Tier:
        """The store as a tier of plans."""
        rate = self.medium.bytes_per_second()
        return Tier(self.medium.name, rate, self.limit_bytes, True)

    @property
    def nbytes(self) -> int:
        """The bytes of all its memory."""
        return sum(each.nbytes for each in self._spaces)

    @property
    def in_use(self) -> int:
        """The bytes of extents that are alive, in whole pages."""
        with self._lock:
            return sum(each.in_use for each in self._spaces)

    def take(self, nbytes: int) -> Extent | None:
        """Return an extent of at least so many bytes; None if the limit has no room.

        Raises OSError or ResourceExhaustedError if the memory cannot be allocated.
        """
        limit = self.limit_bytes
        with self._lock:
            if self._forks != fork_count():  # the existing memory is the parent's
                self._forks = fork_count()
                self._spaces = []
                self.medium.start()
            for space in sorted(self._spaces, key=attrgetter("nbytes")):
                extent = space.take(nbytes)
                if extent is not None:
                    return extent
            size = max(nbytes, self._least)
            if limit is not None and size > limit:
                return None
            # Unused pieces are too small; they are allocated again when needed.
            self._spaces = [each for each in self._spaces if each.in_use]
            if limit is not None and self.nbytes + size > limit:
                return None
            space = _Space(self.medium, size)
            self._spaces.append(space)
            return space.take(nbytes)


_all: WeakSet[Store] = WeakSet()


def _renew_locks() -> None:
    """Replace the locks in the child of a fork, where nobody can release them."""
    for each in _all:
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

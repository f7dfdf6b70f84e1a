"""Bytes elsewhere for tensors that leave: extents under a limit, and copies to them.

A planned step takes one extent for each pass, `memcfg.torch.saved_tensors` one for each
storage. An extent goes back when it is garbage-collected, so whatever ends early, by an
error or an interrupt, gives its bytes back.
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
    """Bytes on their way between a tensor and an extent.

    Both stay until the copy has been waited for. Whoever drops it before that waits,
    since the memory may be another's next.
    """

    __slots__ = ("_moving", "_tensor", "extent")

    def __init__(self, moving: Moving, tensor: torch.Tensor, extent: Extent) -> None:
        self._moving: Moving | None = moving
        self._tensor: torch.Tensor | None = tensor
        self.extent = extent

    def wait(self) -> None:
        """Have whoever reads the bytes, or takes their place, wait; OSError."""
        if self._moving is not None:
            self._moving.wait()
            self._moving = self._tensor = None

    def __del__(self) -> None:
        moving = getattr(self, "_moving", None)  # None: not yet made, or waited for
        if moving is not None:
            moving.settle()
            self._moving = moving = None  # before the tensor


class Extent:
    """Bytes of a store; it has them back when this is garbage-collected."""

    __slots__ = ("__weakref__", "_space", "nbytes", "offset")

    def __init__(self, space: _Space, offset: int, nbytes: int) -> None:
        self._space = space
        self.offset = offset
        self.nbytes = nbytes

    @property
    def is_ours(self) -> bool:
        """Whether this process took it, not the parent that it was forked from."""
        return self._space.forks == fork_count()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork: its parent writes there."""
        if not self.is_ours:
            raise RuntimeError(
                "this process was forked after tensors had left, which only its parent "
                "can read: run forward again"
            )

    def copy_out(self, source: torch.Tensor, at: int = 0) -> Copy:
        """Begin to copy the bytes of a tensor, of uint8, which stay as they are."""
        self.check_process()
        space = self._space
        made = space.medium.copy_out(space.memory, self.offset + at, source)
        return Copy(made, source, self)

    def copy_in(self, target: torch.Tensor, at: int = 0) -> Copy:
        """Begin to copy what was copied out to another tensor."""
        self.check_process()
        space = self._space
        made = space.medium.copy_in(space.memory, self.offset + at, target)
        return Copy(made, target, self)


class _Space:
    """One piece of memory elsewhere, given out by first fit.

    What lives is all that is known; what is free lies between. So one assignment takes
    bytes, and an interrupt before it, or after, leaves nothing half done. An extent
    that dies runs no Python of ours: it may die in any thread, while any lock is held.
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
        """The bytes of extents that live."""
        self._settle()
        return sum(nbytes for _, nbytes in self._live.values())

    def take(self, nbytes: int) -> Extent | None:
        """Take the first free bytes that are enough; None if there are none."""
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
        """Take back the bytes of extents that have died."""
        while self._gone:
            with suppress(TypeError):  # one that had no bytes yet has no hash either
                self._live.pop(self._gone[0], None)
            self._gone.popleft()


class Store:
    """Gives out extents of memory elsewhere, under a limit.

    Memory is taken when no free extent is large enough, in pieces of just the bytes
    that are asked for, or of `least_bytes`; it is used by one after another.

    Parameters
    ----------
    medium : Medium
        What the memory is, and what copies.
    limit_bytes : int or None, default None
        The most bytes that there may be; None: no limit.
    least_bytes : int, default 0
        The bytes of a piece at least.
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
        """What plans know of it."""
        rate = self.medium.bytes_per_second()
        return Tier(self.medium.name, rate, self.limit_bytes, True)

    @property
    def nbytes(self) -> int:
        """The bytes of all memory that it has."""
        return sum(each.nbytes for each in self._spaces)

    @property
    def in_use(self) -> int:
        """The bytes of extents that live, in whole pages."""
        with self._lock:
            return sum(each.in_use for each in self._spaces)

    def take(self, nbytes: int) -> Extent | None:
        """Give so many bytes, or a few more; None: the limit has no room for them.

        OSError or ResourceExhaustedError if the memory cannot be had.
        """
        limit = self.limit_bytes
        with self._lock:
            if self._forks != fork_count():  # all that there is is the parent's
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
            # What nobody uses is too small for this one; it is made anew for others.
            self._spaces = [each for each in self._spaces if each.in_use]
            if limit is not None and self.nbytes + size > limit:
                return None
            space = _Space(self.medium, size)
            self._spaces.append(space)
            return space.take(nbytes)


_all: WeakSet[Store] = WeakSet()


def _renew_locks() -> None:
    """Make new locks in the child of a fork, where no thread holds them."""
    for each in _all:
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

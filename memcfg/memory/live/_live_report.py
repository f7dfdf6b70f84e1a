"""A live report: the pools of a process at one moment, their limits and owners."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from memcfg._core import get_host_limits, live_resources, resident_bytes, tracked_bytes
from memcfg._terminal import printable
from memcfg.documents import (
    Key,
    keys_of,
    read_as,
    read_count,
    read_document,
    read_list,
    read_or_null,
    write_json,
)
from memcfg.memory._census import base_of, kind_of, label_of

if TYPE_CHECKING:
    from typing import Self

    from memcfg._core import Resource

__all__ = ["LiveOwner", "LivePool", "LiveReport"]

_KIND, _FORMAT = "live report", "memcfg live report 1"
_OWNERS = 20  # of a pool, the largest ones


@dataclass(frozen=True, slots=True)
class LiveOwner:
    """A tag and the bytes in use under it, each block rounded up to 64."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LivePool:
    """A pool or another resource with memory of its own."""

    name: str
    kind: str
    limit_bytes: int | None
    current_bytes: int
    peak_bytes: int
    reserved_bytes: int
    owners: tuple[LiveOwner, ...]  # the largest first
    more_owners: int  # that are not listed

    @classmethod
    def of(cls, resource: Resource) -> Self:
        """Look at a resource now."""
        stats, owners = resource.stats(), resource.owners()
        ranked = sorted(owners.items(), key=lambda owner: (-owner[1], owner[0]))
        return cls(
            printable(label_of(resource)),
            kind_of(resource),
            stats.limit_bytes,
            stats.current_bytes,
            stats.peak_bytes,
            stats.reserved_bytes,
            tuple(LiveOwner(printable(name), n) for name, n in ranked[:_OWNERS]),
            max(len(ranked) - _OWNERS, 0),
        )


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The memory of a process at one moment."""

    pid: int
    program: str
    time: float  # of the moment, in seconds since 1970
    tracked_bytes: int
    resident_bytes: int
    tracked_limit_bytes: int | None
    resident_limit_bytes: int | None
    pools: tuple[LivePool, ...]

    @classmethod
    def of_this_process(cls) -> Self:
        """Look at all resources that have memory of their own."""
        tracked_limit, resident_limit = get_host_limits()
        alive = live_resources.alive()
        return cls(
            os.getpid(),
            printable(os.path.basename(sys.argv[0])) if sys.argv else "",
            time.time(),
            tracked_bytes(),
            resident_bytes(),
            tracked_limit,
            resident_limit,
            tuple(LivePool.of(each) for each in alive if base_of(each) is each),
        )

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read a document; FormatError if it is none of this version."""
        text = data.decode("utf-8", "surrogateescape")
        return cls(**read_document(text, _KIND, _FORMAT, _REPORT))

    def document(self) -> bytes:
        """Return the report as a document."""
        return write_json({"format": _FORMAT, **asdict(self)}).encode()


_SIZE_OR_NONE = read_or_null(read_count)
_POOL = keys_of(
    LivePool,
    limit_bytes=_SIZE_OR_NONE,
    owners=read_list(read_as(LiveOwner, keys_of(LiveOwner))),
)
_REPORT: dict[str, Key] = keys_of(
    LiveReport,
    tracked_limit_bytes=_SIZE_OR_NONE,
    resident_limit_bytes=_SIZE_OR_NONE,
    pools=read_list(read_as(LivePool, _POOL)),
)

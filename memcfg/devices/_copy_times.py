"""The bandwidth of copies to a tier and back, measured once and kept on disk."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg.devices._algorithm_times import shortest_run
from memcfg.errors import KernelError, ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg._core import Arena
    from memcfg.devices._algorithm_times import AlgorithmTimes
    from memcfg.devices._contract import Device
    from memcfg.devices._tiers import TierSpace
    from memcfg.memory import Pool

# The largest size comes first: copies of 16 MiB stayed in a last-level cache of 32 MiB
# and ran at 45 GB/s where 64 MiB ran at 8 GB/s. Lanes do not call fsync, so neither
# does the measurement.
# bytes, from 64 MiB to 1 MiB; the first that fits is used
_SIZES = tuple(1 << power for power in range(26, 19, -1))
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class _Copies:
    """Copies out and in, measured as if they were a kernel (`MeasuredKernel`)."""

    device: Device
    tier: str
    make: Callable[[Arena, TierSpace], Any]

    algorithm = "copy"
    scratch_bytes = 0

    def measure(self, pool: Pool) -> float:
        """Return the seconds per byte of the slower direction; 0 if there is no room.

        As many bytes are copied as the pool and the tier have room for, up to 64 MiB.
        """
        limit = self.device.spill.at(self.tier).limit_bytes
        for nbytes in _SIZES:
            try:
                if limit is None or nbytes <= limit:
                    return self._seconds(pool, nbytes) / nbytes
            except (ResourceExhaustedError, OSError):
                continue  # such as a full disk, which is reported when it is used
            except KernelError:
                break  # a copy that hangs would hang again
        return 0.0

    def _seconds(self, pool: Pool, nbytes: int) -> float:
        limit, owner = self.device.tier_limit, _Owner()
        limit.reserve(owner, {self.tier: nbytes})
        # frees its memory when it is garbage-collected
        arena = pool.arena(tag="measurement")
        try:
            arena.grow(nbytes)
            self.device.zero(arena, 0, nbytes)
            memory = self.device.tier_memory(self.tier, nbytes, tag="measurement")
            ways = (1, (0, 0), (1, 0)), (2, (1, 0), (0, 0))
            taken = []
            for queue, source, target in ways:
                program = self.make(arena, memory)
                program.copy(queue, source, target, nbytes)
                taken.append(shortest_run(program.run))
            return max(taken)
        finally:
            limit.reserve(owner, {})


class _Owner:
    """The owner of reserved bytes of a tier."""


def copy_rate(
    device: Device,
    tier: str,
    times: AlgorithmTimes,
    make: Callable[[Arena, TierSpace], Any],
    machine: Sequence[str] | None = None,
) -> float:
    """Return the bytes per second that lanes copy in the slower direction, or 0.

    It is 0 if there is no room. `make` makes an empty program of an arena and memory of
    the tier, whose lanes have no bandwidth limit. Measurements are kept in `times`, and
    with `machine` also in files.
    """
    copies = _Copies(device, tier, make)
    op = ("copy", {"tier": tier, "folder": device.spill.at(tier).folder or ""}, (), ())
    if machine is not None:
        # the key of the machine includes the file system
        op = ("copy", {"tier": tier}, (), ())
    ((_, _, seconds),) = times.rows(op, [copies], device.pool, machine)
    return 1 / seconds if seconds else 0.0


def filesystem_of(folder: str) -> str:
    """Return what identifies a folder's file system: mount point, type and source."""
    whole = os.path.realpath(folder)
    result: tuple[str, ...] = ()
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        before, _, behind = line.partition(" - ")
        fields, more = before.split(), behind.split()
        if len(fields) < 5 or len(more) < 2:
            continue
        place = _ESCAPED.sub(lambda each: chr(int(each[1], 8)), fields[4])
        inside = os.path.commonpath([whole, place]) == place
        if inside and (not result or len(place) >= len(result[0])):
            result = (place, more[0], more[1])
    return " ".join(result)

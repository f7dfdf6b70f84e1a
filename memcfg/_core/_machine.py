"""The memory and the cores of this machine that the process may use.

Owns the reading of these numbers from the operating system, without caching.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cores", "machine_bytes"]


def machine_bytes() -> int:
    """Return the machine's memory, or its control group's limit if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *group_limits()])


def cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def group_limits() -> Iterator[int]:
    """Yield the limits of the process's control group and its parents: cgroups(7)."""
    for folder, file in _groups():
        for each in (folder, *folder.parents):
            try:
                limit = (each / file).read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                continue
            if limit.isdecimal() and int(limit):
                yield int(limit)


def _groups() -> Iterator[tuple[Path, str]]:
    """Read the lines ``number:controllers:/path``; version 2 names no controllers."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number, controllers) == ("0", ""):
            yield Path("/sys/fs/cgroup", path.lstrip("/")), "memory.max"
        if "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup", "memory", path.lstrip("/"))
            yield folder, "memory.limit_in_bytes"

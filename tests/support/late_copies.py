"""Stand-ins for a GPU's copies: on the CPU, and as late as they may be.

A copy is made when it is waited for, by a stream or by the host. So who reads bytes
that were not waited for, or gives memory away before, has others.
"""

from __future__ import annotations

import torch
from internals import replace_copies_of_gpus

COUNTS = {"made": 0, "dropped": 0, "locked": 0}


class Locked:
    """Memory like any other."""

    def __init__(self, nbytes: int) -> None:
        self.tensor = torch.full((nbytes,), 0xA5, dtype=torch.uint8)
        COUNTS["locked"] += nbytes


class LateCopy:
    """A copy that waits until somebody else waits for it."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._pair = target, source

    def wait(self) -> None:
        target, source = self._pair
        target.copy_(source)
        self._pair = torch.empty(0), torch.empty(0)
        COUNTS["made"] += 1

    def settle(self) -> None:
        self.wait()
        COUNTS["dropped"] += 1


class LateStreams:
    """Copies of which each is late."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> LateCopy:
        return LateCopy(target, source)

    def copy_out(self, target, source, after=()) -> LateCopy:
        for each in after:
            each.wait()
        return LateCopy(target, source)


def install(monkeypatch) -> dict[str, int]:
    """Put them where memcfg's own are; gives what they count."""
    COUNTS.update(dict.fromkeys(COUNTS, 0))
    replace_copies_of_gpus(monkeypatch, Locked, LateStreams)
    return COUNTS

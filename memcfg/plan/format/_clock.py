"""The clock of a step: ops run one after another, and copies beside them.

Each tier has two lanes, one for each direction, on which copies run one after another.
Whoever walks through a schedule or a plan says what happens next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.graph import NOMINAL_CODECS

if TYPE_CHECKING:
    from memcfg.graph import Op


@dataclass
class Clock:
    """Seconds since a step began, as one event after another is told."""

    now: float = 0.0  # when the last op, or what it waited for, has ended
    stall_seconds: float = 0.0  # that ops waited for copies
    # When each lane has ended its copies, by tier and direction.
    _free: dict[tuple[str | None, str], float] = field(default_factory=dict, init=False)

    @property
    def elapsed_seconds(self) -> float:
        """When everything has ended, copies too."""
        return max((self.now, *self._free.values()))

    def run(self, seconds: float) -> None:
        """Run an op."""
        self.now += seconds

    def swap_out(self, seconds: float, tier: str | None = None) -> float:
        """Start a copy out, behind those before it; return when it ends."""
        return self.copy((tier, "out"), seconds)[1]

    def swap_in(self, seconds: float, tier: str | None = None) -> float:
        """Start a copy in, behind those before it; return when it ends."""
        return self.copy((tier, "in"), seconds)[1]

    def copy(self, lane: tuple[str | None, str], seconds: float) -> tuple[float, float]:
        """Start a copy on a lane; return when it begins and when it ends."""
        begin = max(self.now, self._free.get(lane, 0.0))
        end = self._free[lane] = begin + seconds
        return begin, end

    def wait(self, end: float) -> float:
        """Have ops wait for a copy; return for how long."""
        waited = max(end - self.now, 0.0)
        self.now = max(self.now, end)
        self.stall_seconds += waited
        return waited


def lane_seconds(moved: int, rate: float | None, coding: float) -> float:
    """Return the seconds of a copy of so many bytes; without a rate they take none.

    A lane encodes or decodes while it moves, so the slower of both counts.
    """
    return max(moved / rate, coding) if rate else coding


def encode_seconds(codec: str | None, nbytes: int) -> float:
    """Return the nominal seconds of encoding a tensor of so many bytes."""
    speed = NOMINAL_CODECS.get(codec) if codec else None
    return nbytes / speed.encode if speed else 0.0


def decode_seconds(codec: str | None, nbytes: int) -> float:
    """Return the nominal seconds of decoding to a tensor of so many bytes."""
    speed = NOMINAL_CODECS.get(codec) if codec else None
    return nbytes / speed.decode if speed else 0.0


def cost_of(op: Op, algorithm: str | None) -> tuple[float, int]:
    """Return seconds and scratch bytes; KeyError if there is no such algorithm."""
    if algorithm is None:
        return op.seconds, op.scratch_bytes
    choice = {each.name: each for each in op.algorithms}[algorithm]
    return choice.seconds, choice.scratch_bytes

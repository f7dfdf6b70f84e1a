"""The simulated clock of a step: ops run in sequence, copies in parallel with them.

Each tier has two lanes, one per direction, on which copies run in sequence; collectives
run in sequence on a network. The caller reports ops, copies, collectives and waits in
order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.graph import NOMINAL_CODECS
from memcfg.plan.format._collectives import NETWORK

if TYPE_CHECKING:
    from memcfg.graph import Op


@dataclass
class Clock:
    """Seconds since the start of a step, advanced by the reported events."""

    now: float = 0.0  # end of the last op or wait
    stall_seconds: float = 0.0  # total time that ops waited
    # tier and direction of a lane, or the network -> end of its last task
    _free: dict[tuple[str | None, str], float] = field(default_factory=dict, init=False)

    @property
    def elapsed_seconds(self) -> float:
        """The time at which all ops and copies have ended."""
        return max((self.now, *self._free.values()))

    def run(self, seconds: float) -> None:
        """Run an op."""
        self.now += seconds

    def swap_out(self, seconds: float, tier: str | None = None) -> float:
        """Queue a copy out on its lane; return when it ends."""
        return self.copy((tier, "out"), seconds)[1]

    def swap_in(self, seconds: float, tier: str | None = None) -> float:
        """Queue a copy in on its lane; return when it ends."""
        return self.copy((tier, "in"), seconds)[1]

    def copy(self, lane: tuple[str | None, str], seconds: float) -> tuple[float, float]:
        """Queue a copy on a lane; return when it begins and when it ends."""
        begin = max(self.now, self._free.get(lane, 0.0))
        end = self._free[lane] = begin + seconds
        return begin, end

    def start(self, seconds: float) -> tuple[float, float]:
        """Queue a collective; return when it begins and when it ends."""
        return self.copy((None, NETWORK), seconds)

    def wait(self, end: float) -> float:
        """Wait until `end`; return the seconds waited."""
        waited = max(end - self.now, 0.0)
        self.now = max(self.now, end)
        self.stall_seconds += waited
        return waited


def lane_seconds(moved: int, rate: float | None, coding: float) -> float:
    """Return the seconds of a copy; without a rate, moving takes no time.

    A lane encodes or decodes while it moves bytes, so the slower of the two counts.
    """
    return max(moved / rate, coding) if rate else coding


def encode_seconds(codec: str | None, nbytes: int) -> float:
    """Return the nominal seconds of encoding a tensor; 0 without a nominal speed."""
    speed = NOMINAL_CODECS.get(codec) if codec else None
    return nbytes / speed.encode if speed else 0.0


def decode_seconds(codec: str | None, nbytes: int) -> float:
    """Return the nominal seconds of decoding a tensor; 0 without a nominal speed."""
    speed = NOMINAL_CODECS.get(codec) if codec else None
    return nbytes / speed.decode if speed else 0.0


def cost_of(op: Op, algorithm: str | None) -> tuple[float, int]:
    """Return an algorithm's seconds and scratch bytes; KeyError if it is unknown."""
    if algorithm is None:
        return op.seconds, op.scratch_bytes
    choice = {each.name: each for each in op.algorithms}[algorithm]
    return choice.seconds, choice.scratch_bytes

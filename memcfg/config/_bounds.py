"""How large the limits on one piece of hardware may be.

Owns the two bounds above every limit: the hardware's own memory, and the ceiling that
the user set in the environment. The same rules hold when devices are made and when a
limit changes later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memcfg.config._environment import LIMITS
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.config._settings import Demands
    from memcfg.config._types import PhysicalDevice
    from memcfg.devices import Hardware

__all__ = ["Bounds", "Share"]


class Share(NamedTuple):
    """What one logical device has of its hardware.

    Attributes
    ----------
    limit_bytes : int or None
        Its limit; None is no limit.
    growth : bool
        Whether it takes memory as it needs it; else it has its whole limit.
    """

    limit_bytes: int | None
    growth: bool


@dataclass(frozen=True)
class Bounds:
    """What bounds the logical devices of one piece of hardware.

    Attributes
    ----------
    name : str
        The hardware's name.
    memory_bytes : int or None
        The memory that is the hardware's own; None for a CPU, which uses the
        machine's.
    ceiling_bytes : int or None
        The environment's, on all logical devices together; None without one.
    """

    name: str
    memory_bytes: int | None
    ceiling_bytes: int | None

    @classmethod
    def of(cls, device: PhysicalDevice, hardware: Hardware, demands: Demands) -> Bounds:
        """Collect the bounds of a piece of hardware."""
        memory = hardware.memory_bytes if hardware.bounded else None
        return cls(device.name, memory, demands.ceilings.get(device))

    def most(self, growth: bool, others: Sequence[Share]) -> int | None:
        """Return the largest limit beside what others have; None without a bound."""
        bounds: list[int] = []
        if self.memory_bytes is not None:
            taken = 0 if growth else _total(s for s in others if not s.growth)
            bounds.append(self.memory_bytes - taken)
        if self.ceiling_bytes is not None:
            bounds.append(self.ceiling_bytes - _total(others))
        return min(bounds, default=None)

    def check(self, shares: Sequence[Share]) -> None:
        """Raise ValueError if limits do not go with the bounds."""
        if self.memory_bytes is not None:
            self._check_memory(self.memory_bytes, shares)
        if self.ceiling_bytes is not None:
            self._check_ceiling(self.ceiling_bytes, shares)

    def _check_memory(self, memory_bytes: int, shares: Sequence[Share]) -> None:
        largest = max((s.limit_bytes or 0 for s in shares), default=0)
        if largest > memory_bytes:
            raise ValueError(
                f"a memory limit of {_exact(largest)} is more than {self.name} has: "
                f"{_exact(memory_bytes)}"
            )
        taken = _total(share for share in shares if not share.growth)
        if taken > memory_bytes:
            raise ValueError(
                f"the logical devices of {self.name} take {_exact(taken)} at once, and "
                f"it has {_exact(memory_bytes)}: lower a memory limit, or let them grow"
            )

    def _check_ceiling(self, ceiling_bytes: int, shares: Sequence[Share]) -> None:
        ceiling = f"{LIMITS} allows {_exact(ceiling_bytes)} on {self.name}"
        if any(share.limit_bytes is None for share in shares):
            raise ValueError(f"{ceiling}: give each logical device a memory limit")
        total = _total(shares)
        if total > ceiling_bytes:
            raise ValueError(
                f"{ceiling}, and the memory limits configured there come to "
                f"{_exact(total)}"
            )


def _total(shares: Iterable[Share]) -> int:
    return sum(share.limit_bytes or 0 for share in shares)


def _exact(nbytes: int) -> str:
    return format_bytes(nbytes, exact=True)

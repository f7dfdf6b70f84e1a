"""How much of a device's memory is in use, and whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.units import format_bytes

if TYPE_CHECKING:
    from typing import Self

    from memcfg.memory import Resource

__all__ = ["MemoryUse"]


class MemoryUse(NamedTuple):
    """The bytes in use at one moment, their limit, and who has them."""

    in_use: int
    limit: int | None
    owners: dict[str, int]

    @classmethod
    def of(cls, pool: Resource) -> Self:
        """Look at a pool now."""
        stats = pool.stats()
        return cls(stats.current_bytes, stats.limit_bytes, pool.owners())

    @property
    def share(self) -> float | None:
        """The part of the limit that is in use; None without a limit."""
        return None if self.limit is None else min(self.in_use / self.limit, 1.0)

    def words(self) -> list[str]:
        """Say how much is in use, and whose part it is, the largest owner first."""
        used = format_bytes(self.in_use)
        bound = (
            "without a limit"
            if self.limit is None
            else f"of {format_bytes(self.limit)}"
        )
        ranked = sorted(self.owners.items(), key=lambda owner: -owner[1])
        total = max(sum(self.owners.values()), 1)
        owners = [f"{name} {nbytes / total:.0%}" for name, nbytes in ranked]
        return [f"{used} {bound}", *owners]

"""What a workspace is told, for the oracle: its rules, and a block that was made."""

from __future__ import annotations

from dataclasses import dataclass


def up(nbytes: int, alignment: int = 64) -> int:
    """Round a size up."""
    return -(-nbytes // alignment) * alignment


@dataclass(frozen=True)
class Rules:
    """What a configuration comes to."""

    initial: int = 0
    min_size: int = 0
    max_size: int | None = None
    overallocation: float | None = 0.3  # None: STRICT
    circular: bool = False
    learning: str = "first_loop"
    learning_cycles: int = 0
    spill: str = "external"
    reclaim: bool = False
    overwrites: bool = False  # on_escape="invalidate"
    alignment: int = 64
    upstream: bool = False

    @property
    def ring_blocks(self) -> int:
        if self.circular and self.overallocation is not None:
            return int(self.overallocation + 1)
        return 1

    def clamped(self, size: int) -> int:
        return size if self.max_size is None else min(size, self.max_size)

    def larger(self, size: int) -> int:
        return size + int(size * (self.overallocation or 0))


@dataclass(eq=False)
class Made:
    """A block that was asked for."""

    kind: str  # page, spilled, pinned
    offset: int  # in the page
    size: int  # rounded up
    generation: int
    page: int  # which of a ring's, from 1 on
    live: bool = True
    counted: bool = True

    @property
    def end(self) -> int:
        return self.offset + self.size if self.kind == "page" else 0


class FullError(Exception):
    """The spill policy is FAIL, and it does not fit."""

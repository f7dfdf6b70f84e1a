"""Text on pools: a line of numbers, and bars of their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcfg._core._stats import PoolStats

__all__ = ["describe", "fill_bar", "occupancy_bar"]

_LETTERS = {"block": "*", "cached": "x", "memory": ".", "addresses": "_"}


def describe(kind: str, name: str, stats: PoolStats) -> str:
    """Return a resource's numbers in one line, as for a ``repr``."""
    limit = stats.limit_bytes
    bound = "" if limit is None else f" of {format_bytes(limit)}"
    words = [kind, repr(name)] if name else [kind]
    return (
        f"<{' '.join(words)}: {format_bytes(stats.current_bytes)}{bound} in use, "
        f"{format_bytes(stats.reserved_bytes)} reserved>"
    )


def fill_bar(in_use: int, kept: int, free: int, unused: int, width: int) -> str:
    """Draw amounts of bytes side by side; a cell shows the amount it begins with."""
    total = in_use + kept + free + unused
    if total == 0:
        return ""
    bar, drawn, end = "", 0, 0
    for letter, nbytes in zip("*x._", (in_use, kept, free, unused), strict=True):
        end += nbytes
        last = -(-end * width // total)  # a cell that has begun counts
        bar += letter * (last - drawn)
        drawn = last
    return bar


def occupancy_bar(extents: Iterable[tuple[str, int, int]], width: int) -> str:
    """Draw ranges of addresses; each cell shows the state of most of its memory.

    Each extent has a state (``"block"``, ``"cached"`` or ``"free"``), its bytes, and
    how many of these have memory.
    """
    pieces = list(_pieces(extents))
    total = sum(nbytes for _, nbytes in pieces)
    if total == 0:
        return ""
    cells = [dict.fromkeys(_LETTERS, 0) for _ in range(width)]
    start = 0  # in bytes times width, so that cells are exact
    for state, nbytes in pieces:
        end = start + nbytes * width
        for cell in range(start // total, -(-end // total)):
            left, right = cell * total, (cell + 1) * total
            cells[cell][state] += min(end, right) - max(start, left)
        start = end
    return "".join(_LETTERS[_shown(cell)] for cell in cells)


def _shown(cell: dict[str, int]) -> str:
    """Return the state with the most bytes; addresses only if nothing has memory."""
    cell.pop("addresses")
    state = max(cell, key=cell.__getitem__)
    return state if cell[state] > 0 else "addresses"


def _pieces(extents: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int]]:
    """Divide free extents into a part with memory and one without."""
    for state, nbytes, committed in extents:
        if state != "free":
            yield state, nbytes
            continue
        yield "memory", committed
        yield "addresses", nbytes - committed

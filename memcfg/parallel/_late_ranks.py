"""What an error says of ranks that did not arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["late", "named"]


def named(ranks: Collection[int]) -> str:
    """Name ranks: ``rank 1``, ``ranks 0 and 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, sorted(ranks)))}"


def late(ranks: Collection[int], timeout: float) -> str:
    """Say which ranks did not arrive."""
    return (
        f"{named(ranks)} did not arrive at a collective within {timeout:g} s: "
        "it failed, hangs, or is slower than the timeout"
    )

"""Choice of each op's algorithm and scratch."""

from __future__ import annotations

__all__: list[str] = []

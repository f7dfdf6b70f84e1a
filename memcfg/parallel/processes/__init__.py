"""Ranks that are processes, over MPI: the group, its messages, and who sums what."""

from __future__ import annotations

__all__: list[str] = []

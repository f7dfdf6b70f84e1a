"""Which algorithm each op takes, and the scratch that it needs."""

from __future__ import annotations

__all__: list[str] = []

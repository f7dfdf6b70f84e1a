"""Progress of passes over data: bars of terminals, cells of notebooks, lines."""

from __future__ import annotations

__all__: list[str] = []

"""How a model is trained: compiled programs, steps, epochs."""

from __future__ import annotations

__all__: list[str] = []

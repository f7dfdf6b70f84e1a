"""Training: compiled programs, steps and epochs."""

from __future__ import annotations

__all__: list[str] = []

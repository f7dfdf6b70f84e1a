"""Methods that swap tensors: events, their simulated times, and searches."""

from __future__ import annotations

__all__: list[str] = []

"""All CPU tensors of the process in one pool, under a hard limit."""

from __future__ import annotations

__all__: list[str] = []

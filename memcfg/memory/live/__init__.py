"""What a running process tells others of its memory, where its user can read it."""

from __future__ import annotations

__all__: list[str] = []

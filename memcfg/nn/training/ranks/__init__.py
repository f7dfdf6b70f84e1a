"""What several ranks compute of a step, and hold of its state."""

from __future__ import annotations

__all__: list[str] = []

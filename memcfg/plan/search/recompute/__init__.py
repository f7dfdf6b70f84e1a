"""Methods that recompute ops of the forward phase."""

from __future__ import annotations

__all__: list[str] = []

"""Places that tensors of a device are moved to, and the copies there and back."""

from __future__ import annotations

__all__: list[str] = []

"""Where tensors go that leave a device, and the copies there and back."""

from __future__ import annotations

__all__: list[str] = []

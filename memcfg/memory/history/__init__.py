"""What happened in pools: their events, recorded while somebody asks for them."""

from __future__ import annotations

__all__: list[str] = []

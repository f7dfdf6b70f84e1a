"""The commands ``memcfg compress`` and ``memcfg predict``."""

from __future__ import annotations

__all__: list[str] = []

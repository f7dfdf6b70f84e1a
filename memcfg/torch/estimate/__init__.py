"""What a step will need, before there is one."""

from __future__ import annotations

__all__: list[str] = []

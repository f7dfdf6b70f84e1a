"""Plans that are kept from one process to the next."""

from __future__ import annotations

__all__: list[str] = []

"""What ``memcfg COMMAND`` runs: a command calls the library and prints."""

from __future__ import annotations

__all__: list[str] = []

"""What ``memcfg COMMAND`` runs: a command asks the rooms below and prints."""

from __future__ import annotations

__all__: list[str] = []

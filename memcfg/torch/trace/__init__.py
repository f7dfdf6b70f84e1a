"""A traced step as a graph of storages, with the needs of its loss and optimizer."""

from __future__ import annotations

__all__: list[str] = []

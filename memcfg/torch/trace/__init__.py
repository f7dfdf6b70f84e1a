"""A traced step as a graph of storages, and what its ops, loss and optimizer need."""

from __future__ import annotations

__all__: list[str] = []

"""Collectives beside compute: orders, waits, and what a link allows."""

from __future__ import annotations

__all__: list[str] = []

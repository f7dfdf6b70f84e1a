"""Crash reports: what they say, when they are written, and where."""

from __future__ import annotations

__all__: list[str] = []

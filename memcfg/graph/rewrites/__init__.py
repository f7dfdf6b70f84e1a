"""Rewrites of a graph into one that computes the same with less memory or work."""

from __future__ import annotations

__all__: list[str] = []

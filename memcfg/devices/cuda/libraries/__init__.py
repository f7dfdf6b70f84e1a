"""NVIDIA's libraries: where they are installed, and calls of their functions."""

from __future__ import annotations

__all__: list[str] = []

"""Predictions of what a training step will need, without running it."""

from __future__ import annotations

__all__: list[str] = []

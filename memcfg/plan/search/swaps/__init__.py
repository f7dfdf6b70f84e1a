"""Schedules in which tensors leave the device: events, their time, and searches."""

from __future__ import annotations

__all__: list[str] = []

"""Schedules that compute ops of the forward phase again."""

from __future__ import annotations

__all__: list[str] = []

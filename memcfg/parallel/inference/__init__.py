"""Requests of many threads to one model, and the workers that answer them."""

from __future__ import annotations

__all__: list[str] = []

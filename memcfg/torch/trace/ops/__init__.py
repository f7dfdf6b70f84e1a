"""Ops that a trace would otherwise have in another form than eager mode."""

from __future__ import annotations

__all__: list[str] = []

"""Commands that predict what a model of another library needs."""

from __future__ import annotations

__all__: list[str] = []

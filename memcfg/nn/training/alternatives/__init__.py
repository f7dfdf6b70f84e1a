"""What a model does, and says, if a program does not fit."""

from __future__ import annotations

__all__: list[str] = []

"""Workspace modes of a model's steps, and named workspaces by kind of array."""

from __future__ import annotations

__all__: list[str] = []

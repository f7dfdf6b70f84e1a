"""A model whose steps are traced, planned within a limit, and run as planned."""

from __future__ import annotations

__all__: list[str] = []

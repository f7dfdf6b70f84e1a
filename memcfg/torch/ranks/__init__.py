"""Models that ranks train together: what wrappers hold, and what ranks agree on."""

from __future__ import annotations

__all__: list[str] = []

"""Parts of a model that are planned where the whole cannot be traced.

See docs/decisions/0041-parts-of-a-model-are-planned.md.
"""

from __future__ import annotations

__all__: list[str] = []

"""How plans are found: requests, schedules, clocks, swaps, and what `auto` tries.

Stands on `memcfg.plan.format`, and knows nothing of `memcfg.plan.methods`.
"""

from __future__ import annotations

__all__: list[str] = []

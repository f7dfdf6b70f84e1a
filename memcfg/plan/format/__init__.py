"""What a plan is, and what checks it: actions, placement, simulator, validator.

Knows neither `memcfg.plan.search` nor `memcfg.plan.methods`: whoever reads or runs a
plan needs none of what made it.
"""

from __future__ import annotations

__all__: list[str] = []

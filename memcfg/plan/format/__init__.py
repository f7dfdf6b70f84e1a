"""What a plan is, and what checks it: actions, placement, simulator, validator.

Knows neither `memcfg.plan.search` nor `memcfg.plan.methods`: whoever reads or runs a
plan needs none of what made it. Most names are in `memcfg.plan`.
"""

from __future__ import annotations

from memcfg.plan.format._codec_bytes import code_bytes

__all__ = ["code_bytes"]

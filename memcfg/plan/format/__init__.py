"""Plans and their actions, placement, the simulator and the validator.

Does not import `memcfg.plan.search` or `memcfg.plan.methods`: reading or running a plan
does not require the code that made it. Most names are also in `memcfg.plan`.
"""

from __future__ import annotations

from memcfg.plan.format._codec_bytes import code_bytes

__all__ = ["code_bytes"]

"""Where, above memcfg's own functions, a warning is to point."""

from __future__ import annotations

import sys


def outside() -> int:
    """Return the `stacklevel` of the first frame that is not memcfg's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "memcfg"

"""Where, above memcfg's own functions, a warning is to point."""

from __future__ import annotations

import sys
from typing import Any


def outside(*others: str) -> int:
    """Return the `stacklevel` of the first frame that is not memcfg's, nor others'."""
    passed = {"memcfg", *others}
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in passed:
        level, frame = level + 1, frame.f_back
    return level


def _package(names: dict[str, Any]) -> str:
    module: str = names.get("__name__", "")
    return module.partition(".")[0]

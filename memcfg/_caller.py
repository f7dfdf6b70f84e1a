"""The stack level of the user's code, for warnings."""

from __future__ import annotations

import sys
from typing import Any


def outside(*others: str) -> int:
    """Return the `stacklevel` of the first frame outside of memcfg and `others`."""
    passed = {"memcfg", *others}
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in passed:
        level, frame = level + 1, frame.f_back
    return level


def _package(names: dict[str, Any]) -> str:
    module: str = names.get("__name__", "")
    return module.partition(".")[0]

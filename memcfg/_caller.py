"""Where the user's code calls memcfg, for warnings and reports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_ABOVE = os.path.join(str(Path(__file__).parents[1]), "")  # the folder of memcfg


def outside(*others: str) -> int:
    """Return the `stacklevel` of the first frame outside of memcfg and `others`."""
    passed = {"memcfg", *others}
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in passed:
        level, frame = level + 1, frame.f_back
    return level


def line_outside() -> str:
    """Return the file and line outside of memcfg that calls it, or ``""``.

    The networks of `memcfg.models` count as outside. A model that a command makes or
    loads has no line.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("memcfg.commands") or module == "memcfg.cli":
            return ""
        if _package(frame.f_globals) != "memcfg" or module.startswith("memcfg.models."):
            return f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def shown_path(path: str) -> str:
    """Return a path below the working folder, or below memcfg's, without these.

    A notebook's cell is ``In[number]``, as in its tracebacks.
    """
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    compiled = getattr(shell, "compile", None)
    if cell := getattr(compiled, "_filename_map", {}).get(path):
        return f"In[{cell}]"
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the folder is gone
        here = _ABOVE
    for folder in (here, _ABOVE):
        if path.startswith(folder):
            return path[len(folder) :]
    return path


def _package(names: dict[str, Any]) -> str:
    module: str = names.get("__name__", "")
    return module.partition(".")[0]

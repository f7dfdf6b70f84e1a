"""Tracebacks without the frames of memcfg, where a program asks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "disable_traceback_filtering",
    "enable_traceback_filtering",
    "is_traceback_filtering_enabled",
    "shorten",
]

_ROOT = f"{Path(__file__).parent}{os.sep}"  # the folder of memcfg
_enabled = False


def enable_traceback_filtering() -> None:
    """Have errors of models, layers and settings leave out the frames of memcfg.

    The frames of a program's own functions that memcfg calls stay, such as a layer's
    `call`. At the start errors have their whole traceback.
    """
    global _enabled
    _enabled = True


def disable_traceback_filtering() -> None:
    """Have errors keep their whole traceback, as at the start."""
    global _enabled
    _enabled = False


def is_traceback_filtering_enabled() -> bool:
    """Return whether errors leave out the frames of memcfg.

    Returns
    -------
    bool
        Whether they do.
    """
    return _enabled


def shorten(error: BaseException) -> None:
    """Take the frames of memcfg out of an error's traceback, if that is enabled."""
    if _enabled:
        error.__traceback__ = _without_own(error.__traceback__)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback of the frames outside of memcfg; None without any."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_ROOT):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for each in reversed(kept):
        each.tb_next = following
        following = each
    return following

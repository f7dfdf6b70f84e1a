"""Crash reports of errors that reach the user's code, if a folder for them is set.

An error reaches it from a method of a model, or from an allocation that the user's code
requested. Errors that the library itself receives, and may handle, leave no report.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg._caller import outside
from memcfg._core._holders import pools_below, refusal_observers
from memcfg.memory.crash._crash_report import write_report
from memcfg.memory.crash._crash_setting import Asked, crash_setting
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from memcfg.errors import ResourceExhaustedError

__all__ = ["on_error"]


def on_error(error: BaseException, asked: Callable[[], Asked]) -> None:
    """Write a report of an error if reports are on; never raise an Exception."""
    try:
        folder = crash_setting.folder
        if folder is None or getattr(error, "crash_report", None) is not None:
            return
        if not crash_setting.take_number():
            return
        crash_setting.free_reserve()
        path = write_report(error, folder, asked())
        error.crash_report = path  # type: ignore[attr-defined]
        error.add_note(f"A crash report is in {path}")
    except Exception as failure:
        with suppress(Exception):  # such as a warning that is an error
            warnings.warn(
                f"the crash report could not be written: {failure}",
                RuntimeWarning,
                stacklevel=outside(),
            )
    finally:
        if crash_setting.folder is not None:
            crash_setting.take_reserve()


def _observe(resource: Any, error: ResourceExhaustedError) -> None:
    """Report a refused request, if the user's code made it."""
    if crash_setting.folder is None:
        return
    frame: FrameType | None = sys._getframe(2)  # the caller of `make_room`
    while frame is not None and _package(frame) == "numpy":
        frame = frame.f_back
    # A request of the library is reported by the call that needs it, if that fails.
    if frame is None or _package(frame) == "memcfg":
        return
    if any(pool.retry_seconds for pool in pools_below(resource)):
        return  # the request waits, and may succeed
    size = format_bytes(error.requested_bytes, exact=True)
    what = f"{size} of {error.device or 'a resource'}"
    on_error(error, lambda: Asked(what, frame=frame))


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


refusal_observers.append(_observe)

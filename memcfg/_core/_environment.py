"""Limits from the environment on the memory of the whole process.

Owns ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES``: how they are read, and when they
take effect. The variables about devices are read by `memcfg.config`. A value that is
invalid or cannot be kept raises an error that names its variable.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import get_host_limits, set_host_limits
from memcfg._core._machine import machine_bytes
from memcfg.errors import FormatError, ResourceExhaustedError
from memcfg.units import parse_bytes, warn_of_few_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HostLimits",
    "HostMemory",
    "first_use",
    "host",
    "unreadable",
    "value_of",
    "with_unit",
]

_TRACKED = "MEMCFG_MAX_BYTES"
_RSS = "MEMCFG_MAX_RSS_BYTES"
_FORM = "a size, such as '2GiB' or '50%'"
_LARGEST = 2**63 - 1  # the largest signed 64-bit size in bytes

# Called with the first resource or device; they read other variables of the process.
first_use: list[Callable[[], None]] = []


class HostLimits(NamedTuple):
    """The two limits on the memory of a process.

    Attributes
    ----------
    tracked : int or None
        The most bytes in use in all pools together; None for no limit.
    rss : int or None
        The most bytes resident in the process when a pool takes memory; None for no
        limit.
    """

    tracked: int | None
    rss: int | None


class HostMemory:
    """The limits of the process, from code or else from the environment.

    Invariant: the core's limits are only reset if `_touched`.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._applied = False  # whether the environment is no longer consulted
        self._touched = False

    def apply(self) -> HostLimits:
        """Apply the environment on first use, and return the current limits.

        Raises FormatError for an invalid variable, and ResourceExhaustedError if more
        is in use; the limits are then unchanged.
        """
        if not self._applied:
            with self._lock:
                if not self._applied:
                    self._set(HostLimits(_size(_TRACKED), _size(_RSS)))
                    for begin in first_use:
                        begin()
                    self._applied = True
        return HostLimits(*get_host_limits())

    def replace(self, limits: HostLimits) -> None:
        """Set limits from code; raise ResourceExhaustedError if more is in use."""
        with self._lock:
            self._hand_over(limits)
            self._applied = True

    def reset(self) -> None:
        """Remove the limits that were set here; the environment applies again."""
        with self._lock:
            if self._touched:
                set_host_limits(None, None)
            self._applied = self._touched = False

    def renew_lock(self) -> None:
        """Replace the lock in the child of a fork, where nobody can release it."""
        self._lock = RLock()

    def _set(self, limits: HostLimits) -> None:
        if limits == HostLimits(None, None):
            return
        before = get_host_limits()
        variable = _RSS  # one by one, to find the limit that fails
        try:
            self._hand_over(HostLimits(before[0], limits.rss))
            variable = _TRACKED
            self._hand_over(limits)
        except ResourceExhaustedError as error:
            set_host_limits(*before)
            raise _below_use(variable, error) from None

    def _hand_over(self, limits: HostLimits) -> None:
        set_host_limits(limits.tracked, limits.rss)
        self._touched = True


def value_of(variable: str) -> str:
    """Return a variable without surrounding spaces; empty if it is not set."""
    return os.environ.get(variable, "").strip()


def with_unit(size: str, variable: str) -> str:
    """Read a number without a unit as bytes; warn with a RuntimeWarning below 1 KiB."""
    size = size.strip()
    if not (size.isascii() and size.isdecimal()):
        return size
    warn_of_few_bytes(int(size), f"{size} in {variable}={value_of(variable)!r}")
    return f"{size}B"


def unreadable(variable: str, form: str, why: str = "") -> FormatError:
    """Return the error for an invalid variable, which names the valid forms."""
    return FormatError(
        f"cannot read {variable}={value_of(variable)!r}{f' ({why})' if why else ''}: "
        f"write {form}"
    )


def _size(variable: str) -> int | None:
    text = with_unit(value_of(variable), variable)
    if not text:
        return None
    try:
        nbytes = parse_bytes(text, total_bytes=machine_bytes())
    except ValueError as error:
        raise unreadable(variable, _FORM, str(error)) from None
    if not 0 < nbytes <= _LARGEST:
        why = "it must be positive" if nbytes <= 0 else "beyond the address space"
        raise unreadable(variable, _FORM, why)
    return nbytes


def _below_use(variable: str, error: ResourceExhaustedError) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{variable}={value_of(variable)!r} is below the bytes in use.",
        requested_bytes=error.requested_bytes,
        in_use_bytes=error.in_use_bytes,
        limit_bytes=error.limit_bytes,
        device=error.device,
        hint=f"Raise {variable}, or unset it.",
    )


host = HostMemory()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=host.renew_lock)

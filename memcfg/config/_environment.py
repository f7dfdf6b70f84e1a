"""What the environment says about devices, read when it is first needed.

Owns the variables and their grammar. Refuses to act on them. A value that cannot be
read is an error which names the variable and the form it takes.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from memcfg.config._limits import LARGEST, limit_from_bytes
from memcfg.config._names import parse_name
from memcfg.errors import FormatError
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FORCE_GROWTH",
    "LIMITS",
    "SIMULATED",
    "SimulatedEntry",
    "check_type",
    "forced_growth",
    "host_limits",
    "physical_limits",
    "simulated_devices",
    "unreadable",
]

SIMULATED = "MEMCFG_SIMULATED_DEVICES"
FORCE_GROWTH = "MEMCFG_FORCE_GPU_ALLOW_GROWTH"
LIMITS = "MEMCFG_MEMORY_LIMIT"
_TRACKED = "MEMCFG_MAX_BYTES"
_RSS = "MEMCFG_MAX_RSS_BYTES"

_FORMS = {
    SIMULATED: "TYPE:COUNT:MEMORY, such as 'GPU:2:16GiB', separated by commas",
    FORCE_GROWTH: "'true' or 'false'",
    LIMITS: "DEVICE=SIZE, such as 'CPU:0=2GiB' or 'CPU:0=50%', separated by commas",
    _TRACKED: "a size, such as '2GiB' or '50%'",
    _RSS: "a size, such as '2GiB' or '50%'",
}
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")


class SimulatedEntry(NamedTuple):
    """Hardware that is said to exist: ``times`` the same."""

    device_type: str
    times: int
    memory_bytes: int


def simulated_devices() -> list[SimulatedEntry]:
    """Read ``MEMCFG_SIMULATED_DEVICES``.

    Returns
    -------
    list of SimulatedEntry
        In the order of the text; empty when the variable is not set.

    Raises
    ------
    FormatError
        If it cannot be read.
    """
    return [_simulated(entry) for entry in _entries(SIMULATED)]


def check_type(device_type: str) -> str:
    """Return the type of simulated hardware, or say what is wrong with it.

    Parameters
    ----------
    device_type : str
        Such as ``"GPU"``.

    Returns
    -------
    str
        The same.

    Raises
    ------
    ValueError
        If it is no word in capital letters, or ``"CPU"``.
    """
    if not _TYPE.fullmatch(device_type):
        raise ValueError(f"a device type is a word like 'GPU', not {device_type!r}")
    if device_type == "CPU":
        raise ValueError("the CPU is real and cannot be simulated")
    return device_type


def forced_growth() -> bool | None:
    """Read ``MEMCFG_FORCE_GPU_ALLOW_GROWTH``.

    Returns
    -------
    bool or None
        What every device but a CPU obeys; None when the variable is not set.

    Raises
    ------
    FormatError
        If it is neither ``true`` nor ``false``.
    """
    text = _value(FORCE_GROWTH)
    if not text:
        return None
    if text.lower() not in ("true", "false"):
        raise unreadable(FORCE_GROWTH)
    return text.lower() == "true"


def physical_limits() -> dict[tuple[str, int], str]:
    """Read ``MEMCFG_MEMORY_LIMIT``.

    Returns
    -------
    dict of (str, int) to str
        The size as it was written, by type and index of the hardware.

    Raises
    ------
    FormatError
        If it cannot be read, or names a device twice.
    """
    limits: dict[tuple[str, int], str] = {}
    for entry in _entries(LIMITS):
        name, _, text = entry.partition("=")
        size = _with_unit(text)
        try:
            device_type, index = parse_name(name.strip(), physical=True)
            limit_from_bytes(size, total_bytes=LARGEST, name="the size")
        except ValueError as error:
            raise unreadable(LIMITS, str(error)) from None
        if index is None:
            raise unreadable(LIMITS, f"{name.strip()} has no number")
        if (device_type, index) in limits:
            raise unreadable(LIMITS, f"{device_type}:{index} is named twice")
        limits[device_type, index] = size
    return limits


def host_limits(total_bytes: int) -> tuple[int | None, int | None]:
    """Read ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES``.

    Parameters
    ----------
    total_bytes : int
        The machine's memory in bytes, for percentages.

    Returns
    -------
    tracked, rss : int or None
        In bytes; None when the variable is not set.

    Raises
    ------
    FormatError
        If one of them cannot be read.
    """
    return _size(_TRACKED, total_bytes), _size(_RSS, total_bytes)


def _simulated(entry: str) -> SimulatedEntry:
    parts = [part.strip() for part in entry.split(":")]
    try:
        device_type, count, memory = parts
        nbytes = parse_bytes(_with_unit(memory))
        check_type(device_type)
    except ValueError as error:
        raise unreadable(SIMULATED, str(error) if len(parts) == 3 else "") from None
    if not (count.isascii() and count.isdecimal() and int(count)) or not nbytes:
        raise unreadable(SIMULATED, f"{entry!r} needs a count and a memory above 0")
    return SimulatedEntry(device_type, int(count), nbytes)


def _size(variable: str, total_bytes: int) -> int | None:
    text = _with_unit(_value(variable))
    if not text:
        return None
    try:
        return limit_from_bytes(text, total_bytes=total_bytes, name="the size")
    except ValueError as error:
        raise unreadable(variable, str(error)) from None


def _with_unit(size: str) -> str:
    """Read a mere number as bytes, as everywhere but in a configuration."""
    size = size.strip()
    return f"{size}B" if size.isascii() and size.isdecimal() else size


def _value(variable: str) -> str:
    return os.environ.get(variable, "").strip()


def _entries(variable: str) -> Iterator[str]:
    text = _value(variable)
    for entry in text.split(",") if text else ():
        if not entry.strip():
            raise unreadable(variable, "an entry is empty")
        yield entry.strip()


def unreadable(variable: str, why: str = "") -> FormatError:
    """Make the error for a variable that cannot be read or honoured.

    Parameters
    ----------
    variable : str
        Its name.
    why : str, optional
        What is wrong.

    Returns
    -------
    FormatError
        To be raised; it names the variable, its value and the form it takes.
    """
    return FormatError(
        f"cannot read {variable}={_value(variable)!r}{f' ({why})' if why else ''}: "
        f"write {_FORMS[variable]}"
    )

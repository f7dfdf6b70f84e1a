"""What the environment says about devices, read when it is first needed.

Owns the variables and their grammar. Refuses to act on them. A value that cannot be
read is an error which names the variable and the form it takes. What the environment
says about the whole process is read at the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import _environment as process
from memcfg.config._limits import LARGEST, limit_from_bytes
from memcfg.config._names import parse_name, require_type
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.errors import FormatError

__all__ = [
    "FORCE_GROWTH",
    "LARGEST_DEVICE",
    "LIMITS",
    "SIMULATED",
    "SimulatedEntry",
    "check_type",
    "forced_growth",
    "physical_limits",
    "simulated_devices",
    "unreadable",
]

SIMULATED = "MEMCFG_SIMULATED_DEVICES"
FORCE_GROWTH = "MEMCFG_FORCE_GPU_ALLOW_GROWTH"
LIMITS = "MEMCFG_MEMORY_LIMIT"

_FORMS = {
    SIMULATED: "TYPE:COUNT:MEMORY, such as 'GPU:2:16GiB', separated by commas",
    FORCE_GROWTH: "'true' or 'false'",
    LIMITS: "DEVICE=SIZE, such as 'CPU:0=2GiB' or 'CPU:0=50%', separated by commas",
}
MOST_DEVICES = 1024  # of one entry: more is a slip
LARGEST_DEVICE = 2**62  # bytes: simulated addresses end there


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
    TypeError
        If it is no string.
    ValueError
        If it is no word in capital letters, or ``"CPU"``.
    """
    require_type(device_type)
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
    text = process.value_of(FORCE_GROWTH)
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
        size = process.with_unit(text, LIMITS)
        try:
            device_type, index, _ = parse_name(name.strip())
            limit_from_bytes(size, total_bytes=LARGEST, name="the size")
        except ValueError as error:
            raise unreadable(LIMITS, str(error)) from None
        if index is None:
            raise unreadable(LIMITS, f"{name.strip()} has no number")
        if (device_type, index) in limits:
            raise unreadable(LIMITS, f"{device_type}:{index} is named twice")
        limits[device_type, index] = size
    return limits


def _simulated(entry: str) -> SimulatedEntry:
    parts = [part.strip() for part in entry.split(":")]
    try:
        device_type, count, memory = parts
        nbytes = parse_bytes(process.with_unit(memory, SIMULATED))
        check_type(device_type)
    except ValueError as error:
        raise unreadable(SIMULATED, str(error) if len(parts) == 3 else "") from None
    if not (count.isascii() and count.isdecimal() and 0 < int(count) <= MOST_DEVICES):
        raise unreadable(SIMULATED, f"{entry!r} needs a count from 1 to {MOST_DEVICES}")
    if not 0 < nbytes <= LARGEST_DEVICE:
        raise unreadable(SIMULATED, f"{entry!r} needs a memory from 1 byte to 2**62")
    return SimulatedEntry(device_type, int(count), nbytes)


def _entries(variable: str) -> Iterator[str]:
    text = process.value_of(variable)
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
    return process.unreadable(variable, _FORMS[variable], why)

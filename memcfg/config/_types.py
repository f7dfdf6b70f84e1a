"""The values that configuration is written in.

Owns devices as names and the meaning of a memory limit. Refuses to touch a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real
from operator import index

from memcfg.units import parse_bytes

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "limit_from_bytes",
]

_MIB = 2**20  # bytes
_LARGEST = 2**63 - 1  # bytes; what a signed 64-bit size can hold


@dataclass(frozen=True)
class PhysicalDevice:
    """A piece of hardware, as found on this machine.

    Attributes
    ----------
    name : str
        Such as ``"/physical_device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    """

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDevice:
    """A device that models are placed on, with a memory limit of its own.

    Attributes
    ----------
    name : str
        Such as ``"/device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    """

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """What one logical device is to be.

    Parameters
    ----------
    memory_limit : int, float, str or None, default None
        The most bytes that may be in use. A number is MiB, a string is exact
        (``"4100031B"``, ``"4MiB"``), None is no limit.
    experimental_priority : int or None, default None
        The priority of the device's streams; refused for a CPU.
    experimental_device_ordinal : int or None, default None
        The place of the device among its siblings; refused for a CPU.

    Raises
    ------
    TypeError
        If `memory_limit` is not a number, a string or None, or is a bool.
    ValueError
        If `memory_limit` is not positive and finite, is not a whole number of
        bytes, or is a string that is no size.

    Examples
    --------
    >>> LogicalDeviceConfiguration(memory_limit=48).limit_bytes
    50331648
    >>> LogicalDeviceConfiguration(memory_limit="4100031B").limit_bytes
    4100031
    """

    memory_limit: float | str | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None

    def __post_init__(self) -> None:
        _limit_from_mib(self.memory_limit)

    @property
    def limit_bytes(self) -> int | None:
        """The memory limit in bytes; None is no limit."""
        return _limit_from_mib(self.memory_limit)


def limit_from_bytes(limit: int | str | None) -> int | None:
    """Read a limit in which a number is bytes.

    Parameters
    ----------
    limit : int, str or None
        Bytes, a string with its unit, or None for no limit.

    Returns
    -------
    int or None
        The limit in bytes.

    Raises
    ------
    TypeError
        If it is none of these, or a bool.
    ValueError
        If it is not positive, or a string that is no size.
    """
    if limit is None:
        return None
    if hasattr(limit, "__index__") and not isinstance(limit, bool):
        return _positive(index(limit), limit)  # NumPy's integers too
    try:
        nbytes = parse_bytes(limit)
    except (TypeError, ValueError) as error:
        raise type(error)(f"memory_limit: {error}") from None
    return _positive(nbytes, limit)


def _limit_from_mib(limit: float | str | None) -> int | None:
    if limit is None or isinstance(limit, str):
        return limit_from_bytes(limit)
    nbytes = _finite(limit) * _MIB
    if nbytes.denominator != 1:
        raise ValueError(
            f"memory_limit={limit!r} MiB is not a whole number of bytes; write the "
            "limit as a string, such as '4100031B'"
        )
    return _positive(nbytes.numerator, limit)


def _finite(limit: object) -> Fraction:
    if isinstance(limit, bool) or not isinstance(limit, Real):
        raise TypeError(
            "memory_limit is a number of MiB, a string like '4100031B' or None, "
            f"not {limit!r}"
        )
    if isinstance(limit, Rational):  # in Python's own integers, which do not overflow
        return Fraction(int(limit.numerator), int(limit.denominator))
    if not math.isfinite(limit):
        raise ValueError(f"memory_limit must be finite, not {limit!r}")
    return Fraction(float(limit))


def _positive(nbytes: int, limit: object) -> int:
    if nbytes <= 0:
        raise ValueError(f"memory_limit must be positive, not {limit!r}")
    if nbytes > _LARGEST:
        raise ValueError(f"memory_limit={limit!r} is beyond the address space")
    return nbytes

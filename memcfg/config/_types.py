"""The values that configuration is written in.

Owns devices as names, and what may be said about a logical device. Refuses to touch
a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memcfg.config._limits import LARGEST, limit_from_mib

__all__ = ["LogicalDevice", "LogicalDeviceConfiguration", "PhysicalDevice"]


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
        (``"4100031B"``, ``"4MiB"``) or a share of the hardware's memory (``"50%"``),
        None is no limit. A GPU needs one.
    experimental_priority : int or None, default None
        The priority of the device's streams: of all logical devices of a GPU or of
        none; refused for a CPU.
    experimental_device_ordinal : int or None, default None
        Where the device stands among all of its type: by ordinal first, then by
        hardware. For all logical devices of a GPU or for none; refused for a CPU.
    growth : bool or None, default None
        Whether memory is taken as it is needed (True) or the whole limit at once.
        None is what `set_memory_growth` says of the hardware.

    Raises
    ------
    TypeError
        If `memory_limit` is not a number, a string or None, or is a bool; or a
        priority or ordinal is not an int, or `growth` no bool.
    ValueError
        If `memory_limit` is not positive and finite, is not a whole number of
        bytes, or is a string that is no size; or the ordinal is negative.

    Examples
    --------
    >>> LogicalDeviceConfiguration(memory_limit=48).limit_on(2**34)
    50331648
    >>> LogicalDeviceConfiguration(memory_limit="4100031B").limit_on(2**34)
    4100031
    >>> LogicalDeviceConfiguration(memory_limit="25%", growth=True).limit_on(2**34)
    4294967296
    """

    memory_limit: float | str | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None
    growth: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.limit_on(LARGEST)
        for name in ("experimental_priority", "experimental_device_ordinal"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not hasattr(value, "__index__")
            ):
                raise TypeError(f"{name} is an int or None, not {value!r}")
        ordinal = self.experimental_device_ordinal
        if ordinal is not None and ordinal < 0:
            raise ValueError(
                f"experimental_device_ordinal cannot be negative: {ordinal}"
            )
        if not isinstance(self.growth, bool | None):
            raise TypeError(f"growth is True, False or None, not {self.growth!r}")

    def limit_on(self, total_bytes: int) -> int | None:
        """Return the memory limit on given hardware.

        Parameters
        ----------
        total_bytes : int
            The hardware's memory in bytes; only a percentage depends on it.

        Returns
        -------
        int or None
            The limit in bytes; None is no limit.

        Raises
        ------
        ValueError
            If it is a percentage that comes to less than a byte.
        """
        return limit_from_mib(self.memory_limit, total_bytes=total_bytes)

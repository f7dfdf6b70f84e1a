"""Devices of addresses without memory: for planning, and for trying rules out.

Owns hardware that is only said to exist. Its pools have the same metadata and the same
limits as any other, on a machine of any size. Refuses to run anything: there is
nowhere to put a byte.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never

from memcfg.devices._contract import Device
from memcfg.devices.cpu import kernel_table
from memcfg.memory import Pool, simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.devices._contract import KernelTable, Space
    from memcfg.memory import Resource

__all__ = ["SimulatedDevice", "SimulatedHardware"]

_PRIORITIES = range(-5, 1)  # the stream priorities of today's CUDA devices


class SimulatedDevice(Device):
    """A logical device of simulated hardware.

    Parameters
    ----------
    name : str
        The device's name, such as ``"/device:GPU:0"``.
    addresses : Resource
        The addresses of the hardware, which all its logical devices share.
    limit_bytes : int
        The limit of its pool in bytes.
    growth : bool
        Whether addresses are taken as they are needed; False takes the whole limit
        at once.
    priority : int, default 0
        The priority of its streams.

    Attributes
    ----------
    name : str
        The device's name.
    pool : Pool
        Where all addresses of the device come from.
    priority : int
        The priority of its streams: kept, and without effect, since nothing runs.
    space : str
        ``"addresses"``: there is no memory behind them.

    Raises
    ------
    ResourceExhaustedError
        If addresses are to be taken at once and the hardware has no more.
    """

    space: Space = "addresses"
    fallible = False
    tiers: Mapping[str, Space] = MappingProxyType(
        {"host": "addresses", "file": "addresses"}
    )

    def __init__(
        self,
        name: str,
        addresses: Resource,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int = 0,
    ) -> None:
        self.name = name
        self.priority = priority
        self._kernels: KernelTable | None = None
        self.pool = Pool(addresses, limit=limit_bytes, growth=growth, name=name)

    @property
    def kernels(self) -> KernelTable:
        """The kernels of this machine's CPU: plans take their scratch from them.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """
        if self._kernels is None:  # no lock, which a fork could leave taken
            self._kernels = kernel_table()
        return self._kernels

    def write(self, *args: object) -> Never:
        """Raise RuntimeError, as `read`, `zero`, `staging`, `program` do."""
        raise RuntimeError(f"{self.name} is simulated: it has no memory, nothing runs")

    def read(self, *args: object) -> Never:
        """Refuse."""
        self.write()

    def zero(self, *args: object) -> Never:
        """Refuse."""
        self.write()

    def staging(self, *args: object) -> Never:
        """Refuse."""
        self.write()

    def tier_memory(self, *args: object, tag: str) -> Never:
        """Refuse."""
        self.write()

    def program(self, *args: object) -> Never:
        """Refuse."""
        self.write()

    def synchronize(self) -> None:
        """Do nothing: no queue has work."""

    def describe_kernels(self) -> str:
        """Tell that there are none."""
        return "none: the device is simulated"

    def __repr__(self) -> str:
        return f"SimulatedDevice({self.name!r}, limit_bytes={self.pool.limit!r})"


class SimulatedHardware:
    """A physical device that is only said to exist.

    Parameters
    ----------
    device_type : str
        Such as ``"GPU"``.
    index : int
        Its number among the hardware of this type, from 0.
    memory_bytes : int
        How many bytes of addresses it has.

    Attributes
    ----------
    name : str
        Such as ``"/physical_device:GPU:0"``.
    device_type : str
        As given.
    memory_bytes : int
        As given.
    addresses : Resource
        The addresses of this hardware; all its logical devices share them.
    simulated : bool
        True.
    bounded : bool
        True: without a limit of its own a device has all of `memory_bytes`.
    divisible : bool
        Whether several logical devices can be made of it: as in TensorFlow, of a GPU
        only.
    priorities : range or None
        -5 to 0 for a GPU, as on today's CUDA devices; None for other types.
    """

    simulated = True
    bounded = True

    def __init__(self, device_type: str, index: int, memory_bytes: int) -> None:
        self.name = f"/physical_device:{device_type}:{index}"
        self.device_type = device_type
        self.memory_bytes = memory_bytes
        self.divisible = device_type == "GPU"
        self.priorities = _PRIORITIES if self.divisible else None
        self.addresses: Resource = simulated(memory_bytes, name=self.name)

    def details(self) -> dict[str, Any]:
        """Tell what is known about the hardware.

        Returns
        -------
        dict
            ``device_name``, ``memory`` in bytes, and ``simulated``, which is True.
        """
        return {
            "device_name": f"simulated {self.device_type}",
            "memory": self.memory_bytes,
            "simulated": True,
        }

    def make(
        self, name: str, *, limit_bytes: int | None, growth: bool, priority: int
    ) -> SimulatedDevice:
        """Make a logical device, with its pool.

        Parameters
        ----------
        name : str
            Such as ``"/device:GPU:0"``.
        limit_bytes : int or None
            The limit of its pool in bytes.
        growth : bool
            Whether addresses are taken as they are needed; False takes the limit at
            once.
        priority : int
            The priority of its streams.

        Returns
        -------
        SimulatedDevice
            The device.

        Raises
        ------
        ResourceExhaustedError
            If addresses are to be taken at once and the hardware has no more.
        """
        return SimulatedDevice(
            name,
            self.addresses,
            limit_bytes=limit_bytes,
            growth=growth,
            priority=priority,
        )

"""Simulated devices: addresses without memory, under limits, on which nothing runs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never

from memcfg._cached import cached_property
from memcfg._core import codec_bounds
from memcfg.devices._contract import Device, Hardware
from memcfg.devices._tiers import ANYWHERE, Spill
from memcfg.devices.cpu import kernel_table
from memcfg.memory import Pool, simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.devices._contract import KernelTable
    from memcfg.devices._tiers import Space
    from memcfg.memory import Resource

__all__ = ["SimulatedDevice", "SimulatedHardware"]


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
        Whether addresses are taken as needed; False takes the whole limit at once.
    priority : int, default 0
        The priority of its streams.
    spill : Spill, default ANYWHERE
        The tiers of swapped tensors.
    takes_bfloat16 : bool, default True
        Whether the hardware's kernels accept bfloat16.

    Attributes
    ----------
    priority : int
        The priority of its streams, which has no effect, since nothing runs.
    takes_bfloat16 : bool
        Whether models in bfloat16 can be planned.

    Raises
    ------
    ResourceExhaustedError
        If addresses are to be taken at once and the hardware has too few.
    """

    space: Space = "addresses"
    fallible = False
    page_bytes = 1
    codecs = tuple(codec_bounds(0))
    takes_overflow = True
    tier_kinds: Mapping[str, Space] = MappingProxyType(
        {"host": "addresses", "file": "addresses"}
    )
    coded_tiers: tuple[str, ...] = ("host",)

    def __init__(
        self,
        name: str,
        addresses: Resource,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int = 0,
        spill: Spill = ANYWHERE,
        takes_bfloat16: bool = True,
    ) -> None:
        self.name = name
        self.use_spill(spill)
        self.takes_bfloat16 = takes_bfloat16
        self.priority = priority
        self.pool = Pool(addresses, limit=limit_bytes, growth=growth, name=name)
        self.host_pool = self.pool  # arrays cannot be at simulated addresses

    @cached_property
    def kernels(self) -> KernelTable:
        """The kernels of this machine's CPU, which give plans their scratch."""
        return kernel_table()

    def write(self, *args: Any, **tag: Any) -> Never:
        """Raise RuntimeError, since nothing runs here."""
        raise RuntimeError(f"{self.name} is simulated: it has no memory, nothing runs")

    read = zero = staging = tier_memory = copy_rate = program = write

    def synchronize(self) -> None:
        """Do nothing, since no queue has work."""

    def describe_kernels(self) -> str:
        """Return a sentence that says there are no kernels."""
        return "none: the device is simulated"

    def __repr__(self) -> str:
        return f"SimulatedDevice({self.name!r}, limit_bytes={self.pool.limit!r})"


class SimulatedHardware(Hardware):
    """A simulated physical device.

    Parameters
    ----------
    device_type : str
        Such as ``"GPU"``. As in TensorFlow, only a GPU is divisible. Its priorities are
        -5 to 0, as on current CUDA devices.
    index : int
        Its number among the hardware of this type, from 0.
    memory_bytes : int
        The number of bytes of its addresses.

    Attributes
    ----------
    addresses : Resource
        The addresses of this hardware, which all its logical devices share.
    """

    space: Space = "addresses"
    bounded = True

    def __init__(self, device_type: str, index: int, memory_bytes: int) -> None:
        self.name = f"/physical_device:{device_type}:{index}"
        self.device_type = device_type
        self.memory_bytes = memory_bytes
        self.divisible = device_type == "GPU"
        self.priorities = range(-5, 1) if self.divisible else None
        self.addresses: Resource = simulated(memory_bytes, name=self.name)

    def details(self) -> dict[str, Any]:
        """Return the name, the memory in bytes, and that the device is simulated."""
        return {
            "device_name": f"simulated {self.device_type}",
            "memory": self.memory_bytes,
            "simulated": True,
        }

    def make(
        self,
        name: str,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int,
        spill: Spill = ANYWHERE,
    ) -> SimulatedDevice:
        """Make a logical device, with its pool of addresses."""
        return SimulatedDevice(
            name,
            self.addresses,
            limit_bytes=limit_bytes,
            growth=growth,
            priority=priority,
            spill=spill,
            takes_bfloat16=self.device_type != "GPU",  # CUDA's kernels do not accept it
        )

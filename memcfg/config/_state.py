"""What was configured, and the devices made from it.

Owns the one registry of a process and the rule that it freezes at first use.
Refuses to judge values: callers hand in what they have checked.

Before first use the registry holds configurations only. The first question that
needs a device makes all of them, and from then on only a limit may change. Every
entry is guarded by one re-entrant lock; no device is touched under it but to be
made.
"""

from __future__ import annotations

import gc
from threading import RLock
from typing import TYPE_CHECKING

from memcfg.config._types import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
)
from memcfg.devices import CpuDevice, discover_cpus
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Registry", "registry"]

_DEFAULT = (LogicalDeviceConfiguration(),)


class Registry:
    """Configurations and devices of one process.

    Invariant: a device exists for every configuration, or none exists at all.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._configured: dict[
            PhysicalDevice, tuple[LogicalDeviceConfiguration, ...]
        ] = {}
        self._devices: dict[LogicalDevice, CpuDevice] | None = None

    @property
    def physical(self) -> tuple[PhysicalDevice, ...]:
        """The hardware of this machine."""
        return tuple(PhysicalDevice(name, "CPU") for name in discover_cpus())

    def configuration(
        self, device: PhysicalDevice
    ) -> tuple[LogicalDeviceConfiguration, ...] | None:
        """Return what was configured for a device; None when nothing was."""
        with self._lock:
            return self._configured.get(device)

    def configure(
        self,
        device: PhysicalDevice,
        configurations: tuple[LogicalDeviceConfiguration, ...] | None,
    ) -> None:
        """Record a configuration; None takes back what was recorded.

        Raises
        ------
        RuntimeError
            If the devices exist already and the configuration differs by value.
        """
        with self._lock:
            if self._devices is not None:
                self._refuse_change(device, configurations)
            elif configurations is None:
                self._configured.pop(device, None)
            else:
                self._configured[device] = configurations

    def _refuse_change(
        self,
        device: PhysicalDevice,
        configurations: tuple[LogicalDeviceConfiguration, ...] | None,
    ) -> None:
        present = self._configured.get(device, _DEFAULT)
        if _values(configurations or _DEFAULT) != _values(present):
            raise RuntimeError(
                f"The logical devices of {device.name} cannot be modified after first "
                "use. Configure them before anything is placed on a device; "
                "set_memory_limit changes a limit at any time, and reset() starts over "
                "once everything on the devices is freed."
            )

    def devices(self) -> Mapping[LogicalDevice, CpuDevice]:
        """Return all logical devices, and make them when this is the first use."""
        with self._lock:
            if self._devices is None:
                self._devices = self._make()
            return self._devices

    def _make(self) -> dict[LogicalDevice, CpuDevice]:
        limits = [
            configuration.limit_bytes
            for device in self.physical
            for configuration in self._configured.get(device, _DEFAULT)
        ]
        names = [f"/device:CPU:{index}" for index in range(len(limits))]
        return {
            LogicalDevice(name, "CPU"): CpuDevice(name, limit)
            for name, limit in zip(names, limits, strict=True)
        }

    def reset(self) -> None:
        """Forget all configurations and devices.

        Raises
        ------
        RuntimeError
            If memory of a device is still in use. Nothing is forgotten then.
        """
        with self._lock:
            if self._live():
                gc.collect()  # a model that is only kept by a reference cycle
            live = self._live()
            if live:
                raise RuntimeError(
                    "The devices are still in use: "
                    + "; ".join(live)
                    + ". Delete what holds this memory, or close it, and reset again."
                )
            self.forget()

    def _live(self) -> list[str]:
        return [
            f"{owner or 'unnamed'} holds {format_bytes(nbytes)} on {device.name}"
            for device in (self._devices or {}).values()
            for owner, nbytes in device.pool.owners().items()
        ]

    def forget(self) -> None:
        """Drop everything without asking; what is live stays with its holders."""
        with self._lock:
            self._configured.clear()
            self._devices = None


def _values(
    configurations: tuple[LogicalDeviceConfiguration, ...],
) -> list[tuple[int | None, int | None, int | None]]:
    return [
        (item.limit_bytes, item.experimental_priority, item.experimental_device_ordinal)
        for item in configurations
    ]


registry = Registry()

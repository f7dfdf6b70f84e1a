"""What was configured, and the devices made from it.

Owns the one registry of a process and the rule that it freezes at first use.
Refuses to judge values: callers hand in what they have checked.

Before first use the registry holds settings only. The first question that needs a
device makes all of them, and from then on only a limit may change. One re-entrant
lock guards it all; a setter holds it from its check to its change.
"""

from __future__ import annotations

import gc
import os
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import (
    set_bypass_everything,
    set_max_running,
    set_spill_everything,
)
from memcfg._core._environment import host as process_memory
from memcfg.config import _environment as environment
from memcfg.config._bounds import Bounds, Share
from memcfg.config._process import KernelThreads
from memcfg.config._settings import Demands, Options, Settings
from memcfg.config._specify import Specification, specify
from memcfg.config._types import LogicalDevice, PhysicalDevice
from memcfg.devices import CpuHardware, SimulatedHardware
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memcfg.devices import Device, Hardware

__all__ = ["Made", "Registry", "registry"]


class Made(NamedTuple):
    """A logical device that exists, and what it was made from."""

    logical: LogicalDevice
    specification: Specification
    device: Device


class Registry:
    """Settings, hardware and devices of one process.

    Invariant: a device exists for every specification, or none exists at all.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.settings = Settings()
        self.options = Options()
        self.host = process_memory
        self.threads = KernelThreads()
        self._machine: dict[PhysicalDevice, Hardware] | None = None
        self._demands = Demands()
        self._made: tuple[Made, ...] | None = None

    @property
    def machine(self) -> Mapping[PhysicalDevice, Hardware]:
        """All hardware, the simulated included; found when first asked for.

        Raises
        ------
        FormatError
            If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
        """
        with self.lock:
            if self._machine is None:
                self._machine = _found()
            return self._machine

    def add_simulated(self, device_type: str, memory_bytes: int) -> PhysicalDevice:
        """Add simulated hardware.

        Raises
        ------
        RuntimeError
            If a device was used already.
        """
        with self.lock:
            self.check_unused("The physical devices")
            machine = dict(self.machine)
            added = _add_simulated(machine, device_type, memory_bytes)
            self._machine = machine
            return added

    @property
    def used(self) -> bool:
        """Whether devices exist, so that settings are fixed."""
        return self._made is not None

    def check_unused(self, what: str) -> None:
        """Raise RuntimeError if a device was used, since `what` is fixed then."""
        with self.lock:
            if self._made is not None:
                raise RuntimeError(
                    f"{what} cannot be modified after first use. Configure before "
                    "anything is placed on a device; set_memory_limit changes a limit "
                    "at any time, and reset() starts over once everything on the "
                    "devices is freed."
                )

    def made(self) -> tuple[Made, ...]:
        """Return all logical devices, and make them when this is the first use.

        Raises
        ------
        ValueError
            If settings contradict each other, the hardware or the environment.
        ResourceExhaustedError
            If a device takes its memory at once and there is not so much.
        """
        with self.lock:
            if self._made is None:
                demands = Demands.read(self.machine)
                specifications = specify(self.machine, self.settings, demands)
                self.host.settle()
                self._made = self._make(specifications)
                self._demands = demands
            return self._made

    @property
    def host_bytes(self) -> int:
        """The memory of this machine."""
        return next(iter(self.machine.values())).memory_bytes

    def _make(self, specifications: Mapping[str, Specification]) -> tuple[Made, ...]:
        made: list[Made] = []
        for name, entry in specifications.items():
            device = self.machine[entry.physical].make(
                name,
                limit_bytes=entry.share.limit_bytes,
                growth=entry.share.growth,
                priority=entry.priority,
            )
            logical = LogicalDevice(name, entry.physical.device_type)
            made.append(Made(logical, entry, device))
        return tuple(made)

    def set_limit(self, made: Made, limit_bytes: int | None) -> int | None:
        """Change the limit of a device; None is the most that is allowed.

        Raises
        ------
        ValueError
            If the limit is beyond the hardware or the environment's ceiling.
        ResourceExhaustedError
            If more is in use.
        """
        with self.lock:
            physical, share = made.specification.physical, made.specification.share
            bounds = Bounds.of(physical, self.machine[physical], self._demands)
            others = [
                Share(other.device.pool.limit, other.specification.share.growth)
                for other in self._made or ()
                if other.specification.physical == physical and other is not made
            ]
            if limit_bytes is None:
                limit_bytes = bounds.most(share.growth, others)
            bounds.check([Share(limit_bytes, share.growth), *others])
            return made.device.pool.set_limit(limit_bytes)

    def reset(self) -> None:
        """Forget all settings and devices.

        Raises
        ------
        RuntimeError
            If memory of a device is still in use. Nothing is forgotten then.
        """
        with self.lock:
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
            f"{owner or 'unnamed'} holds {format_bytes(nbytes)} on {made.logical.name}"
            for made in self._made or ()
            for owner, nbytes in made.device.pool.owners().items()
        ]

    def forget(self) -> None:
        """Drop everything without asking; what is live stays with its holders."""
        with self.lock:
            self.settings = Settings()
            self.options = Options()
            set_spill_everything(False)
            set_bypass_everything(False)
            self.host.forget()
            self.threads.use(0)
            set_max_running(0)
            self._machine = None
            self._demands = Demands()
            self._made = None

    def renew_lock(self) -> None:
        """In the child of a fork: no other thread lives that could release it."""
        self.lock = RLock()


def _found() -> dict[PhysicalDevice, Hardware]:
    machine: dict[PhysicalDevice, Hardware] = {}
    _add(machine, [CpuHardware()])
    for kind, times, memory_bytes in environment.simulated_devices():
        for _ in range(times):
            _add_simulated(machine, kind, memory_bytes)
    return machine


def _add(
    machine: dict[PhysicalDevice, Hardware], hardware: Iterable[Hardware]
) -> list[PhysicalDevice]:
    named = {PhysicalDevice(item.name, item.device_type): item for item in hardware}
    machine |= named
    return list(named)


def _add_simulated(
    machine: dict[PhysicalDevice, Hardware], device_type: str, memory_bytes: int
) -> PhysicalDevice:
    index = sum(device.device_type == device_type for device in machine)
    return _add(machine, [SimulatedHardware(device_type, index, memory_bytes)])[0]


registry = Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=registry.renew_lock)

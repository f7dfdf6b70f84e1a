"""The registry of a process: its configuration, and the devices created from it.

Before the first use it holds only settings. The first call that needs a device creates
all of them; from then on only limits may change, and the tiers of devices without
memory in use. GPUs are detected only when more than a CPU is requested, since that
initializes CUDA, which processes that fork may want to avoid. One re-entrant lock
guards the registry; a setter holds it from its check to its change. A limit of devices,
or a budget, for which models have to give memory is refused with it first; they are
asked without it, and then the setter checks again.

See docs/decisions/0011-config-follows-tensorflow.md.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memcfg._cached import cached_property
from memcfg._core import (
    get_num_threads,
    set_bypass_everything,
    set_max_running,
    set_num_threads,
    set_spill_everything,
)
from memcfg._core._environment import host as process_memory
from memcfg._core._holders import margin_of, sparing_models
from memcfg._core.engine import drop_ended
from memcfg.config._specify import (
    Bounds,
    MemorySpec,
    Settings,
    Specification,
    process_limit,
    specify,
)
from memcfg.config._types import DeviceName, LogicalDevice, PhysicalDevice
from memcfg.config._variables import (
    EnvironmentOverrides,
    Machine,
    physical_limits,
    simulated_devices,
    warn_of_unknown,
)
from memcfg.config._workspace_config import DebugMode, WorkspaceConfig
from memcfg.devices import CpuHardware, SimulatedHardware
from memcfg.devices.cuda import find_gpus
from memcfg.errors import ResourceExhaustedError
from memcfg.memory.crash._crash_setting import crash_setting
from memcfg.memory.live._reporter import reporter
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memcfg.devices import Device, Hardware, Spill

LEAST_BESIDE_SHARES = 64  # bytes that shares leave to the rest

_LEAST_GIVEN = 4096  # bytes that are asked for where less is missing

_T = TypeVar("_T")


@dataclass
class Options:
    """Settings that may be changed at any time."""

    soft_placement: bool = True  # whether a missing device falls back to the CPU
    warned: set[DeviceName] = field(default_factory=set)  # of missing devices
    workspace_config: WorkspaceConfig = field(default_factory=WorkspaceConfig)
    scope_checks: str = "error"
    debug_mode: DebugMode | None = None  # None: the environment decides
    alternatives_seconds: float | None = None  # None: depends on the planning time
    # Stored only, for TensorFlow's names:
    jit: bool = False
    optimizer: dict[str, bool | int] = field(default_factory=dict)
    of_thread: threading.local = field(default_factory=threading.local)


class Made:
    """A logical device and its specification.

    A device with growth and its own memory is created when it is first needed, so that
    a program that never uses a GPU allocates nothing there.
    """

    def __init__(
        self, logical: LogicalDevice, specification: Specification, hardware: Hardware
    ) -> None:
        self.logical = logical
        self.specification = specification
        self.hardware = hardware
        self.own_limit: int | None = None  # without budgets and shares
        self.budgets: dict[object, int] = {}  # bytes of each entered budget
        self.shares: dict[Made, int] = {}  # bytes that other devices have of the limit
        self.short_bytes = 0  # that were in use above the limit which was refused last
        self.is_share = self.ended = False
        if hardware.space != "device" or not specification.memory.growth:
            _ = self.device

    @cached_property
    def device(self) -> Device:
        """The device."""
        memory, limit = self.specification.memory, process_limit(self.hardware)
        bounds = [each for each in (memory.limit_bytes, limit) if each is not None]
        return self.hardware.make(
            self.logical.name,
            limit_bytes=min(bounds, default=None),
            growth=memory.growth,
            priority=self.specification.priority,
            spill=self.specification.spill,
        )

    @property
    def limit_bytes(self) -> int | None:
        """Its current limit in bytes."""
        if "device" not in vars(self):
            return self.specification.memory.limit_bytes
        return self.device.pool.limit

    @property
    def is_budgeted(self) -> bool:
        """Whether its limit is that of a budget, or a share of one."""
        return bool(self.budgets) or self.is_share

    @property
    def lent_bytes(self) -> int:
        """The bytes of its shares."""
        return sum(self.shares.values())

    @property
    def total_bytes(self) -> int | None:
        """The limit of the device and its shares together."""
        bounds = [*self.budgets.values()]
        if self.own_limit is not None:
            bounds.append(self.own_limit)
        return min(bounds, default=None)

    def apply_limit(self) -> None:
        """Set the limit that budgets and shares leave, and what plans leave to arrays.

        Raises ResourceExhaustedError, and changes nothing, if more is in use or lent.
        """
        pool, limit = self.device.pool, self.total_bytes
        if limit is None or not self.shares:
            self.set_pool_limit(limit)
        elif limit <= self.lent_bytes:
            raise self._refusal_beside_shares(limit)
        else:
            total, limit = limit, limit - self.lent_bytes
            try:
                self.set_pool_limit(limit)
            except ResourceExhaustedError as error:
                raise self._refusal_beside_shares(total) from error
        margin = 0 if limit is None or not self.is_budgeted else margin_of(limit)
        pool.holders.margin_bytes = margin

    def set_pool_limit(self, limit: int | None) -> None:
        """Set the limit of the pool, or note how many bytes are missing."""
        try:
            self.device.pool.set_limit(limit)
        except ResourceExhaustedError as error:
            short = error.in_use_bytes - (limit or 0)
            self.short_bytes = max(short, _LEAST_GIVEN)
            raise

    def _refusal_beside_shares(self, limit: int) -> ResourceExhaustedError:
        """Return the error of a limit that leaves too little next to the shares."""
        pool = self.device.pool
        least = self.lent_bytes + max(pool.stats().current_bytes, LEAST_BESIDE_SHARES)
        return ResourceExhaustedError(
            "The limit cannot be set below the bytes in use and in shares.",
            requested_bytes=limit,
            in_use_bytes=least,
            limit_bytes=pool.limit,
            device=self.logical.name,
            owners={
                **pool.owners(),
                **{f"share {each.logical.name}": n for each, n in self.shares.items()},
            },
            hint=f"The smallest limit is {format_bytes(least, exact=True)} now. Take a "
            "larger one, or wait until a share ends and its memory is free.",
        )

    @property
    def in_use_bytes(self) -> int:
        """The bytes in use in its pool."""
        return self.device.pool.stats().current_bytes

    def owners(self) -> dict[str, int]:
        """Return the bytes in use by their holders."""
        return self.device.pool.owners() if "device" in vars(self) else {}


class Registry:
    """Settings, hardware and devices of one process.

    Invariant: there is a `Made` for each specification of the detected hardware, or
    none at all.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.settings = Settings()
        self.options = Options()
        self.host = process_memory
        self._default_threads: int | None = None  # of kernels; None: not changed
        self._machine: dict[PhysicalDevice, Hardware] | None = None
        self._looked = False  # whether GPUs were detected
        self._told_unknown = False  # whether unknown variables were warned of
        self.missing: dict[str, str] = {}  # why there is no hardware of a type
        self._overrides = EnvironmentOverrides()
        self._made: tuple[Made, ...] | None = None
        self.shares: list[Made] = []  # devices with a part of another's limit
        self._numbers: dict[str, int] = {}  # the last one given to a share, by type

    def machine(self, device_type: str | None) -> Machine:
        """Return the known hardware, including all of a type; None is every type.

        Simulated hardware is included. GPUs are detected unless the type is ``"CPU"``.
        """
        with self.lock:
            if not self._told_unknown:
                self._told_unknown = True
                warn_of_unknown()
            if self._machine is None:
                machine: dict[PhysicalDevice, Hardware] = {}
                _add(machine, CpuHardware())
                simulated = simulated_devices()
                looks = any(kind == "GPU" for kind, _, _ in simulated)
                gpus = self._find_gpus() if looks else {}
                machine |= gpus  # whose numbers come first
                for kind, times, memory_bytes in simulated:
                    for _ in range(times):
                        _add_simulated(machine, kind, memory_bytes)
                self._machine, self._looked = machine, looks
            if not self._looked and device_type != "CPU":
                self._add_gpus(self._machine)
            return self._machine

    def _find_gpus(self) -> dict[PhysicalDevice, Hardware]:
        result: dict[PhysicalDevice, Hardware] = {}
        gpus, self.missing["GPU"] = find_gpus()
        for gpu in gpus:
            _add(result, gpu)
        return result

    def _add_gpus(self, machine: dict[PhysicalDevice, Hardware]) -> None:
        """Detect GPUs, list them after the CPU, and create devices if in use."""
        gpus = self._find_gpus()
        made = self._made
        if made is not None:
            new = _make(specify(gpus, self.settings, self._overrides), gpus)
            cpus = [each for each in made if each.logical.device_type == "CPU"]
            made = (*cpus, *new, *made[len(cpus) :])
        (cpu, hardware), *others = machine.items()
        self._machine = {cpu: hardware, **gpus, **dict(others)}
        self._made, self._looked = made, True

    def why_missing(self, device_type: str) -> str:
        """Return why there is no hardware of a type; empty if there is or unknown."""
        machine = self.machine(device_type)
        if any(device.device_type == device_type for device in machine):
            return ""
        reason = self.missing.get(device_type, "")
        return f". There is no {device_type}: {reason}" if reason else ""

    def add_simulated(self, device_type: str, memory_bytes: int) -> PhysicalDevice:
        """Add simulated hardware; RuntimeError if a device was used already."""
        with self.lock:
            self.check_unused("The physical devices")
            machine = dict(self.machine(device_type))
            added = _add_simulated(machine, device_type, memory_bytes)
            self._machine = machine
            return added

    @property
    def used(self) -> bool:
        """Whether devices exist, so that settings are fixed."""
        return self._made is not None

    @property
    def made_now(self) -> tuple[Made, ...]:
        """The logical devices that exist; none is created, and no lock is taken."""
        return self._made or ()

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

    def made(self, device_type: str | None) -> tuple[Made, ...]:
        """Return the logical devices, including all of a type; None is every type.

        The first use creates them. Hidden GPUs are not detected.
        """
        with self.lock:
            wanted = device_type if self.settings.visible is None else "CPU"
            if self._made is None:
                limits = physical_limits()
                limited = any(kind == "GPU" for kind, _ in limits)
                machine = self.machine("GPU" if limited else wanted)
                overrides = EnvironmentOverrides.read(machine, limits)
                self.host.apply()  # it bounds GPUs, too
                specifications = specify(machine, self.settings, overrides)
                self._made = _make(specifications, machine)
                self._overrides = overrides
            self.machine(wanted)
            if not self.shares:
                return self._made
            cpus = [each for each in self._made if _is_of(each, "CPU")]
            return (*cpus, *self.shares, *self._made[len(cpus) :])

    def next_name(self, device_type: str) -> str:
        """Return a name that no device has had so far."""
        with self.lock:
            alike = [each for each in self._made or () if _is_of(each, device_type)]
            number = max(len(alike), self._numbers.get(device_type, 0) + 1)
            self._numbers[device_type] = number
            return f"/device:{device_type}:{number}"

    @property
    def host_bytes(self) -> int:
        """The memory of this machine in bytes."""
        return next(iter(self.machine("CPU").values())).memory_bytes

    def changed(self, change: Callable[[], _T]) -> _T:
        """Call what may lower the limits of devices, with the lock.

        Models give their memory without it, and what changes limits is called again.
        They may be amid a step, which may be long and look for a device.
        """
        while True:
            with self.lock, sparing_models():
                for made in (*self.made_now, *self.shares):
                    made.short_bytes = 0
                try:
                    return change()
                except ResourceExhaustedError as error:
                    refusal = error
                devices = (*self.made_now, *self.shares)
                short = {made: made.short_bytes for made in devices if made.short_bytes}
            try:
                given = [
                    made.device.pool.holders.give_back(nbytes)
                    for made, nbytes in short.items()
                ]
                if not any(given):
                    raise refusal
            finally:
                del refusal  # its traceback has this frame

    def set_limit(self, made: Made, limit_bytes: int | None) -> int | None:
        """Change the limit of a device, None to the maximum; return the one before."""
        return self.changed(partial(self._set_limit, made, limit_bytes))

    def _set_limit(self, made: Made, limit_bytes: int | None) -> int | None:
        if made.is_budgeted:
            raise RuntimeError(
                f"the limit of {made.logical.name} is that of a budget, until its "
                "block ends: enter a smaller budget inside, or set the limit before"
            )
        physical, memory = made.specification.physical, made.specification.memory
        bounds = Bounds.of(physical, made.hardware, self._overrides)
        others = [
            MemorySpec(other.limit_bytes, other.specification.memory.growth)
            for other in self._made or ()
            if other.specification.physical == physical and other is not made
        ]
        if limit_bytes is None:
            limit_bytes = bounds.max_limit(memory.growth, others)
        bounds.check([MemorySpec(limit_bytes, memory.growth), *others])
        bounds.warn_of_much([limit_bytes])
        self.settle(made)
        own = made.own_limit
        before = own if made.shares else made.limit_bytes
        made.own_limit = limit_bytes
        try:
            made.apply_limit()
        except BaseException:
            made.own_limit = own
            raise
        return before

    def settle(self, made: Made) -> None:
        """Take back the bytes that ended shares of a device no longer hold."""
        ended = [each for each in made.shares if each.ended]
        if not ended:
            return
        if any(each.in_use_bytes for each in ended):
            gc.collect()  # a model that is only kept by a reference cycle
        for each in ended:
            held = each.in_use_bytes
            if held:
                with suppress(ResourceExhaustedError):  # pages of several blocks
                    each.device.pool.set_limit(held)
                    made.shares[each] = held
            else:
                del made.shares[each]
                with suppress(ValueError):  # a reset has dropped it
                    self.shares.remove(each)
        made.apply_limit()

    def lower_limits(self, most: int) -> None:
        """Limit all devices with their own memory to `most` bytes, or change nothing.

        ValueError if the hardware is split and the sum of limits is larger;
        ResourceExhaustedError if more is in use.
        """
        parts: dict[PhysicalDevice, list[Made]] = {}
        for made in self._made or ():
            if made.hardware.space != "host":
                parts.setdefault(made.specification.physical, []).append(made)
        lowered: list[tuple[Made, int | None]] = []
        try:
            for physical, group in parts.items():
                limits = [made.limit_bytes for made in group]
                if None not in limits and sum(filter(None, limits)) <= most:
                    continue
                if len(group) > 1:
                    raise ValueError(
                        f"the logical devices of {physical.name} may together take "
                        f"more than {most} B: lower their limits with set_memory_limit "
                        "first"
                    )
                if "device" in vars(group[0]):  # otherwise created with this limit
                    before = group[0].limit_bytes
                    group[0].set_pool_limit(most)
                    lowered.append((group[0], before))
        except BaseException:
            for made, before in reversed(lowered):
                made.device.pool.set_limit(before)
            raise

    def respill(self, physical: PhysicalDevice, spills: Sequence[Spill]) -> None:
        """Change the tiers of used logical devices, in the order of their settings.

        RuntimeError if memory of a changed device is in use.
        """
        with self.lock:
            drop_ended()
            own = [
                made
                for made in self._made or ()
                if made.specification.physical == physical
            ]
            known = zip(own, spills, strict=False)  # hidden hardware has no devices
            pairs = [
                (made, spill)
                for made, spill in known
                if made.specification.spill != spill
            ]
            changed = [made for made, _ in pairs]
            if self._live(changed):
                gc.collect()  # frees models in reference cycles
            live = self._live(changed)
            if live:
                raise RuntimeError(
                    "Where tensors spill to cannot be modified while memory is in "
                    f"use: {'; '.join(live)}. Delete what holds it, or close it."
                )
            for made, spill in pairs:
                made.specification = replace(made.specification, spill=spill)
                if "device" in vars(made):
                    made.device.use_spill(spill)

    def use_threads(self, count: int) -> None:
        """Set the threads of a kernel; 0 restores the number before the first call."""
        if count > 0:
            before = get_num_threads()
            set_num_threads(count)
            if self._default_threads is None:
                self._default_threads = before
        elif self._default_threads is not None:
            set_num_threads(self._default_threads)
            self._default_threads = None

    def reset(self) -> None:
        """Drop all settings and devices, unless a budget or memory is in use."""
        with self.lock:
            devices = (*(self._made or ()), *self.shares)
            budgeted = [made.logical.name for made in devices if made.budgets]
            if budgeted:
                raise RuntimeError(
                    f"a budget limits {budgeted[0]}, and a reset would drop it: reset "
                    "when its block has ended"
                )
            drop_ended()
            if self._live(devices):
                gc.collect()  # frees models in reference cycles
            live = self._live(devices)
            if live:
                raise RuntimeError(
                    "The devices are still in use: "
                    + "; ".join(live)
                    + ". Delete what holds this memory, or close it, and reset again."
                )
            self.drop()

    def _live(self, devices: Iterable[Made]) -> list[str]:
        return [
            f"{owner} holds {format_bytes(nbytes)} on {made.logical.name}"
            for made in devices
            for owner, nbytes in made.owners().items()
        ]

    def drop(self) -> None:
        """Drop everything unconditionally; live memory stays with its holders."""
        with self.lock:
            self.settings = Settings()
            self.options = Options()
            crash_setting.reset()
            reporter.stop()
            set_spill_everything(False)
            set_bypass_everything(False)
            self.host.reset()
            self.use_threads(0)
            set_max_running(0)
            self._machine, self._looked = None, False
            self._overrides = EnvironmentOverrides()
            self._made, self.shares = None, []

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where no thread could release it."""
        self.lock = threading.RLock()


def _is_of(made: Made, device_type: str) -> bool:
    return made.logical.device_type == device_type


def _make(
    specifications: dict[str, Specification], machine: Machine
) -> tuple[Made, ...]:
    return tuple(
        Made(
            LogicalDevice(name, entry.physical.device_type),
            entry,
            machine[entry.physical],
        )
        for name, entry in specifications.items()
    )


def _add(machine: dict[PhysicalDevice, Hardware], hardware: Hardware) -> PhysicalDevice:
    device = PhysicalDevice(hardware.name, hardware.device_type)
    machine[device] = hardware
    return device


def _add_simulated(
    machine: dict[PhysicalDevice, Hardware], device_type: str, memory_bytes: int
) -> PhysicalDevice:
    index = sum(device.device_type == device_type for device in machine)
    return _add(machine, SimulatedHardware(device_type, index, memory_bytes))


registry = Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=registry.renew_lock)

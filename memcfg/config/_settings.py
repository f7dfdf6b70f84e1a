"""What code and the environment ask for, as values.

Owns the records that devices are made from and the options beside them. Refuses to
judge them: each setter checks what it is given, `memcfg.config._specify` what needs
all of it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.config import _environment as environment
from memcfg.config._limits import limit_from_bytes
from memcfg.config._types import LogicalDeviceConfiguration, PhysicalDevice
from memcfg.config._workspace_config import WorkspaceConfig

if TYPE_CHECKING:
    from memcfg.config._names import DeviceName
    from memcfg.config._policies import DebugMode
    from memcfg.devices import Hardware

__all__ = ["DEFAULT", "Configurations", "Demands", "Machine", "Options", "Settings"]

Configurations = tuple[LogicalDeviceConfiguration, ...]
Machine = Mapping[PhysicalDevice, "Hardware"]  # in the order of the listings

DEFAULT: Configurations = (LogicalDeviceConfiguration(),)


@dataclass
class Settings:
    """What was set in code; fixed at the first use of a device.

    Attributes
    ----------
    visible : tuple of PhysicalDevice or None
        None is all of them.
    growth : dict of PhysicalDevice to bool
        Only where it was set.
    logical : dict of PhysicalDevice to tuple of LogicalDeviceConfiguration
        Only where it was set.
    intra_threads : int
        Threads of one kernel; 0 is automatic.
    inter_threads : int
        Programs that run at the same time; 0 is without a bound.
    """

    visible: tuple[PhysicalDevice, ...] | None = None
    growth: dict[PhysicalDevice, bool] = field(default_factory=dict)
    logical: dict[PhysicalDevice, Configurations] = field(default_factory=dict)
    intra_threads: int = 0
    inter_threads: int = 0

    def sees(self, device: PhysicalDevice) -> bool:
        """Tell whether logical devices are made of a piece of hardware."""
        return self.visible is None or device in self.visible


@dataclass
class Options:
    """What may be changed at any time.

    Attributes
    ----------
    soft_placement : bool
        Whether a block on a missing device falls back to the CPU.
    warned : set of DeviceName
        The missing devices that a warning was given for.
    jit : bool
        Stored only.
    optimizer : dict of str to bool or int
        Stored only.
    of_thread : threading.local
        Stored only: each thread's device policy and execution mode.
    workspace_config : WorkspaceConfig
        Of workspaces that are made without one.
    scope_checks : str
        What a use of an invalid array does.
    debug_mode : DebugMode or None
        Of all workspaces; None is what the environment says.
    """

    soft_placement: bool = True
    warned: set[DeviceName] = field(default_factory=set)
    jit: bool = False
    optimizer: dict[str, bool | int] = field(default_factory=dict)
    of_thread: threading.local = field(default_factory=threading.local)
    workspace_config: WorkspaceConfig = field(default_factory=WorkspaceConfig)
    scope_checks: str = "error"
    debug_mode: DebugMode | None = None


@dataclass(frozen=True)
class Demands:
    """What the user's environment demands of devices.

    Attributes
    ----------
    growth : bool or None
        Of every device but a CPU, whatever was set in code; None demands nothing.
    ceilings : mapping of PhysicalDevice to int
        The most bytes of a piece of hardware that may be in use.
    """

    growth: bool | None = None
    ceilings: Mapping[PhysicalDevice, int] = field(default_factory=dict)

    @classmethod
    def read(cls, machine: Machine) -> Demands:
        """Read the variables; FormatError if one of them cannot be honoured."""
        ceilings: dict[PhysicalDevice, int] = {}
        for (device_type, index), size in environment.physical_limits().items():
            name = f"/physical_device:{device_type}:{index}"
            device = PhysicalDevice(name, device_type)
            if device not in machine:
                raise environment.unreadable(
                    environment.LIMITS, f"there is no {device_type}:{index}"
                )
            total = machine[device].memory_bytes
            ceiling = limit_from_bytes(size, total_bytes=total)
            assert ceiling is not None, "a size was read"
            ceilings[device] = ceiling
        return cls(environment.forced_growth(), ceilings)

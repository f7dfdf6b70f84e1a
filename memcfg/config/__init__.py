"""Devices and their memory limits, with the names of tf.config.

A limit is on bytes in use, each piece rounded up to 64. In `LogicalDeviceConfiguration`
a number is MiB; everywhere else a number is bytes. A string has a unit in both, and
``"50%"`` is a fraction of the hardware's memory. Devices are created at the first use,
which can raise the errors of `list_logical_devices`. From then on their configuration
is fixed, except for `set_memory_limit`; `reset` starts over. The environment is read
when it is first needed; a variable that cannot be parsed raises FormatError then:

``MEMCFG_SIMULATED_DEVICES``
    ``GPU:2:16GiB``: hardware of addresses only.
``MEMCFG_FORCE_GPU_ALLOW_GROWTH``
    ``true`` or ``false``; overrides every setting of growth but a CPU's.
``MEMCFG_MEMORY_LIMIT``
    ``CPU:0=2GiB``: the limit of hardware that is not configured, and the maximum for
    hardware that is.
``MEMCFG_MAX_BYTES``, ``MEMCFG_MAX_RSS_BYTES``
    The limits of `set_host_memory_limit`, until it is called.
``MEMCFG_CRASH_REPORTS``
    The folder of `set_crash_reports`, until it is called.
``MEMCFG_LIVE_REPORT``
    ``1``: `set_live_report` is called with the first resource or device.
``MEMCFG_WORKSPACE_DEBUG``
    ``spill_everything`` or ``bypass_everything``: the mode of `set_debug_mode`, until
    it is called.

`WorkspaceConfig` and its policies configure a workspace, which `memcfg.workspaces`
makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._core._environment import HostLimits
from memcfg._missing import refuse
from memcfg.config import experimental, optimizer, threading
from memcfg.config._absent import AT_TOP, explain
from memcfg.config._dtype_policy import DTypePolicy, dtype_policy, set_dtype_policy
from memcfg.config._dtype_policy import reset as _reset_dtype_policy
from memcfg.config._host import get_host_memory_info, set_host_memory_limit
from memcfg.config._logical import (
    device,
    get_memory_info,
    get_memory_limit,
    get_memory_usage,
    get_soft_device_placement,
    list_logical_devices,
    logical_device,
    memory_fraction,
    record_memory_history,
    reset_memory_stats,
    set_memory_limit,
    set_soft_device_placement,
    trim,
)
from memcfg.config._physical import (
    get_device_details,
    get_logical_device_configuration,
    get_memory_growth,
    get_visible_devices,
    list_physical_devices,
    set_logical_device_configuration,
    set_memory_growth,
    set_visible_devices,
)
from memcfg.config._planning import (
    get_alternatives_seconds,
    set_alternatives_seconds,
)
from memcfg.config._process_reports import (
    get_crash_reports,
    get_live_report,
    set_crash_reports,
    set_live_report,
)
from memcfg.config._program_limit import budget
from memcfg.config._registry import registry as _registry
from memcfg.config._types import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
)
from memcfg.config._workspace_config import (
    AllocationPolicy,
    DebugMode,
    EscapePolicy,
    LearningPolicy,
    LocationPolicy,
    MirroringPolicy,
    ResetPolicy,
    SpillPolicy,
    WorkspaceConfig,
)
from memcfg.config._workspace_settings import (
    get_debug_mode,
    get_default_workspace_config,
    get_scope_checks,
    set_debug_mode,
    set_default_workspace_config,
    set_scope_checks,
)

__all__ = [
    "AllocationPolicy",
    "DTypePolicy",
    "DebugMode",
    "EscapePolicy",
    "HostLimits",
    "LearningPolicy",
    "LocationPolicy",
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "MirroringPolicy",
    "PhysicalDevice",
    "ResetPolicy",
    "SpillPolicy",
    "WorkspaceConfig",
    "budget",
    "device",
    "dtype_policy",
    "experimental",
    "get_alternatives_seconds",
    "get_crash_reports",
    "get_debug_mode",
    "get_default_workspace_config",
    "get_device_details",
    "get_host_memory_info",
    "get_live_report",
    "get_logical_device_configuration",
    "get_memory_growth",
    "get_memory_info",
    "get_memory_limit",
    "get_memory_usage",
    "get_scope_checks",
    "get_soft_device_placement",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "logical_device",
    "memory_fraction",
    "optimizer",
    "record_memory_history",
    "reset",
    "reset_memory_stats",
    "set_alternatives_seconds",
    "set_crash_reports",
    "set_debug_mode",
    "set_default_workspace_config",
    "set_dtype_policy",
    "set_host_memory_limit",
    "set_live_report",
    "set_logical_device_configuration",
    "set_memory_growth",
    "set_memory_limit",
    "set_scope_checks",
    "set_soft_device_placement",
    "set_visible_devices",
    "threading",
    "trim",
]


def reset() -> None:
    """Drop all configurations and devices, as if nothing had been used.

    That includes simulated devices, limits on host memory that were set here, the
    number of threads, the dtype policy, the time for alternatives, the folder of crash
    reports, the live report and the settings of workspaces; the environment is read
    again. A compiled model keeps the name of its device: it allocates memory again on
    the device that has this name then, inside that device's limit, or raises
    RuntimeError if there is none.

    Raises
    ------
    RuntimeError
        If memory of a device is still in use; the message lists its holders. If a
        `memcfg.budget` limits a device. Nothing is dropped then.
    """
    _registry.reset()
    _reset_dtype_policy()


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:  # a checker would take any name to be there

    def __getattr__(name: str) -> NoReturn:
        refuse(__name__, name, explain(AT_TOP, name))

"""Devices and their memory limits, by the names that users of tf.config know.

Owns what may be said about devices before and while they are used: it validates,
records and delegates. Refuses to know models, kernels and plans.

A limit is on bytes in use, each piece rounded up to 64. In
`LogicalDeviceConfiguration` a number is MiB; everywhere else a number is bytes. A
string carries its unit in both. Devices are made at first use and their
configuration is fixed from then on, except for `set_memory_limit`.
"""

from __future__ import annotations

from memcfg.config._devices import (
    device,
    get_logical_device_configuration,
    list_logical_devices,
    list_physical_devices,
    logical_device,
    reset,
    set_logical_device_configuration,
)
from memcfg.config._memory import (
    get_memory_info,
    reset_memory_stats,
    set_memory_limit,
)
from memcfg.config._types import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
)

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "device",
    "get_logical_device_configuration",
    "get_memory_info",
    "list_logical_devices",
    "list_physical_devices",
    "logical_device",
    "reset",
    "reset_memory_stats",
    "set_logical_device_configuration",
    "set_memory_limit",
]

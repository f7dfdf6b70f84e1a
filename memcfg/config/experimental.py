"""The names that TensorFlow keeps under ``tf.config.experimental``.

Owns aliases only, and `add_simulated_device`, which TensorFlow does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg.config._absent import EXPERIMENTAL, refusal
from memcfg.config._details import get_device_details
from memcfg.config._devices import list_logical_devices, list_physical_devices
from memcfg.config._execution import (
    get_device_policy,
    get_synchronous_execution,
    set_device_policy,
    set_synchronous_execution,
)
from memcfg.config._growth import get_memory_growth, set_memory_growth
from memcfg.config._logical import (
    get_logical_device_configuration as get_virtual_device_configuration,
)
from memcfg.config._logical import (
    set_logical_device_configuration as set_virtual_device_configuration,
)
from memcfg.config._memory import (
    get_memory_info,
    get_memory_usage,
    reset_memory_stats,
)
from memcfg.config._simulated import add_simulated_device
from memcfg.config._types import (
    LogicalDeviceConfiguration as VirtualDeviceConfiguration,
)
from memcfg.config._visibility import get_visible_devices, set_visible_devices

__all__ = [
    "VirtualDeviceConfiguration",
    "add_simulated_device",
    "get_device_details",
    "get_device_policy",
    "get_memory_growth",
    "get_memory_info",
    "get_memory_usage",
    "get_synchronous_execution",
    "get_virtual_device_configuration",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "reset_memory_stats",
    "set_device_policy",
    "set_memory_growth",
    "set_synchronous_execution",
    "set_virtual_device_configuration",
    "set_visible_devices",
]


if not TYPE_CHECKING:  # a checker would take any name to be there

    def __getattr__(name: str) -> NoReturn:
        raise refusal(__name__, EXPERIMENTAL, name)

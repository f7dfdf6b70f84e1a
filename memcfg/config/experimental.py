"""The names that TensorFlow keeps under ``tf.config.experimental``.

Most are aliases; the device policy and the execution mode are stored only, since a step
is one static graph on one device, run to its end. `add_simulated_device` is memcfg's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.config._absent import EXPERIMENTAL, explain
from memcfg.config._logical import (
    get_memory_info,
    get_memory_usage,
    list_logical_devices,
    reset_memory_stats,
)
from memcfg.config._physical import (
    add_simulated_device,
    get_device_details,
    get_memory_growth,
    get_visible_devices,
    list_physical_devices,
    set_memory_growth,
    set_visible_devices,
)
from memcfg.config._physical import (
    get_logical_device_configuration as get_virtual_device_configuration,
)
from memcfg.config._physical import (
    set_logical_device_configuration as set_virtual_device_configuration,
)
from memcfg.config._registry import registry
from memcfg.config._types import (
    LogicalDeviceConfiguration as VirtualDeviceConfiguration,
)

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

_POLICIES = ("silent", "silent_for_int32", "warn", "explicit")


def get_device_policy() -> str:
    """Return this thread's device policy, ``"silent"`` by default. Stored only."""
    return str(getattr(registry.options.of_thread, "policy", _POLICIES[0]))


def set_device_policy(device_policy: str | None) -> None:
    """Set the running thread's device policy. Stored only.

    memcfg has no op whose operands lie on two devices, so the policy has no effect.

    Parameters
    ----------
    device_policy : str or None
        ``"silent"``, ``"silent_for_int32"``, ``"warn"`` or ``"explicit"``; None is
        ``"silent"``. It can be changed at any time.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    policy = _POLICIES[0] if device_policy is None else device_policy
    if policy not in _POLICIES:
        raise ValueError(
            f"device_policy is one of {', '.join(_POLICIES)} or None, not "
            f"{device_policy!r}"
        )
    registry.options.of_thread.policy = policy


def get_synchronous_execution() -> bool:
    """Return the running thread's execution mode, True by default. Stored only."""
    return bool(getattr(registry.options.of_thread, "synchronous", True))


def set_synchronous_execution(enable: bool | None) -> None:
    """Set the running thread's execution mode. Stored only.

    memcfg runs each step to its end before a call returns, in either mode.

    Parameters
    ----------
    enable : bool or None
        None is True. It can be changed at any time.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if not isinstance(enable, bool | None):
        raise TypeError(f"expected True, False or None, not {enable!r}")
    registry.options.of_thread.synchronous = enable is not False


if not TYPE_CHECKING:  # a checker would take any name to be there

    def __getattr__(name: str) -> NoReturn:
        refuse(__name__, name, explain(EXPERIMENTAL, name))

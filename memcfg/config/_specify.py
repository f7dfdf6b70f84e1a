"""From what was configured to the list of logical devices that will be made.

Owns the rules that need all settings at once: priorities and ordinals for all or for
none, growth alike on all GPUs, limits within bounds, the numbering. Pure: hardware
and settings in, specifications out, so every rule can be tried without a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.config._bounds import Bounds, Share
from memcfg.config._settings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.config._settings import Configurations, Demands, Machine, Settings
    from memcfg.config._types import LogicalDeviceConfiguration, PhysicalDevice
    from memcfg.devices import Hardware

__all__ = ["Specification", "specify"]


@dataclass(frozen=True)
class Specification:
    """One logical device, as it is to be made.

    Attributes
    ----------
    physical : PhysicalDevice
        Where it is.
    share : Share
        Its limit, and whether it grows.
    ordinal : int
        Its place before hardware and order of configuration count.
    priority : int
        The priority of its streams.
    """

    physical: PhysicalDevice
    share: Share
    ordinal: int = 0
    priority: int = 0


def specify(
    machine: Machine, settings: Settings, demands: Demands
) -> dict[str, Specification]:
    """Return the logical devices that the settings ask for.

    Parameters
    ----------
    machine : mapping of PhysicalDevice to Hardware
        All hardware, visible or not.
    settings : Settings
        What was set in code.
    demands : Demands
        What the environment demands.

    Returns
    -------
    dict of str to Specification
        By name, in the order of the listings: type by type, within a type by
        ordinal, then hardware, then configuration.

    Raises
    ------
    ValueError
        If settings contradict each other, the hardware or the environment.
    """
    visible = [device for device in machine if settings.sees(device)]
    found: dict[str, Specification] = {}
    for kind in dict.fromkeys(device.device_type for device in visible):
        alike = [device for device in visible if device.device_type == kind]
        if demands.growth is None:
            _check_growth_alike(alike, settings)
        entries = [
            entry
            for device in alike
            for entry in _on(device, machine[device], settings, demands)
        ]
        entries.sort(key=lambda entry: entry.ordinal)  # stable
        found |= {f"/device:{kind}:{i}": entry for i, entry in enumerate(entries)}
    return found


def _check_growth_alike(devices: Sequence[PhysicalDevice], settings: Settings) -> None:
    values = {device: settings.growth.get(device) for device in devices}
    if len(set(values.values())) > 1:
        raise ValueError(
            f"Memory growth cannot differ between {devices[0].device_type} devices ("
            + ", ".join(f"{d.name}: {growth}" for d, growth in values.items())
            + "): set it alike, or hide the others with set_visible_devices"
        )


def _on(
    device: PhysicalDevice, hardware: Hardware, settings: Settings, demands: Demands
) -> list[Specification]:
    """Specify the logical devices of one piece of hardware."""
    configurations = settings.logical.get(device, DEFAULT)
    _check_priorities(hardware, configurations)
    _check_ordinals(hardware, configurations)
    bounds = Bounds.of(device, hardware, demands)
    alone = len(configurations) == 1
    shares: list[Share] = []
    for item in configurations:
        growth = _growth(item, device, settings, demands)
        limit = item.limit_on(hardware.memory_bytes)
        if limit is None and (alone or hardware.bounded):
            limit = bounds.most(growth, [])
        _check_limited(device, Share(limit, growth))
        shares.append(Share(limit, growth))
    bounds.check(shares)
    return [
        Specification(
            device,
            share,
            item.experimental_device_ordinal or 0,
            item.experimental_priority or 0,
        )
        for item, share in zip(configurations, shares, strict=True)
    ]


def _growth(
    item: LogicalDeviceConfiguration,
    device: PhysicalDevice,
    settings: Settings,
    demands: Demands,
) -> bool:
    """Who decides: the environment, the configuration, the hardware's setting."""
    is_cpu = device.device_type == "CPU"
    if demands.growth is not None and not is_cpu:
        return demands.growth
    if item.growth is not None:
        return item.growth
    return settings.growth.get(device, is_cpu)


def _check_limited(device: PhysicalDevice, share: Share) -> None:
    if share.limit_bytes is None and not share.growth:
        raise ValueError(
            f"without growth all memory is taken at once, so {device.name} needs a "
            "memory limit: give one, or let it grow"
        )


def _check_priorities(hardware: Hardware, configurations: Configurations) -> None:
    given = [
        item.experimental_priority
        for item in configurations
        if item.experimental_priority is not None
    ]
    if given and len(given) != len(configurations):
        raise ValueError(
            f"experimental_priority must be specified for all virtual devices of "
            f"{hardware.name} or for none"
        )
    allowed = hardware.priorities
    wrong = [value for value in given if allowed is None or value not in allowed]
    if wrong:
        span = f"from {allowed[0]} to {allowed[-1]}" if allowed else "not known"
        raise ValueError(
            f"experimental_priority {wrong[0]} is out of range: those of "
            f"{hardware.name} are {span}"
        )


def _check_ordinals(hardware: Hardware, configurations: Configurations) -> None:
    given = sum(item.experimental_device_ordinal is not None for item in configurations)
    if given not in (0, len(configurations)):
        raise ValueError(
            f"experimental_device_ordinal must be specified for all virtual devices "
            f"of {hardware.name} or for none"
        )

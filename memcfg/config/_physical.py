"""Physical devices: lists of them, and their settings before the first use.

A call that raises changes nothing. Conditions on several settings are checked when the
devices are created.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memcfg._caller import outside
from memcfg.config._registry import registry
from memcfg.config._specify import DEFAULT
from memcfg.config._types import (
    TYPES,
    LogicalDeviceConfiguration,
    PhysicalDevice,
    device_type_of,
    limit_from_bytes,
    parse_name,
    require_type,
    spelling,
)
from memcfg.config._variables import MAX_DEVICE_BYTES, check_simulated_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.config._specify import Configurations
    from memcfg.devices import Hardware, Spill

T = TypeVar("T")


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the hardware of this machine, simulated hardware included.

    This creates no logical device. Unless the type is ``"CPU"``, GPUs are detected;
    that initializes CUDA, which does not work in processes that are forked later.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"CPU"`` or ``"cpu"``; None lists every type. For a type that this
        machine does not have the list is empty; for an unknown type it is empty, too,
        with a warning.

    Returns
    -------
    list of PhysicalDevice
        A new list; changing it changes nothing else.

    Raises
    ------
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    kind = listed_type(device_type)
    return _of_type(registry.machine(kind), kind)


def listed_type(device_type: str | None) -> str | None:
    """Return a type to list, in capital letters; warn of an unknown type."""
    if device_type is None:
        return None
    known = dict.fromkeys((*TYPES, *(d.device_type for d in registry.machine("CPU"))))
    kind = str(device_type).upper()
    if kind not in known:
        is_gpu = spelling(str(device_type))
        right = "write 'GPU'" if is_gpu else f"there are {', '.join(known)}"
        warnings.warn(  # TensorFlow says nothing
            f"no device is of type {device_type!r}: {right}",
            RuntimeWarning,
            stacklevel=outside(),
        )
    return kind


def _of_type(
    devices: Iterable[PhysicalDevice], device_type: str | None
) -> list[PhysicalDevice]:
    return [each for each in devices if device_type in (None, each.device_type)]


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """Return what is known about a piece of hardware; this is not a first use.

    Parameters
    ----------
    device : PhysicalDevice
        One of `list_physical_devices`. As in TensorFlow, neither a name nor a
        logical device will do.

    Returns
    -------
    dict of str to object
        ``device_name`` and ``memory`` in bytes; of a CPU also ``cores``, the number
        that this process may use; of simulated hardware also ``simulated``, which
        is True.

    Raises
    ------
    ValueError
        If `device` is not a `PhysicalDevice` of this machine.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    if not isinstance(device, PhysicalDevice):
        raise ValueError(  # TensorFlow's rule: no TypeError
            f"device must be a memcfg.config.PhysicalDevice, but got: {device!r}"
        )
    hardware = registry.machine(device.device_type).get(device)
    if hardware is None:
        raise ValueError(
            "device must be one obtained from calling "
            f"memcfg.config.list_physical_devices, but got: {device!r}"
        )
    return hardware.details()


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the hardware that memcfg may use.

    Parameters
    ----------
    device_type : str or None, default None
        As for `list_physical_devices`.

    Returns
    -------
    list of PhysicalDevice
        A new list, in the order in which it was set; all hardware by default.

    Raises
    ------
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    kind = listed_type(device_type)
    return _of_type(_visible(kind), kind)


def set_visible_devices(
    devices: str | PhysicalDevice | Iterable[str | PhysicalDevice] | None,
    device_type: str | None = None,
) -> None:
    """Choose the hardware that memcfg may use.

    Parameters
    ----------
    devices : PhysicalDevice, str, iterable of them, or None
        Hardware or its names; copied. None is all hardware (of the type). An empty
        list hides all hardware of a type and requires `device_type`.
    device_type : str or None, default None
        The type of `devices`: only hardware of this type is replaced. None replaces the
        whole list, so that all other types become invisible.

    Raises
    ------
    TypeError
        If `devices` contains anything but hardware and names, or `device_type` is not a
        string.
    ValueError
        If a device is not of this machine or not of the type, is a duplicate, no
        device would be left, or `device_type` is not a word in capital letters.
    RuntimeError
        If a device was used already and the list differs from the current one.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Notes
    -----
    A call that raises changes nothing. Logical devices are numbered in the order of
    `list_physical_devices`, regardless of the order here. If GPUs are hidden before the
    first use, they are not detected and CUDA is not initialized.
    """
    if device_type is not None:
        require_type(device_type)
    if devices is not None and not isinstance(devices, str | PhysicalDevice):
        devices = list(devices)
    with registry.lock:
        unseen = devices == [] and device_type == "GPU" and not registry.used
        chosen = _chosen(devices, device_type, "CPU" if unseen else None)
        if not unseen and chosen == list(_visible(None)):
            return
        registry.check_unused("The visible devices")
        registry.settings.visible = tuple(chosen)


def _visible(looked_for: str | None) -> Iterable[PhysicalDevice]:
    visible = registry.settings.visible
    return registry.machine(looked_for) if visible is None else visible


def _chosen(
    devices: str | PhysicalDevice | Iterable[str | PhysicalDevice] | None,
    device_type: str | None,
    looked_for: str | None,
) -> list[PhysicalDevice]:
    if devices is None:
        devices = _of_type(registry.machine(device_type), device_type)
    elif isinstance(devices, str | PhysicalDevice):
        devices = [devices]
    result = [physical_device(device) for device in devices]
    for device in result:
        if device_type not in (None, device.device_type):
            raise ValueError(f"Unrecognized device {device.name!r} of {device_type!r}")
    if len(set(result)) < len(result):
        raise ValueError(f"duplicate devices: {[d.name for d in result]}")
    if device_type is not None:
        visible = _visible(looked_for)
        others = [item for item in visible if item.device_type != device_type]
        result = others + result
    if not result:
        raise ValueError("no device would be visible; to hide a type, name it")
    return result


def get_memory_growth(device: str | PhysicalDevice) -> bool | None:
    """Return the growth that was set for a physical device.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.

    Returns
    -------
    bool or None
        None if nothing was set: memory then grows, unless the device is simulated.

    Raises
    ------
    TypeError
        If `device` is neither.
    ValueError
        If `device` does not match one device of this machine.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    return registry.settings.growth.get(physical_device(device))


def set_memory_growth(device: str | PhysicalDevice, enable: bool | None) -> None:
    """Set whether the memory of a physical device is allocated as needed.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.
    enable : bool or None
        True allocates memory as needed. False allocates the whole limit at the first
        use; a CPU then needs a limit. None is the default: True, unless the device is
        simulated.

    Raises
    ------
    TypeError
        If `enable` is not a bool.
    ValueError
        If one of its virtual devices is configured with the opposite value.
    RuntimeError
        If a device was used already and the value differs from the current one.
    TypeError, ValueError, FormatError
        What `get_memory_growth` raises.

    Notes
    -----
    A call that raises changes nothing. Growth and limits may be set in either order.
    The first use checks that growth is the same for all visible GPUs, and that a CPU
    without growth has a limit.
    """
    if not isinstance(enable, bool | None):
        raise TypeError(f"growth is True, False or None, not {enable!r}")
    with registry.lock:
        physical = physical_device(device)
        settings = registry.settings
        configured = {item.growth for item in settings.logical.get(physical, ())}
        if enable is not None and (not enable) in configured:
            raise ValueError(
                f"{physical.name} has virtual devices with growth={not enable}; "
                f"growth={enable} for all of it contradicts them"
            )
        if settings.growth.get(physical) == enable:
            return
        registry.check_unused(f"The memory growth of {physical.name}")
        if enable is None:
            del settings.growth[physical]
        else:
            settings.growth[physical] = enable


def get_logical_device_configuration(
    device: str | PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """Return the configuration of a physical device.

    Parameters
    ----------
    device : PhysicalDevice or str
        As for `get_memory_growth`.

    Returns
    -------
    list of LogicalDeviceConfiguration or None
        The argument of `set_logical_device_configuration`; None if it was not called.
        Later changes by `set_memory_limit` are not included.

    Raises
    ------
    TypeError, ValueError, FormatError
        What `get_memory_growth` raises.
    """
    configurations = registry.settings.logical.get(physical_device(device))
    return None if configurations is None else list(configurations)


def set_logical_device_configuration(
    device: str | PhysicalDevice,
    logical_devices: Iterable[LogicalDeviceConfiguration] | None,
) -> None:
    """Split a physical device into logical devices with their own limits.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.
    logical_devices : iterable of LogicalDeviceConfiguration or None
        One entry for each logical device; copied. None is the default: one device,
        without a limit on a CPU, with all of the memory on other hardware.

    Raises
    ------
    TypeError
        If `logical_devices` contains anything but `LogicalDeviceConfiguration`.
    ValueError
        If `device` cannot be split, `logical_devices` is empty, a priority or an
        ordinal is given for a CPU, a device has no memory limit and needs one, or
        growth contradicts `set_memory_growth`.
    RuntimeError
        If a device was used already and the configuration differs from the current one
        in other settings than those of the tiers, or in these while memory of the
        device is in use.
    TypeError, ValueError, FormatError
        What `get_memory_growth` raises.

    Notes
    -----
    A call that raises changes nothing. Before the first use of a device, a call
    replaces the configuration. After it, only `spill_to`, `spill_limit`,
    `lane_bandwidth` and `lane_timeout` may be changed, on devices without memory in
    use; all other settings must equal the earlier ones, and limits changed by
    `set_memory_limit` are kept. Limits are enforced on a CPU, too.
    """
    with registry.lock:
        physical = physical_device(device)
        hardware = registry.machine(physical.device_type)[physical]
        configurations = None
        if logical_devices is not None:
            configurations = _checked(physical, hardware, logical_devices)
        logical = registry.settings.logical
        if registry.used and _same(hardware, configurations, logical.get(physical)):
            return
        if registry.used and _spills_alone(
            hardware, configurations, logical.get(physical)
        ):
            registry.respill(
                physical,
                [
                    item.spill_on(hardware.memory_bytes)
                    for item in sorted(
                        configurations or DEFAULT,
                        key=lambda item: item.experimental_device_ordinal or 0,
                    )
                ],
            )
        else:
            registry.check_unused(f"The logical devices of {physical.name}")
        if configurations is None:
            logical.pop(physical, None)
        else:
            logical[physical] = configurations


def _same(
    hardware: Hardware, first: Configurations | None, second: Configurations | None
) -> bool:
    """Return whether configurations have the same effect: 48 equals "48MiB"."""
    return _spills_alone(hardware, first, second) and (
        _spills(hardware, first) == _spills(hardware, second)
    )


def _spills(hardware: Hardware, configurations: Configurations | None) -> list[Spill]:
    """Return the tiers of each logical device, in the order of their ordinals."""
    items = sorted(
        configurations or DEFAULT,
        key=lambda item: item.experimental_device_ordinal or 0,
    )
    return [item.spill_on(hardware.memory_bytes) for item in items]


def _spills_alone(
    hardware: Hardware, first: Configurations | None, second: Configurations | None
) -> bool:
    """Return whether configurations differ at most in the settings of tiers."""

    def values(configurations: Configurations | None) -> list[tuple[object, ...]]:
        return [
            (
                item.limit_on(hardware.memory_bytes),
                item.experimental_priority,
                item.experimental_device_ordinal,
                item.growth,
            )
            for item in configurations or DEFAULT
        ]

    return values(first) == values(second)


def _checked(
    device: PhysicalDevice,
    hardware: Hardware,
    configurations: Iterable[LogicalDeviceConfiguration],
) -> Configurations:
    if isinstance(configurations, LogicalDeviceConfiguration):
        raise TypeError(
            "expected a list of LogicalDeviceConfiguration, got one of them"
        )
    if not hardware.divisible:
        raise ValueError(f"Virtual devices are not supported for {device.device_type}")
    checked = tuple(configurations)
    if not checked:
        raise ValueError(f"no logical device given for {device.name}; None is default")
    growth = registry.settings.growth.get(device)
    for item in checked:
        if not isinstance(item, LogicalDeviceConfiguration):
            raise TypeError(f"expected a LogicalDeviceConfiguration, got {item!r}")
        if device.device_type == "CPU":
            _check_cpu(item)
        elif item.memory_limit is None:
            raise ValueError(
                f"a memory limit is required for virtual devices of {device.name}"
            )
        _check_spill(item, hardware)
        if None not in (growth, item.growth) and growth != item.growth:
            raise ValueError(
                f"set_memory_growth says {growth} of {device.name}; virtual devices "
                f"with growth={item.growth} contradict it"
            )
    return checked


def _check_spill(item: LogicalDeviceConfiguration, hardware: Hardware) -> None:
    spill = item.spill_on(hardware.memory_bytes)
    for place in spill.places:
        if place.folder is not None and not Path(place.folder).is_dir():
            raise ValueError(
                f"spill_to: there is no folder {place.folder!r}; for the host's "
                "memory, write 'host'"
            )
        if hardware.space == "device" and place.bandwidth is not None:
            raise ValueError(
                f"lane_bandwidth is not supported for {hardware.name}: it limits "
                "copies on a CPU and on simulated devices only"
            )
    if hardware.space == "device" and item.lane_timeout is not None:
        raise ValueError(
            f"lane_timeout is not supported for {hardware.name}: it applies to the "
            "lanes of a CPU"
        )


def _check_cpu(item: LogicalDeviceConfiguration) -> None:
    for name in ("experimental_priority", "experimental_device_ordinal"):
        if getattr(item, name) is not None:
            raise ValueError(f"{name} is not supported for a CPU")
    if item.growth is False and item.memory_limit is None:
        raise ValueError(
            "without growth all memory is allocated at once: growth=False needs a "
            "memory limit on a CPU"
        )


def add_simulated_device(
    device_type: str = "GPU", *, memory: int | str
) -> PhysicalDevice:
    """Add a physical device of addresses without memory.

    It appears in every listing. Models can be planned on it and pools work there, so
    the rules of GPUs can be tried on any machine; running a program on it is an
    error.

    Parameters
    ----------
    device_type : str, default "GPU"
        A word in capital letters, not ``"CPU"``.
    memory : int or str
        How much memory it is to have: bytes, or a string with its unit
        (``"16GiB"``).

    Raises
    ------
    TypeError
        If the type is not a string, or the memory neither an int nor a string.
    ValueError
        If the type is not such a word, or the memory is not positive, not a size, or
        more than 2**62 bytes.
    RuntimeError
        If a device was used already.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Warns
    -----
    RuntimeWarning
        If the memory is a number below 1 KiB: it is bytes, and MiB were probably meant.
    """
    check_simulated_type(device_type)
    if memory is None:
        raise TypeError("a simulated device needs a memory, such as '16GiB'")
    nbytes = limit_from_bytes(memory, total_bytes=0, name="memory", stacklevel=2)
    assert nbytes is not None, "a size was given"
    if nbytes > MAX_DEVICE_BYTES:
        raise ValueError(f"a simulated device has at most 2**62 bytes, not {memory!r}")
    return registry.add_simulated(device_type, nbytes)


def physical_device(device: str | PhysicalDevice) -> PhysicalDevice:
    """Return the physical device of a name; this is not a first use."""
    if not isinstance(device, str | PhysicalDevice):
        raise TypeError(f"expected a PhysicalDevice or its name, got {device!r}")
    kind = device_type_of(device)
    machine = registry.machine(kind)
    if isinstance(device, str):
        number = parse_name(device).number
        matches = [item for item in machine if item.device_type == kind]
        if number is not None:
            matches = matches[number : number + 1]
    else:
        matches = [device] if device in machine else []
    shown = device if isinstance(device, str) else device.name
    meant = only(matches, shown, [item.name for item in matches])
    if meant is None:
        there = ", ".join(item.name for item in machine)
        why = why_missing(shown, kind)
        raise ValueError(f"Unrecognized device {shown!r}; there are: {there}{why}")
    return meant


def why_missing(name: str, device_type: str) -> str:
    """Return a hint on the right name, and why there is no such hardware, if known."""
    right = spelling(name)
    hint = f". Write {right}" if right else ""
    return hint + registry.why_missing("GPU" if right else device_type)


def only(matches: Sequence[T], name: str, names: Sequence[str]) -> T | None:
    """Return the only match or None; ValueError if there are several."""
    if len(matches) > 1:
        words = ", ".join(names)
        raise ValueError(f"Multiple devices match {name!r}; say which: {words}")
    return matches[0] if matches else None

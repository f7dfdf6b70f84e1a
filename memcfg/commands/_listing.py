"""``memcfg devices``: devices, their limits and their use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import config
from memcfg._core import get_num_threads
from memcfg._tables import draw, new_table
from memcfg._terminal import write
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import argparse

    from rich.table import Table


def add_devices(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Add ``memcfg devices`` to a parser."""
    text = "list devices, their limits and their use"
    parser = subparsers.add_parser("devices", help=text, description=text)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Print the devices of this process; if there is an error, print nothing."""
    devices = config.list_logical_devices()
    kernels = _kernels()
    write(f"{draw(_physical())}\n\n{draw(_logical(devices))}\n")
    limits = config.set_host_memory_limit()
    for name, limit in (("tracked by pools", limits.tracked), ("resident", limits.rss)):
        if limit is not None:
            write(f"Limit of this process, {name}: {format_bytes(limit)}")
    write(f"Kernels: {kernels}")
    write(f"Threads: {get_num_threads()}")
    return 0


def _physical() -> Table:
    table = new_table("Physical device", "Name", numbers=("Memory", "Cores"))
    visible = config.get_visible_devices()
    for device in config.list_physical_devices():
        details = config.get_device_details(device)
        notes = [] if device in visible else ["invisible"]
        table.add_row(
            device.name.removeprefix("/physical_device:"),
            ", ".join([details["device_name"], *notes]),
            format_bytes(details["memory"]),
            str(details.get("cores", "")),
        )
    return table


def _logical(devices: list[config.LogicalDevice]) -> Table:
    numbers = ("Limit", "In use", "Reserved", "Peak")
    table = new_table("Logical device", "Growth", numbers=numbers)
    for logical in devices:
        pool = config.logical_device(logical.name).pool
        stats = pool.stats()
        table.add_row(
            logical.name,
            "yes" if pool.growth else "no",
            "none" if pool.limit is None else format_bytes(pool.limit),
            format_bytes(stats.current_bytes),
            format_bytes(stats.reserved_bytes),
            format_bytes(stats.peak_bytes),
        )
    return table


def _kernels() -> str:
    for logical in config.list_logical_devices("CPU"):
        return config.logical_device(logical.name).describe_kernels()
    return "none: the CPU is invisible"

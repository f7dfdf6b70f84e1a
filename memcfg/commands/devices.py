"""``memcfg devices``: what there is, how much it may use, how much it uses.

Owns the listing. Refuses to change anything but what asking for logical devices
changes: it is a first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from memcfg import config
from memcfg._core import get_num_threads
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser.

    Parameters
    ----------
    subparsers : argparse action
        Where commands are added.
    """
    text = "list devices, their limits and their use"
    parser = subparsers.add_parser("devices", help=text, description=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the devices of this process.

    Parameters
    ----------
    args : argparse.Namespace
        Not used; the command has no options.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    KernelError
        If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
    """
    console = Console(soft_wrap=True)
    console.print(_devices())
    kernels = config.logical_device().describe_kernels()
    console.print(f"Kernels: {kernels}", highlight=False)
    console.print(f"Threads: {get_num_threads()}", highlight=False)
    return 0


def _devices() -> Table:
    table = Table("Device", "Limit", "In use", "Peak")
    for logical in config.list_logical_devices():
        limit = config.logical_device(logical.name).pool.limit
        use = config.get_memory_info(logical)
        table.add_row(
            logical.name,
            "none" if limit is None else format_bytes(limit),
            format_bytes(use["current"]),
            format_bytes(use["peak"]),
        )
    return table

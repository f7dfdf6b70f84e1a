"""``memcfg place``: offsets for buffers from a CSV file in MiniMalloc's format.

Owns the options and the facts that are printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._terminal import write
from memcfg.commands import _files
from memcfg.files import write_atomically
from memcfg.plan import place, read_buffers, write_placement

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
    text = "place buffers with fixed lifetimes (columns id,lower,upper,size)"
    parser = subparsers.add_parser("place", help=text, description=text)
    parser.add_argument("buffers", help="the CSV file")
    parser.add_argument(
        "--capacity",
        type=_files.size,
        metavar="SIZE",
        help="bytes that may not be exceeded, such as 1048576 or 1MiB",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="where to write the rows with their offset"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Place, print the height, write the offsets.

    Parameters
    ----------
    args : argparse.Namespace
        The options.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    FormatError
        If the file is not in the format.
    InfeasiblePlanError
        If no placement within the capacity was found; nothing is written.
    OSError
        If a file cannot be read or written.
    """
    buffers = _files.read(args.buffers, read_buffers)
    placement = place(buffers, capacity=args.capacity)
    if args.output is not None:
        text = write_placement(buffers, placement)
        write_atomically(args.output, text.encode())
    ratio = placement.height / placement.bound if placement.bound else 1.0
    write(f"buffers  {len(buffers)}")
    write(f"height   {placement.height} B")
    write(f"bound    {placement.bound} B live at the busiest moment")
    write(f"ratio    {ratio:.4f}")
    write(f"order    {placement.order}")
    write(f"time     {placement.seconds * 1e3:.1f} ms")
    return 0

"""Tables for people, in plain text without colours, which may be kept in a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from memcfg._terminal import width, writable

if TYPE_CHECKING:
    from collections.abc import Iterable


def new_table(*columns: str | Column, numbers: Iterable[str] = ()) -> Table:
    """Make a table with a line below its head; numbers stand on the right."""
    aligned = [Column(name, justify="right", no_wrap=True) for name in numbers]
    return Table(
        *columns, *aligned, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )


def draw(table: Table) -> str:
    """Write a table without colours, whatever the environment says of terminals.

    Plain words only: for markup `rich` imports more, and the child of a fork in another
    thread would wait for that import for ever.
    """
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width(),
        color_system=None,
        force_terminal=False,
        force_jupyter=False,  # or the table would be shown, and not written
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return writable("\n".join(line for line in lines if line))

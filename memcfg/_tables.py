"""Tables in plain text without colours, which may be stored in a file."""

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
    """Return a table with a line below its head and right-aligned numbers."""
    aligned = [Column(name, justify="right", no_wrap=True) for name in numbers]
    return Table(
        *columns, *aligned, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )


def draw(table: Table) -> str:
    """Return a table as text without colours, whatever the environment sets.

    Cells must be plain text: for markup, `rich` imports more modules, and a child
    forked by another thread meanwhile would wait for that import forever.
    """
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width(),
        color_system=None,
        force_terminal=False,
        # otherwise the table would be displayed instead of returned
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return writable("\n".join(line for line in lines if line))

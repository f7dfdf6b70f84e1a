"""What shows that a long command is at work: its rows as they come, and a status."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from memcfg._tables import draw
from memcfg._terminal import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

_REFRESHES = 4  # a second: it runs beside steps whose time is measured


@contextmanager
def shown(text: str) -> Iterator[Callable[[str], None] | None]:
    """Show what is at work, if there is a terminal for errors; gives what changes it.

    Nothing is to be written meanwhile: the line is drawn again and again.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield None
        return
    status = console.status(text, spinner="line", refresh_per_second=_REFRESHES)
    with status:
        yield lambda other: status.update(other)


class GrowingTable:
    """A table whose rows are written as they come, and stay if a command is ended.

    A column is as wide as was said before, so that what is written stays right.
    """

    def __init__(self, table: Table, widths: list[int]) -> None:
        self._table, self._written = table, 0
        for column, columns in zip(table.columns, widths, strict=True):
            column.min_width = max(columns, len(str(column.header)))

    def add(self, *cells: str) -> None:
        """Write one more row; the first brings the head."""
        self._table.add_row(*cells)
        lines = draw(self._table).splitlines()
        write("\n".join(lines[self._written :]))
        if sys.stdout is not None:
            sys.stdout.flush()
        self._written = len(lines)

"""Progress of long commands: rows as they are ready, and a status line."""

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

_REFRESHES = 4  # a second: it redraws while steps are being timed


@contextmanager
def shown(text: str) -> Iterator[Callable[[str], None] | None]:
    """Show a status line if stderr is a terminal; return a function that changes it.

    Write nothing else meanwhile: the line is redrawn all the time.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield None
        return
    status = console.status(text, spinner="line", refresh_per_second=_REFRESHES)
    with status:
        yield lambda other: status.update(other)


class GrowingTable:
    """A table whose rows are printed as they are added, so an interrupt loses none.

    Column widths are fixed in advance, so printed rows stay aligned.
    """

    def __init__(self, table: Table, widths: list[int]) -> None:
        self._table, self._written = table, 0
        for column, columns in zip(table.columns, widths, strict=True):
            column.min_width = max(columns, len(str(column.header)))

    def add(self, *cells: str) -> None:
        """Print one more row; the first is preceded by the header."""
        self._table.add_row(*cells)
        lines = draw(self._table).splitlines()
        write("\n".join(lines[self._written :]))
        if sys.stdout is not None:
            sys.stdout.flush()
        self._written = len(lines)

"""A progress bar on a terminal, above lines of numbers and of memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from memcfg._terminal import printable, writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from memcfg.nn.training.progress._memory_use import MemoryUse

__all__ = ["TerminalBar"]

_MEMORY = "Memory"


class _Console(Console):
    """A console that raises BrokenPipeError, where `rich` would exit the program."""

    def on_broken_pipe(self) -> None:
        raise


class TerminalBar(RichProgress):
    """A progress bar with the time per step, and lines of numbers and of memory."""

    def __init__(self, title: str, total: int | None, wide: int, width: int) -> None:
        self._numbers: Sequence[str] = ()
        self._memory: MemoryUse | None = None
        self._width = width
        super().__init__(
            TextColumn("{task.description}", table_column=_whole(cell_len(title))),
            MofNCompleteColumn(table_column=_whole(wide)),
            BarColumn(bar_width=width, table_column=_whole(width)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            console=_Console(file=sys.stdout),
            auto_refresh=False,
        )
        self._task = self.add_task(title, total=total, rate="")
        self._indent = cell_len(title) + wide + 2  # the bars begin there
        self._left = self.console.width - self._indent - width - 1

    @property
    def shows_memory(self) -> bool:
        """Whether there is a line of memory: on a terminal, where it is replaced."""
        return self.console.is_terminal

    def draw(
        self, done: int, rate: str, numbers: Sequence[str], memory: MemoryUse | None
    ) -> None:
        """Show the numbers, next to the bar if they fit there."""
        details = " - ".join([rate, *numbers])
        short = cell_len(details) <= self._left
        self._numbers = () if short else numbers
        self._memory = memory
        self.update(
            self._task, completed=done, rate=details if short else rate, refresh=True
        )

    def stop(self) -> None:
        """Stop, leaving the bar and the numbers in place, without the memory."""
        self._memory = None
        super().stop()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and, if there are any, the lines of numbers and of memory."""
        yield from super().get_renderables()
        if self._numbers:
            line = _fitting(self._numbers, self.console.width)
            yield Text(line, no_wrap=True, overflow="ellipsis")
        if self._memory is not None:
            yield self._memory_line(self._memory)

    def _memory_line(self, memory: MemoryUse) -> Text:
        """Return a bar of the limit below that of the steps, with numbers and owners.

        Where the numbers do not fit beside it, there is no bar.
        """
        words = [printable(each) for each in memory.words()]
        share, columns = memory.share, self.console.width
        start = Text(_MEMORY.ljust(self._indent) if share is not None else _MEMORY)
        if share is not None:
            full = round(share * self._width)
            start.append(writable("━" * full), "bar.complete")
            colours = self.console.color_system and not self.console.no_color
            rest = writable("━") if colours else " "
            start.append(rest * (self._width - full), "bar.back")
        start.append(" ")
        if cell_len(start.plain) + cell_len(words[0]) > columns:
            start = Text(f"{_MEMORY} ")
        text = _fitting(words, columns - cell_len(start.plain)) or words[0]
        start.append(text, "progress.remaining")
        start.no_wrap, start.overflow = True, "ellipsis"
        return start


def _whole(width: int) -> Column:
    """Return a column that is never truncated."""
    return Column(no_wrap=True, min_width=width)


def _fitting(parts: Sequence[str], columns: int) -> str:
    """Join as many parts as fit, and state how many are left out."""
    for count in range(len(parts), 0, -1):
        left = len(parts) - count
        text = " - ".join([*parts[:count], f"{left} more"][: count + bool(left)])
        if cell_len(text) <= columns:
            return text
    return ""

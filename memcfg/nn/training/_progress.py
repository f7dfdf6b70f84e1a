"""What a user sees while a model works: a bar, lines, or nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Progress", "check_verbose"]

_BAR = 12  # characters
_REFRESH_SECONDS = 0.1  # between two updates of a bar


def check_verbose(verbose: Any) -> int:
    """Return 0, 1 or 2; ValueError for what means none of them."""
    if isinstance(verbose, str) and verbose == "auto":
        return 1 if sys.stdout.isatty() else 2
    if verbose not in (0, 1, 2):
        raise ValueError(f'verbose is "auto", 0, 1 or 2, not {verbose!r}')
    return int(verbose)


def _whole(width: int) -> Column:
    """Return a column that is never cut; the numbers beside it wrap instead."""
    return Column(no_wrap=True, min_width=width)


class _Console(Console):
    """A console that says that nobody reads it; `rich` would end the program."""

    def on_broken_pipe(self) -> None:
        raise


class Progress:
    """The progress of one pass over data, drawn or printed; a context manager."""

    def __init__(
        self,
        verbose: int,
        steps: int | None,
        title: str = "",
        logs: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._verbose = verbose
        self._steps = steps  # None: not known
        self._title = title
        self._logs = logs  # the numbers so far
        self._done = 0
        self._started = self._stepped = self._shown = time.perf_counter()
        self._bar: RichProgress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._verbose == 1:
            self._bar = RichProgress(
                TextColumn("{task.description}", table_column=_whole(len(self._title))),
                MofNCompleteColumn(table_column=_whole(2 * len(self._total) + 1)),
                BarColumn(bar_width=_BAR, table_column=_whole(_BAR)),
                TextColumn("{task.fields[numbers]}", table_column=Column()),
                console=_Console(file=sys.stdout),
                auto_refresh=False,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._steps, numbers="")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._verbose == 2 and self._done:
            prefix = f"{self._title} - " if self._title else ""
            seconds = time.perf_counter() - self._started
            steps = f"{self._done}/{self._total} - {seconds:.1f}s"
            print(f"{prefix}{steps} - {self._numbers()}")
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def step(self) -> None:
        """Tell that a step is done."""
        self._done += 1
        self._stepped = time.perf_counter()
        if self._bar and self._stepped - self._shown >= _REFRESH_SECONDS:
            self._shown = self._stepped
            self._draw()

    def finish(self, logs: Mapping[str, float]) -> None:
        """Tell the final numbers, such as those of the epoch and of validation."""
        self._logs = lambda: logs

    @property
    def _total(self) -> str:
        """The number of steps; as far as is known."""
        return str(self._done if self._steps is None else self._steps)

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._done, numbers=self._numbers(), refresh=True
            )

    def _numbers(self) -> str:
        # Validation comes after the last step and does not count.
        milliseconds = 1e3 * (self._stepped - self._started) / max(1, self._done)
        parts = [f"{milliseconds:.1f} ms/step"]
        parts += [f"{name}: {value:.4f}" for name, value in self._logs().items()]
        return " - ".join(parts)

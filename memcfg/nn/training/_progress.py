"""Progress output of a model: a bar, lines, or nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from memcfg._terminal import in_notebook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import RenderableType

__all__ = [
    "Progress",
    "check_verbose",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "is_interactive_logging_enabled",
]

_BAR = 12  # characters
_REFRESH_SECONDS = 0.1  # minimum time between two updates of a bar


_interactive = True


def enable_interactive_logging() -> None:
    """Show the progress of `Model.fit` and others by default, as at the start."""
    global _interactive
    _interactive = True


def disable_interactive_logging() -> None:
    """Show no progress by default: ``verbose="auto"`` means 0."""
    global _interactive
    _interactive = False


def is_interactive_logging_enabled() -> bool:
    """Return whether ``verbose="auto"`` shows progress.

    Returns
    -------
    bool
        Whether it does.
    """
    return _interactive


def check_verbose(verbose: Any) -> int:
    """Return `verbose` as 0, 1 or 2; ValueError for any other value."""
    if isinstance(verbose, str) and verbose == "auto":
        if not _interactive:
            return 0
        return 1 if sys.stdout.isatty() or in_notebook() else 2
    if verbose not in (0, 1, 2):
        raise ValueError(f'verbose is "auto", 0, 1 or 2, not {verbose!r}')
    return int(verbose)


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


class _Console(Console):
    """A console that raises BrokenPipeError, where `rich` would exit the program."""

    def on_broken_pipe(self) -> None:
        raise


class _Bar(RichProgress):
    """A progress bar with the time per step, and a line of numbers below it."""

    def __init__(self, title: str, total: int | None, wide: int, width: int) -> None:
        self.numbers: Sequence[str] = ()
        super().__init__(
            TextColumn("{task.description}", table_column=_whole(cell_len(title))),
            MofNCompleteColumn(table_column=_whole(wide)),
            BarColumn(bar_width=width, table_column=_whole(width)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            console=_Console(file=sys.stdout),
            auto_refresh=False,
        )
        self._task = self.add_task(title, total=total, rate="")
        self._left = self.console.width - cell_len(title) - wide - width - 3

    def draw(self, done: int, rate: str, numbers: Sequence[str]) -> None:
        """Show the numbers, next to the bar if they fit there."""
        details = " - ".join([rate, *numbers])
        short = cell_len(details) <= self._left
        self.numbers = () if short else numbers
        self.update(
            self._task, completed=done, rate=details if short else rate, refresh=True
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and, if there are any, the line of numbers."""
        yield from super().get_renderables()
        if self.numbers:
            line = _fitting(self.numbers, self.console.width)
            yield Text(line, no_wrap=True, overflow="ellipsis")


class _Output:
    """A line in a notebook cell's output that the next line replaces."""

    def __init__(self, title: str, total: int | None) -> None:
        from IPython.display import display  # there, since this is a notebook

        self._start = f"{title} - " if title else ""
        self._total = total
        self._handle: Any = display(self._shown(""), raw=True, display_id=True)

    def draw(self, done: int, rate: str, numbers: Sequence[str]) -> None:
        """Show the numbers."""
        steps = f"{done}" if self._total is None else f"{done}/{self._total}"
        line = " - ".join([f"{self._start}{steps}", rate, *numbers])
        self._handle.update(self._shown(line), raw=True)

    def stop(self) -> None:
        """Stop, leaving the last line in place."""

    @staticmethod
    def _shown(line: str) -> dict[str, str]:
        return {"text/plain": line}


class Progress:
    """Context manager that shows the progress of one pass over data."""

    def __init__(
        self,
        verbose: int,
        steps: int | None,
        title: str = "",
        logs: Callable[[], Mapping[str, float]] = dict,
        *,
        width: int = _BAR,
        interval: float = _REFRESH_SECONDS,
        unit: str = "step",
    ) -> None:
        self._verbose = verbose
        self._steps = steps  # None if unknown
        self._title = title
        self._logs = logs  # the logs so far
        self._width = width  # of the bar, in characters
        self._interval = interval  # minimum time between two updates of a bar
        self._unit = unit
        self._done = 0
        self._started = self._stepped = self._shown = time.perf_counter()
        self._bar: _Bar | _Output | None = None

    def __enter__(self) -> Self:
        if self._verbose == 1 and in_notebook():
            self._bar = _Output(self._title, self._steps)
        elif self._verbose == 1:
            wide = 2 * len(self._total) + 1
            self._bar = bar = _Bar(self._title, self._steps, wide, self._width)
            bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind is None and self._verbose == 2 and self._done:
            prefix = f"{self._title} - " if self._title else ""
            seconds = time.perf_counter() - self._started
            steps = f"{self._done}/{self._total} - {seconds:.1f}s"
            numbers = " - ".join([self._rate(), *self._numbers()])
            print(f"{prefix}{steps} - {numbers}")
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def step(self) -> None:
        """Report that a step is done."""
        self._done += 1  # `move`, which would be one more call in each step
        self._stepped = time.perf_counter()
        if self._bar and self._stepped - self._shown >= self._interval:
            self._shown = self._stepped
            self._draw()

    def move(self, done: int) -> None:
        """Report that so many steps are done."""
        self._done = done
        self._stepped = time.perf_counter()
        if self._bar and self._stepped - self._shown >= self._interval:
            self._shown = self._stepped
            self._draw()

    def finish(self, logs: Mapping[str, float]) -> None:
        """Report the final numbers, such as those of the epoch and its validation."""
        self._logs = lambda: logs

    @property
    def _total(self) -> str:
        """The number of steps, or the number so far if the total is unknown."""
        return str(self._done if self._steps is None else self._steps)

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.draw(self._done, self._rate(), self._numbers())

    def _rate(self) -> str:
        # The time of validation, after the last step, is not included.
        milliseconds = 1e3 * (self._stepped - self._started) / max(1, self._done)
        return f"{milliseconds:.1f} ms/{self._unit}"

    def _numbers(self) -> list[str]:
        return [f"{name}: {value:.4f}" for name, value in self._logs().items()]

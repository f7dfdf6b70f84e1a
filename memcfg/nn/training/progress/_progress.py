"""Progress output of a model: a bar, lines, or nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from memcfg._terminal import in_notebook
from memcfg.nn.training.progress._cell_output import CellOutput
from memcfg.nn.training.progress._memory_use import MemoryUse
from memcfg.nn.training.progress._terminal_bar import TerminalBar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.memory import Resource

__all__ = [
    "Progress",
    "check_verbose",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "is_interactive_logging_enabled",
    "shared_cell",
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


def shared_cell(verbose: int) -> CellOutput | None:
    """Return an output of a notebook for several passes; None elsewhere."""
    return CellOutput() if verbose == 1 and in_notebook() else None


class Progress:
    """Context manager that shows the progress of one pass over data."""

    def __init__(
        self,
        verbose: int,
        steps: int | None,
        title: str = "",
        logs: Callable[[], Mapping[str, float]] = dict,
        *,
        pool: Callable[[], Resource | None] | None = None,
        cell: CellOutput | None = None,
        width: int = _BAR,
        interval: float = _REFRESH_SECONDS,
        unit: str = "step",
    ) -> None:
        self._verbose = verbose
        self._steps = steps  # None if unknown
        self._title = title
        self._logs = logs  # the logs so far
        self._pool = pool  # whose memory is shown, if it is there
        self._cell = cell  # the output that several passes share
        self._width = width  # of the bar, in characters
        self._interval = interval  # minimum time between two updates of a bar
        self._unit = unit
        self._done = 0
        self._started = self._stepped = self._shown = time.perf_counter()
        self._bar: TerminalBar | CellOutput | None = None

    def __enter__(self) -> Self:
        if self._verbose == 1 and in_notebook():
            self._bar = self._cell = self._cell or CellOutput()
            self._cell.begin(self._title, self._steps)
        elif self._verbose == 1:
            wide = 2 * len(self._total) + 1
            self._bar = bar = TerminalBar(self._title, self._steps, wide, self._width)
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
        if self._cell is not None:
            self._cell.finish(logs)

    @property
    def _total(self) -> str:
        """The number of steps, or the number so far if the total is unknown."""
        return str(self._done if self._steps is None else self._steps)

    def _draw(self) -> None:
        """Show the state, with the memory in use."""
        if self._bar is None:
            return
        if self._cell is not None:
            self._cell.note(self._logs())
        pool = self._pool() if self._pool and self._bar.shows_memory else None
        memory = None if pool is None else MemoryUse.of(pool)
        self._bar.draw(self._done, self._rate(), self._numbers(), memory)

    def _rate(self) -> str:
        # The time of validation, after the last step, is not included.
        milliseconds = 1e3 * (self._stepped - self._started) / max(1, self._done)
        return f"{milliseconds:.1f} ms/{self._unit}"

    def _numbers(self) -> list[str]:
        return [f"{name}: {value:.4f}" for name, value in self._logs().items()]

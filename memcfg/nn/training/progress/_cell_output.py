"""Progress in a notebook: one output of a cell, which the next state replaces."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from memcfg._html import Row, Section, lines, report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn.training.progress._memory_use import MemoryUse

__all__ = ["CellOutput"]

_LINES = 20  # of passes that are shown, the last ones
_POINTS = 500  # of the curve within an epoch
_CURVES = ("loss", "val_loss")
_OWNERS = 3


class CellOutput:
    """The lines of passes, the memory in use and the loss, in one output of a cell."""

    shows_memory = True

    def __init__(self) -> None:
        from IPython.display import display  # there, since this is a notebook

        self._past: list[str] = []  # lines of passes that have ended
        self._count = 0
        self._line = self._start = ""
        self._total: int | None = None
        self._epochs: dict[str, list[float]] = {name: [] for name in _CURVES}
        self._running: list[float] = []  # the loss within this epoch
        self._open = False  # whether an epoch has begun and not ended
        self._memory: MemoryUse | None = None
        self._handle: Any = display(self._shown(), raw=True, display_id=True)

    def begin(self, title: str, total: int | None) -> None:
        """Begin a pass over data; its number of steps may be unknown."""
        if self._line:
            self._past = [*self._past, self._line][-_LINES + 1 :]
            self._count += 1
        self._line, self._start = "", f"{title} - " if title else ""
        self._total, self._running, self._open = total, [], True

    def draw(
        self, done: int, rate: str, numbers: Sequence[str], memory: MemoryUse | None
    ) -> None:
        """Show the numbers, and what was last known of the memory."""
        steps = f"{done}" if self._total is None else f"{done}/{self._total}"
        self._line = " - ".join([f"{self._start}{steps}", rate, *numbers])
        self._memory = memory or self._memory
        self._handle.update(self._shown(), raw=True)

    def note(self, logs: Mapping[str, float]) -> None:
        """Add a point to the curve of this epoch."""
        if self._open and "loss" in logs:
            self._running = [*self._running[-_POINTS + 1 :], logs["loss"]]

    def finish(self, logs: Mapping[str, float]) -> None:
        """Add the values of an epoch that has ended to the curves."""
        for name, values in self._epochs.items():
            values.append(logs.get(name, nan))
        self._running, self._open = [], False

    def stop(self) -> None:
        """Stop, leaving the last state in place."""

    def _shown(self) -> dict[str, str]:
        hidden = self._count - len(self._past)
        past = [*([f"{hidden} before"] if hidden else []), *self._past]
        rows = [] if self._memory is None else [_memory_row(self._memory)]
        sections = [Section("", rows)]
        picture = report(self._line, sections, self._curve(), before=past)
        return {"text/plain": "\n".join([*past, self._line]), "text/html": picture}

    def _curve(self) -> str:
        """Draw the loss over epochs, the last one so far; at first, over its steps."""
        losses = self._epochs["loss"]
        if not losses:
            return lines({"loss": self._running} if self._running[1:] else {})
        now = self._running[-1:]
        series = {
            name: [*values, *(now if name == "loss" else [nan] * len(now))]
            for name, values in self._epochs.items()
            if any(map(isfinite, values))
        }
        return lines(series if len(losses) + len(now) > 1 else {})


def _memory_row(memory: MemoryUse) -> Row:
    use, *owners = memory.words()
    more = len(owners) - _OWNERS
    words = " - ".join([*owners[:_OWNERS], *([f"{more} more"] if more > 0 else [])])
    return Row("Memory", use, (words,), memory.share)

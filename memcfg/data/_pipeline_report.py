"""The report of a pass, as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from memcfg._html import report_of_text
from memcfg._tables import draw
from memcfg._terminal import fit_name
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from rich.console import JustifyMethod

_NAME = 16  # max. width of a name, in columns
_HEADINGS = ("step", "threads", "buffer", "items", "waited", "an item", "held")
_LEGEND = "* chosen by AUTOTUNE"
_NOTHING = "No step of this pass has threads or a buffer."
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Threads, buffer and waiting time of one step.

    Parameters
    ----------
    name : str
        The step's name.
    autotuned : bool
        Whether AUTOTUNE chose the numbers.
    parallelism : int, default 1
        Threads.
    buffer_size : int, default 0
        Max. elements that wait in the buffer.
    items : int
        Elements delivered.
    waited_seconds : float
        Total time that the consumer waited for them, in seconds.
    nbytes : int, default 0
        Max. bytes that the buffer has held.
    missing_bytes : int, default 0
        Bytes that the buffer asked for in addition, and did not get.
    """

    name: str
    autotuned: bool
    parallelism: int = 1
    buffer_size: int = 0
    items: int
    waited_seconds: float
    nbytes: int = 0
    missing_bytes: int = 0

    def before(self, other: StageReport) -> StageReport:
        """Merge with the report of a later pass of the same step.

        Parameters
        ----------
        other : StageReport
            The report of the later pass. Its parallelism, buffer size and missing bytes
            are kept.

        Returns
        -------
        StageReport
            Items and seconds are sums, bytes the maximum.
        """
        return replace(
            other,
            items=self.items + other.items,
            waited_seconds=self.waited_seconds + other.waited_seconds,
            nbytes=max(self.nbytes, other.nbytes),
        )

    def beside(self, other: StageReport) -> StageReport:
        """Merge with the report of a concurrent pass of the same step.

        Parameters
        ----------
        other : StageReport
            The report of the other pass. Its parallelism and buffer size are kept.

        Returns
        -------
        StageReport
            Items, seconds and bytes are sums.
        """
        return replace(
            self.before(other),
            nbytes=self.nbytes + other.nbytes,
            missing_bytes=self.missing_bytes + other.missing_bytes,
        )


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """A report of each step of a pass that has threads or a buffer.

    Parameters
    ----------
    stages : tuple of StageReport
        The reports, in the order of the pipeline.

    Examples
    --------
    >>> from memcfg.data import PipelineReport, StageReport
    >>> batch = StageReport(
    ...     name="batch", autotuned=True, items=640, waited_seconds=0.05
    ... )
    >>> print(PipelineReport((batch,)))
    step   threads  buffer  items   waited  an item  held
    ──────────────────────────────────────────────────────
    batch       1*      0*    640  50.0 ms  78.1 µs   0 B
    * chosen by AUTOTUNE
    """

    stages: tuple[StageReport, ...]

    def __str__(self) -> str:
        """Return a table of the steps, at most 80 columns wide."""
        if not self.stages:
            return _NOTHING
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for number, heading in enumerate(_HEADINGS):
            justify: JustifyMethod = "right" if number else "left"
            table.add_column(heading, justify=justify, no_wrap=True)
        for stage in self.stages:
            table.add_row(*map(Text, _row(stage)))
        lines = [draw(table)]
        if any(stage.autotuned for stage in self.stages):
            lines.append(_LEGEND)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(f"Steps of a pipeline\n{self}")


def _row(stage: StageReport) -> tuple[str, ...]:
    mark = "*" if stage.autotuned else ""
    return (
        fit_name(stage.name, _NAME).rstrip(),
        f"{stage.parallelism:,}{mark}",
        f"{stage.buffer_size:,}{mark}",
        f"{stage.items:,}",
        _seconds(stage.waited_seconds),
        _seconds(stage.waited_seconds / stage.items) if stage.items else "-",
        format_bytes(stage.nbytes),
    )


def _seconds(seconds: float) -> str:
    """Format seconds with three digits and a unit."""
    if seconds <= 0:
        return "0 s"
    scale, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    value = seconds / scale
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"

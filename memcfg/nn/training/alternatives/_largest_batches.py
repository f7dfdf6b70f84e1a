"""The largest batches that policies fit into a limit, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg._html import Row, Section, as_html, report
from memcfg._tables import draw, new_table
from memcfg._terminal import paragraph
from memcfg.units import exact, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.plan import Plan

__all__ = ["LargestBatch", "LargestBatches"]

_HEAD = ("Batch", "Peak", "Time of a sample")
_NOTE = "* the largest batch; of equal ones, the least time of a sample"


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that a policy fits into a limit.

    Attributes
    ----------
    policy : str
        The name of the policy.
    batch_size : int
        Samples; 0 if one does not fit.
    peak_bytes : int
        Peak of the plan of that batch; 0 if there is none.
    sample_seconds : float or None
        Predicted seconds of a step, divided by its samples; None if there is no plan.
        They are nominal unless the model was compiled with ``times="measured"``: only
        their ratios mean something.
    why_not : str
        Why there is no plan; else empty.
    """

    policy: str
    batch_size: int = 0
    peak_bytes: int = 0
    sample_seconds: float | None = None
    why_not: str = ""

    @classmethod
    def of(cls, policy: str, batch_size: int, plan: Plan) -> LargestBatch:
        """Return the row of a batch's plan.

        Parameters
        ----------
        policy : str
            The name of the policy.
        batch_size : int
            Samples, at least 1.
        plan : Plan
            The plan of a step of so many samples.

        Returns
        -------
        LargestBatch
            The row.
        """
        seconds = plan.elapsed_seconds / batch_size
        return cls(policy, batch_size, plan.peak_bytes, seconds)

    @classmethod
    def too_small(cls, policy: str, needed_bytes: int) -> LargestBatch:
        """Return the row of a policy that fits no sample.

        Parameters
        ----------
        policy : str
            The name of the policy.
        needed_bytes : int
            The smallest limit with a plan of one sample.

        Returns
        -------
        LargestBatch
            The row.
        """
        needed = exact(needed_bytes)
        return cls(policy, why_not=f"one sample does not fit; it needs {needed}")

    @property
    def _rank(self) -> tuple[int, float]:
        """What rows are in the order of: samples, and less time of equal ones."""
        return -self.batch_size, self.sample_seconds or 0.0


@dataclass(frozen=True, repr=False)
class LargestBatches:
    """The largest batch of each of several policies; ``str()`` is a table.

    A notebook shows the table, too. Iterating yields the rows, the largest batch first
    and, of equal ones, the one with the least time of a sample.

    Attributes
    ----------
    rows : tuple of LargestBatch
        A row for each policy.
    """

    rows: tuple[LargestBatch, ...]

    def __post_init__(self) -> None:
        """Sort the rows."""
        rows = tuple(sorted(self.rows, key=lambda each: each._rank))
        object.__setattr__(self, "rows", rows)

    def __iter__(self) -> Iterator[LargestBatch]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, policy: str) -> LargestBatch:
        """Return the row of a policy, by its name; KeyError if there is none."""
        for row in self.rows:
            if row.policy == policy:
                return row
        names = ", ".join(repr(row.policy) for row in self.rows)
        raise KeyError(f"no policy {policy!r}; there are {names}")

    @property
    def best(self) -> LargestBatch | None:
        """The first row; None if no policy fits one sample."""
        return self.rows[0] if self.rows and self.rows[0].batch_size else None

    def __str__(self) -> str:
        """Return the table; the best policies are marked with ``*``."""
        lines, cells = [], self._cells()
        if cells:
            drawn = new_table("Method", numbers=_HEAD)
            for row in cells:
                drawn.add_row(*row)
            lines.append(draw(drawn))
        if len(cells) > 1:
            lines += ["", _NOTE]
        missing = [row for row in self.rows if not row.batch_size]
        if missing:
            lines += ["", "Not there:"]
        lines += [
            paragraph(f"  {row.policy}: ", row.why_not.split()) for row in missing
        ]
        return "\n".join(lines[not cells :])

    def __repr__(self) -> str:
        found = ", ".join(f"{row.policy} {row.batch_size}" for row in self.rows)
        return f"<LargestBatches: {found}>"

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        rows = [
            Row(name, batch, (f"peak {peak}, {time} a sample",))
            for name, batch, peak, time in self._cells()
        ]
        missing = [row for row in self.rows if not row.batch_size]
        lines = [f"{row.policy}: {row.why_not}" for row in missing]
        below = "".join(f"<div>{as_html(line)}</div>" for line in lines)
        return report("Largest batches", [Section("", rows)], below)

    def _cells(self) -> list[tuple[str, str, str, str]]:
        """Return name, batch, peak and time of the policies that fit a sample."""
        rows = [row for row in self.rows if row.batch_size]
        best = {row._rank for row in rows[:1] if len(rows) > 1}
        return [
            (
                row.policy + " *" * (row._rank in best),
                str(row.batch_size),
                format_bytes(row.peak_bytes),
                format_seconds(row.sample_seconds or 0.0),
            )
            for row in rows
        ]

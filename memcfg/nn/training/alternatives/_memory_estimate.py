"""What a step needs, and what each lever would save and cost, by planning alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg._html import Row, Section, as_html, report
from memcfg._terminal import fit, paragraph, width, writable
from memcfg.units import exact, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.plan import Plan

__all__ = ["Estimate", "Lever", "lever"]

_NAME = 34  # columns of a lever
_HEAD = ("", "lever", "smallest limit", "of peak", "time")


@dataclass(frozen=True)
class Lever:
    """A way to run a step in less memory.

    Attributes
    ----------
    name : str
        What it does, and how it is set.
    limit_bytes : int or None
        The smallest limit with which it has a plan; None if it cannot be used.
    seconds : float or None
        Predicted seconds of a step, of the whole batch, at that limit.
    why_not : str
        Why it cannot be used; else empty.
    """

    name: str
    limit_bytes: int | None = None
    seconds: float | None = None
    why_not: str = ""


def lever(name: str, plan: Plan, times: float = 1.0) -> Lever:
    """Return the lever of a plan that runs `times` times in a step."""
    return Lever(name, plan.peak_bytes, plan.elapsed_seconds * times)


@dataclass(frozen=True, repr=False)
class Estimate:
    """Memory and time of a step, predicted without running it; ``str()`` is a table.

    A notebook shows the table, too.

    Attributes
    ----------
    program : str
        The program, such as ``"train, batch 256"``.
    device : str
        The device.
    peak_bytes : int
        Peak of a step that computes each op once, with buffers shared.
    floor_bytes : int
        The smallest limit of any lever.
    limit_bytes : int or None
        The limit that was asked about, or that of the device.
    levers : tuple of Lever
        The levers, beginning with each op once. Times are nominal unless the model was
        compiled with ``times="measured"``: only their ratios mean something.
    """

    program: str
    device: str
    limit_bytes: int | None
    levers: tuple[Lever, ...]

    @property
    def peak_bytes(self) -> int:
        """Peak of a step that computes each op once."""
        return self.levers[0].limit_bytes or 0

    @property
    def floor_bytes(self) -> int:
        """The smallest limit of any lever."""
        return min(each.limit_bytes for each in self.levers if each.limit_bytes)

    @property
    def best(self) -> Lever | None:
        """The fastest lever that fits the limit; None if none does."""
        fitting = [
            each
            for each in self.levers
            if each.limit_bytes is not None
            and (self.limit_bytes is None or each.limit_bytes <= self.limit_bytes)
        ]
        return min(fitting, key=lambda each: each.seconds or 0.0, default=None)

    def __str__(self) -> str:
        """Return the estimate as a table; the best lever is marked with ``*``."""
        name = _NAME - max(0, 80 - width())
        lines = [self._title()]
        for mark, words, limit, share, time in (_HEAD, *self._rows()):
            lines.append(
                f"  {mark:1} {fit(words, name):<{name}}  {limit:>14} {share:>8} "
                f"{time:>6}"
            )
        lines += [
            paragraph(f"    {each.name}: ", each.why_not.split())
            for each in self.levers
            if each.why_not
        ]
        lines.append(self._note())
        return writable("\n".join(lines))

    def __repr__(self) -> str:
        return (
            f"<Estimate of {self.program!r}: {len(self.levers)} levers, "
            f"peak {self.peak_bytes} B, floor {self.floor_bytes} B>"
        )

    def _repr_html_(self) -> str:
        """Return the estimate as an HTML table."""
        rows = [
            Row(
                f"{mark} {name}".strip(),
                limit,
                (f"{share} of peak, {time} of time",),
            )
            for mark, name, limit, share, time in self._rows()
        ]
        notes = [f"{each.name}: {each.why_not}" for each in self.levers if each.why_not]
        below = "".join(f"<div>{as_html(words)}</div>" for words in notes)
        note = f"<div>{as_html(self._note())}</div>"
        return report(self._title(), [Section("", rows)], below + note)

    def _title(self) -> str:
        limit = "none" if self.limit_bytes is None else exact(self.limit_bytes)
        return f"Memory of '{self.program}' on {self.device}, limit {limit}"

    def _note(self) -> str:
        if self.best is None:
            return "No lever fits the limit."
        return "* the fastest" + (
            "" if self.limit_bytes is None else " within the limit"
        )

    def _rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield mark, name, limit, share of the peak and time of the usable levers."""
        once, best = self.levers[0], self.best
        for each in sorted(self.levers, key=_limit, reverse=True):
            if each.limit_bytes is None:
                continue
            time = ""
            if once.seconds and each.seconds is not None:
                time = f"{each.seconds / once.seconds:.2f}x"
            share = f"{each.limit_bytes / (once.limit_bytes or 1):.0%}"
            mark = "*" if each is best else ""
            yield mark, each.name, format_bytes(each.limit_bytes), share, time


def _limit(each: Lever) -> int:
    return each.limit_bytes or 0

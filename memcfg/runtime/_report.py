"""The memory report: what a step takes, and when.

Owns the values and how they are printed. Refuses to measure; programs do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg._html import Row, Section, bars, report
from memcfg._terminal import WIDTH, fit, paragraph, shorten, width, writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CodingEntry", "MemoryReport", "TimelineEntry"]

_ROWS = 12  # of the picture in text
_COLUMNS = 120  # of the one in notebooks
_BAR = 40  # characters of the bars of roles
_SHORT_BAR = 20  # of those of ops, which leave room for a time
_OP = 32  # columns of an op's name; of a longer one the middle is left out


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """The arena while one op runs.

    Parameters
    ----------
    op : str
        The op's name; a replayed op appears again.
    phase : str
        ``"forward"``, ``"backward"`` or ``"update"``.
    live_bytes : int
        Bytes in use while it runs, scratch included.
    top_bytes : int
        The highest end of any of these, in bytes from the arena's base; where
        the program is not planned, the bytes of the pool that it has then.
    seconds : float or None
        Its measured time in seconds; None when the report did not run the step.
    """

    op: str
    phase: str
    live_bytes: int
    top_bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class CodingEntry:
    """What one encoding of a plan did, in the arena or on the way to a tier.

    Parameters
    ----------
    tensor : str
        The tensor's name.
    codec : str
        The codec.
    tensor_bytes : int
        The tensor's bytes.
    planned_bytes : int
        The encoded size that was planned for.
    used_bytes : int
        The bytes that the last run had; the tensor's where it kept them as they are.
    runs : int
        How often it ran; 0 also on a device that does not count.
    raw : int
        How often the bytes stayed as they are: their code did not fit what was planned
        for, or a lane found that it would not be smaller.
    """

    tensor: str
    codec: str
    tensor_bytes: int
    planned_bytes: int
    used_bytes: int
    runs: int
    raw: int


@dataclass(frozen=True)
class MemoryReport:
    """What a program's step takes.

    Parameters
    ----------
    program : str
        The program's name.
    device : str
        The device's name.
    limit_bytes : int or None
        The device's limit in bytes.
    predicted_peak_bytes : int
        What the plan promised, or what the tensors' lives say.
    measured_peak_bytes : int
        With `verified`: the end of the highest arena byte that changed while the
        step ran, rounded up to 64; each kernel's scratch counts as it was handed
        over. Without: the highest end of what a kernel was given. Where the
        program is not planned, the most bytes of the pool that it had, state included:
        with `verified` as the pool told while one step ran, without by its layout.
    changed_peak_bytes : int or None
        With `verified`: the same for what the kernels changed by themselves. It is
        lower only where scratch lies on top and its end, which libraries pad for
        alignment, was left alone.
    verified : bool
        Whether a step was run on made-up input and looked at; that of a plan over an
        arena filled with a canary.
    arena_bytes : int
        The arena that all programs of the model share; state alone where
        none is planned.
    by_role : mapping of str to int
        Bytes by role while the op runs that has most bytes in use.
    timeline : tuple of TimelineEntry
        One entry an executed op, in order.
    mode : str, default "enabled"
        The workspace mode in which the program runs; ``"enabled"`` is a plan.
    tier_bytes : mapping of str to int
        Bytes of each tier that the program has beside the device's limit: what copies
        take, which the plan's summary tells (`by_tier`), and on the host the state that
        is saved.
    codings : tuple of CodingEntry, default ()
        One entry an encoding of the plan, in order.
    saved_bytes : int, default 0
        Bytes of the host in which a step that can fail saves the state before it
        changes.
    """

    program: str
    device: str
    limit_bytes: int | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    changed_peak_bytes: int | None
    verified: bool
    arena_bytes: int
    by_role: Mapping[str, int]
    timeline: tuple[TimelineEntry, ...]
    mode: str = "enabled"
    tier_bytes: Mapping[str, int] = field(default_factory=dict)
    codings: tuple[CodingEntry, ...] = ()
    saved_bytes: int = 0

    def __str__(self) -> str:
        """Return the report as text of 80 columns at most."""
        head, roles, picture = self._sections()
        narrow = WIDTH - width()  # so many columns less
        longest, wide = (width() - 20) // 2, _BAR - narrow
        op, bar = _OP - narrow + narrow // 2, _SHORT_BAR - narrow // 2
        program, device = (shorten(x, longest) for x in (self.program, self.device))
        lines = [
            f"Memory of '{program}' on {device}",
            *(paragraph(f"  {r.label:<15} {r.value} ", r.words) for r in head.rows),
            "",
            f"  {roles.heading}",
            *(
                f"  {r.label:<20} {r.value:>12}  {_bar(r.share, wide)}".rstrip()
                for r in roles.rows
            ),
            "",
            f"  {picture.heading}",
            *(
                f"  {fit(r.label, op, keep='ends')} {r.value:>11}  "
                f"{' '.join([_bar(r.share, bar), *r.words])}"
                for r in picture.rows
            ),
        ]
        return writable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return what ``str`` tells for notebooks, the step as a picture."""
        top = self._top()
        levels = [
            (
                entry.phase,
                f"{entry.phase} {entry.op}: {format_bytes(entry.live_bytes)}",
                entry.live_bytes / top,
            )
            for entry, _ in _groups(self.timeline, _COLUMNS)
        ]
        picture = bars(levels, f"{format_bytes(top)} at most") if levels else ""
        title = f"Memory of '{self.program}' on {self.device}"
        return report(title, self._sections(), picture)

    def _saved(self, tier: str) -> tuple[str, ...]:
        if tier != "host" or not self.saved_bytes:
            return ()
        words = f"of which {format_bytes(self.saved_bytes)} are for the state"
        return tuple(words.split())

    def _sections(self) -> tuple[Section, Section, Section]:
        limit = "none" if self.limit_bytes is None else _exact(self.limit_bytes)
        how = "bytes that changed" if self.verified else "bytes given to kernels"
        if self.mode != "enabled":
            source = "by the pool" if self.verified else "by the layout"
            how = f"{source}; workspace mode {self.mode!r}"
        if self.changed_peak_bytes not in (None, self.measured_peak_bytes):
            how += f"; kernels changed bytes up to {self.changed_peak_bytes} B"
        measured, arena = _exact(self.measured_peak_bytes), _exact(self.arena_bytes)
        head = [
            Row("limit", limit),
            Row("predicted peak", _exact(self.predicted_peak_bytes)),
            Row("measured peak", measured, tuple(f"({how})".split())),
            Row("arena", f"{arena},", ("shared", "by", "all", "programs")),
        ]
        head += [
            Row(f"tier {tier}", _exact(nbytes), self._saved(tier))
            for tier, nbytes in self.tier_bytes.items()
            if nbytes
        ]
        if self.codings:
            head.append(self._coded())
        total = sum(self.by_role.values())
        by_size = sorted(self.by_role.items(), key=lambda item: -item[1])
        roles = [
            Row(role, format_bytes(nbytes), share=nbytes / total if total else 0.0)
            for role, nbytes in by_size
        ]
        steps = [
            Row(
                f"{entry.phase} {entry.op}",
                format_bytes(entry.live_bytes),
                _time(group),
                entry.live_bytes / self._top(),
            )
            for entry, group in _groups(self.timeline, _ROWS)
        ]
        heading = f"live bytes over the step ({len(self.timeline)} ops)"
        return Section("", head), Section("at the peak", roles), Section(heading, steps)

    def _coded(self) -> Row:
        """Return what encodings did, all together."""
        before = sum(each.tensor_bytes for each in self.codings)
        planned = sum(each.planned_bytes for each in self.codings)
        runs = sum(each.runs for each in self.codings)
        message = f"of {format_bytes(before)}"
        if runs:
            used = sum(each.used_bytes for each in self.codings if each.runs)
            raw = sum(each.raw for each in self.codings)
            message += f"; the last run had {format_bytes(used)}"
            message += f"; {raw} of {runs} stayed as they are"
        value = f"{format_bytes(planned)} planned"
        return Row("encoded", value, tuple(f"({message})".split()))

    def _top(self) -> int:
        return max((entry.live_bytes for entry in self.timeline), default=0) or 1


def _exact(nbytes: int) -> str:
    return format_bytes(nbytes, exact=True)


def _bar(share: float | None, width: int) -> str:
    return "█" * round(width * (share or 0.0))


def _time(group: tuple[TimelineEntry, ...]) -> tuple[str, ...]:
    known = [entry.seconds for entry in group if entry.seconds is not None]
    if not known:
        return ()
    seconds = sum(known)
    return (f"{1e3 * seconds:.2f} ms" if seconds < 10 else f"{seconds:.1f} s",)


def _groups(
    timeline: tuple[TimelineEntry, ...], count: int
) -> list[tuple[TimelineEntry, tuple[TimelineEntry, ...]]]:
    """Return so many parts of a step at most, each behind its highest entry."""
    size = max(-(-len(timeline) // count), 1)
    parts = [timeline[i : i + size] for i in range(0, len(timeline), size)]
    return [(max(part, key=lambda entry: entry.live_bytes), part) for part in parts]

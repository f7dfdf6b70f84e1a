"""The memory report: the bytes of a step over time.

Owns the values and their formatting. Programs do the measuring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg._html import Row, Section, bars, report
from memcfg._terminal import WIDTH, fit, paragraph, shorten, width, writable
from memcfg.units import exact, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CodingEntry", "MemoryReport", "TimelineEntry", "draw_timeline"]

_ROWS = 12  # rows of the text picture
_COLUMNS = 120  # columns of the notebook picture
_BAR = 40  # characters of a role's bar
_SHORT_BAR = 20  # characters of an op's bar, which leaves room for a time
_OP = 32  # columns of an op's name; a longer one loses its middle


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """Memory in use while one op runs.

    Parameters
    ----------
    op : str
        The op's name; a replayed op appears again.
    phase : str
        ``"forward"``, ``"backward"`` or ``"update"``.
    live_bytes : int
        Bytes in use while it runs, including scratch.
    top_bytes : int
        Highest end of these bytes, relative to the arena's base. For an unplanned
        program, the bytes of the pool that it holds at that time.
    seconds : float or None
        Measured time in seconds; None if the report did not run the step.
    """

    op: str
    phase: str
    live_bytes: int
    top_bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class CodingEntry:
    """Result of one encoding of a plan, in the arena or on the way to a tier.

    Parameters
    ----------
    tensor : str
        The tensor's name.
    codec : str
        The codec's name.
    tensor_bytes : int
        The tensor's bytes.
    planned_bytes : int
        The planned encoded size in bytes.
    used_bytes : int
        Bytes used in the last run; the tensor's size if it was stored unencoded.
    runs : int
        Number of runs; 0 also on a device that does not count them.
    raw : int
        Number of runs that stored the tensor unencoded, because its code exceeded the
        planned size or a lane found it no smaller.
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
    """Memory use of one step of a program.

    Parameters
    ----------
    program : str
        The program's name.
    device : str
        The device's name.
    limit_bytes : int or None
        The device's limit in bytes.
    predicted_peak_bytes : int
        Peak predicted by the plan, or by the tensors' lifetimes if unplanned.
    measured_peak_bytes : int
        If `verified`, the end of the highest arena byte that changed during the step,
        rounded up to 64; scratch counts in full as passed to each kernel. Otherwise the
        highest end of the operands of any kernel. For an unplanned program, the maximum
        of its bytes in the pool, including state: as reported by the pool during one
        step if `verified`, otherwise according to its layout.
    changed_peak_bytes : int or None
        If `verified`, the same for the bytes that the kernels themselves changed. It is
        lower only if scratch lies on top and its end, which libraries pad for
        alignment, was not written.
    verified : bool
        Whether a step was run on synthetic input and measured; a planned one in an
        arena filled with a canary.
    arena_bytes : int
        Size of the arena that all programs of the model share; that of the state if
        none is planned.
    by_role : mapping of str to int
        Bytes by role during the op with the most bytes in use.
    timeline : tuple of TimelineEntry
        One entry per executed op, in order.
    mode : str, default "enabled"
        Workspace mode of the program; ``"enabled"`` means planned.
    tier_bytes : mapping of str to int
        Bytes of each tier that the program uses in addition to the device's limit:
        those of copies, which the plan's summary lists in `by_tier`, and on the host
        those of the saved state.
    codings : tuple of CodingEntry, default ()
        One entry per encoding of the plan, in order.
    saved_bytes : int, default 0
        Bytes of the host in which a step that can fail saves the state before changing
        it.
    staged_bytes : int, default 0
        Bytes of the host to which a GPU copies the operands of collectives.
    fallbacks : tuple of str, default ()
        What the model has stepped down from to fit the limit, such as a batch that runs
        in micro-batches.
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
    timeline: tuple[TimelineEntry, ...] = field(repr=False)
    mode: str = "enabled"
    tier_bytes: Mapping[str, int] = field(default_factory=dict)
    codings: tuple[CodingEntry, ...] = ()
    saved_bytes: int = 0
    staged_bytes: int = 0
    fallbacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the report as text of at most 80 columns."""
        head, roles, _ = self._sections()
        narrow = WIDTH - width()  # columns to save
        longest, wide = (width() - 20) // 2, _BAR - narrow
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
            draw_timeline(self.timeline),
        ]
        return writable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return the report as HTML for notebooks, with a picture of the step."""
        top = _top(self.timeline)
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
        uses = {"the state": self.saved_bytes, "collectives": self.staged_bytes}
        used = [f"{format_bytes(n)} are for {use}" for use, n in uses.items() if n]
        if tier != "host" or not used:
            return ()
        return tuple(f"of which {' and '.join(used)}".split())

    def _sections(self) -> tuple[Section, Section, Section]:
        limit = "none" if self.limit_bytes is None else exact(self.limit_bytes)
        how = "bytes that changed" if self.verified else "bytes given to kernels"
        if self.mode != "enabled":
            source = "by the pool" if self.verified else "by the layout"
            how = f"{source}; workspace mode {self.mode!r}"
        if self.changed_peak_bytes not in (None, self.measured_peak_bytes):
            how += f"; kernels changed bytes up to {self.changed_peak_bytes} B"
        measured, arena = (
            exact(self.measured_peak_bytes),
            exact(self.arena_bytes),
        )
        head = [
            Row("limit", limit),
            Row("predicted peak", exact(self.predicted_peak_bytes)),
            Row("measured peak", measured, tuple(f"({how})".split())),
            Row("arena", f"{arena},", ("shared", "by", "all", "programs")),
        ]
        head += [
            Row(f"tier {tier}", exact(nbytes), self._saved(tier))
            for tier, nbytes in self.tier_bytes.items()
            if nbytes
        ]
        if self.codings:
            head.append(self._coded())
        head += [Row("fallback", "", tuple(each.split())) for each in self.fallbacks]
        total = sum(self.by_role.values())
        by_size = sorted(self.by_role.items(), key=lambda item: -item[1])
        roles = [
            Row(role, format_bytes(nbytes), share=nbytes / total if total else 0.0)
            for role, nbytes in by_size
        ]
        steps = _picture(self.timeline)
        return Section("", head), Section("at the peak", roles), steps

    def _coded(self) -> Row:
        """Return a row that summarizes all encodings."""
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


def draw_timeline(timeline: tuple[TimelineEntry, ...]) -> str:
    """Return the bytes of a step over time as lines of at most 80 columns."""
    picture = _picture(timeline)
    narrow = WIDTH - width()  # columns to save
    op, bar = _OP - narrow + narrow // 2, _SHORT_BAR - narrow // 2
    lines = [
        f"  {picture.heading}",
        *(
            f"  {fit(r.label, op, keep='ends')} {r.value:>11}  "
            f"{' '.join([_bar(r.share, bar), *r.words])}"
            for r in picture.rows
        ),
    ]
    return writable("\n".join(lines))


def _picture(timeline: tuple[TimelineEntry, ...]) -> Section:
    top = _top(timeline)
    rows = [
        Row(
            f"{entry.phase} {entry.op}",
            format_bytes(entry.live_bytes),
            _time(group),
            entry.live_bytes / top,
        )
        for entry, group in _groups(timeline, _ROWS)
    ]
    return Section(f"live bytes over the step ({len(timeline)} ops)", rows)


def _top(timeline: tuple[TimelineEntry, ...]) -> int:
    return max((entry.live_bytes for entry in timeline), default=0) or 1


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
    """Split a step into at most `count` parts, each with its highest entry first."""
    size = max(-(-len(timeline) // count), 1)
    parts = [timeline[i : i + size] for i in range(0, len(timeline), size)]
    return [(max(part, key=lambda entry: entry.live_bytes), part) for part in parts]

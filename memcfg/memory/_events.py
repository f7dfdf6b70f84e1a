"""The history of a resource's blocks, as the events of a snapshot.

Owns their order and completeness, and the workarounds for what PyTorch's tools drop,
cut or round. Readers play the events backwards from the current blocks, and stop at a
block outside of all segments. A block that is in no current segment therefore has a
segment of its own for its lifetime.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._terminal import printable
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.memory._trace import Trace

__all__ = ["Entry", "Event", "Frames", "History", "entries_of", "shown_address"]

Event = dict[str, Any]
Frame = dict[str, Any]
Stack = tuple[tuple[str, int, str], ...]
_FREE, _FAILURE = 1, 2  # actions of a trace; the third one is an allocation
# PyTorch's tools drop frames whose function's name contains one of these.
_DROPPED = (
    "unwind::unwind",
    "CapturedTraceback::gather",
    "gather_with_cpp",
    "_start",
    "__libc_start_main",
    "PyEval_",
    "PyObject_",
    "PyFunction_",
)
_SIMULATED = 2**62  # where the addresses of simulated devices start
_SHOWN_AT = 2**32  # where they start in the file


def shown_address(address: int) -> int:
    """Return an address to show, below 2⁵³, as the web page rounds larger ones."""
    if address < _SIMULATED:
        return address
    return address - _SIMULATED + _SHOWN_AT


class Frames:
    """Lists of frames, each made only once, so that a pickle stores each once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, Stack], list[Frame]] = {}

    def of(self, tag: str, stack: Sequence[tuple[str, int, str]] = ()) -> list[Frame]:
        """Return the frames of a stack, the innermost first, followed by the tag."""
        return self._list("tag", tag or "unnamed", tuple(stack))

    def of_resource(self, name: str) -> list[Frame]:
        """Return the frame of a segment, which names its resource."""
        return self._list("resource", name, ())

    def _list(self, what: str, name: str, stack: Stack) -> list[Frame]:
        key = (what, name, stack)
        if key not in self._made:
            frames = [_frame(*call) for call in stack]
            self._made[key] = [*frames, _named(what, name)]
        return self._made[key]


def _named(what: str, name: str) -> Frame:
    """Return a frame with a name as its function, or as its file if that is dropped."""
    if any(word in name for word in _DROPPED):
        return _frame(name, 0, what)
    return _frame(what, 0, name)


def _frame(filename: str, line: int, name: str) -> Frame:
    return {"filename": _plain(filename), "line": line, "name": _plain(name)}


def _plain(text: str) -> str:
    """Escape the separator of frames in a flame graph."""
    return printable(text).replace(";", r"\x3b")


class Entry(NamedTuple):
    """A row of a trace, with names in place of numbers."""

    seconds: float
    action: int
    address: int
    nbytes: int
    tag: str
    stack: Stack


def entries_of(traces: Iterable[Trace]) -> list[Entry]:
    """Merge traces by time."""
    entries = [entry for trace in traces for entry in _entries(trace)]
    return sorted(entries, key=lambda entry: entry.seconds)


def _entries(trace: Trace) -> Iterator[Entry]:
    columns = (trace.seconds, trace.action, trace.address, trace.nbytes)
    numbers = (trace.tag, trace.stack)
    lists = (column.tolist() for column in (*columns, *numbers))
    for seconds, action, address, nbytes, tag, stack in zip(*lists, strict=True):
        yield Entry(
            seconds,
            action,
            address,
            nbytes,
            trace.tags[tag] if tag >= 0 else "",
            trace.stacks[stack] if stack >= 0 else (),
        )


class History:
    """Makes the events of a snapshot from entries.

    `segments` are the current ones, as address and bytes. `blocks` are the current
    ones, including those that the history does not mention. Unless segments are
    `shared`, each block is a segment.
    """

    def __init__(
        self,
        frames: Frames,
        segments: Iterable[tuple[int, int]],
        blocks: Iterable[Entry],
        *,
        shared: bool,
    ) -> None:
        self._frames = frames
        self._segments = sorted(segments)
        self._blocks = sorted(blocks, key=lambda block: block.address)
        self._shared = shared

    def events(self, entries: list[Entry]) -> Iterator[Event]:
        """Yield the events of blocks that were freed or are in a current segment."""
        freed = _freed(entries)
        out: dict[int, Entry] = {}
        for number, entry in enumerate(entries):
            if entry.action == _FAILURE:
                # the free memory was not recorded
                yield self._event("oom", entry) | {"device_free": 0}
                continue
            before = out.pop(entry.address, entry if entry.action == _FREE else None)
            if before is not None:  # otherwise it was freed without being recorded
                yield from self._free(before, entry.seconds)
            if entry.action != _FREE and (number in freed or self._has(entry.address)):
                out[entry.address] = entry
                yield from self._allocate(entry)
        for block in self._late(entries):
            if block.address not in out:
                yield from self._allocate(block)

    def _late(self, entries: list[Entry]) -> Iterator[Entry]:
        """Yield current blocks that overlap blocks of the history, and so are later."""
        starts = [block.address for block in self._blocks]
        late = set()
        for entry in entries:
            first = max(bisect_right(starts, entry.address) - 1, 0)
            last = bisect_left(starts, entry.address + entry.nbytes)
            late |= {
                number
                for number in range(first, last)
                if starts[number] + self._blocks[number].nbytes > entry.address
            }
        for number in sorted(late):
            yield self._blocks[number]._replace(seconds=entries[-1].seconds)

    def _allocate(self, entry: Entry) -> Iterator[Event]:
        if self._is_segment(entry):
            yield self._event("segment_alloc", entry)
        event = self._event("alloc", entry)
        yield event | {"category": entry.tag} if entry.tag else event

    def _free(self, entry: Entry, seconds: float) -> Iterator[Event]:
        entry = entry._replace(seconds=seconds)
        yield self._event("free_requested", entry)
        yield self._event("free_completed", entry)
        if self._is_segment(entry):
            yield self._event("segment_free", entry)

    def _event(self, action: str, entry: Entry) -> Event:
        whole = action.startswith("segment")
        event = {
            "action": action,
            "addr": shown_address(entry.address),
            "size": align_up(entry.nbytes) if whole else entry.nbytes,
            "stream": 0,
            "time_us": round(entry.seconds * 1e6),
            "frames": self._frames.of(entry.tag, entry.stack),
        }
        return event | {"user_metadata": entry.tag} if entry.tag else event

    def _is_segment(self, entry: Entry) -> bool:
        return not (self._shared and self._has(entry.address))

    def _has(self, address: int) -> bool:
        """Return whether an address is in a current segment."""
        number = bisect_right(self._segments, (address, inf)) - 1
        if number < 0:
            return False
        start, nbytes = self._segments[number]
        return address < start + nbytes


def _freed(entries: list[Entry]) -> set[int]:
    """Return the indices of allocations that were freed later."""
    freed = set()
    out: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if entry.action == _FAILURE:
            continue
        before = out.pop(entry.address, None)
        if before is not None:
            freed.add(before)
        if entry.action != _FREE:
            out[entry.address] = number
    return freed

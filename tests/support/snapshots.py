"""What must hold for a snapshot, by a reader that shares no code with the writer.

The rules are those of PyTorch's tools: the web page's unpickler knows some codes only,
holds integers as floats, and plays the events backwards from today's blocks.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

READABLE = re.compile(
    "PROTO|FRAME|STOP|MARK|MEMOIZE|BINGET|LONG_BINGET|NONE|NEWTRUE|NEWFALSE|BININT[12]?"
    "|LONG1|BINFLOAT|(SHORT_)?BINUNICODE|EMPTY_(DICT|LIST|TUPLE)|APPENDS?|SETITEMS?"
    "|TUPLE[123]?"
)
STATES = {"active_allocated", "active_pending_free", "inactive"}
EXACT = 2**53  # larger integers are rounded in the page


def load(path: Path, *, quiet: bool = True) -> dict[str, Any]:
    """Read a snapshot and check everything that a reader relies on.

    Quiet: nobody allocated while it was written.
    """
    data = path.read_bytes()
    codes = {code.name for code, _, _ in pickletools.genops(data)}
    assert all(READABLE.fullmatch(code) for code in codes), codes
    assert data[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04")
    snapshot = pickle.loads(data)
    check(snapshot, quiet=quiet)
    return snapshot


def check(snapshot: dict[str, Any], *, quiet: bool) -> None:
    """Check the invariants of a snapshot."""
    check_values(snapshot)
    devices = len(snapshot["device_traces"])
    assert devices >= 1
    for device in range(devices):
        mine = of_device(snapshot, device)
        end = 0
        for segment in mine:
            assert segment["address"] >= end, "segments overlap, or are unsorted"
            end = check_segment(segment)
        play_backwards(mine, snapshot["device_traces"][device], quiet=quiet)
    assert all(0 <= each["device"] < devices for each in snapshot["segments"])
    check_categories(snapshot["device_traces"])


def check_values(value: object) -> None:
    """Builtin types only, integers exact, no text that breaks a line."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        for each in value.values():
            check_values(each)
    elif isinstance(value, list | tuple):
        for each in value:
            check_values(each)
    elif type(value) is int:
        assert abs(value) < EXACT
    else:
        assert value is None or type(value) in (bool, float, str)


def of_device(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    return [each for each in snapshot["segments"] if each["device"] == device]


def check_segment(segment: dict[str, Any]) -> int:
    """Blocks tile their segment, and the sums are right; gives its end."""
    place = segment["address"]
    sums = dict.fromkeys(STATES, 0)
    requested = 0
    assert segment["blocks"]
    for block in segment["blocks"]:
        assert block["address"] == place, "a gap, or an overlap"
        assert block["state"] in STATES
        assert 0 <= block["requested_size"] <= block["size"] > 0
        place += block["size"]
        sums[block["state"]] += block["size"]
        check_frames(block)
        if block["state"] == "active_allocated":
            requested += block["requested_size"]
            assert block["requested_size"] > 0
    assert place == segment["address"] + segment["total_size"]
    assert sum(sums.values()) == segment["total_size"]
    assert sums["active_allocated"] == segment["allocated_size"]
    assert (
        segment["active_size"] == sums["active_allocated"] + sums["active_pending_free"]
    )
    assert segment["requested_size"] == requested
    assert segment["stream"] == 0
    assert segment["segment_type"] in ("small", "large")
    return place


def check_frames(block: dict[str, Any]) -> None:
    if block["state"] == "inactive" and block["requested_size"] == 0:
        assert block["frames"] == []
    else:
        assert block["frames"]
    for frame in block["frames"]:
        assert set(frame) == {"filename", "line", "name"}
        text = frame["filename"] + frame["name"]
        assert text.isprintable()
        assert ";" not in text  # it would divide a frame of a flame graph


def check_categories(traces: list[list[dict[str, Any]]]) -> None:
    """The page fails on categories without an ``"unknown"``."""
    categories = {
        event["category"] for trace in traces for event in trace if "category" in event
    }
    assert not categories or "unknown" in categories


def play_backwards(
    segments: list[dict[str, Any]], events: list[dict[str, Any]], *, quiet: bool
) -> None:
    """Undo the events, from the last to the first, as the page does.

    Quiet: nobody allocated meanwhile, so that history and blocks fit each other.
    """
    ranges = [(each["address"], each["total_size"]) for each in segments]
    blocks = {
        block["address"]: block["requested_size"]
        for each in segments
        for block in each["blocks"]
        if block["state"] != "inactive"
    }
    assert not events or events[-1]["action"] == "snapshot"
    times = [event["time_us"] for event in events]
    assert times == sorted(times)
    require_housed(blocks, ranges)
    for event in reversed(events[:-1]):
        undo(event, blocks, ranges, quiet=quiet)
        require_housed(blocks, ranges)


def undo(
    event: dict[str, Any],
    blocks: dict[int, int],
    ranges: list[tuple[int, int]],
    *,
    quiet: bool,
) -> None:
    action, address, nbytes = event["action"], event["addr"], event["size"]
    assert event["stream"] == 0
    if action == "alloc":
        assert blocks.pop(address, nbytes) == nbytes or not quiet
    elif action == "free_completed":
        assert address not in blocks or not quiet
        blocks[address] = nbytes
    elif action == "free_requested":
        assert blocks[address] == nbytes
    elif action == "segment_alloc":
        ranges.remove(next(each for each in ranges if each[0] == address))
    elif action == "segment_free":
        ranges.append((address, nbytes))
    else:
        assert action == "oom"
        assert event["device_free"] >= 0


def require_housed(blocks: dict[int, int], ranges: list[tuple[int, int]]) -> None:
    """Each block starts in a segment: the page fails on one that does not."""
    for address in blocks:
        assert any(start <= address < start + nbytes for start, nbytes in ranges)

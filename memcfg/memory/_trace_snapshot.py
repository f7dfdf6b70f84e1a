"""Records of allocations from PyTorch's memory snapshots.

Owns the choice of what is read from a snapshot. Snapshots are not trusted: a pickle may
repeat a shared value many times in a few bytes, so each part is visited once, and its
type is checked before use.

A snapshot is a dictionary. ``device_traces`` has a list of events for each device, and
``segments`` has the current memory with its blocks. The history is bounded, so blocks
may have been allocated before it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file
from memcfg.memory import _plain_pickle
from memcfg.memory._trace_columns import ALLOCATE, FAILURE, FREE

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import UnionType

    from memcfg.memory._trace_columns import StackOfCalls

__all__ = ["read"]

_HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")
_ENDLESS = 2**64  # microseconds


def read(path: str | os.PathLike[str], device: int | None) -> dict[str, Any]:
    """Read the columns of one device's events."""
    with open_file(path) as file:
        data = file.read()
    try:
        snapshot = _plain_pickle.load(data)
    except ValueError as error:
        raise FormatError(f"{path} is not a pickle of a snapshot: {error}") from None
    try:
        traces = _typed(snapshot, "device_traces", list)
        busy = [number for number, each in enumerate(traces) if each]
        segments = _typed(snapshot, "segments", list, [])
        if not traces:
            raise ValueError("it has no device")
    except ValueError as error:
        raise FormatError(f"{path} is not a snapshot: {error}") from None
    chosen = _choose(busy, len(traces), device)
    events = _Events()
    try:
        if type(traces[chosen]) is not list:
            raise ValueError("the events of a device are not a list")
        for number, event in enumerate(traces[chosen]):
            events.add(number, event)
        events.add_held(segments, chosen)
        return events.columns()
    except ValueError as error:
        raise FormatError(f"{path} is not a snapshot: {error}") from None


def _choose(busy: list[int], count: int, device: int | None) -> int:
    if device is None:
        if len(busy) > 1:
            raise ValueError(f"the devices {busy} have events: choose one of them")
        device = busy[0] if busy else 0
    if not 0 <= device < count:
        raise ValueError(f"there is no device {device} among {count}")
    return device


def _typed(block: Any, key: str, kind: type | UnionType, default: Any = None) -> Any:
    """Return the value of a key; ValueError if it is missing or of another type."""
    if type(block) is not dict:
        raise ValueError(f"it has no dict with {key!r}")
    value = block.get(key, default)
    if not isinstance(value, kind):
        raise ValueError(f"its {key!r} is of type {type(value).__name__}")
    return value


def _number(block: Any, key: str, default: int | None = None) -> int:
    """Return an address, a size or a line."""
    value: int = _typed(block, key, int, default)
    if not 0 <= value < 2**64:
        raise ValueError(f"its {key!r} is not from 0 to 2**64 - 1")
    return value


def _words_of(block: dict[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in ("user_metadata", "frames") if key in block}


class _Events:
    """The rows of a record, and the blocks allocated before them."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, float, int, int]] = []
        self._before: dict[int, tuple[int, int, int]] = {}  # by address
        self._out: dict[int, tuple[int, int, int]] = {}
        self._tags: dict[str, int] = {"": 0}
        self._stacks: dict[StackOfCalls, int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}  # stacks that events share

    def add(self, number: int, event: dict[str, Any]) -> None:
        """Add an event of the history."""
        action = _typed(event, "action", str)
        if action == "oom":
            self._note(FAILURE, 0, self._block(event), event)
        elif action == "alloc":
            address = _number(event, "addr")
            if address in self._out:
                raise ValueError(f"event {number} takes {address:#x}, which is out")
            self._out[address] = self._block(event)
            self._note(ALLOCATE, address, self._out[address], event)
        elif action == "free_completed":
            address = _number(event, "addr")
            block = self._out.pop(address, None)
            if block is None:
                block = (_number(event, "size"), 0, -1)
                if self._before.setdefault(address, block) is not block:
                    raise ValueError(f"event {number} frees {address:#x} again")
            self._note(FREE, address, block, event)

    def add_held(self, segments: list[dict[str, Any]], device: int) -> None:
        """Add the current blocks that were allocated before the history."""
        seen: set[int] = set()
        for segment in segments:
            if _number(segment, "device", 0) != device:
                continue
            start = _number(segment, "address")
            blocks = _typed(segment, "blocks", list)
            if id(blocks) in seen:
                raise ValueError("two segments have the same list of blocks")
            seen.add(id(blocks))
            for block in blocks:
                address = _number(block, "address", start)
                size = _number(block, "size")
                start = address + size
                if _typed(block, "state", str) in _HELD and address not in self._out:
                    nbytes = _number(block, "requested_size", size)
                    held = self._block({"size": nbytes, **_words_of(block)})
                    self._before.setdefault(address, held)

    def _block(self, event: dict[str, Any]) -> tuple[int, int, int]:
        """Return the bytes, the tag and the stack of a block."""
        words = event.get("user_metadata")
        name = words if isinstance(words, str) else ""
        tag = self._tags.setdefault(name, len(self._tags))
        frames = _typed(event, "frames", list | tuple, ())
        return _number(event, "size"), tag, self._stack(frames)

    def _stack(self, frames: Sequence[Any]) -> int:
        if not frames:
            return -1
        seen = self._seen.get(id(frames))
        if seen is None:
            calls = tuple(
                (
                    _typed(frame, "filename", str),
                    _number(frame, "line"),
                    _typed(frame, "name", str),
                )
                for frame in frames
            )
            seen = frames, self._stacks.setdefault(calls, len(self._stacks))
            self._seen[id(frames)] = seen
        return seen[1]

    def _note(
        self,
        action: int,
        address: int,
        block: tuple[int, int, int],
        event: dict[str, Any],
    ) -> None:
        seconds = _typed(event, "time_us", float | int, 0)
        if not abs(seconds) < _ENDLESS:
            raise ValueError("its 'time_us' is no time")
        seconds /= 1e6
        self._rows.append((action, address, block[0], seconds, *block[1:]))

    def columns(self) -> dict[str, Any]:
        """Return the columns, with blocks allocated before the history first."""
        begin = self._rows[0][3] if self._rows else 0.0
        rows = [
            (ALLOCATE, address, nbytes, begin, tag, stack)
            for address, (nbytes, tag, stack) in sorted(self._before.items())
        ]
        rows += self._rows
        return {
            "action": np.array([row[0] for row in rows], np.uint8),
            "address": np.array([row[1] for row in rows], np.uint64),
            "nbytes": np.array([row[2] for row in rows], np.uint64),
            "seconds": np.array([row[3] for row in rows], np.float64),
            "tag": np.array([row[4] for row in rows], np.int32),
            "stack": np.array([row[5] for row in rows], np.int32),
            "tags": tuple(self._tags),
            "stacks": tuple(self._stacks),
        }

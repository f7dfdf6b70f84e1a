"""Records of allocations out of PyTorch's memory snapshots.

Owns what of a snapshot is read, and what a pickle may hold. Refuses to run anything in
one: it admits the containers and numbers that are built into pickles, and no names.

A snapshot is a dictionary. ``device_traces`` has a list of events for each device,
``segments`` the memory now, with the blocks in it. Its history is bounded, so blocks
may have been taken before it begins.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Never, TypeVar

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file
from memcfg.memory._trace_columns import ALLOCATE, FAILURE, FREE

if TYPE_CHECKING:
    import os

    from memcfg.memory._trace import Trace
    from memcfg.memory._trace_columns import StackOfCalls

__all__ = ["read"]

T = TypeVar("T", bound="Trace")

_HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")


def read(path: str | os.PathLike[str], kind: type[T], device: int | None) -> T:
    """Read one device's events."""
    with open_file(path) as file:
        try:
            snapshot = _Plain(file).load()
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises anything, MemoryError too
            raise FormatError(f"{path} is no pickle of a snapshot: {error}") from None
    try:
        traces = [list(events) for events in snapshot["device_traces"]]
        segments = list(snapshot.get("segments", ()))
    except (TypeError, KeyError, AttributeError):
        raise FormatError(f"{path} is no snapshot: it has no device_traces") from None
    chosen = _choose(traces, device)
    events = _Events()
    try:
        for number, event in enumerate(traces[chosen]):
            events.add(number, event)
        events.add_held(segments, chosen)
        return kind(**events.columns())
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise FormatError(f"{path} is no snapshot: {what}") from None


class _Plain(pickle.Unpickler):
    """Admits no names, and so no classes and no functions."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any, /) -> Never:
        raise pickle.UnpicklingError("it refers to something outside of it")


def _choose(traces: list[list[Any]], device: int | None) -> int:
    busy = [number for number, events in enumerate(traces) if events]
    if device is None:
        if len(busy) > 1:
            raise ValueError(f"the devices {busy} have events: choose one of them")
        return busy[0] if busy else _require(traces, 0)
    return _require(traces, device)


def _require(traces: list[list[Any]], device: int) -> int:
    if not 0 <= device < len(traces):
        raise ValueError(f"there is no device {device} among {len(traces)}")
    return device


def _words_of(block: dict[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in ("user_metadata", "frames") if key in block}


class _Events:
    """Rows of a record, and the blocks that were out before them."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, float, int, int]] = []
        self._before: dict[int, tuple[int, int, int]] = {}  # by address
        self._out: dict[int, tuple[int, int, int]] = {}
        self._tags: dict[str, int] = {"": 0}
        self._stacks: dict[StackOfCalls, int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}  # frames that events share

    def add(self, number: int, event: dict[str, Any]) -> None:
        """Note an event of the history."""
        action = event["action"]
        if action == "oom":
            self._note(FAILURE, 0, self._block(event), event)
        elif action == "alloc":
            address = event["addr"]
            if address in self._out:
                raise ValueError(f"event {number} takes {address:#x}, which is out")
            self._out[address] = self._block(event)
            self._note(ALLOCATE, address, self._out[address], event)
        elif action == "free_completed":
            address = event["addr"]
            block = self._out.pop(address, None)
            if block is None:
                block = (event["size"], 0, -1)
                if self._before.setdefault(address, block) is not block:
                    raise ValueError(f"event {number} frees {address:#x} again")
            self._note(FREE, address, block, event)

    def add_held(self, segments: list[dict[str, Any]], device: int) -> None:
        """Note the blocks that are out now and were before the history."""
        for segment in segments:
            if segment.get("device", 0) != device:
                continue
            place = segment["address"]
            for block in segment["blocks"]:
                address = block.get("address", place)
                place = address + block["size"]
                if block["state"] in _HELD and address not in self._out:
                    nbytes = block.get("requested_size", block["size"])
                    held = self._block({"size": nbytes, **_words_of(block)})
                    self._before.setdefault(address, held)

    def _block(self, event: dict[str, Any]) -> tuple[int, int, int]:
        """Return a block's bytes, its tag and its stack."""
        words = event.get("user_metadata")
        name = words if isinstance(words, str) else ""
        tag = self._tags.setdefault(name, len(self._tags))
        return event["size"], tag, self._stack(event.get("frames", ()))

    def _stack(self, frames: list[dict[str, Any]]) -> int:
        if not frames:
            return -1
        seen = self._seen.get(id(frames))
        if seen is None:
            calls = tuple(
                (str(frame["filename"]), int(frame["line"]), str(frame["name"]))
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
        seconds = event.get("time_us", 0) / 1e6
        self._rows.append((action, address, block[0], seconds, *block[1:]))

    def columns(self) -> dict[str, Any]:
        """Return the columns, those blocks first that were out before."""
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

"""Snapshots of where every byte is, in a file for PyTorch's memory_viz.

Owns the format of the file; other tools draw it. The reader in the web page knows only
some pickle codes, shows tags only in frames and notes, has exact integers only below
2⁵³, and stops at an event that does not fit the earlier ones. The file respects all of
that.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._core import Pool, blocks_of, layout_of
from memcfg._version import __version__
from memcfg.files import write_atomically
from memcfg.memory._census import Selection, arena_rows, kind_of, label_of
from memcfg.memory._events import Entry, Frames, History, entries_of, shown_address

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from memcfg._core import LiveBlock, Resource
    from memcfg.memory._events import Event

__all__ = ["snapshot"]

_PROTOCOL = 4  # the latest pickle protocol that the web page reads
_SMALL = 2**20  # bytes; a larger segment is "large"
_KEPT = "kept by a thread for its next request"


def snapshot(
    path: str | os.PathLike[str], *resources: Resource, overwrite: bool = False
) -> None:
    """Write the layout of memory to a file for PyTorch's memory_viz.

    Open it at https://docs.pytorch.org/memory_viz, which uploads nothing, or with
    ``python -m torch.cuda._memory_viz trace_plot FILE``.

    Parameters
    ----------
    path : str or path-like
        The file.
    *resources : Resource
        The resources, each shown as a device, numbered from 0; an adaptor stands for
        the resource below it. By default, all that are alive.
    overwrite : bool, default False
        Whether to replace an existing file.

    Raises
    ------
    FileExistsError
        If the file exists and `overwrite` is False; it is unchanged.
    OSError
        If the file cannot be written; an existing file is unchanged, and nothing else
        is left behind.
    TypeError
        If an argument after `path` is not a resource, or `overwrite` is not a bool.

    Notes
    -----
    The *segments* of a pool are the ranges of its addresses that have memory. An arena
    is a segment, and so is each block of a resource that is not a pool. In a segment

        sum of blocks' ``size`` == ``total_size``,
        sum of ``size`` of those ``active_allocated`` == ``allocated_size``;

    and the sum of their ``requested_size`` over a device is its `requested_bytes`.
    Memory that a thread keeps for its next request is ``inactive`` like all free
    memory, with a frame that says so; ``active_pending_free`` would count it as in use.
    The last frame of a block is its tag, which comes first in flame graphs. Stacks and
    the history of events are included if a `memcfg.memory.tracking` resource recorded
    them. Addresses of simulated devices are shown 2⁶² - 2³² lower than they are.

    Examples
    --------
    >>> import os, tempfile
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="64MiB", name="scratch")
    >>> block = pool.allocate(2**20, tag="weights")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     memory.snapshot(os.path.join(folder, "memory.pickle"), pool)
    ...     os.listdir(folder)
    ['memory.pickle']
    """
    if not isinstance(overwrite, bool):
        raise TypeError(f"overwrite is True or False, not {overwrite!r}")
    data = pickle.dumps(_picture(Selection(resources)), protocol=_PROTOCOL)
    write_atomically(path, data, overwrite=overwrite)


def _picture(chosen: Selection) -> dict[str, Any]:
    """Return the contents of the file."""
    selection = chosen.of_bases()
    frames = Frames()
    segments: list[dict[str, Any]] = []
    traces: list[list[Event]] = []
    for device, base in enumerate(selection.resources):
        # Read the history first: blocks that it has as freed are then not listed as
        # current.
        entries = entries_of(each.trace() for each in selection.trackers_of(base))
        runs = sorted(_runs_of(base), key=lambda run: run[0].address)
        noted = selection.noted(base)
        segments += (_segment(device, base, run, noted, frames) for run in runs)
        history = _history(base, runs, frames)
        events = list(history.events(entries))
        traces.append(events + _end_of(events) if entries else events)
    if not segments and not any(traces):
        traces[:1] = [[_moment()]]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {
            "memcfg": __version__,
            "devices": [_device(each) for each in selection.resources],
        },
    }


class _Piece(NamedTuple):
    """A range of addresses of a segment."""

    state: str
    address: int
    nbytes: int
    requested: int
    tag: str


def _runs_of(base: Resource) -> Iterator[list[_Piece]]:
    """Yield the pieces of each segment, by address."""
    if isinstance(base, Pool):
        yield from _runs(layout_of(base))
    else:
        for address, requested, rounded, tag in blocks_of(base):
            yield [_Piece("block", address, rounded, requested, tag)]
    for row in arena_rows(base):
        yield [_Piece("block", row.address, row.rounded_bytes, row.nbytes, row.tag)]


def _runs(
    layout: Iterable[tuple[str, int, int, int, int, str]],
) -> Iterator[list[_Piece]]:
    """Join adjacent ranges that have memory."""
    run: list[_Piece] = []
    end = 0
    for state, address, nbytes, committed, requested, tag in layout:
        if run and (committed == 0 or address != end):
            yield run
            run = []
        if committed > 0:
            run.append(_Piece(state, address, nbytes, requested, tag))
        end = address + nbytes
    if run:
        yield run


def _segment(
    device: int,
    base: Resource,
    run: list[_Piece],
    noted: dict[int, LiveBlock],
    frames: Frames,
) -> dict[str, Any]:
    total = sum(each.nbytes for each in run)
    allocated = sum(each.nbytes for each in run if each.state == "block")
    return {
        "device": device,
        "address": shown_address(run[0].address),
        "total_size": total,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(each.requested for each in run),
        "stream": 0,
        "segment_type": "large" if total > _SMALL else "small",
        "segment_pool_id": (0, 0),
        "frames": frames.of_resource(f"{label_of(base)} ({kind_of(base)})"),
        "blocks": [_block(each, noted, frames) for each in run],
    }


def _block(
    piece: _Piece, noted: dict[int, LiveBlock], frames: Frames
) -> dict[str, Any]:
    block: dict[str, Any] = {
        "address": shown_address(piece.address),
        "size": piece.nbytes,
        "requested_size": piece.requested,
        "state": "active_allocated" if piece.state == "block" else "inactive",
        "frames": [],
    }
    if piece.state == "cached":
        return block | {"requested_size": piece.nbytes, "frames": frames.of(_KEPT)}
    if piece.state == "block":
        known = noted.get(piece.address)
        if known is not None and known.nbytes == piece.requested:
            block["frames"] = frames.of(piece.tag, known.stack)
        else:  # not recorded, or the record is of an earlier block
            block["frames"] = frames.of(piece.tag)
        if piece.tag:
            block["user_metadata"] = piece.tag
    return block


def _history(base: Resource, runs: list[list[_Piece]], frames: Frames) -> History:
    places = [(run[0].address, sum(each.nbytes for each in run)) for run in runs]
    blocks = (
        Entry(0.0, 0, each.address, each.requested, each.tag, ())
        for run in runs
        for each in run
        if each.state == "block"
    )
    return History(frames, places, blocks, shared=isinstance(base, Pool))


def _end_of(events: list[Event]) -> list[Event]:
    """Return the events of the snapshot itself, which end a history."""
    if any("category" in event for event in events):
        # the web page fails without any category
        return [_moment() | {"category": "unknown"}]
    return [_moment()]


def _moment() -> Event:
    """Return the event of the snapshot, as the web page fails without any event."""
    return {
        "action": "snapshot",
        "addr": 0,
        "size": 0,
        "stream": 0,
        "time_us": time.time_ns() // 1000,
        "frames": [],
    }


def _device(base: Resource) -> dict[str, Any]:
    return {"name": base.name, "kind": kind_of(base), **asdict(base.stats())}

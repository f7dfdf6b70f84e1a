"""Timelines of records: a box for each allocation, its holder and its line."""

from __future__ import annotations

import random

import numpy as np
import pytest
from timelines import alive, overlaps

from memcfg import memory
from memcfg.memory import Trace


def test_boxes_are_the_blocks_of_the_record():
    rng, pool = random.Random(0), memory.Pool(limit="4MiB", name="scratch")
    tracked = memory.tracking(pool, stacks=True)
    blocks = []
    for number in range(120):
        if blocks and rng.random() < 0.45:
            blocks.pop(rng.randrange(len(blocks)))
        else:
            nbytes = rng.randrange(100, 20_000)
            blocks.append(tracked.allocate(nbytes, tag=f"holder {number % 3}"))
    trace = tracked.trace()
    timeline = trace.timeline("4MiB")
    assert overlaps(timeline.boxes) == []
    signs = np.where(trace.action == 0, 1, 0) - np.where(trace.action == 1, 1, 0)
    live = np.cumsum(signs * trace.nbytes.astype(np.int64))
    for number, event in enumerate(timeline.events):
        assert event.live_bytes == sum(b.nbytes for b in alive(timeline, number))
    assert [event.live_bytes for event in timeline.events] == live.tolist()
    assert timeline.peak_bytes == live.max()
    assert timeline.limit_bytes == 4 * 2**20
    assert {box.role for box in timeline.boxes} == {f"holder {n}" for n in range(3)}
    assert all("test_trace_timeline.py:" in box.line for box in timeline.boxes)
    assert "planned" not in str(timeline)
    assert str(timeline).startswith("Recorded memory")


def test_addresses_that_nobody_used_are_left_out():
    far = 2**40
    trace = Trace(
        action=[0, 0, 1, 0, 2],
        address=[64, far, 64, far + 4096, 0],
        nbytes=[64, 4096, 64, 64, 10**6],
    )
    timeline = trace.timeline()
    assert [box.offset for box in timeline.boxes] == [0, 64, 64 + 4096]
    assert timeline.runs == ((0, 64), (64, far))
    assert [event.kind for event in timeline.events][-1] == "refused"
    assert [(box.begin, box.end) for box in timeline.boxes] == [(0, 2), (1, 5), (3, 5)]


def test_a_record_of_nothing_has_an_empty_timeline(tmp_path):
    timeline = Trace(action=[], address=[], nbytes=[]).timeline()
    assert "nothing was allocated" in str(timeline)
    timeline.save(tmp_path / "record.html")
    with pytest.raises(ValueError, match="size"):
        Trace(action=[], address=[], nbytes=[]).timeline("many")

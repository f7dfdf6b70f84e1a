"""Timelines for Perfetto: the fields of the trace-event format, and the bytes."""

from __future__ import annotations

import json
from collections import Counter

from networks import noisy
from swapping import Swapping

from memcfg.plan import memory_timeline

GRAPH = noisy(2, 1, 4, 2)
TIMELINE = memory_timeline(GRAPH, Swapping(("host",))(GRAPH), bandwidth={"host": 1e9})
NEEDS = {  # fields of each phase, beside ph, pid and name
    "M": {"tid": int, "args": dict},
    "X": {"tid": int, "ts": float | int, "dur": float | int, "cat": str},
    "C": {"ts": float | int, "args": dict},
    "s": {"tid": int, "ts": float | int, "id": int, "cat": str},
    "f": {"tid": int, "ts": float | int, "id": int, "cat": str, "bp": str},
}


def read(tmp_path):
    TIMELINE.save(tmp_path / "step.json")
    return json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))


def test_every_event_has_the_fields_of_its_phase(tmp_path):
    document = read(tmp_path)
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    for event in events:
        for name, kind in {"pid": int, "name": str, **NEEDS[event["ph"]]}.items():
            assert isinstance(event[name], kind), (name, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert {event["ph"] for event in events} == NEEDS.keys()
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == threads
    kinds = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "host out", "host in"} <= kinds


def test_spans_of_a_thread_do_not_overlap(tmp_path):
    last: Counter = Counter()
    for event in read(tmp_path)["traceEvents"]:
        if event["ph"] == "X":
            where = event["pid"], event["tid"]
            assert event["ts"] >= last[where] - 2e-3  # rounded to a nanosecond
            last[where] = event["ts"] + event["dur"]


def test_counters_are_the_bytes_in_use_and_flows_join_copies(tmp_path):
    events = read(tmp_path)["traceEvents"]
    counters = [e for e in events if e["ph"] == "C"]
    top = max(event.live_bytes for event in TIMELINE.events)
    sums = [sum(counter["args"].values()) for counter in counters]
    assert max(sums) == top
    live = {e.live_bytes for e in TIMELINE.events}
    assert set(sums) - {sums[-1]} <= live
    flows = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "sf")
    swaps = [a for a in TIMELINE.arrows if a.kind == "swapped in"]
    assert swaps
    assert len(flows) == 2 * len(swaps)
    assert set(flows.values()) == {1}
    copied = [e for e in events if e.get("cat") == "copy"]
    assert [e["args"]["bytes"] for e in copied] == [c.nbytes for c in TIMELINE.copies]

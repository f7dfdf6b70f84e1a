"""Histories told by snapshots, however much is lost, and pickles of plain values."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st
from snapshots import play_backwards

from memcfg.memory import _plain_pickle
from memcfg.memory._events import Entry, Frames, History

SLOTS = 12  # of 256 bytes


class Story:
    """What happened at slots of addresses, and what is there in the end.

    A step is a slot, a size (0: a refusal), a tag, and whether the history tells it.
    """

    def __init__(self, steps) -> None:
        self.entries: list[Entry] = []
        self.out: dict[int, Entry] = {}
        for time, (slot, nbytes, tag, told) in enumerate(steps):
            address = 4096 + 256 * slot
            if nbytes == 0:
                entry = Entry(float(time), 2, 0, 1 + slot, tag, ())
            elif address in self.out:
                held, told = self.out.pop(address)
                entry = held._replace(seconds=float(time), action=1)
            else:
                entry = Entry(float(time), 0, address, nbytes, tag, (("f.py", 1, "g"),))
                self.out[address] = entry, told
            if told:
                self.entries.append(entry)
        self.blocks = sorted(entry for entry, _ in self.out.values())

    def segment(self, slot: int, nbytes: int) -> dict[str, object]:
        address = 4096 + 256 * slot
        blocks = [
            {
                "address": address,
                "state": "active_allocated",
                "requested_size": each.nbytes,
            }
            for each in self.blocks
            if each.address == address
        ]
        return {"address": address, "total_size": nbytes, "blocks": blocks}


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, SLOTS - 1),
            st.integers(0, 256),
            st.sampled_from(["", "t"]),
            st.sampled_from([True, True, False]),
        ),
        max_size=50,
    ),
    lost=st.integers(0, 50),
    covered=st.sets(st.integers(0, SLOTS - 1)),
    shared=st.booleans(),
)
def test_every_history_can_be_played_backwards(steps, lost, covered, shared):
    """Also one that begins late, in addresses that have gone, or that has gaps."""
    story = Story(steps)
    sizes = {(each.address - 4096) // 256: each.nbytes for each in story.blocks}
    if shared:
        segments = [story.segment(slot, 256) for slot in sorted({*sizes, *covered})]
    else:
        segments = [
            story.segment(k, -(-n // 64) * 64) for k, n in sorted(sizes.items())
        ]
    ranges = [(each["address"], each["total_size"]) for each in segments]
    history = History(Frames(), ranges, story.blocks, shared=shared)
    told = story.entries[lost:]
    events = list(history.events(told))
    end = {"action": "snapshot", "time_us": 10**9}
    play_backwards(segments, [*events, end], quiet=True)
    actions = [each["action"] for each in events]
    assert actions.count("oom") == sum(each.action == 2 for each in told)
    assert actions.count("free_completed") == sum(each.action == 1 for each in told)
    assert actions.count("alloc") >= sum(each.action == 0 for each in told)
    last = {each["addr"]: each for each in events if each["action"] != "oom"}
    for each in story.blocks:  # played forwards, they are out in the end
        if each.address in last:
            assert last[each.address]["action"] == "alloc"
            assert last[each.address]["size"] == each.nbytes
    if not shared:
        assert actions.count("segment_alloc") == actions.count("alloc")
        assert actions.count("segment_free") == actions.count("free_completed")


def test_a_free_that_the_history_missed_is_put_in():
    """The block went behind its back, and another one came to the same place."""
    entries = [
        Entry(1.0, 0, 4096, 100, "old", ()),
        Entry(2.0, 0, 4096, 200, "new", ()),
        Entry(3.0, 0, 8192, 64, "gone", ()),  # and nobody says where to
    ]
    for shared in (True, False):
        history = History(Frames(), [(4096, 256)], [entries[1]], shared=shared)
        events = list(history.events(entries))
        told = [
            (each["action"], each["size"])
            for each in events
            if not each["action"].startswith("segment")
        ]
        assert told == [
            ("alloc", 100),
            ("free_requested", 100),
            ("free_completed", 100),
            ("alloc", 200),
        ]


plain_keys = st.text(max_size=3) | st.integers(-(2**64) + 1, 2**64 - 1) | st.booleans()


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(plain_keys, inner)
        | st.lists(inner, max_size=5).map(tuple)
        | inner.map(lambda value: [value, value])
    ),
    max_leaves=20,
)


@given(plain_values, st.integers(3, 5))  # 2 has no bytes
def test_pickles_of_plain_values_are_read_as_pickle_reads_them(value, protocol):
    data = pickle.dumps(value, protocol)
    again = pickle.dumps(_plain_pickle.load(data), protocol)  # NaN is not itself
    assert again == pickle.dumps(pickle.loads(data), protocol)


def test_a_long_pickle_is_read_as_pickle_reads_it():
    value = [{str(i): [i, -i, 2**i, (i,) * i]} for i in range(500)]
    for protocol in range(2, 6):
        assert _plain_pickle.load(pickle.dumps(value, protocol)) == value

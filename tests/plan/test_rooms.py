"""The judge's arena against every pair of rooms."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.plan._rooms import Room, Rooms

places = st.tuples(st.integers(-2, 30), st.integers(0, 8))


def share_a_byte(one: Room, other: Room) -> bool:
    return bool(set(range(*one[:2])) & set(range(*other[:2])))


@settings(max_examples=500, deadline=None)
@given(steps=st.lists(st.tuples(places, st.integers(0, 3)), max_size=30))
def test_the_first_overlap_is_found_and_all_are_counted(steps):
    """Rooms come and go; those that overlap come too, as in a plan that is refuted."""
    rooms, held = Rooms(), []
    for number, ((start, size), leave) in enumerate(steps):
        room = Room(start, start + size, f"room {number}")
        found = sorted(other for other in held if share_a_byte(room, other))
        assert rooms.clash(room) == ((found[0], len(found)) if found else None)
        rooms.add(room)
        held.append(room)
        if leave == 0:
            rooms.remove(held.pop(number % len(held)))

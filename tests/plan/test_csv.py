from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.errors import FormatError
from memcfg.plan import Buffer, place, read_buffers, write_placement

GOOD = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n"


def test_files_are_read_in_order():
    expected = [Buffer("b1", 0, 3, 4), Buffer("b2", 3, 9, 4)]
    assert read_buffers(GOOD) == expected
    assert read_buffers(GOOD.replace("\n", "\r\n")) == expected
    assert read_buffers(GOOD + "\n\n") == expected
    assert read_buffers("size, upper,lower,id\n4,3,0,b1\n4,9,3, b2\n") == expected
    assert read_buffers("id,lower,upper,size\n") == []


def test_offsets_are_added_and_not_read():
    buffers = read_buffers(GOOD)
    text = write_placement(buffers, place(buffers))
    assert text == "id,lower,upper,size,offset\nb1,0,3,4,0\nb2,3,9,4,0\n"
    with pytest.raises(FormatError, match="line 2: buffer 'b1' has the offset 0"):
        read_buffers(text)


@settings(deadline=None)
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1),
        unique=True,
        max_size=5,
    )
)
def test_any_name_survives_the_journey(names):
    buffers = [Buffer(name, 0, 1, 1) for name in names]
    rows = csv.reader(io.StringIO(write_placement(buffers, place(buffers))))
    text = io.StringIO()
    csv.writer(text).writerows(row[:-1] for row in rows)  # without the offsets
    assert read_buffers(text.getvalue()) == buffers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: no header"),
        ("id,lower,upper\n", "line 1: column 'size' is missing"),
        ("id,lower,upper,size,gap\n", "line 1: unknown column 'gap'"),
        ("id,lower,upper,size,size\n", "line 1: column 'size' is duplicated"),
        (GOOD + "b3,1,2\n", "line 4: 3 fields, expected 4"),
        (GOOD + "b3,1,2,3,4\n", "line 4: 5 fields, expected 4"),
        (GOOD + "b3,1,2,x\n", "line 4: 'size' should be a whole number"),
        (GOOD + "b3,1,2,1e3\n", "line 4: 'size' should be a whole number"),
        (GOOD + "b3,1,2,\n", "line 4: 'size' should be a whole number"),
        (GOOD + "b3,1,2," + "9" * 19 + "\n", "at most 18 digits"),
        (GOOD + "b3,1,2,-1\n", "line 4: 'size' is negative"),
        (GOOD + "b3,2,2,1\n", r"line 4: the lifetime \[2, 2\) is empty"),
        (GOOD + "b1,1,2,1\n", "line 4: buffer 'b1' is duplicated"),
        (GOOD + ",1,2,1\n", "line 4: 'id' is empty"),
        (GOOD + '"b3,1,2,1\n', "line 4: not CSV"),
    ],
)
def test_departures_name_their_line(text, words):
    with pytest.raises(FormatError, match=words):
        read_buffers(text)

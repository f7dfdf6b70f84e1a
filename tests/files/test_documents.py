"""The strict reader under both formats: every text ends in a value or a FormatError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.documents import (
    Key,
    read_count,
    read_document,
    read_flag,
    read_list,
    read_object,
    read_or_null,
    read_positive,
    read_seconds,
    read_text,
    write_json,
)
from memcfg.errors import FormatError

POINT = {"x": Key(read_count), "y": Key(read_count, field="height", required=False)}
KEYS = {
    "name": Key(read_text),
    "open": Key(read_flag, required=False, default=True),
    "points": Key(read_list(lambda v, w: read_object(v, w, POINT), item="point")),
}


def read(text: str):
    return read_document(text, "drawing", "drawing/1", KEYS)


def drawing(**changes) -> str:
    return json.dumps(
        {"format": "drawing/1", "name": "n", "points": [{"x": 1, "y": 2}], **changes}
    )


def test_fields_are_renamed_and_defaults_filled_in():
    points = ({"x": 1, "height": 2}, {"x": 3, "height": None})
    assert read(drawing(points=[{"x": 1, "y": 2}, {"x": 3}])) == {
        "name": "n",
        "open": True,
        "points": points,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (drawing(colour="red"), "^drawing: unknown key 'colour'$"),
        (drawing(points=[{"x": 1}, {}]), "^point 1: key 'x' is missing$"),
        (drawing(points=[[]]), r"^point 0 should be an object, not \[\]$"),
        (drawing(points={}), "^drawing: 'points' should be a list, not {}$"),
        (drawing(open=1), "^drawing: 'open' should be true or false, not 1$"),
        (drawing(format="drawing/2"), "is 'drawing/2'; this version reads 'drawing/1'"),
        (drawing(format=["drawing/1"]), "format is"),
        ('"drawing/1"', "^not a drawing: no 'format' key; expected 'drawing/1'$"),
        (drawing().replace('"y"', '"x"'), "^duplicate key 'x' in one object$"),
        (drawing(name="\udc00"), "^drawing: 'name' is not Unicode text: '.udc00'$"),
    ],
)
def test_departures_are_named(text, words):
    with pytest.raises(FormatError, match=words):
        read(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"format": "drawing/1", "name": ['])
@pytest.mark.parametrize("depth", [900, 1000, 100_000])
def test_nesting_of_any_depth_is_refused(opening, depth):
    closing = {"[": "]", "{": "}"}
    ends = "".join(closing[c] for c in reversed(opening) if c in closing)
    with pytest.raises(FormatError):
        read(opening * depth + "1" + ends * depth)


@pytest.mark.parametrize("digits", [19, 20, 309, 400, 4300, 4301, 100_000])
def test_numbers_of_any_length_are_refused(digits):
    for number in ("9" * digits, f"-{'9' * digits}", f"{'9' * digits}.5"):
        with pytest.raises(FormatError):
            read(drawing(points=[{"x": 1}]).replace("1}", f"{number}}}"))


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (read_text, ["", "ü", "\0"], [1, None, [], "\ud800"]),
        (read_count, [0, 2**63 - 1], [-1, 2**63, 10**400, 1.0, True, None, "1"]),
        (read_positive, [1, 2**63 - 1], [0, -1, 2**63, True]),
        (read_flag, [True, False], [0, 1, None, "true"]),
        (read_or_null(read_count), [None, 3], [-1, False, ""]),
        (read_list(read_count), [], [None, {}, [-1], "12"]),
        (
            read_seconds,
            [0, 1, 0.5, 1e308, 2**1000],
            [-1, -1e-9, float("inf"), float("nan"), 10**309, True, None, "1"],
        ),
    ],
)
def test_readers_take_what_they_should(reader, good, bad):
    for value in good:
        assert reader(value, "here") == value
    for value in bad:
        with pytest.raises(FormatError, match=r"^here"):
            reader(value, "here")


def test_a_message_is_short_whatever_the_value():
    for value in ({"a": "b" * 10**6}, ["x"] * 10**6, "y" * 10**6):
        with pytest.raises(FormatError) as caught:
            read_count(value, "here")
        assert len(str(caught.value)) < 300


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\ud8x ', max_size=60))
def test_any_text_ends_in_a_format_error(text):
    with pytest.raises(FormatError):
        read(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    place=st.sampled_from(["name", "open", "points", "format", "more"]), value=values
)
def test_any_value_in_any_place_ends_in_a_value_or_a_format_error(place, value):
    try:
        fields = read(drawing(**{place: value}))
    except FormatError:
        return
    assert isinstance(fields["name"], str)
    assert isinstance(fields["open"], bool)
    assert all(point["x"] >= 0 for point in fields["points"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_json_is_not_written(number):
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        write_json({"a": [number]})
    assert write_json({"a": [1, None, "ü"]}) == '{"a": [1, null, "\\u00fc"]}'

"""Examples in records: what is written is parsed, and what is wrong is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.data import (
    BytesList,
    Example,
    Feature,
    Features,
    FixedLenFeature,
    FixedLenSequenceFeature,
    FloatList,
    Int64List,
    VarLenFeature,
    parse_example,
    parse_single_example,
)
from memcfg.errors import FormatError

KINDS = {"S": ("bytes_list", BytesList), "f": ("float_list", FloatList)}


def feature(values, kind):
    name, make = KINDS.get(kind, ("int64_list", Int64List))
    return Feature(**{name: make(value=values)})


def record(**features):
    return Example(features=Features(feature=features)).SerializeToString()


INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=9)
STRINGS = st.lists(st.binary(max_size=5), max_size=5)
FEATURES = st.dictionaries(
    st.text(max_size=3),
    st.one_of(
        st.tuples(st.just("i"), INTEGERS),
        st.tuples(st.just("f"), FLOATS),
        st.tuples(st.just("S"), STRINGS),
    ),
    max_size=4,
)


@given(FEATURES)
def test_a_message_comes_back(drawn):
    features = {name: feature(values, kind) for name, (kind, values) in drawn.items()}
    data = Example(Features(features)).SerializeToString()
    found = Example.FromString(data).features.feature
    assert found.keys() == drawn.keys()
    for name, (kind, values) in drawn.items():
        part = getattr(found[name], KINDS.get(kind, ("int64_list",))[0])
        assert list(part.value) == values


@given(FEATURES)
def test_padding_of_a_batch_is_no_damage(drawn):
    features = {name: feature(values, kind) for name, (kind, values) in drawn.items()}
    data = Example(Features(features)).SerializeToString()
    numbers = [name for name, (kind, _) in drawn.items() if kind == "i"]
    specs = {name: VarLenFeature("int64") for name in numbers}
    batch = np.array([data, b"x" * 0, data + b"\0"], "S")
    parsed = parse_example(batch, specs)
    for name in numbers:
        assert parsed[name][0].tolist() == drawn[name][1]
        assert parsed[name][1].tolist() == [0] * len(drawn[name][1])


def test_a_known_message():
    """That of the description of protocol buffers: tags, lengths, varints."""
    numbers = b"\x0a\x03\x96\x01\x07"  # packed: 150, 7
    entry = b"\x0a\x01n\x12\x07\x1a\x05" + numbers
    data = bytes([0x0A, len(entry) + 2, 0x0A, len(entry)]) + entry
    assert record(n=feature([150, 7], "i")) == data
    unpacked = b"\x08\x96\x01\x08\x07"
    other = b"\x0a\x01n\x12\x07\x1a\x05" + unpacked
    data = bytes([0x0A, len(other) + 2, 0x0A, len(other)]) + other
    parsed = parse_single_example(data, {"n": FixedLenFeature([2], "int64")})
    assert parsed["n"].tolist() == [150, 7]


def test_one_example():
    data = record(
        image=feature([b"jpeg\0"], "S"),
        box=feature([1.5, 2, 3, 4], "f"),
        label=feature([7], "i"),
        words=feature([b"a", b"bc"], "S"),
    )
    found = parse_single_example(
        data,
        {
            "image": FixedLenFeature((), bytes),
            "box": FixedLenFeature([2, 2], np.float32),
            "label": FixedLenFeature([], int),
            "words": VarLenFeature("string"),
            "weight": FixedLenFeature([], "float32", default_value=1.5),
            "more": VarLenFeature("int64"),
            "pairs": FixedLenSequenceFeature([2], "float32", allow_missing=True),
        },
    )
    assert found["image"] == b"jpeg\0"
    assert type(found["image"]) is np.bytes_
    assert found["box"].tolist() == [[1.5, 2], [3, 4]]
    assert found["label"] == np.int64(7)
    assert type(found["label"]) is np.int64
    assert found["words"].tolist() == [b"a", b"bc"]
    assert found["weight"] == np.float32(1.5)
    assert found["more"].dtype == np.int64
    assert found["more"].shape == (0,)
    assert found["pairs"].shape == (0, 2)


def test_a_batch():
    rows = [
        record(n=feature([1], "i"), v=feature([1.0], "f"), s=feature([b"a"], "S")),
        record(v=feature([2.0, 3.0], "f")),
        record(n=feature([3], "i"), s=feature([b"bc", b"d"], "S")),
    ]
    found = parse_example(
        np.array(rows),
        {
            "n": FixedLenFeature([1], "int64", default_value=-1),
            "v": VarLenFeature("float32"),
            "s": VarLenFeature(bytes),
            "w": FixedLenSequenceFeature([], "float32", True, default_value=9.0),
        },
    )
    assert found["n"].tolist() == [[1], [-1], [3]]
    assert found["v"].tolist() == [[1, 0], [2, 3], [0, 0]]
    assert found["s"].tolist() == [[b"a", b""], [b"", b""], [b"bc", b"d"]]
    assert found["w"].shape == (3, 0)
    padded = parse_example(
        rows, {"v": FixedLenSequenceFeature([], "float32", True, default_value=9.0)}
    )
    assert padded["v"].tolist() == [[1, 9], [2, 3], [9, 9]]


def test_records_in_a_pipeline(tmp_path):
    path = tmp_path / "file"
    with mc.data.TFRecordWriter(path) as writer:
        for n in range(10):
            writer.write(record(x=feature([n, 0.0], "f"), y=feature([n], "i")))
    features = {
        "x": FixedLenFeature([2], "float32"),
        "y": FixedLenFeature([], "int64"),
    }
    one = mc.data.TFRecordDataset(path).map(lambda r: parse_single_example(r, features))
    many = mc.data.TFRecordDataset(path).batch(4)
    many = many.map(lambda r: parse_example(r, features))
    for data in (one.batch(4), many):
        batches = list(data)
        assert [len(batch["y"]) for batch in batches] == [4, 4, 2]
        rows = np.concatenate([batch["x"] for batch in batches])
        assert rows.tolist() == [[n, 0] for n in range(10)]


GOOD = record(n=feature([1, 2], "i"), f=feature([1.0], "f"), s=feature([b"a\0"], "S"))


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"n": FixedLenFeature([3], int)}, "'n' has 2 values, and shape .* needs 3"),
        ({"n": FixedLenFeature([2], "float32")}, "'n' has another dtype .*: int64"),
        ({"n": VarLenFeature(bytes)}, "'n' has another dtype"),
        ({"x": FixedLenFeature([2], int)}, "'x' is missing"),
        ({"n": FixedLenSequenceFeature([3], int, True)}, "'n' has 2 values"),
        ({"s": VarLenFeature(bytes)}, "'s' has byte strings that end with zeros"),
    ],
)
def test_features_that_do_not_fit(features, told):
    for call, data in ((parse_single_example, GOOD), (parse_example, [GOOD])):
        with pytest.raises(ValueError, match=told):
            call(data, features)


@given(st.integers(1, len(GOOD) - 1))
def test_a_message_that_ends_early_is_an_error(left):
    with pytest.raises(FormatError, match="ends"):
        Example.FromString(GOOD[:-left])


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data):
    try:
        found = Example.FromString(data)
    except FormatError:
        return
    assert Example.FromString(found.SerializeToString()).features.feature.keys() == (
        found.features.feature.keys()
    )


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: BytesList(value=b"ab"), TypeError, "list of bytes, not of int"),
        (lambda: BytesList(value=["a"]), TypeError, "not of str"),
        (lambda: Int64List(value=[1.5]), TypeError, "integers"),
        (lambda: Int64List(value=[2**63]), ValueError, "has no"),
        (lambda: Int64List(value=[[1]]), ValueError, "one axis"),
        (lambda: FloatList(value=["a"]), ValueError, "could not convert"),
        (lambda: Feature(bytes_list=[b"a"]), TypeError, "must be BytesList"),
        (
            lambda: Feature(int64_list=Int64List(), float_list=FloatList()),
            ValueError,
            "one list, not float_list and int64_list",
        ),
        (lambda: Features(feature={"a": 1}), TypeError, "maps text to Feature"),
        (lambda: Example(features={}), TypeError, "must be Features"),
        (lambda: FixedLenFeature([], "int32"), TypeError, "float32, int64 or bytes"),
        (lambda: FixedLenFeature([-1], "int64"), ValueError, "at least 0"),
        (lambda: FixedLenFeature([2], "int64", [1, 2, 3]), ValueError, "broadcast"),
        (lambda: FixedLenSequenceFeature([], int), ValueError, "allow_missing=True"),
        (lambda: parse_single_example("a", {}), TypeError, "must be bytes, not str"),
        (lambda: parse_single_example(b"", {"a": 1}), TypeError, "maps names"),
        (lambda: parse_example(b"", {}), TypeError, "one axis"),
        (lambda: parse_example(["a"], {}), TypeError, "array of bytes"),
    ],
)
def test_wrong_arguments(call, error, told):
    with pytest.raises(error, match=told):
        call()

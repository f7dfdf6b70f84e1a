"""Files of lines, of records of one length, and of CSV; the names of files."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.data.experimental import CsvDataset
from memcfg.errors import FormatError

Dataset, TextLineDataset = mc.data.Dataset, mc.data.TextLineDataset
FixedLengthRecordDataset = mc.data.FixedLengthRecordDataset


@pytest.fixture
def file(tmp_path):
    """Write bytes to a file, compressed or not."""

    def write(data, compression=None, name="file"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if compression else data)
        return path

    return write


def test_lines(file):
    path = file(b"a\r\nb\rc\n\n\r\nlast\r")  # as TensorFlow 2.21 reads them
    assert list(TextLineDataset(path)) == [b"a", b"bc", b"", b"", b"last"]
    assert list(TextLineDataset([path, path]).take(6))[5] == b"a"
    assert list(TextLineDataset(file(b""))) == []
    assert list(TextLineDataset(file(b"a\nb\n", "GZIP"), "GZIP")) == [b"a", b"b"]


@given(st.lists(st.binary(max_size=3000), max_size=12), st.booleans())
def test_lines_longer_than_a_buffer(tmp_path_factory, lines, ends):
    lines = [line.replace(b"\r", b"").replace(b"\n", b"") for line in lines]
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(line * 3 + b"\n" for line in lines) + b"x" * ends)
    expected = [line * 3 for line in lines] + [b"x"] * ends
    assert list(TextLineDataset(path, buffer_size=0)) == expected


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_records_of_one_length(file, compression):
    data = bytes(range(100, 125))
    path = file(data, compression)

    def read(*args):
        return list(FixedLengthRecordDataset(path, *args, compression_type=compression))

    assert read(5) == [data[n : n + 5] for n in range(0, 25, 5)]
    assert read(4, 3, 2) == [data[n : n + 4] for n in range(3, 23, 4)]
    assert read(20, 5) == [data[5:]]
    assert read(4, 25) == []
    with pytest.raises(FormatError, match=r"with 1 bytes, and a record has 4"):
        read(4)
    with pytest.raises(FormatError, match="shorter than a header of 20 and a footer"):
        read(4, 20, 6)
    with pytest.raises(ValueError, match="record_bytes is at least 1"):
        FixedLengthRecordDataset(path, 0)


def test_records_of_one_length_become_arrays(file):
    numbers = np.arange(12, dtype="<f4").reshape(4, 3)
    data = FixedLengthRecordDataset(file(numbers.tobytes()), 12)
    rows = data.map(lambda record: np.frombuffer(record, "<f4")).batch(4)
    assert np.array_equal(next(iter(rows)), numbers)


def test_list_files(tmp_path):
    for name in ("b", "a", ".c", "d.txt"):
        (tmp_path / name).touch()
    names = [str(tmp_path / name) for name in (".c", "a", "b", "d.txt")]
    assert list(Dataset.list_files(f"{tmp_path}/*", shuffle=False)) == names
    assert list(Dataset.list_files(tmp_path / "*.txt")) == names[3:]
    twice = [f"{tmp_path}/[ab]", f"{tmp_path}/a"]
    assert list(Dataset.list_files(twice, shuffle=False)) == names[1:3]
    shuffled = Dataset.list_files(f"{tmp_path}/*", seed=3)
    passes = [list(shuffled) for _ in range(20)]
    assert all(sorted(each) == names for each in passes)
    assert len(set(map(tuple, passes))) > 1
    again = Dataset.list_files(f"{tmp_path}/*", seed=3)
    assert [list(again) for _ in range(20)] == passes
    assert shuffled.cardinality() == 4
    with pytest.raises(FileNotFoundError, match=r"no file matches '.*/x\*' or "):
        Dataset.list_files([f"{tmp_path}/x*", "y*"])


def rows(file, data, defaults, **options):
    found = list(CsvDataset(file(data), defaults, **options))
    return [tuple(each.item() for each in row) for row in found]


@pytest.mark.parametrize(
    ("data", "defaults", "options", "expected"),
    [
        (b'1,2.5,x\n3,4,"y,z"\n', ["int32", "float32", bytes], {}, [
            (1, 2.5, b"x"), (3, 4.0, b"y,z"),
        ]),
        (b"1,a\r\n2,b", ["int64", "string"], {}, [(1, b"a"), (2, b"b")]),
        (b"1,2\r3,4\r", ["int32", "int32"], {}, [(1, 2), (3, 4)]),
        (b"1\n\n2\n", [[7]], {}, [(1,), (7,), (2,)]),
        (b"1,\n,2", [[9], 8], {}, [(1, 8), (9, 2)]),
        (b'a,,""\n', ["q", "r", "s"], {}, [(b"a", b"r", b"s")]),
        (b'"a""b","c\nd"\n', [bytes, bytes], {}, [(b'a"b', b"c\nd")]),
        (b'a"b,"c\n', [bytes] * 2, {"use_quote_delim": False}, [(b'a"b', b'"c')]),
        (b"1,NA\n2,", ["int32", [5]], {"na_value": "NA"}, [(1, 5), (2, 5)]),
        (b"1,2,3\n", ["int32"] * 2, {"select_cols": [0, 2]}, [(1, 3)]),
        (b"1,2,3\n", ["int32"] * 2, {"exclude_cols": [1]}, [(1, 3)]),
        (b"a,b\n1,2\n", ["int32"] * 2, {"header": True}, [(1, 2)]),
        (b" 1, 2.5 \n", ["int32", "float32"], {}, [(1, 2.5)]),
        (b"1;2\n", ["int32"] * 2, {"field_delim": ";"}, [(1, 2)]),
        (b"inf,1e40,0x10\n", ["float32"] * 3, {}, [(np.inf, np.inf, 16)]),
        (b'"12",+3\n', ["int32"] * 2, {}, [(12, 3)]),
    ],
)  # fmt: skip
def test_fields(file, data, defaults, options, expected):
    assert rows(file, data, defaults, **options) == expected


@pytest.mark.parametrize(
    ("data", "defaults", "told"),
    [
        (b"1\n\n", ["int32"], "byte 2: field 0, which is required, is empty"),
        (b"1,\n", ["int32", "int32"], "field 1, which is required, is empty"),
        (b'1,""\n', ["int32", bytes], "field 1, which is required, is empty"),
        (b"1\n", ["int32", "int32"], "has 1 fields of the columns, not 2"),
        (b"1,2,3\n", ["int32", "int32"], "has 3 fields of the columns, not 2"),
        (b"1_0\n", ["int32"], "field 0 of a record is no int32: b'1_0'"),
        (b"3000000000\n", ["int32"], "is no int32"),
        (b"1.0\n", ["int64"], "is no int64"),
        (b"1_0.5\n", ["float32"], "is no float32"),
        (b"x\n", ["float64"], "is no float64"),
        (b'a"b\n', [bytes], "a field without quotes has one|within quotes"),
        (b'a"b"\n', [bytes], "a field without quotes has one"),
        (b'"a"b"c"\n', [bytes], "not doubled"),
        (b'"a\n', [bytes], "ends within quotes"),
    ],
)
def test_wrong_fields(file, data, defaults, told):
    with pytest.raises(FormatError, match=told):
        rows(file, data, defaults)


@given(
    st.lists(
        st.lists(st.text('ab,"\n ü', max_size=6), min_size=3, max_size=3), max_size=6
    )
)
def test_what_pythons_writer_writes(tmp_path_factory, table):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    path = tmp_path_factory.mktemp("csv") / "file"
    path.write_bytes(text.getvalue().encode())
    found = list(CsvDataset(path, ["", "", ""], buffer_size=0))
    assert [[field.decode() for field in row] for row in found] == table


def test_csv_in_a_pipeline(file):
    path = file(b"x,y\n1,0.5\n2,1.5\n3,2.5\n", "GZIP")
    data = CsvDataset(path, ["int32", "float32"], "GZIP", header=True)
    assert data.element_spec == (
        mc.data.TensorSpec((), "int32"),
        mc.data.TensorSpec((), "float32"),
    )
    [(x, y), _] = data.batch(2)
    assert x.tolist() == [1, 2]
    assert y.tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"record_defaults": []}, ValueError, "is empty"),
        ({"record_defaults": ["uint8", np.uint8]}, TypeError, "a column is"),
        ({"record_defaults": [[1, 2]]}, ValueError, "one value"),
        ({"field_delim": "::"}, ValueError, "one character"),
        ({"select_cols": [1, 0]}, ValueError, "increasing"),
        ({"select_cols": [1]}, ValueError, "1 columns, and record_defaults 2"),
        ({"select_cols": [0, 1], "exclude_cols": [2]}, ValueError, "either"),
        ({"header": 1}, TypeError, "True or False"),
    ],
)
def test_wrong_arguments_of_csv(options, error, told):
    with pytest.raises(error, match=told):
        CsvDataset("file", **{"record_defaults": ["int32", "int32"]} | options)


def test_columns_by_name(tmp_path):
    make = mc.data.experimental.make_csv_dataset
    for number in range(2):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"x,name,y\n{number},a,0.5\n,b,1.5\n7,,{2**40}\n")
    data = make(f"{tmp_path}/*.csv", 4, label_name="y", num_epochs=1, shuffle=False)
    (first, labels), (rest, _) = data
    assert first["x"].tolist() == [0, 0, 7, 1]
    assert first["name"].tolist() == [b"a", b"b", b"", b"a"]
    assert (first["x"].dtype, labels.dtype) == (np.int32, np.float32)
    assert rest["x"].tolist() == [0, 7]
    shuffled = make(f"{tmp_path}/*.csv", 5, select_columns=["x"], shuffle_seed=1)
    batches = list(shuffled.take(6))
    assert all(list(batch) == ["x"] and len(batch["x"]) == 5 for batch in batches)
    numbers = np.concatenate([batch["x"] for batch in batches])
    assert sorted(numbers) == sorted([0, 0, 7, 1, 0, 7] * 5)
    named = make(path, 3, column_names=["a", "b", "c"], shuffle=False, num_epochs=1)
    assert list(next(iter(named))) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"label_name": "z"}, ValueError, "'z' is none of x, y"),
        ({"select_columns": ["z"]}, ValueError, "no column 'z': x, y"),
        ({"select_columns": [2]}, ValueError, "no column 2: there are 2"),
        ({"select_columns": [0, "x"]}, ValueError, "repeats a column"),
        ({"column_names": ["x", "x"]}, ValueError, "are repeated"),
        ({"header": False}, ValueError, "column_names is needed"),
        ({"sloppy": True}, ValueError, "sloppy must be False"),
        ({"column_names": ["x", "y", "z"]}, FormatError, "2 fields, and there are 3"),
        ({"file_pattern": "none*"}, FileNotFoundError, "no file matches"),
    ],
)
def test_wrong_arguments_of_columns(file, options, error, told):
    path = str(file(b"x,y\n1,2\n"))
    with pytest.raises(error, match=told):
        mc.data.experimental.make_csv_dataset(
            **{"file_pattern": path, "batch_size": 2} | options
        )


def test_headers_must_agree(file):
    file(b"x,y\n1,2\n", name="0.csv")
    path = file(b"x,z\n1,2\n", name="1.csv")
    make = mc.data.experimental.make_csv_dataset
    with pytest.raises(FormatError, match="another header than"):
        make(f"{path.parent}/*.csv", 2)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="has no header"):
        make(f"{path.parent}/*.csv", 2)

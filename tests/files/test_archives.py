"""Archives of arrays: what is written is read, and what lies about its size is not."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from memcfg import archives
from memcfg.archives import read_arrays, write_arrays
from memcfg.errors import FormatError

ARRAYS = {
    "a": np.arange(6, dtype=">i4").reshape(2, 3),
    "b": np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
    "c": np.array(3),
    "d": np.empty((0, 3), np.float32),
    "e": np.array(["", "ü"]),
    "f": np.array(["2020-01-01"], "M8[D]"),
    "g": np.zeros(3, [("x", "u1"), ("y", "f8", (2,))]),
}


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()


def packed(data: bytes, method=zipfile.ZIP_DEFLATED, name="a.npy") -> bytearray:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr(name, data)
    return bytearray(stream.getvalue())


def changed(data: bytearray, place: int, form: str, value: int) -> bytearray:
    """Change a number of the central directory, which is what a reader believes."""
    struct.pack_into(form, data, data.index(b"PK\1\2") + place, value)
    return data


GOOD = header("(2,)") + bytes(16)


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_written_is_read(tmp_path, compress):
    path = tmp_path / "file"
    path.write_bytes(write_arrays(ARRAYS, compress=compress))
    found = read_arrays(path, "archive")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert found[name].flags.f_contiguous == array.flags.f_contiguous
        np.testing.assert_array_equal(found[name], array)
    assert list(read_arrays(path, "archive", ["c", "a"])) == ["c", "a"]


def test_what_would_be_too_small_to_be_read_again_is_not_compressed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(archives, "_ALWAYS", 0)
    path = tmp_path / "file"
    path.write_bytes(write_arrays({"a": np.zeros(10**6)}, compress=True))
    assert not read_arrays(path, "archive")["a"].any()
    path.write_bytes(packed(header("(1000000,)") + bytes(8 * 10**6)))
    with pytest.raises(FormatError, match="bytes would unpack to 8000"):
        read_arrays(path, "archive")


DAMAGED = {
    "lzma": packed(GOOD, zipfile.ZIP_LZMA),
    "bzip2": packed(GOOD, zipfile.ZIP_BZIP2),
    "no method": changed(packed(GOOD), 10, "<H", 77),
    "encrypted": changed(packed(GOOD), 8, "<H", 1),
    "patched": changed(packed(GOOD), 8, "<H", 0x20),
    "a version to come": changed(packed(GOOD), 6, "<H", 99),
    "a place behind the end": changed(packed(GOOD), 42, "<I", 2**32 - 2),
    "larger than it can be": changed(packed(GOOD), 24, "<I", 2**32 - 2),
    "longer than the file": changed(
        changed(packed(GOOD), 24, "<I", 2**30), 20, "<I", 2**30
    ),
    "another checksum": changed(packed(GOOD), 16, "<I", 1),
    "a huge shape": packed(header("(1000000000000,)") + bytes(16)),
    "a shape beyond numbers": packed(header(f"({10**30},)") + bytes(16)),
    "a shape of nothing and much": packed(header(f"(0, {10**30})")),
    "a negative shape": packed(header("(-1, -2)") + bytes(16)),
    "many axes": packed(header(str((1,) * 99)) + bytes(8)),
    "no bytes an element": packed(header("(1000000000000,)", "'|S0'")),
    "objects": packed(header("(2,)", "'|O'") + bytes(16)),
    "nesting": packed(header("(" * 3000)),
    "signs": packed(header("-" * 3000 + "1")),
    "a long header": packed(b"\x93NUMPY\2\0" + struct.pack("<I", 2**31) + bytes(2**21)),
    "a version of no array": packed(b"\x93NUMPY\7\0" + bytes(20)),
    "text": packed(b"hello"),
    "nothing": packed(b""),
    "another name": packed(GOOD, name="b.npy"),
    "no archive": bytearray(b"PK\3\4"),
    "no entries": bytearray(b"PK\5\6" + bytes(18)),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_damaged_is_refused_and_takes_no_memory(tmp_path, what):
    path = tmp_path / "file"
    path.write_bytes(DAMAGED[what])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="file is not a saved thing: "):
            read_arrays(path, "saved thing", ["a"])
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_two_arrays_of_one_name_are_refused(tmp_path):
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", GOOD)
        archive.writestr("b.npy", GOOD)
    path.write_bytes(path.read_bytes().replace(b"b.npy", b"a.npy"))
    with pytest.raises(FormatError, match="one name"):
        read_arrays(path, "saved thing")

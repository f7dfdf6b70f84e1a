"""TFRecord files: framing, checksums, compression, several files, the pool."""

from __future__ import annotations

import gzip
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import FormatError, ResourceExhaustedError

TFRecordDataset, Writer = mc.data.TFRecordDataset, mc.data.TFRecordWriter

# Written by TensorFlow 2.21: TFRecordWriter.write(b"memcfg"), then write(b"").
GOLDEN = bytes.fromhex(
    "06000000000000007369d5376d656d636667613df883000000000000000029039807d8ea82a2"
)


def crc32c(data):
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def framed(records):
    """A file by the description of the format."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, struct.pack("<I", masked(length))]
        parts += [record, struct.pack("<I", masked(record))]
    return b"".join(parts)


def write(path, records, options=None):
    with Writer(path, options) as writer:
        for record in records:
            writer.write(record)
    return path


def test_a_file_is_that_of_tensorflow(tmp_path):
    assert write(tmp_path / "file", [b"memcfg", b""]).read_bytes() == GOLDEN


RECORDS = [b"one", b"", b"\0", b"zeros at the end\0\0\0", bytes(range(256)) * 3]


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_file_has_the_described_bytes(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "file"
    write(path, records)
    assert path.read_bytes() == framed(records)
    assert list(map(bytes, TFRecordDataset(path))) == records


@pytest.mark.parametrize("compression", ["", None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("buffer_size", [None, 0, 5000])
def test_records_come_back_exactly(tmp_path, compression, buffer_size):
    records = [*RECORDS, np.random.default_rng(0).bytes(100_000)]
    path = write(tmp_path / "file", records, compression)
    found = list(TFRecordDataset(str(path), compression, buffer_size))
    assert [bytes(each) for each in found] == records
    assert {type(each) for each in found} == {np.bytes_}


def test_compressed_files_are_of_gzip_and_zlib(tmp_path):
    for name, undo in (("GZIP", gzip.decompress), ("ZLIB", zlib.decompress)):
        options = mc.data.TFRecordOptions(name, compression_level=9)
        path = write(tmp_path / name, RECORDS, options)
        assert undo(path.read_bytes()) == framed(RECORDS)


def test_compressed_files_may_be_put_together(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(framed([b"a"])) + gzip.compress(framed([b"b"])))
    assert list(TFRecordDataset(path, "GZIP")) == [b"a", b"b"]
    path.write_bytes(b"")
    assert list(TFRecordDataset(path, "GZIP")) == []


def test_a_large_record_is_inflated_in_parts(tmp_path):
    path = write(tmp_path / "file", [bytes(5_000_000), b"end"], "GZIP")
    assert [len(record) for record in TFRecordDataset(path, "GZIP")] == [5_000_000, 3]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (2, "byte 0.*length"),
        (9, "byte 0.*length"),
        (13, "byte 0.*checksum of a record of 5"),
        (18, "byte 0.*checksum of a record of 5"),
        (25, "byte 21.*length"),
    ],
)
def test_a_flipped_bit_is_found(tmp_path, place, told):
    path = tmp_path / "file"
    data = bytearray(framed([b"first", b"second"]))
    data[place] ^= 4
    path.write_bytes(data)
    found = []
    with pytest.raises(FormatError, match=told) as error:
        found.extend(TFRecordDataset(path))
    assert repr(str(path)) in str(error.value)
    assert len(found) == (place > 20)


@given(st.integers(1, 45), st.sampled_from(["", "ZLIB"]))
def test_a_file_that_ends_early_is_an_error(tmp_path_factory, left, compression):
    data = framed([b"first", b"second"])
    if compression:
        data = zlib.compress(data)
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(data[:-left] if left < len(data) else data[:1])
    if not compression and left == len(data) - 21:
        return  # behind the first record
    with pytest.raises(FormatError, match=r"damaged at byte \d+"):
        list(TFRecordDataset(path, compression))


def test_what_is_not_compressed_so_is_an_error(tmp_path):
    path = write(tmp_path / "file", RECORDS)
    with pytest.raises(FormatError, match="cannot be decompressed"):
        list(TFRecordDataset(path, "GZIP"))
    with pytest.raises(ValueError, match="None, 'GZIP' or 'ZLIB', not 'BZ2'"):
        TFRecordDataset(path, "BZ2")


@pytest.mark.parametrize("reads", [None, 1, 2, 3, mc.data.AUTOTUNE])
def test_several_files(tmp_path, reads):
    names = [str(tmp_path / f"{n}") for n in range(3)]
    for n, name in enumerate(names):
        write(name, [f"{n}{k}".encode() for k in range(n + 1)])
    for given_names in (
        names,
        np.array(names),
        mc.data.Dataset.list_files(f"{tmp_path}/*", shuffle=False),
    ):
        found = [
            each.decode()
            for each in TFRecordDataset(given_names, num_parallel_reads=reads)
        ]
        assert sorted(found) == ["00", "10", "11", "20", "21", "22"]
        if reads is None:
            assert found == sorted(found)
        if reads == 3:
            assert found == ["00", "10", "20", "11", "21", "22"]


def test_specs_are_known_without_reading(tmp_path):
    data = TFRecordDataset(tmp_path / "none")
    assert data.element_spec == mc.data.TensorSpec((), "S")
    assert data.cardinality() == mc.data.UNKNOWN_CARDINALITY
    assert isinstance(data.take(1), mc.data.Dataset)
    with pytest.raises(FileNotFoundError):
        next(iter(data))
    assert list(TFRecordDataset([])) == []
    assert list(TFRecordDataset.range(2)) == [0, 1]


@pytest.mark.parametrize("step", ["map", "shuffle", "cache", "file", "prefetch", "zip"])
def test_zeros_at_the_end_survive_each_step(tmp_path, step):
    path = write(tmp_path / "file", RECORDS)
    data = TFRecordDataset(path)
    data = {
        "map": lambda: data.map(bytes),
        "shuffle": lambda: data.shuffle(3, seed=1),
        "cache": data.cache,
        "file": lambda: data.cache(str(tmp_path / "cache")),
        "prefetch": lambda: data.prefetch(2),
        "zip": lambda: mc.data.Dataset.zip(data, data.map(bytes)).map(lambda a, b: b),
    }[step]()
    for _ in range(2):
        assert sorted(map(bytes, data)) == sorted(RECORDS)


def limit_the_device(limit):
    cpu = mc.config.list_physical_devices("CPU")[0]
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit=limit)]
    )


@pytest.mark.parametrize("step", ["read", "shuffle", "cache"])
def test_what_is_held_counts_under_the_limit(tmp_path, step):
    limit_the_device("1MiB")
    path = write(tmp_path / "file", [bytes(100_000)] * 20)  # twice the limit
    data = TFRecordDataset(path, buffer_size=2_000_000 if step == "read" else 4096)
    if step == "shuffle":
        data = data.shuffle(20)
    if step == "cache":  # of elements that a pass may not read again: all are kept
        data = data.shuffle(1).cache()
    with pytest.raises(ResourceExhaustedError):
        list(data)
    assert len(list(TFRecordDataset(path, buffer_size=4096).shuffle(5))) == 20


def test_a_writer_says_what_it_takes(tmp_path):
    writer = Writer(tmp_path / "file")
    with pytest.raises(TypeError, match="bytes, not str"):
        writer.write("text")
    writer.write(b"a")
    writer.flush()
    assert list(TFRecordDataset(tmp_path / "file")) == [b"a"]
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"b")
    with pytest.raises(ValueError, match="at most 9"):
        mc.data.TFRecordOptions("GZIP", compression_level=10)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: TFRecordDataset(3), TypeError, "not iterable"),
        (lambda: TFRecordDataset(["a", 3]), TypeError, "PathLike"),
        (lambda: TFRecordDataset(np.arange(3)), TypeError, "must be text"),
        (lambda: TFRecordDataset(mc.data.Dataset.range(3)), TypeError, "must be text"),
        (lambda: TFRecordDataset("a", buffer_size=-1), ValueError, "at least 0"),
        (lambda: TFRecordDataset("a", num_parallel_reads=0), ValueError, "at least 1"),
    ],
)
def test_wrong_arguments(call, error, told):
    with pytest.raises(error, match=told):
        call()

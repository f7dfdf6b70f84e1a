"""Codes of the codecs as NumPy makes and reads them, by the words of their files."""

from __future__ import annotations

import ctypes
import struct

import numpy as np

HEADER = 64  # bytes
CHUNK = 2**15  # words that are split into planes together


def parts(data):
    """Give the words of 4 bytes, and the bytes that are no whole word."""
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], "<u4"), data[whole:]


def framed(packed, data):
    """Give the packed bytes behind a header, or the data where it is no longer."""
    if len(packed) < len(data):
        return b"\2".ljust(HEADER, b"\0") + packed
    return b"\1".ljust(HEADER, b"\0") + data


def zvc(data):
    words, tail = parts(data)
    code = b""
    for begin in range(0, len(words), 32):
        block = words[begin : begin + 32]
        bits = np.packbits(np.pad(block != 0, (0, 32 - len(block))), bitorder="little")
        code += bits.tobytes() + block[block != 0].tobytes()
    return framed(code + tail, data)


def csr(data):
    words, tail = parts(data)
    places = np.flatnonzero(words)
    rows = -(-len(words) // 256)
    ends = np.searchsorted(places, 256 * (np.arange(rows) + 1)).astype("<u4")
    columns = (places % 256).astype(np.uint8)
    packed = ends.tobytes() + words[places].tobytes() + columns.tobytes() + tail
    return framed(packed, data)


def rle(data):
    words, tail = parts(data)
    changes = np.flatnonzero(words[1:] != words[:-1]) + 1 if len(words) else []
    code, literal = b"", b""
    for run in np.split(words, changes):
        if len(run) < 4:
            literal += run.tobytes()
            continue
        code += records(literal) + struct.pack("<I", 1 << 31 | len(run))
        code, literal = code + run[:1].tobytes(), b""
    return framed(code + records(literal) + tail, data)


def records(literal):
    return struct.pack("<I", len(literal) // 4) + literal if literal else b""


def planes_zstd(data):
    """Encode as the codec might: some planes as they are, some at another level."""
    words, tail = parts(data)
    code = b""
    for begin in range(0, len(words), CHUNK):
        planes = words[begin : begin + CHUNK].view(np.uint8).reshape(-1, 4).T
        kept = [plane.tobytes() for plane in planes]
        for number in (1, 3):
            packed = zstd_compress(kept[number])
            kept[number] = min(packed, kept[number], key=len)
        code += struct.pack("<4I", *map(len, kept)) + b"".join(kept)
    return b"\2".ljust(HEADER, b"\0") + code + tail


def read_planes_zstd(code, nbytes):
    packed = code[HEADER:]
    if code[0] == 1:
        return packed
    found = b""
    while len(found) < nbytes // 4 * 4:
        count = min(CHUNK, (nbytes - len(found)) // 4)
        sizes, packed = struct.unpack("<4I", packed[:16]), packed[16:]
        planes = []
        for size in sizes:
            plane, packed = packed[:size], packed[size:]
            planes.append(plane if size == count else zstd_decompress(plane, count))
        found += np.frombuffer(b"".join(planes), np.uint8).reshape(4, -1).T.tobytes()
    return found + packed


def zstd():
    """Load libzstd; OSError where there is none."""
    library = ctypes.CDLL("libzstd.so.1")
    for name in ("compress", "decompress", "compressBound"):
        getattr(library, f"ZSTD_{name}").restype = ctypes.c_size_t
    return library


def zstd_compress(data, level=5):
    target = ctypes.create_string_buffer(zstd().ZSTD_compressBound(len(data)))
    sizes = ctypes.c_size_t(len(target)), ctypes.c_size_t(len(data))
    return target[: zstd().ZSTD_compress(target, sizes[0], data, sizes[1], level)]


def zstd_decompress(code, nbytes):
    target = ctypes.create_string_buffer(nbytes)
    sizes = ctypes.c_size_t(nbytes), ctypes.c_size_t(len(code))
    assert zstd().ZSTD_decompress(target, sizes[0], code, sizes[1]) == nbytes
    return target.raw


ENCODERS = {"csr": csr, "rle": rle, "zvc": zvc}

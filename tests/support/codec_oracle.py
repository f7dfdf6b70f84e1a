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


# -- lossy ----------------------------------------------------------------


def mask(values):
    return np.packbits(values > 0, bitorder="little").tobytes()


class Minifloat:
    """A sign, so many bits of exponent and of mantissa; by a table of all numbers."""

    def __init__(self, exponent, mantissa):
        self.bits = 1 + exponent + mantissa
        bias = 2 ** (exponent - 1) - 1
        codes = np.arange(2 ** (self.bits - 1))
        power, fraction = codes >> mantissa, codes % 2**mantissa
        normal = np.ldexp(1 + fraction / 2**mantissa, power - bias)
        subnormal = np.ldexp(fraction / 2**mantissa, 1 - bias)
        sizes = np.where(power == 0, subnormal, normal)
        self.infinity = (2**exponent - 1) << mantissa
        self.finite = sizes[: self.infinity]
        sizes[self.infinity] = np.inf
        sizes[self.infinity + 1 :] = np.nan
        self.values = np.concatenate([sizes, -sizes]).astype(np.float32)
        self.smallest, self.relative = np.ldexp(1.0, 1 - bias), 2.0 ** -(mantissa + 1)

    def encode(self, values):
        """Give a code of each; NaN has the first of its codes."""
        with np.errstate(invalid="ignore"):  # NaN that signals
            sizes = np.abs(values.astype(np.float64))
        above = np.searchsorted(self.finite, sizes).clip(1, self.infinity - 1)
        low, high = sizes - self.finite[above - 1], self.finite[above] - sizes
        down = (low < high) | ((low == high) & (above % 2 == 1))
        codes = np.where(down, above - 1, above)
        codes[np.isinf(values)] = self.infinity
        codes[np.isnan(values)] = self.infinity + 1
        return codes + (np.signbit(values).astype(np.int64) << (self.bits - 1))


MINIFLOATS = {"fp16": Minifloat(5, 10), "fp10": Minifloat(5, 4), "fp8": Minifloat(4, 3)}


def read_minifloats(codec, code, count):
    """Give the codes of the numbers in what a codec has written."""
    if codec == "fp10":
        words = np.frombuffer(code, "<u4")
        return ((words[:, None] >> np.array([0, 10, 20])) % 1024).ravel()[:count]
    return np.frombuffer(code, "<u2" if codec == "fp16" else np.uint8)


def read_groups(bits, code, count):
    """Give zero points, scales and levels of what a codec of groups has written."""
    groups = -(-count // 256)
    heads = np.frombuffer(code[: 8 * groups], "<f4").reshape(-1, 2)
    levels = np.frombuffer(code[8 * groups :], np.uint8)[:, None]
    levels = (levels >> np.arange(0, 8, bits)) % 2**bits
    places = np.arange(count) // 256
    return heads[places, 0], heads[places, 1], levels.ravel()[:count]

"""Hash functions of TensorFlow's: FarmHash's fingerprint, SipHash and their pairs."""

from __future__ import annotations

import struct

_ALL = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_PAIR = 0xC6A4A7935BD1E995


def fingerprint(text: bytes) -> int:
    """Return the fingerprint of 64 bits of a byte string.

    Pike and Alakuijala, FarmHash, 2014: `Hash64` of the namespace ``farmhashna``.
    """
    size = len(text)
    if size <= 16:
        return _to_16(text, size)
    if size <= 32:
        return _to_32(text, size)
    if size <= 64:
        return _to_64(text, size)
    return _long(text, size)


def siphash(text: bytes, key: tuple[int, int]) -> int:
    """Return the keyed hash of 64 bits of a byte string.

    Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
    """
    state = [
        key[0] ^ 0x736F6D6570736575,
        key[1] ^ 0x646F72616E646F6D,
        key[0] ^ 0x6C7967656E657261,
        key[1] ^ 0x7465646279746573,
    ]
    whole = len(text) // 8 * 8
    last = text[whole:].ljust(7, b"\0") + bytes([len(text) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", text[:whole] + last):
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def combined(first: int, second: int) -> int:
    """Return the fingerprint of two."""
    result = first ^ _PAIR
    result ^= _mixed(second * _PAIR & _ALL) * _PAIR & _ALL
    result = result * _PAIR & _ALL
    return _mixed(_mixed(result) * _PAIR & _ALL)


def _sip_rounds(v: list[int], rounds: int) -> None:
    for _ in range(rounds):
        v[0] = (v[0] + v[1]) & _ALL
        v[1] = _left(v[1], 13) ^ v[0]
        v[0] = _left(v[0], 32)
        v[2] = (v[2] + v[3]) & _ALL
        v[3] = _left(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _ALL
        v[3] = _left(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _ALL
        v[1] = _left(v[1], 17) ^ v[2]
        v[2] = _left(v[2], 32)


def _left(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _ALL


def _right(x: int, bits: int) -> int:
    x &= _ALL
    return (x >> bits | x << (64 - bits)) & _ALL


def _mixed(x: int) -> int:
    return x ^ x >> 47


def _word(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + 8], "little")


def _joined(u: int, v: int, factor: int) -> int:
    a = _mixed(((u ^ v) & _ALL) * factor & _ALL)
    b = _mixed(((v ^ a) & _ALL) * factor & _ALL)
    return b * factor & _ALL


def _to_16(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    if size >= 8:
        a, b = (_word(text, 0) + _K2) & _ALL, _word(text, size - 8)
        c = _right(b, 37) * factor + a
        d = (_right(a, 25) + b) * factor
        return _joined(c & _ALL, d & _ALL, factor)
    if size >= 4:
        a = int.from_bytes(text[:4], "little")
        b = int.from_bytes(text[-4:], "little")
        return _joined(size + (a << 3), b, factor)
    if size:
        y = text[0] + (text[size >> 1] << 8)
        z = size + (text[-1] << 2)
        return _mixed((y * _K2 & _ALL) ^ (z * _K0 & _ALL)) * _K2 & _ALL
    return _K2


def _to_32(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    a, b = _word(text, 0) * _K1 & _ALL, _word(text, 8)
    c, d = _word(text, size - 8) * factor & _ALL, _word(text, size - 16) * _K2
    first = _right(a + b, 43) + _right(c, 30) + d
    second = a + _right(b + _K2, 18) + c
    return _joined(first & _ALL, second & _ALL, factor)


def _to_64(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    a, b = _word(text, 0) * _K2 & _ALL, _word(text, 8)
    c, d = _word(text, size - 8) * factor & _ALL, _word(text, size - 16) * _K2
    y = (_right(a + b, 43) + _right(c, 30) + d) & _ALL
    z = _joined(y, (a + _right(b + _K2, 18) + c) & _ALL, factor)
    e, f = _word(text, 16) * factor & _ALL, _word(text, 24)
    g = (y + _word(text, size - 32)) * factor & _ALL
    h = (z + _word(text, size - 24)) * factor
    first = _right(e + f, 43) + _right(g, 30) + h
    second = e + _right(f + a, 18) + g
    return _joined(first & _ALL, second & _ALL, factor)


def _weak(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = struct.unpack_from("<4Q", text, at)
    a += w
    b = _right(b + a + z, 21)
    c = a
    a += x + y
    b += _right(a, 44)
    return (a + z) & _ALL, (b + c) & _ALL


def _long(text: bytes, size: int) -> int:
    x, y = 81, (81 * _K1 + 113) & _ALL
    z = _mixed((y * _K2 + 113) & _ALL) * _K2 & _ALL
    v = w = (0, 0)
    x = (x * _K2 + _word(text, 0)) & _ALL
    end = (size - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v, w = _round(text, at, x, y, z, v, w, _K1, 1)
    factor = _K1 + ((z & 0xFF) << 1)
    first = (w[0] + ((size - 1) & 63)) & _ALL
    v = (v[0] + first) & _ALL, v[1]
    w = (first + v[0]) & _ALL, w[1]
    x, y, z, v, w = _round(text, size - 64, x, y, z, v, w, factor, 9)
    one = _joined(v[0], w[0], factor) + _mixed(y) * _K0 + z
    other = _joined(v[1], w[1], factor) + x
    return _joined(one & _ALL, other & _ALL, factor)


def _round(
    text: bytes,
    at: int,
    x: int,
    y: int,
    z: int,
    v: tuple[int, int],
    w: tuple[int, int],
    factor: int,
    times: int,
) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
    x = _right(x + y + v[0] + _word(text, at + 8), 37) * factor & _ALL
    y = _right(y + v[1] + _word(text, at + 48), 42) * factor & _ALL
    x ^= w[1] * times & _ALL
    y = (y + v[0] * times + _word(text, at + 40)) & _ALL
    z = _right(z + w[0], 33) * factor & _ALL
    v = _weak(text, at, v[1] * factor & _ALL, (x + w[0]) & _ALL)
    last = (y + _word(text, at + 16)) & _ALL
    w = _weak(text, at + 32, (z + w[1]) & _ALL, last)
    return z, y, x, v, w

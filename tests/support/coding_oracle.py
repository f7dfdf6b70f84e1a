"""Codes of weights, read bit by bit by the words of docs/compressed-format.md."""

from __future__ import annotations

import heapq
import struct
from collections import Counter

import numpy as np

HEADER = struct.Struct("<BBHIII")
TABLE = list(range(256))
for _ in range(8):
    TABLE = [each >> 1 ^ (0x82F63B78 if each & 1 else 0) for each in TABLE]


def crc32c(data):
    """Return the CRC-32C of bytes, by a table of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def entries_of(words, index_bits):
    """List the pairs (gap, word) of an array, with those that fill long gaps."""
    found, gap = [], 0
    for word in words:
        if word == 0:
            gap += 1
            continue
        while gap >= 2**index_bits:
            found.append((2**index_bits - 1, 0))
            gap -= 2**index_bits
        found.append((gap, int(word)))
        gap = 0
    return found


def words_of(entries, count):
    """Put entries back into an array."""
    words, place = [0] * count, -1
    for gap, word in entries:
        place += gap + 1
        words[place] = word
    return words


def codes_of(lengths):
    """Map the bits of canonical codes to symbols, as text of 0 and 1."""
    used = [(length, symbol) for symbol, length in enumerate(lengths) if length]
    if len(used) == 1:
        return {"": used[0][1]}
    codes, code, before = {}, 0, 0
    for length, symbol in sorted(used):
        code <<= length - before
        codes[format(code, f"0{length}b")] = symbol
        code, before = code + 1, length
    return codes


def nibbles(data, count):
    digits = [int(digit, 16) for digit in data.hex()]
    return digits[:count]


def symbols_of(data, codes, count):
    """Read symbols; return them and the bytes that were begun."""
    bits = "".join(format(byte, "08b") for byte in data)
    place, found = 0, []
    for _ in range(count):
        length = 0
        while bits[place : place + length] not in codes:
            length += 1
            assert length <= 15
        found.append(codes[bits[place : place + length]])
        place += length
    return found, -(-place // 8)


def fixed(count):
    width = (count - 1).bit_length()
    return {format(i, f"0{width}b") if width else "": i for i in range(count)}


def read(code, count):
    """Decode a code of the kinds "plain", "none" and "huffman" into words."""
    kind, bits, size, words, entries, gap_bytes = HEADER.unpack_from(code)
    if kind == 1:
        return np.frombuffer(code, "<u4", offset=16).tolist()
    assert words == count
    if entries == 0:
        return [0] * count
    codebook = np.frombuffer(code, "<u4", size, 16).tolist()
    rest = code[16 + 4 * size :]
    values, gaps = fixed(size), fixed(2**bits)
    if kind == 3:
        tables = -(-size // 2), -(-(2**bits) // 2)
        values = codes_of(nibbles(rest, size))
        gaps = codes_of(nibbles(rest[tables[0] :], 2**bits))
        rest = rest[sum(tables) :]
    steps, used = symbols_of(rest, gaps, entries)
    assert used == gap_bytes
    numbers, used = symbols_of(rest[gap_bytes:], values, entries)
    assert gap_bytes + used == len(rest)
    pairs = zip(steps, [codebook[number] for number in numbers], strict=True)
    return words_of(list(pairs), count)


def fewest_bits(symbols):
    """Return how many bits the symbols take in Huffman's codes, of any length."""
    heap = sorted(Counter(symbols).values())
    total = 0
    while len(heap) > 1:
        pair = heapq.heappop(heap) + heapq.heappop(heap)
        heapq.heappush(heap, pair)
        total += pair
    return total

"""Arrays of zeros and one magnitude with either sign, as short messages.

An encoding is of int32 words. The header has the kind, the number of elements that are
not 0, the number of positions, and the bits of the magnitude in float32. It is followed
by a list of those elements, each as its position from 1 with the sign of the element,
in ascending order; or, if that were as long, by a bitmap: a bit a position for positive
elements, the first position highest in the first byte, and behind them as many bits for
negative ones. So an encoding of n positions has at most ``4 + n / 16`` words.

Each array begins at a position that is a multiple of 16. Positions between arrays stand
for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.ops import EncodedTotals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "ROUND_POSITIONS",
    "EncodedRound",
    "count_encoded",
    "encoded_rounds",
    "round_words",
]

Array = npt.NDArray[Any]
Words = npt.NDArray[np.int32]
Parts = list[tuple[Array, int]]  # flat views, with their first positions

ROUND_POSITIONS = 1 << 18  # bounds the scratch; a MiB of float32
_HEADER_WORDS = 4
_SPARSE, _BITMAP = 1, 2
_PER_WORD = 16  # positions of a word of a bitmap
_BLOCK = 1 << 14  # elements that are looked at together; bounds temporary arrays


def round_words(elements: int, arrays: int) -> int:
    """Return the words of the longest encoding of a round of arrays.

    Parameters
    ----------
    elements : int
        Of all arrays together.
    arrays : int
        Their number.

    Returns
    -------
    int
        Words of 4 bytes.
    """
    positions = min(_aligned(elements) + _PER_WORD * arrays, ROUND_POSITIONS)
    return _HEADER_WORDS + positions // _PER_WORD


def encoded_rounds(arrays: Sequence[Array]) -> Iterator[EncodedRound]:
    """Divide arrays into rounds, each of which is encoded by itself.

    Parameters
    ----------
    arrays : sequence of ndarray
        C-contiguous, in float32.

    Yields
    ------
    EncodedRound
        In the order of the arrays.
    """
    parts: Parts = []
    end = 0
    for array in arrays:
        flat = array.reshape(-1)
        while flat.size:
            here = flat[: ROUND_POSITIONS - end]
            flat = flat[here.size :]
            parts.append((here, end))
            end = _aligned(end + here.size)
            if end == ROUND_POSITIONS:
                yield EncodedRound(parts, end)
                parts, end = [], 0
    if parts:
        yield EncodedRound(parts, end)


def count_encoded(arrays: Sequence[Array], receivers: int) -> EncodedTotals:
    """Return what encodings of arrays take that are sent to other ranks.

    Parameters
    ----------
    arrays : sequence of ndarray
        C-contiguous, in float32.
    receivers : int
        The number of those ranks.

    Returns
    -------
    EncodedTotals
        Of these arrays.

    Raises
    ------
    ValueError
        If they have other values than 0 and one magnitude with either sign.
    """
    elements = sum(array.size for array in arrays)
    words = entries = 0
    for each in encoded_rounds(arrays):
        length, count, _ = each.measure()
        words, entries = words + length, entries + count
    sent, dense = 4 * words * receivers, 4 * elements * receivers
    return EncodedTotals(elements, entries, sent, dense)


class EncodedRound:
    """Views of arrays that are encoded together."""

    def __init__(self, parts: Parts, positions: int) -> None:
        self._parts = parts
        self._positions = positions
        self.elements = sum(view.size for view, _ in parts)

    def measure(self) -> tuple[int, int, float]:
        """Return the words of the encoding, the entries, and their magnitude.

        Entries are elements that are not 0. ValueError if they have different
        magnitudes, or one that is not finite.
        """
        entries, magnitude = 0, 0.0
        for block, _ in self._blocks():
            mask = block != 0
            count = int(np.count_nonzero(mask))
            if count and not entries:
                magnitude = float(abs(block[mask.argmax()]))
            same = np.count_nonzero(np.abs(block) == magnitude) if count else 0
            if same != count or magnitude == np.inf:
                raise ValueError(
                    "an encoding has 0 and one finite magnitude; the arrays have other "
                    "values, as a gradient that is not finite leads to"
                )
            entries += count
        longest = self._positions // _PER_WORD
        return _HEADER_WORDS + min(entries, longest), entries, magnitude

    def encode(self, words: Words) -> tuple[int, int]:
        """Write the encoding; return its words and the entries.

        ValueError as of `measure`.
        """
        length, entries, magnitude = self.measure()
        sparse = entries < self._positions // _PER_WORD
        kind = _SPARSE if sparse else _BITMAP
        words[:3] = kind, entries, self._positions
        words[3:4].view(np.float32)[:] = magnitude
        body = words[_HEADER_WORDS:length]
        if sparse:
            self._write_list(body)
        else:
            self._write_bitmap(body.view(np.uint8))
        return length, entries

    def clear(self) -> None:
        """Make all elements 0."""
        for view, _ in self._parts:
            view[...] = 0

    def add(self, words: Words) -> None:
        """Add an encoding to the arrays.

        ValueError, with the arrays as they were, for one that `encode` does not write.
        """
        kind, entries, positions = map(int, words[:3])
        magnitude = words[3:4].view(np.float32)[0]
        longest = self._positions // _PER_WORD
        _require(positions == self._positions, "is of other arrays")
        _require(0 <= entries <= self.elements, "has an invalid number of elements")
        _require(
            kind == (_SPARSE if entries < longest else _BITMAP), "is of another kind"
        )
        _require(
            bool(0 < magnitude < np.inf) or (magnitude == 0 and not entries),
            "has an invalid magnitude",
        )
        body = words[_HEADER_WORDS : _HEADER_WORDS + min(entries, longest)]
        _require(len(body) == min(entries, longest), "is too short")
        if kind == _SPARSE:
            self._add_list(body, magnitude)
        else:
            self._add_bitmap(body.view(np.uint8), entries, magnitude)

    def _blocks(self) -> Iterator[tuple[Array, int]]:
        """Yield short views with their first positions, which are multiples of 16."""
        for view, at in self._parts:
            for begin in range(0, view.size, _BLOCK):
                yield view[begin : begin + _BLOCK], at + begin

    def _write_list(self, body: Words) -> None:
        end = 0
        for block, at in self._blocks():
            places = np.flatnonzero(block != 0)  # of floats it takes ten times as long
            begin, end = end, end + places.size
            codes = places + (at + 1)
            np.negative(codes, out=codes, where=block[places] < 0)
            body[begin:end] = codes

    def _write_bitmap(self, body: npt.NDArray[np.uint8]) -> None:
        positive, negative = np.split(body, 2)
        body[:] = 0
        for block, at in self._blocks():
            for bits, plane in ((block > 0, positive), (block < 0, negative)):
                packed = np.packbits(bits)
                plane[at // 8 : at // 8 + packed.size] = packed

    def _add_list(self, body: Words, magnitude: np.float32) -> None:
        places = np.abs(body)
        bounds = [bound for v, at in self._parts for bound in (at, at + v.size)]
        ends = np.searchsorted(places, bounds, side="right")
        _require(
            bool(np.all(places[1:] > places[:-1]))
            and sum(ends[1::2] - ends[::2]) == places.size,
            "has positions that are repeated, not in order, or of no element",
        )
        for i, (view, at) in enumerate(self._parts):
            here = slice(ends[2 * i], ends[2 * i + 1])
            view[places[here] - (at + 1)] += np.where(
                body[here] > 0, magnitude, -magnitude
            )

    def _add_bitmap(
        self, body: npt.NDArray[np.uint8], entries: int, magnitude: np.float32
    ) -> None:
        planes = np.split(body, 2)
        _require(not np.any(planes[0] & planes[1]), "has elements of both signs")
        found = sum(int(np.bitwise_count(plane).sum()) for plane in planes)
        covered = sum(
            _count_bits(plane, view.size, at)
            for view, at in self._parts
            for plane in planes
        )
        _require(found == covered == entries, "has other elements than its header says")
        for block, at in self._blocks():
            positive, negative = (_unpacked(each, block, at) for each in planes)
            block += (positive - negative) * magnitude


def _unpacked(
    plane: npt.NDArray[np.uint8], block: Array, at: int
) -> npt.NDArray[np.int8]:
    """Return 0 or 1 for each element of a block."""
    return np.unpackbits(plane[at // 8 :], count=block.size).view(np.int8)


def _count_bits(plane: npt.NDArray[np.uint8], size: int, at: int) -> int:
    """Return how many of the bits of `size` positions are 1."""
    held = plane[at // 8 : at // 8 + -(-size // 8)]
    behind = held[-1] & (0xFF >> size % 8) if size % 8 else np.uint8(0)
    return int(np.bitwise_count(held).sum()) - int(np.bitwise_count(behind))


def _aligned(position: int) -> int:
    """Round a position up to where an array may begin."""
    return -(-position // _PER_WORD) * _PER_WORD


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"the encoding of a gradient is damaged: it {what}")

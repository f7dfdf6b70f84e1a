"""Range codes of gaps and codebook numbers, under models that adapt to them.

G. N. N. Martin, "Range encoding", 1979, as constriction (R. Bamler) has it. A block of
entries is coded under the frequencies of those before it, so that no table of
frequencies is written. The blocks grow with the entries that are known, up to 65,536.
Gaps and numbers of many entries have a code each, and are decoded side by side: a
symbol waits for the one before it in its code, which takes most of the time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._core.rows import decode_entries
from memcfg.compression.coding._coding import MAX_INDEX_BITS
from memcfg.errors import FormatError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["decode_range", "encode_range"]

Words = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.float64]

_HEADER = struct.Struct("<BBHIII")  # kind, index bits, codewords, words, entries, bytes
_PLAIN, _RANGE = 1, 4
_MOST = 4096  # codewords
_MAX_WORDS = 2**32 - 1
_FIRST, _LARGEST = 64, 65_536  # entries of a block
_APART = 1024  # entries from which on gaps and numbers have codes of their own
_PRIOR = 16.0  # entries that the first model of gaps counts as


def encode_range(words: Words, index_bits: int | None) -> bytes:
    """Return the code of words, or the words behind a header if it is not smaller."""
    stream = _stream()
    plain = _HEADER.pack(_PLAIN, 0, 0, 0, 0, 0) + words.tobytes()
    at = np.flatnonzero(words)
    values = np.unique(words[at])
    if words.size == 0 or values.size >= _MOST or words.size > _MAX_WORDS:
        return plain
    gaps = np.diff(at, prepend=-1) - 1
    bits = _best_bits(gaps, at.size) if index_bits is None else index_bits
    fillers = gaps >> bits
    entries = at.size + int(fillers.sum())
    codebook = np.append(np.zeros(min(entries - at.size, 1), np.uint32), values)
    own = np.cumsum(fillers) + np.arange(at.size)  # entries that fill no gap
    steps = np.full(entries, 2**bits - 1, np.int32)
    steps[own] = gaps & (2**bits - 1)
    numbers = np.zeros(entries, np.int32)
    numbers[own] = np.searchsorted(codebook, words[at])
    coder = stream.queue.RangeEncoder()
    own_coder = stream.queue.RangeEncoder() if entries >= _APART else coder
    for begin, end, of_steps, of_numbers in _blocks(
        entries, words.size, bits, codebook.size
    ):
        for symbols, counts, to in (
            (steps, of_steps, coder),
            (numbers, of_numbers, own_coder),
        ):
            block = symbols[begin:end]
            to.encode(block, _model(stream, counts))
            counts += np.bincount(block, minlength=counts.size)
    code, apart = coder.get_compressed().astype("<u4").tobytes(), 0
    if own_coder is not coder:
        apart = len(code)
        code += own_coder.get_compressed().astype("<u4").tobytes()
    head = _HEADER.pack(_RANGE, bits, codebook.size, words.size, entries, apart)
    result = head + codebook.astype("<u4").tobytes() + code
    return result if len(result) < len(plain) else plain


def decode_range(data: memoryview, out: Words) -> None:
    """Decode into words; FormatError if the bytes are not those of so many words."""
    _, bits, codewords, words, entries, apart = _HEADER.unpack_from(data)
    begin = _HEADER.size + 4 * codewords
    size = len(data) - begin
    if (
        bits > MAX_INDEX_BITS
        or codewords > _MOST
        or words != out.size
        or entries > words
        or (entries > 0) > codewords
        or apart > max(size, 0)
        or apart % 4 != 0
        or size < 0
        or size % 4 != 0
    ):
        raise _damaged()
    codebook = np.frombuffer(data, "<u4", codewords, _HEADER.size).astype(np.uint32)
    counts = _first_counts(entries, words, bits, codewords)
    out[:] = 0
    if not decode_entries(data[begin:], apart, entries, *counts, codebook, out):
        raise _damaged()


def _blocks(
    entries: int, words: int, bits: int, codewords: int
) -> Iterator[tuple[int, int, Counts, Counts]]:
    """Yield blocks of entries, with the counts that whoever codes them updates.

    `range_entries.hpp` has the same blocks.
    """
    counts = _first_counts(entries, words, bits, codewords)
    begin = 0
    while begin < entries:
        size = min(max(begin, _FIRST), _LARGEST, entries - begin)
        yield begin, begin + size, *counts
        begin += size


def _first_counts(
    entries: int, words: int, bits: int, codewords: int
) -> tuple[Counts, Counts]:
    """Return the counts of gaps and numbers before the first entry.

    Gaps then have the geometric distribution of the entries' share.
    """
    kept = (entries + 1) / (words + 2)
    steps = kept * (1 - kept) ** np.arange(2**bits, dtype=np.float64)
    steps[-1] += max(1 - steps.sum(), 0.0)
    return _PRIOR * steps + 0.1, np.full(codewords, 0.5)


def _best_bits(gaps: npt.NDArray[np.int64], kept: int) -> int:
    """Return the index bits of the smallest entropy."""
    sizes = []
    for bits in range(MAX_INDEX_BITS + 1):
        counts = np.bincount(gaps & (2**bits - 1), minlength=2**bits)
        fillers = int((gaps >> bits).sum())
        counts[-1] += fillers
        sizes.append(_entropy(counts) + _entropy(np.array([kept, fillers])))
    return int(np.argmin(sizes))


def _entropy(counts: npt.NDArray[Any]) -> float:
    """Return the bits of symbols that occur so often."""
    some = counts[counts > 0].astype(np.float64)
    return float((some * np.log2(some.sum() / some)).sum())


def _model(stream: Any, counts: Counts) -> Any:
    """Return the model of a block."""
    return stream.model.Categorical(_shares(counts), perfect=False)


def _shares(counts: Counts) -> Counts:
    """Return probabilities; a single symbol, which takes no bits, has another one."""
    return counts / counts.sum() if counts.size > 1 else np.array([1.0, 0.0])


def _damaged() -> FormatError:
    return FormatError("an encoded array is damaged: these bytes are no range code")


def _stream() -> Any:
    """Return constriction's stream coders."""
    try:
        from constriction import stream
    except ImportError:
        raise MissingDependencyError(
            "range codes are written by constriction, which is not "
            'installed: pip install "memcfg[compression]"'
        ) from None
    return stream

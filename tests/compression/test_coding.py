"""Codes of weights: the bits come back, in the bytes of the paper's formula."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import ceil, log2

import coding_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.compression import Coding, EncodedArray, encode
from memcfg.errors import FormatError

SPECIAL = [0x80000000, 0x7FC00001, 0xFF812345, 1, 0x807FFFFF, 0x7F800000, 0x3F800000]
BITS = st.one_of(st.none(), st.integers(0, 8))


@st.composite
def weights(draw):
    """Draw float32 of which many are 0, in clusters or not, and few values occur."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([0, 1, 2, 7, 100, 1000, 3000]))
    values = random.integers(0, 2**32, draw(st.integers(1, 40)), np.uint32)
    values[random.random(values.size) < 0.2] = random.choice(SPECIAL)
    uneven = np.sort(random.random(count) ** draw(st.integers(1, 5)) * values.size)
    words = values[random.permutation(uneven.astype(int))] if count else values[:0]
    density = draw(st.sampled_from([0, 0.003, 0.05, 0.3, 0.9, 1]))
    words[random.random(count) >= density] = 0
    clustered = np.sort(words) if draw(st.booleans()) else words
    return clustered.view(np.float32)


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("coder", ["none", "huffman", "range"])
@settings(max_examples=40)
@given(values=weights(), bits=BITS)
def test_what_is_decoded_has_the_bits_that_were_encoded(coder, values, bits):
    code = encode(values, index_bits=bits, coder=coder)
    assert same_bits(code.decode(), values)
    out = np.full(values.shape, np.nan, np.float32)
    assert EncodedArray(bytes(code.data), values.shape).decode(out) is out
    assert same_bits(out, values)
    assert code.nbytes <= values.nbytes + 16
    assert sum(code.parts) == code.nbytes


@pytest.mark.parametrize("coder", ["none", "huffman"])
@settings(max_examples=40)
@given(values=weights(), bits=BITS)
def test_a_decoder_that_shares_no_code_reads_the_same(coder, values, bits):
    code = encode(values, index_bits=bits, coder=coder)
    words = values.view(np.uint32).tolist()
    assert oracle.read(bytes(code.data), values.size) == words
    if code.coder == "plain":
        return
    entries = oracle.entries_of(words, code.index_bits)
    assert code.entries == len(entries)
    gaps, numbers = zip(*entries, strict=True) if entries else ((), ())
    if coder == "huffman":
        fewest = [ceil(oracle.fewest_bits(each) / 8) for each in (gaps, numbers)]
    else:
        width = (len({*numbers}) - 1).bit_length() if numbers else 0
        fewest = [ceil(len(entries) * each / 8) for each in (code.index_bits, width)]
    assert [code.parts.indices, code.parts.assignments] == fewest
    assert code.parts.codebook == 4 * len({*numbers})


@given(values=weights())
def test_the_best_index_bits_are_taken(values):
    sizes = [encode(values, index_bits=bits).nbytes for bits in range(9)]
    assert encode(values).nbytes == min(sizes)


@pytest.mark.parametrize("coder", ["none", "huffman", "range"])
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_codes_are_refused_or_decode_to_other_values(coder, data):
    """In the memory of the array, whatever the bytes say."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = np.where(random.random(400) < 0.2, random.integers(1, 9, 400), 0)
    code = bytearray(encode(values.astype(np.float32), coder=coder).data)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, 24), st.integers(0, len(code) - 1)))
        code[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del code[data.draw(st.integers(0, len(code))) :]
    size = data.draw(st.sampled_from([400, 0, 1, 399, 401, 5000]))
    try:
        decoded = EncodedArray(code, (size,)).decode()
    except FormatError:
        return
    assert decoded.shape == (size,)


def test_truncated_and_foreign_bytes_are_refused():
    values = np.zeros(1000, np.float32)
    values[::9] = 2
    for coder in ("none", "huffman", "range"):
        code = bytes(encode(values, coder=coder).data)
        for cut in (0, 1, 15, 16, 19, len(code) - 1):
            with pytest.raises(FormatError):
                EncodedArray(code[:cut], values.shape).decode()
        with pytest.raises(FormatError, match="damaged"):
            EncodedArray(code, (999,)).decode()
    with pytest.raises(FormatError, match="not those of an encoded array"):
        EncodedArray(b"\0" * 100, (4,))


def test_long_codes_are_cut_at_15_bits():
    """Counts that double make codes as long as there are symbols."""
    counts = [2**i for i in range(18)]
    values = np.repeat(np.arange(1, 19, dtype=np.float32), counts)
    code = encode(values, index_bits=0)
    lengths = oracle.nibbles(bytes(code.data[16 + 72 :]), 18)
    assert max(lengths) == 15
    assert sum(2.0**-length for length in lengths) == 1
    fewest = oracle.fewest_bits(values.tolist()) / 8
    assert fewest < code.parts.assignments < 1.01 * fewest
    assert same_bits(code.decode(), values)


def test_arrays_of_too_many_values_are_kept_as_they_are():
    many = np.arange(1, 4098, dtype=np.float32)
    for coder in ("none", "huffman", "range"):
        code = encode(np.repeat(many, 3), coder=coder)
        assert (code.coder, code.nbytes) == ("plain", 3 * many.nbytes + 16)
        assert encode(np.repeat(many[:-2], 3), coder=coder).coder == coder
    assert (code.index_bits, code.entries) == (None, 3 * 4097)


@pytest.mark.parametrize("coder", ["huffman", "range"])
def test_codes_come_near_the_entropy(coder):
    random = np.random.default_rng(0)
    numbers = np.clip(random.normal(0, 3, 200_000).round(), -15, 15)
    values = np.where(random.random(200_000) < 0.1, numbers, 0).astype(np.float32)
    code = encode(values, index_bits=5, coder=coder)
    entries = oracle.entries_of(values.view(np.uint32).tolist(), 5)
    bits = sum(map(entropy, zip(*entries, strict=True))) * len(entries)
    written = 8 * (code.parts.indices + code.parts.assignments)
    assert bits * 0.999 < written < bits * (1.02 if coder == "huffman" else 1.005)


def entropy(symbols):
    counts = Counter(symbols).values()
    return sum(n * log2(len(symbols) / n) for n in counts) / len(symbols)


# Of each layer: parameters, density, bits of a weight and of a gap (tables 2 to 5).
LAYERS = {
    "LeNet-300-100 ip1": (235_200, 0.08, 6, 5),
    "LeNet-5 conv2": (25_000, 0.12, 8, 5),
    "AlexNet conv2, a quarter": (76_800, 0.38, 8, 4),
    "AlexNet fc6, a hundredth": (377_487, 0.09, 5, 4),
    "VGG-16 fc6, a hundredth": (1_027_604, 0.04, 5, 5),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_bytes_are_those_of_the_formula(layer):
    """Bits of a gap and a number for each entry, and a codebook of float32."""
    count, density, width, bits = LAYERS[layer]
    random = np.random.default_rng(0)
    codebook = random.normal(size=2**width - 1).astype(np.float32)
    kept = random.random(count) < density
    values = np.where(kept, codebook[random.integers(0, codebook.size, count)], 0)
    values = values.astype(np.float32)
    gaps = np.diff(np.flatnonzero(values), prepend=-1) - 1
    entries = gaps.size + int((gaps // 2**bits).sum())
    formula = ceil(entries * width / 8) + ceil(entries * bits / 8) + 4 * 2**width
    assert encode(values, index_bits=bits, coder="none").nbytes == 16 + formula
    assert encode(values, index_bits=bits).nbytes < 16 + formula


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="encode takes float32, got float64"):
        encode(np.zeros(3))
    with pytest.raises(ValueError, match="index_bits must be 0 to 8, got 9"):
        encode(np.zeros(3, np.float32), index_bits=9)
    with pytest.raises(TypeError, match="an int or None, got True"):
        Coding(True)
    with pytest.raises(ValueError, match="'none', 'huffman', 'range', got 'zip'"):
        Coding(coder="zip")
    code = encode(np.zeros((4, 2), np.float32))
    for out in (np.empty((2, 4), np.float32), np.empty((4, 2))):
        with pytest.raises(ValueError, match=r"float32 of shape \(4, 2\)"):
            code.decode(out)
    with pytest.raises(ValueError, match="C-contiguous and writable"):
        code.decode(np.empty((4, 4), np.float32)[:, ::2])
    assert repr(code).startswith("<EncodedArray of shape (4, 2): ")


def test_range_codes_need_constriction():
    program = """
import sys
sys.modules["constriction"] = None
import numpy as np
from memcfg.compression import encode
from memcfg.errors import MissingDependencyError
encode(np.ones(3, np.float32))
try:
    encode(np.ones(3, np.float32), coder="range")
except MissingDependencyError as error:
    print(error)
"""
    run = [sys.executable, "-c", program]
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert "constriction, which is not installed" in out
    assert 'pip install "memcfg[compression]"' in out

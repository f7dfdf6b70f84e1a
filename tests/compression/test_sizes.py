"""The formula of Deep Compression: fillers, and the paper's tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from deep_compression_tables import TOTALS
from hypothesis import given
from hypothesis import strategies as st

from memcfg.compression import (
    count_fillers,
    encode,
    expected_fillers,
    sparse_bytes,
)

BENCH = Path(__file__).resolve().parents[2] / "bench"
LARGE = ("AlexNet", "VGG-16")
# The paper's; of VGG-16 and LeNet-300-100 the sum of layers, not the 11.3 MB and 27 KB
# of the last lines.
NETWORK_BYTES = {"LeNet-300-100": 26e3, "AlexNet": 6.9e6, "VGG-16": 10.5e6}


@given(st.sets(st.integers(0, 400)), st.integers(1, 5))
def test_fillers_are_as_a_reader_of_entries_counts_them(places, bits):
    entries, at = 0, 0  # entries so far; the place of the next number
    for place in sorted(places):
        while place - at >= 2**bits:  # as many zeros, and the filler itself
            at += 2**bits
            entries += 1
        at = place + 1
        entries += 1
    assert count_fillers(sorted(places), bits) == entries - len(places)


@pytest.mark.parametrize(("density", "bits"), [(0.08, 5), (0.09, 4), (0.04, 5)])
def test_the_mean_number_of_fillers_is_that_of_random_places(density, bits):
    mask = np.random.default_rng(0).random(2_000_000) < density
    found = count_fillers(np.flatnonzero(mask), bits)
    assert found == pytest.approx(expected_fillers(mask.sum(), density, bits), rel=0.02)


@pytest.mark.parametrize("name", TOTALS)
def test_networks_are_as_small_as_in_the_paper(name):
    """Of random places; those that pruning leaves in AlexNet have fewer long gaps."""
    rows, ratio, total = TOTALS[name]
    dense = shared = coded = 0.0
    for row in rows:
        count = round(row.size * row.density)
        entries = count + expected_fillers(count, row.density, row.index_bits)
        book, whole = 2**row.bits, 4 * row.size
        fixed = sparse_bytes(entries, row.bits, row.index_bits, book)
        short = sparse_bytes(entries, row.coded_bits, row.coded_index_bits, book)
        if row.density > 0.2:  # hardly a filler, so the places do not matter
            assert 100 * fixed / whole == pytest.approx(row.share, rel=0.045)
            assert 100 * short / whole == pytest.approx(row.coded_share, rel=0.04)
        dense, shared, coded = dense + whole, shared + fixed, coded + short
    assert dense / shared == pytest.approx(ratio, rel=0.06)
    near = {"VGG-16": 0.03, "LeNet-5": 0.06}.get(name, 0.1)
    assert coded == pytest.approx(total, rel=near)


def as_before_huffman(row):
    """The entries that a layer of the paper has, by its bytes in fixed widths."""
    return (
        8
        * (row.share / 100 * 4 * row.size - 4 * 2**row.bits)
        / (row.bits + row.index_bits)
    )


@pytest.mark.parametrize("name", LARGE)
def test_the_columns_of_the_paper_say_the_same_of_each_layer(name):
    """Entries by the column before Huffman codes, at the bits of the one after."""
    coded = 0.0
    for row in TOTALS[name][0]:
        entries = as_before_huffman(row)
        short = sparse_bytes(entries, row.coded_bits, row.coded_index_bits, 2**row.bits)
        near = 0.045 if row.size > 10_000 else 0.08  # the paper's figures are rounded
        assert short == pytest.approx(row.coded_share / 100 * 4 * row.size, rel=near)
        coded += short
    assert coded == pytest.approx(NETWORK_BYTES[name], rel=0.03)


@pytest.mark.parametrize(
    "name", ["LeNet-300-100", *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE)]
)
def test_huffman_codes_take_the_bytes_of_the_formula(name):
    """Whole layers, of which gaps and numbers are as uneven as the paper's bits say."""
    layer_of = runpy.run_path(str(BENCH / "bench_coding.py"))["layer_of"]
    total = 0
    for row in TOTALS[name][0]:
        bits = row.bits, row.coded_bits, row.index_bits, row.coded_index_bits
        array = layer_of((row.size, row.density, *bits, row.coded_share))
        code = encode(array, index_bits=row.index_bits)
        np.testing.assert_array_equal(code.decode(), array)
        total += code.nbytes
        places = np.flatnonzero(array)
        entries = len(places) + count_fillers(places, row.index_bits)
        formula = sparse_bytes(
            entries, row.coded_bits, row.coded_index_bits, 2**row.bits
        )
        own = code.nbytes - code.parts.header - code.parts.tables
        assert own == pytest.approx(formula, rel=0.04)
        assert own == pytest.approx(row.coded_share / 100 * 4 * row.size, rel=0.05)
    assert total == pytest.approx(NETWORK_BYTES[name], rel=0.03)


@pytest.mark.parametrize("name", TOTALS)
def test_layers_take_the_bytes_of_the_formula(name):
    """Random weights at the paper's densities and bits; parts of the large layers."""
    rng = np.random.default_rng(0)
    for row in TOTALS[name][0]:
        size = min(row.size, 200_000)
        values = rng.normal(size=2**row.bits - 1).astype(np.float32)  # and the filler
        weight = values[rng.integers(0, len(values), size)]
        places = np.flatnonzero(rng.random(size) < row.density)
        dense = np.zeros(size, np.float32)
        dense[places] = weight[places]
        found = encode(dense, index_bits=row.index_bits, coder="none")
        entries = len(places) + count_fillers(places, row.index_bits)
        known = len(np.unique(dense[places])) + (entries > len(places))
        formula = sparse_bytes(entries, row.bits, row.index_bits, known)
        assert found.entries == entries
        assert 16 <= found.nbytes - formula < 24  # a header, and the last words
        count = size * row.density
        expected = count + expected_fillers(round(count), row.density, row.index_bits)
        near = 4 * count**-0.5  # four standard deviations
        assert entries == pytest.approx(expected, rel=near)


def test_what_is_refused():
    with pytest.raises(ValueError, match="index_bits must be positive"):
        count_fillers([1], 0)
    with pytest.raises(ValueError, match="indices must ascend"):
        count_fillers([3, 1], 2)
    with pytest.raises(ValueError, match="density must be above 0"):
        expected_fillers(3, 0.0, 4)

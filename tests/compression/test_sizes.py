"""The formula of Deep Compression: fillers, and the paper's tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.compression import count_fillers, expected_fillers, sparse_bytes


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


# Elements, density, bits of codes, bits of gaps, and the share of 32 bits that the
# paper has for both, in percent (tables 2 and 3).
LENETS = {
    "LeNet-300-100": (
        (235_200, 0.08, 6, 5, 3.1),
        (30_000, 0.09, 6, 5, 3.8),
        (1_000, 0.26, 6, 5, 15.7),
    ),
    "LeNet-5": (
        (500, 0.66, 8, 5, 78.5),
        (25_000, 0.12, 8, 5, 6.0),
        (400_000, 0.08, 5, 5, 2.7),
        (5_000, 0.19, 5, 5, 6.9),
    ),
}


@pytest.mark.parametrize(("name", "ratio"), [("LeNet-300-100", 32), ("LeNet-5", 33)])
def test_lenets_are_as_small_as_in_the_paper(name, ratio):
    total = dense = 0
    for size, density, bits, index_bits, share in LENETS[name]:
        count = round(size * density)
        entries = count + expected_fillers(count, density, index_bits)
        nbytes = sparse_bytes(entries, bits, index_bits, codebook=2**bits)
        assert 100 * nbytes / (4 * size) == pytest.approx(share, rel=0.18)
        total, dense = total + nbytes, dense + 4 * size
    assert dense / total == pytest.approx(ratio, rel=0.03)


def test_what_is_refused():
    with pytest.raises(ValueError, match="index_bits must be positive"):
        count_fillers([1], 0)
    with pytest.raises(ValueError, match="density must be above 0"):
        expected_fillers(3, 0.0, 4)

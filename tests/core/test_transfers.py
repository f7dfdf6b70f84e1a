"""Copies between buffers and a file, on lanes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from memcfg._core import Lane, ScratchFile, Transfer


def test_bytes_go_to_a_file_and_come_back_in_any_order(tmp_path):
    random = np.random.default_rng(0)
    file, lanes = ScratchFile(str(tmp_path), 2**20), (Lane(), Lane())
    expected = np.zeros(2**20, np.uint8)
    for _ in range(50):
        start, stop = sorted(random.integers(0, 2**20, 2))
        piece = random.integers(0, 256, stop - start, np.uint8)
        expected[start:stop] = piece
        Transfer.write(file, start, piece, lanes[0]).wait()
    found = np.empty_like(expected)
    bounds = [0, *sorted(random.integers(0, 2**20, 20)), 2**20]
    reads = [
        Transfer.read(file, start, found[start:stop], lanes[1])
        for start, stop in pairwise(bounds)
    ]
    for each in reads[::-1]:
        each.wait()
        assert each.done
    assert np.array_equal(found, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_keeps_what_it_needs(tmp_path):
    target = np.zeros(4, np.uint8)
    file = ScratchFile(str(tmp_path), 64)
    Transfer.write(file, 60, np.arange(4, dtype=np.uint8), Lane()).wait()
    read = Transfer.read(file, 60, target, Lane())
    del file
    read.wait()
    assert target.tolist() == [0, 1, 2, 3]


def test_what_cannot_be_copied_is_refused(tmp_path):
    file, lane = ScratchFile(str(tmp_path), 64), Lane()
    with pytest.raises(ValueError, match="do not lie inside"):
        Transfer.read(file, 61, bytearray(4), lane)
    with pytest.raises(ValueError, match="do not lie inside"):
        Transfer.write(file, 2**63, b"1234", lane)
    with pytest.raises(ValueError, match="read-only"):
        Transfer.read(file, 0, b"1234", lane)
    with pytest.raises(ValueError, match="do not lie behind one another"):
        Transfer.write(file, 0, np.zeros(8)[::2], lane)
    with pytest.raises(TypeError, match="made by Transfer"):
        Transfer()

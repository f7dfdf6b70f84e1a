"""Gathering rows: every layout, and no memory of its own."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from memcfg.nn.inputs._batch import batches, gather

LAYOUTS = {
    "contiguous": lambda x: x,
    "columns first": np.asfortranarray,
    "reversed": lambda x: x[::-1],
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2],
    "read only": lambda x: np.broadcast_to(x, x.shape),
    "unaligned": lambda x: (
        np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:]
        .view(np.float32)
        .reshape(x.shape)
    ),
}


def numbers(samples, width):
    return np.arange(samples * width, dtype=np.float32).reshape(samples, width)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [slice(3, 9), np.array([8, 0, 3, 3, 11, 5])])
def test_rows_of_any_layout(layout, rows):
    source = LAYOUTS[layout](numbers(12, 5))
    room = np.empty((6, 5), np.float32)
    gather(source, rows, room)
    assert_array_equal(room, source[rows])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [slice(64, 192), np.arange(128)[::-1].copy()])
def test_no_memory_is_taken(layout, rows):
    source = LAYOUTS[layout](numbers(256, 1024))
    room = np.empty((128, 1024), np.float32)  # 512 KiB
    gather(source, rows, room)
    tracemalloc.start()
    try:
        gather(source, rows, room)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


@given(
    samples=st.integers(1, 60), batch_size=st.integers(1, 70), shuffled=st.booleans()
)
def test_batches_meet_every_sample_once(samples, batch_size, shuffled):
    order = np.random.default_rng(0).permutation(samples) if shuffled else None
    found = [np.arange(samples)[rows] for rows in batches(samples, batch_size, order)]
    assert_array_equal(
        np.concatenate(found), np.arange(samples) if order is None else order
    )
    sizes = {len(rows) for rows in found[:-1]}
    assert sizes <= {batch_size}
    assert len(found[-1]) <= batch_size

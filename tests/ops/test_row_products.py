"""Products of one row without blocks of oneDNN, as where there is AVX2 alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import onednn, run_kernel
from machine import get_num_threads, set_num_threads
from older_processors import HAS_ONLY_AVX2, check_with_avx2

KINDS = {
    "dense": (False, False, False),
    "dense_bias": (True, False, False),
    "dense_bias_relu": (True, False, True),
    "dense_bias_add": (True, True, False),
    "dense_bias_add_relu": (True, True, True),
}


@given(
    st.sampled_from([*KINDS]),
    st.one_of(st.integers(1, 40), st.integers(300, 5000)),
    st.one_of(st.integers(1, 70), st.integers(2000, 4500)),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_sums_are_chains_of_parts_that_the_steps_give(
    kind, steps, units, threads, in_place
):
    bias, sum_, relu = KINDS[kind]
    rng = np.random.default_rng((steps, units))
    x, w, b, other = (
        rng.standard_normal(shape, np.float32)
        for shape in ((1, steps), (steps, units), units, (1, units))
    )
    count = min(max(steps // 256, 1), 16)  # of parts
    length = -(-steps // count // 8) * 8
    parts = []
    for begin in range(0, steps, length):
        parts.append(np.zeros((1, units), np.float32))
        for step in range(begin, min(begin + length, steps)):
            parts[-1] += x[0, step] * w[step]
    wanted = parts[0]
    for part in parts[1:]:
        wanted += part
    if bias:
        wanted += b
    if sum_:
        wanted += other
    if relu:
        wanted = np.where(wanted < 0, np.float32(0), wanted)
    inputs = [x, w, *[b] * bias, *[other] * sum_]
    pairs = {3: 0} if sum_ and in_place else {}
    before = get_num_threads()
    set_num_threads(threads)
    try:
        (found,) = run_kernel(kind, inputs, [(1, units)], pairs=pairs)
    finally:
        set_num_threads(before)
    if HAS_ONLY_AVX2:
        np.testing.assert_array_equal(found, wanted)
    else:  # oneDNN has blocks, and may round a product and its sum once
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_they_are_with_avx2():
    onednn()  # or a skip
    check_with_avx2(test_sums_are_chains_of_parts_that_the_steps_give, 1)

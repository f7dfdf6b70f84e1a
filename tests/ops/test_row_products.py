"""Products with rows of a matrix without blocks of oneDNN, as with AVX2 alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import onednn, run_kernel
from machine import threads
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
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_sums_are_chains_of_parts_that_the_steps_give(
    kind, steps, units, number, in_place
):
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
    others = {"bias": b, "sum": other}
    check(kind, x, w, wanted, others, number=number, in_place=in_place)


@given(
    st.sampled_from([*KINDS]),
    st.one_of(st.integers(1, 40), st.integers(250, 600)),
    st.one_of(st.integers(1, 70), st.integers(500, 530)),
    st.one_of(st.integers(2, 17), st.integers(40, 110)),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_sums_of_several_rows_are_one_chain(kind, steps, units, rows, number, in_place):
    """Of numbers with exact products, so that fused sums are those of two steps."""
    rng = np.random.default_rng((steps, units, rows))
    x, w, b, other = (
        np.float32(rng.integers(-2047, 2048, shape) / 256)
        for shape in ((rows, steps), (steps, units), units, (rows, units))
    )
    sums = np.zeros((rows, units), np.float32)
    for step in range(steps):
        sums += x[:, step, None] * w[step]
    others = {"bias": b, "sum": other}
    check(kind, x, w, sums, others, number=number, in_place=in_place)


def check(kind, x, w, sums, others, *, number, in_place):
    """Compare a product on so many threads with what is made of its sums."""
    bias, sum_, relu = KINDS[kind]
    wanted = sums
    if bias:
        wanted = wanted + others["bias"]
    if sum_:
        wanted = wanted + others["sum"]
    if relu:
        wanted = np.where(wanted < 0, np.float32(0), wanted)
    inputs = [x, w, *[others["bias"]] * bias, *[others["sum"]] * sum_]
    pairs = {3: 0} if sum_ and in_place else {}
    with threads(number):
        (found,) = run_kernel(kind, inputs, [sums.shape], pairs=pairs)
    if HAS_ONLY_AVX2:
        np.testing.assert_array_equal(found, wanted)
    else:  # oneDNN has blocks, and may round a product and its sum once
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_they_are_with_avx2():
    onednn()  # or a skip
    check_with_avx2(test_sums_are_chains_of_parts_that_the_steps_give, 1)
    check_with_avx2(test_sums_of_several_rows_are_one_chain, 1)

"""Attention without a matrix of scores, against one that has it, in float64."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from family_cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import check
from kernels import run_kernel
from slopes import check_gradient

from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError
from memcfg.graph import Builder

NAME = "scaled_dot_product_attention"
BLOCK = 64


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def direct(q, k, v, dy, mask, scale, causal, kept=1.0):
    """y, and the gradients of sum(y * dy), by the definition and the chain rule.

    `kept` is what dropout multiplies the weights by, [batch, heads, queries, keys].
    """
    q, k, v, dy = (np.moveaxis(x.astype(np.float64), 2, 1) for x in (q, k, v, dy))
    hidden = np.zeros((len(q), 1, q.shape[2], k.shape[2]), bool)
    if mask is not None:
        hidden |= (mask == 0)[:, None]
    if causal:
        hidden |= ~np.tri(*hidden.shape[2:], dtype=bool)
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(2, 3) * scale)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    slopes = dy @ v.swapaxes(2, 3) * kept
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True)) * scale
    found = (
        *((weights * kept) @ v, slopes @ k, slopes.swapaxes(2, 3) @ q),
        (weights * kept).swapaxes(2, 3) @ dy,
    )
    return [np.moveaxis(x, 1, 2) for x in found]


def run_both(q, k, v, dy, masks, scale, causal, dropout=None):
    """y and the gradients of the kernels, and what they saved."""
    a = {"scale": scale, "causal": causal}
    if dropout is not None:
        a["rate"], a["key"], step = dropout
        masks = [*masks, np.array(step)]
    rows = (q.shape[0], *q.shape[2:-1], q.shape[1])
    shapes = [(*q.shape[:-1], v.shape[-1]), rows, rows]
    y, *saved = run_kernel(NAME, [q, k, v, *masks], shapes, a)
    backward = [q, k, v, y, *saved, dy, *masks]
    gradients = run_kernel(
        f"{NAME}_gradient", backward, [x.shape for x in (q, k, v)], a
    )
    return [y, *gradients], saved


@st.composite
def operands(draw):
    """Steps and features around blocks and panels; masks that leave a key."""
    steps = st.one_of(
        st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3]),
        st.integers(1, 150),
    )
    features = st.sampled_from([1, 3, 8, 15, 16, 17, 33, 64])
    batch, heads, queries, keys = (
        *(draw(st.integers(1, 3)), draw(st.integers(1, 4))),
        *(draw(steps), draw(steps)),
    )
    depth, width = draw(features), draw(features)
    masks = []
    for shape in draw(
        st.lists(
            st.sampled_from([(1, keys), (queries, keys), (1, 1)]),
            max_size=3,
            unique=True,
        )
    ):
        mask = (normal(batch, *shape, seed=len(masks) + 5) > 0).astype("f4")
        mask[..., 0] = 1
        masks.append(mask)
    return (
        normal(batch, queries, heads, depth),
        normal(batch, keys, heads, depth, seed=1),
        normal(batch, keys, heads, width, seed=2),
        normal(batch, queries, heads, width, seed=3),
        masks,
        draw(st.sampled_from([1.0, 0.125, 5.0])),
        draw(st.booleans()),
    )


@given(operands())
@settings(max_examples=40, deadline=None)
def test_it_is_attention(drawn):
    q, k, v, dy, masks, scale, causal = drawn
    mask = None
    for each in masks:
        mask = each if mask is None else mask * each
    found, _ = run_both(*drawn)
    wanted = direct(q, k, v, dy, mask, scale, causal)
    for got, expected in zip(found, wanted, strict=True):
        size = max(1, np.abs(expected).max()) * max(1, scale)  # sums that cancel
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=3e-5 * size)


@given(operands())
@settings(max_examples=10, deadline=None)
def test_kernels_keep_the_promises_of_all(drawn):
    try:
        table = kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))
    q, k, v, dy, masks, scale, causal = drawn
    a = {"scale": scale, "causal": causal}
    (y, *_), saved = run_both(*drawn)
    check(table, case(NAME, [q, k, v, *masks], a))
    check(table, case(f"{NAME}_gradient", [q, k, v, y, *saved, dy, *masks], a))


@given(
    steps=st.tuples(*[st.sampled_from([1, 3, 4, 63, 66, 131, 192])] * 2),
    heads=st.integers(1, 3),
    rate=st.sampled_from([0.0, 0.1, 0.5, 0.99]),
    seeds=st.tuples(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    causal=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_weights_are_dropped_as_those_of_a_whole_matrix(
    steps, heads, rate, seeds, causal
):
    """Which elements, says the kernel of dropout."""
    queries, keys = steps
    q, dy = normal(2, queries, heads, 8), normal(2, queries, heads, 5, seed=3)
    k, v = normal(2, keys, heads, 8, seed=1), normal(2, keys, heads, 5, seed=2)
    ones = np.ones((2, heads, queries, keys), np.float32)
    a = {"rate": rate, "key": seeds[0]}
    (kept,) = run_kernel("dropout", [ones, np.array(seeds[1])], [ones.shape], a)
    found, _ = run_both(q, k, v, dy, [], 0.5, causal, (rate, *seeds))
    wanted = direct(q, k, v, dy, None, 0.5, causal, kept.astype(np.float64))
    for got, expected in zip(found, wanted, strict=True):
        size = max(1, np.abs(expected).max())
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=3e-5 * size)


def test_without_heads_there_is_one():
    q, k, v, dy = (normal(2, 70, size, seed=size) for size in (5, 5, 3, 3))
    found, saved = run_both(q, k, v, dy, [], 0.5, True)
    with_heads = [x[:, :, None] for x in (q, k, v, dy)]
    others, saved_by_head = run_both(*with_heads, [], 0.5, True)
    for one, two in zip((*found, *saved), (*others, *saved_by_head), strict=True):
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"),
    [(3, 2, 130, 130), (1, 1, 700, 600), (1, 3, 70, 500), (1, 1, 500, 70)],
)
def test_bits_do_not_depend_on_threads(batch, heads, queries, keys, causal):
    steps = queries, keys, keys, queries
    drawn = [normal(batch, n, heads, 16, seed=i) for i, n in enumerate(steps)]
    found = []
    for count in (1, 2, 5, 5):
        with machine.threads(count):
            found.append(run_both(*drawn, [], 0.25, causal))
    for results, saved in found[1:]:
        for one, two in zip(
            (*results, *saved), (*found[0][0], *found[0][1]), strict=True
        ):
            assert one.tobytes() == two.tobytes()


def test_a_row_that_is_masked_whole_looks_at_all_alike():
    """As scores of -1e9 do, beside which others are lost in rounding."""
    q, k, v, dy = (normal(1, 100, 2, 4, seed=seed) for seed in range(4))
    mask = np.ones((1, 100, 100), np.float32)
    mask[0, 7] = mask[0, 99] = 0
    (y, dq, dk, dv), _ = run_both(q, k, v, dy, [mask], 0.5, False)
    for row in (7, 99):
        np.testing.assert_allclose(y[:, row], v.mean(1), rtol=1e-4, atol=1e-6)
    masked = np.where(mask == 0, 0, mask)
    masked[0, 7] = masked[0, 99] = 1  # equal scores for all: products with zeros
    changed = q.copy()
    changed[:, [7, 99]] = 0
    wanted = direct(changed, k, v, dy, masked, 0.5, False)
    for got, expected in zip((y, dv), (wanted[0], wanted[3]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(dq).all()
    assert np.isfinite(dk).all()


@pytest.mark.parametrize("place", [(0, 3), (70, 90)], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays(place, value):
    row, key = place
    q, k, v, dy = (normal(1, 100, 1, 4, seed=seed) for seed in range(4))
    q[0, row, 0, 1] = value
    (y, dq, dk, dv), _ = run_both(q, k, v, dy, [], 0.5, False)
    assert np.isnan(y[0, row]).all()
    assert np.isnan(dq[0, row]).all()
    assert np.isfinite(np.delete(y, row, 1)).all()
    assert np.isnan(dk).all()
    assert np.isnan(dv).all()
    q = normal(1, 100, 1, 4)
    v[0, key, 0, 2] = value
    (y, dq, *_), _ = run_both(q, k, v, dy, [], 0.5, False)
    assert not np.isfinite(y[..., 2]).any()
    assert np.isfinite(y[..., :2]).all()
    assert np.isnan(dq).all()


def test_large_and_small_scores():
    q, k, v, dy = (normal(1, 130, 1, 8, seed=seed) for seed in range(4))
    for factor in (1e3, 1e-30):
        found, _ = run_both(q * np.float32(factor), k, v, dy, [], 1.0, False)
        wanted = direct(q * np.float32(factor), k, v, dy, None, 1.0, False)
        np.testing.assert_allclose(found[0], wanted[0], rtol=5e-3, atol=1e-4)
    q, k = np.full((1, 2, 1, 4), 1e30, "f4"), np.full((1, 70, 1, 4), -1e30, "f4")
    k[0, 66] = 0  # all others are -inf, in the first block and behind
    (y, *_), _ = run_both(q, k, v[:, :70], dy[:, :2], [], 1.0, False)
    np.testing.assert_array_equal(y, v[:, [66, 66]])
    k[0, 66] = -1e30
    (y, *_), _ = run_both(q, k, v[:, :70], dy[:, :2], [], 1.0, False)
    assert np.isnan(y).all()


def test_the_gradient_by_finite_differences():
    arrays = [
        np.random.default_rng(seed).normal(size=shape)
        for seed, shape in enumerate([(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 3)])
    ]
    mask = np.ones((2, 1, 5))
    mask[0, 0, 2:] = 0
    for causal in (False, True):
        a = {"scale": 0.5, "causal": causal}
        check_gradient(NAME, [*arrays, mask], a, wrt=(0, 1, 2), rtol=1e-5)


def test_scratch_does_not_grow_with_the_square_of_steps():
    """A worker's blocks have a size; sums of rows grow, and a count a block of keys."""
    from machine import Kernel

    from memcfg.devices import OperandSpec
    from memcfg.units import align_up

    def scratch(steps):
        wide, rows = (2, steps, 4, 16), (2, 4, steps)
        name, a = f"{NAME}_gradient", {"scale": 1.0}
        inputs = [wide] * 4 + [rows] * 2 + [wide]
        made = [
            [OperandSpec(x, "float32") for x in inputs],
            [OperandSpec(wide, "float32")] * 3,
        ]
        whole = Kernel(name, a, *made, None).scratch_bytes
        forward = [OperandSpec(wide, "float32")] * 3
        saved = [OperandSpec(wide, "float32"), *[OperandSpec(rows, "float32")] * 2]
        counts = align_up(8 * (1 + 8 * -(-steps // 64)))
        return whole - 4 * 8 * steps - counts, Kernel(
            NAME, a, forward, saved, None
        ).scratch_bytes

    assert scratch(64) == scratch(640) == scratch(6400)


def test_operands_that_do_not_fit():
    builder = Builder("attending")

    def tensor(*shape):
        return builder.tensor(f"t{len(builder._tensors)}", shape)

    q, k, v = tensor(2, 3, 4, 5), tensor(2, 6, 4, 5), tensor(2, 6, 4, 7)
    step = builder.tensor("step", (), "int64")
    a = {"scale": 1.0}
    y, *saved = builder.apply(NAME, (q, k, v, tensor(2, 1, 6)), a)
    assert [builder.shape(x) for x in (y, *saved)] == [(2, 3, 4, 7), *[(2, 4, 3)] * 2]
    for inputs, attributes, words in (
        ((q, k), a, "queries, keys, values"),
        ((q, v, v), a, "queries .* keys"),
        ((q, k, tensor(2, 5, 4, 7)), a, "values"),
        ((q, k, v, tensor(2, 6)), a, "a mask"),
        ((q, k, v, tensor(2, 2, 6)), a, "a mask"),
        ((q, tensor(2, 0, 4, 5), tensor(2, 0, 4, 7)), a, "no keys"),
        ((q, k, v), {}, "needs a scale"),
        ((q, k, v), {**a, "dropout": 0.5}, "no attribute dropout"),
        ((q, k, v, step), {**a, "rate": 0.5}, "needs a key"),
        ((q, k, v, step), {**a, "rate": 1.0, "key": 1}, "not in"),
        ((q, k, v), {**a, "rate": 0.5, "key": 1}, "takes queries"),
        ((q, k, v, v), {**a, "rate": 0.5, "key": 1}, "one int64 number"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(NAME, inputs, attributes)
    rows = (2, 4, 3)
    for arrays, words in (
        ([normal(2, 3, 4, 5), normal(2, 6, 4, 6), normal(2, 6, 4, 7)], "one batch"),
        ([normal(2, 3, 4, 5)] * 3 + [normal(2, 2, 3)], "masks"),
        ([normal(2, 3)] * 3, "dimensions"),
    ):
        with pytest.raises(KernelError, match=words):
            run_kernel(NAME, arrays, [(2, 3, 4, 7), rows, rows], a)
    with pytest.raises(KernelError, match="bytes"):
        run_kernel(NAME, [normal(2, 3, 4, 5)] * 3, [(2, 3, 4, 6), rows, rows], a)
    with pytest.raises(KernelError, match="bytes"):
        run_kernel(NAME, [normal(2, 3, 4, 5)] * 3, [(2, 3, 4, 5), rows, (2, 4)], a)

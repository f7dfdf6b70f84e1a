"""Cross-entropy of rows, and what counts right answers, against NumPy."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder

LEADS = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)


def meaning(name, inputs, shapes, attributes=(), dtypes=()):
    dtypes = [*dtypes, *["float64"] * (len(shapes) - len(dtypes))]
    outputs = [np.empty(*each) for each in zip(shapes, dtypes, strict=True)]
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    ops.op_type(name).numpy(dict(attributes), wide, outputs)
    return outputs


@given(lead=LEADS, classes=st.integers(1, 40), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_cross_entropy_of_rows(lead, classes, seed):
    random = np.random.default_rng(seed)
    x = (3 * random.normal(size=(*lead, classes))).astype("f4")
    labels = random.integers(-1, classes + 1, lead).astype(np.int32)
    a = {"ignored": int(random.integers(-1, classes + 1))} if seed % 2 else {}
    shapes = [lead, x.shape]
    found = run_kernel("cross_entropy_rows", [x, labels], shapes, a)
    wanted = meaning("cross_entropy_rows", [x, labels], shapes, a)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    again = run_kernel("cross_entropy_rows", [x, labels], shapes, a, {0: 1})
    assert [each.tobytes() for each in again] == [each.tobytes() for each in found]

    dy = random.normal(size=lead).astype("f4")
    backward = [found[1], labels, dy]
    (slopes,) = run_kernel("cross_entropy_rows_gradient", backward, [x.shape], a)
    (expected,) = meaning("cross_entropy_rows_gradient", backward, [x.shape], a)
    np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-6)
    (again,) = run_kernel("cross_entropy_rows_gradient", backward, [x.shape], a, {0: 0})
    assert again.tobytes() == slopes.tobytes()


def test_cross_entropy_over_a_vocabulary():
    random = np.random.default_rng(3)
    x = (9 * random.normal(size=(6, 8191))).astype("f4")
    x[1, 5], x[2, :4000], x[3, 7] = 300, -300, np.nan
    labels = np.array([0, 5, 4001, 1, 8190, 8191], np.int32)
    loss, kept = run_kernel(
        "softmax_cross_entropy", [x[:3], labels[:3]], [(), (3, 8191)]
    )
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    wanted = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(kept, wanted[:3], rtol=1e-5, atol=1e-12)
    rows = -np.log(wanted[range(5), labels[:5]])
    np.testing.assert_allclose(loss, rows[:3].mean(), rtol=1e-5)
    (alone,) = run_kernel("softmax_cross_entropy_inference", [x[:3], labels[:3]], [()])
    assert alone.tobytes() == loss.tobytes()
    losses, kept = run_kernel("cross_entropy_rows", [x, labels], [(6,), x.shape])
    np.testing.assert_allclose(losses[:5], rows, rtol=1e-5)
    assert np.isnan(kept[3]).all()
    assert np.isnan(losses[5])


@given(
    lead=LEADS,
    classes=st.integers(1, 9),
    k=st.integers(0, 4),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_argmax_and_hits(lead, classes, k, seed):
    random = np.random.default_rng(seed)
    x = random.integers(0, 4, (*lead, classes)).astype("f4")  # with ties
    x[random.random(x.shape) < 0.1] = np.nan
    labels = random.integers(-1, classes + 1, lead).astype(np.int32)
    (found,) = run_kernel("argmax", [x], [lead], dtypes=["int32"])
    np.testing.assert_array_equal(found, x.argmax(-1))
    (found,) = run_kernel("hits", [x, labels], [lead], {"k": k})
    (wanted,) = meaning("hits", [x, labels], [lead], {"k": k})
    np.testing.assert_array_equal(found, wanted)


def test_the_greatest_k_hold_ties():
    x = np.array([[3, 1, 1, 0]] * 4, np.float32)
    labels = np.arange(4, dtype=np.int32)
    for k, wanted in ((1, [1, 0, 0, 0]), (2, [1, 1, 1, 0]), (4, [1, 1, 1, 1])):
        (found,) = run_kernel("hits", [x, labels], [(4,)], {"k": k})
        np.testing.assert_array_equal(found, wanted)


def bits_of(thresholds):
    return tuple(int(b) for b in np.asarray(thresholds, np.float32).view(np.uint32))


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    thresholds=st.lists(st.floats(0, 1, width=32), max_size=12),
    weighted=st.integers(-1, 3),
    seed=st.integers(0, 999),
)
@settings(max_examples=80, deadline=None)
def test_counts_above_thresholds(shape, thresholds, weighted, seed):
    random = np.random.default_rng(seed)
    thresholds = sorted(abs(each) for each in thresholds)
    t = random.integers(0, 2, shape).astype("f4")
    x = random.choice([*thresholds, 0.25, -1, 2, np.nan], shape).astype("f4")
    inputs = [t, x]
    if weighted >= 0:
        inputs.append(random.uniform(size=shape[:weighted]).astype("f4"))
    a = {"threshold_bits": bits_of(thresholds)}
    found = run_kernel("threshold_counts", inputs, [(len(thresholds) + 1,)] * 2, a)
    weights = inputs[2] if weighted >= 0 else np.float32(1)
    weights = weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim))
    weights = np.broadcast_to(weights, shape)
    for each, wanted in zip(found, (1, 0), strict=True):
        chosen = weights * (t == wanted)
        expected = [chosen.sum(), *(chosen[x > limit].sum() for limit in thresholds)]
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
    for one, two in zip(
        found,
        meaning("threshold_counts", inputs, [each.shape for each in found], a),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_on_more_threads_the_bits_are_the_same():
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 11)).astype("f4")
    labels = random.integers(0, 11, 3000).astype(np.int32)
    dy = random.normal(size=3000).astype("f4")
    runs = []
    for threads in (1, 3):
        with machine.threads(threads):
            rows = run_kernel("cross_entropy_rows", [x, labels], [(3000,), x.shape])
            back = [rows[1], labels, dy]
            rows += run_kernel("cross_entropy_rows_gradient", back, [x.shape])
            rows += run_kernel("hits", [x, labels], [(3000,)], {"k": 2})
            runs.append([each.tobytes() for each in rows])
    assert runs[0] == runs[1]


def test_operands_that_do_not_fit():
    builder = Builder("counted")
    x, y = builder.tensor("x", (4, 3)), builder.tensor("y", (4,), "int32")
    wide, one = builder.tensor("wide", (4, 3), "int32"), builder.tensor("one", ())
    for kind, inputs, words in (
        ("cross_entropy_rows", (x, wide), "outputs .* and labels"),
        ("cross_entropy_rows", (x, builder.tensor("f", (4,))), "labels are int32"),
        ("hits", (one, y), "outputs .* and labels"),
        ("argmax", (one,), "at least one axis"),
        ("threshold_counts", (x,), "threshold_counts: shapes"),
        ("threshold_counts", (x, x, builder.tensor("w", (3,))), "weights"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, {"k": 1, "threshold_bits": ()})
    values = np.ones((4, 3), np.float32)
    for bits, weights, words in (
        (bits_of([0.5, 0.25]), (4,), "ascending"),
        (bits_of([0.5]), (5,), "equal parts"),
    ):
        inputs = [values, values, np.ones(weights, np.float32)]
        a = {"threshold_bits": bits}
        with pytest.raises(KernelError, match=words):
            run_kernel("threshold_counts", inputs, [(len(bits) + 1,)] * 2, a)

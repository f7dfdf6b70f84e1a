"""Connectionist temporal classification beside all alignments, one by one."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from alignments import loss_of, sums_of_all
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from slopes import check_gradient

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder


@st.composite
def batches(draw):
    steps, classes = draw(st.integers(1, 5)), draw(st.integers(2, 4))
    blank, width = draw(st.integers(0, classes - 1)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x = (2 * random.normal(size=(3, steps, classes))).astype("f4")
    others = [c for c in range(classes) if c != blank]
    labels = random.choice(others, (3, width)).astype(np.int32)
    counts = random.integers(0, width + 1, 3).astype(np.int32)
    lengths = random.integers(0, steps + 1, 3).astype(np.int32)
    return [x, labels, counts, lengths], blank


def meaning(kind, inputs, specs, attributes):
    outputs = [np.empty(*spec) for spec in specs]
    with np.errstate(all="ignore"):
        ops.op_type(kind).numpy(attributes, inputs, outputs)
    return outputs


@given(drawn=batches())
@settings(max_examples=60, deadline=None)
def test_the_loss_is_the_sum_over_all_alignments(drawn):
    inputs, blank = drawn
    x, a = inputs[0], {"blank": blank}
    dy = np.float32([1, -2, 0.5])
    wanted = [loss_of(*each, blank) for each in zip(*inputs, strict=True)]
    losses = np.array([loss for loss, _ in wanted])
    slopes = np.array([dx * by for (_, dx), by in zip(wanted, dy, strict=True)])
    for found in (
        run_kernel("ctc_loss", inputs, [(3,)], a),
        meaning("ctc_loss", inputs, [((3,),)], a),
    ):
        np.testing.assert_allclose(found[0], losses, 1e-5, 1e-6)
    more = [*inputs, dy]
    for found in (
        run_kernel("ctc_loss_gradient", more, [x.shape], a),
        meaning("ctc_loss_gradient", more, [(x.shape,)], a),
    ):
        np.testing.assert_allclose(found[0], slopes, 1e-4, 1e-5)


@given(drawn=batches(), top=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_wide_search_finds_the_most_probable_labels(drawn, top):
    (x, _, _, lengths), blank = drawn
    a = {"blank": blank, "beam_width": 400, "top_paths": top}
    steps = x.shape[1]
    shapes = [(3, top, steps), (3, top)]
    found = run_kernel("ctc_beam_search", [x, lengths], shapes, a, (), ["int32"])
    meant = meaning(
        "ctc_beam_search", [x, lengths], [(shapes[0], "int32"), (shapes[1],)], a
    )
    for sample in range(3):
        sums, _ = sums_of_all(x[sample, : lengths[sample]], blank)
        best = sorted(sums.items(), key=lambda item: -item[1])[:top]
        for place in range(top):
            path = (-np.ones(steps)).astype(int)
            score = -np.inf
            if place < len(best):
                path[: len(best[place][0])] = best[place][0]
                score = np.log(best[place][1])
            for paths, scores in (found, meant):
                np.testing.assert_array_equal(paths[sample, place], path)
                np.testing.assert_allclose(scores[sample, place], score, 1e-5, 1e-5)


def test_what_is_out_of_range_is_not_a_number():
    x = np.zeros((1, 3, 3), np.float32)
    a = {"blank": 0}
    for labels, count, steps in (
        ([[3, 1]], 1, 3),
        ([[-1, 1]], 1, 3),
        ([[1, 1]], 3, 3),
        ([[1, 1]], -1, 3),
        ([[1, 1]], 1, 4),
        ([[1, 1]], 1, -1),
    ):
        inputs = [x, *(np.array(each, np.int32) for each in (labels, [count], [steps]))]
        assert np.isnan(run_kernel("ctc_loss", inputs, [(1,)], a)[0]).all()
        more = [*inputs, np.ones(1, np.float32)]
        (dx,) = run_kernel("ctc_loss_gradient", more, [x.shape], a)
        assert np.isnan(dx).all()
    # Labels after the count are not read.
    inputs = [x, *(np.array(e, np.int32) for e in ([[1, 99]], [1], [3]))]
    assert np.isfinite(run_kernel("ctc_loss", inputs, [(1,)], a)[0]).all()


def test_long_sequences_neither_overflow_nor_vanish():
    random = np.random.default_rng(0)
    x = (20 * random.normal(size=(2, 2000, 7))).astype("f4")
    labels = random.integers(1, 7, (2, 300)).astype(np.int32)
    counts, lengths = np.array([300, 1], np.int32), np.array([2000, 1999], np.int32)
    inputs, a = [x, labels, counts, lengths], {"blank": 0}
    (loss,) = run_kernel("ctc_loss", inputs, [(2,)], a)
    (meant,) = meaning("ctc_loss", inputs, [((2,),)], a)
    np.testing.assert_allclose(loss, meant, 1e-6)
    more = [*inputs, np.ones(2, np.float32)]
    (dx,) = run_kernel("ctc_loss_gradient", more, [x.shape], a)
    # The gradient by the logits of a step sums to 0.
    np.testing.assert_allclose(dx.sum(-1), np.zeros((2, 2000)), atol=1e-5)
    assert np.abs(dx[1, 1999]).max() == 0


def test_the_bits_are_those_of_one_thread():
    random = np.random.default_rng(0)
    x = random.normal(size=(9, 60, 30)).astype("f4")
    labels = random.integers(1, 30, (9, 20)).astype(np.int32)
    full = np.full(9, 20, np.int32), np.full(9, 60, np.int32)
    inputs, dy = [x, labels, *full], np.ones(9, np.float32)
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            (loss,) = run_kernel("ctc_loss", inputs, [(9,)], {"blank": 0})
            (dx,) = run_kernel(
                "ctc_loss_gradient", [*inputs, dy], [x.shape], {"blank": 0}
            )
            bits.add(loss.tobytes() + dx.tobytes())
    assert len(bits) == 1


def test_gradient():
    random = np.random.default_rng(2)
    labels = np.array([[1, 1, 2], [3, 0, 0]], np.int32)
    counts, lengths = np.array([3, 1], np.int32), np.array([6, 4], np.int32)
    x = random.normal(size=(2, 6, 4))
    check_gradient("ctc_loss", [x, labels, counts, lengths], {"blank": 0})


def test_what_does_not_fit():
    builder = Builder("aligned")
    x, i = builder.tensor("x", (2, 5, 3)), builder.tensor("i", (2, 4), "int32")
    n, f = builder.tensor("n", (2,), "int32"), builder.tensor("f", (2,))
    flat, m = builder.tensor("flat", (2, 5)), builder.tensor("m", (3,), "int32")
    search = {"blank": 0, "beam_width": 2, "top_paths": 1}
    for kind, inputs, attributes, words in (
        ("ctc_loss", (i, i, n, n), {"blank": 0}, "of floats, not int32"),
        ("ctc_loss", (flat, i, n, n), {"blank": 0}, "axes for samples, steps"),
        ("ctc_loss", (x, i, f, n), {"blank": 0}, "integers are int32"),
        ("ctc_loss", (x, i, n, n), {"blank": 3}, "blank 3 is none of 3 classes"),
        ("ctc_loss", (x, i, m, n), {"blank": 0}, "do not fit"),
        ("ctc_beam_search", (x, m), search, "do not fit"),
        ("ctc_beam_search", (x, n), {**search, "top_paths": 3}, "3 paths of 2"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, attributes)
    inputs = [np.zeros((1, 1, 2), np.float32), np.array([1], np.int32)]
    many = {**search, "beam_width": 2**31 - 1}
    shapes = [(1, 1, 1), (1, 1)]
    with pytest.raises(KernelError, match="too many beams"):
        run_kernel("ctc_beam_search", inputs, shapes, many, (), ["int32"])

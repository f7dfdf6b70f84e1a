"""Fourier transforms and windows: kernels beside sums of their definitions."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from slopes import check_gradient

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder


@given(
    rows=st.integers(1, 70),
    length=st.one_of(st.integers(1, 40), st.sampled_from([64, 81, 97, 128, 250, 255])),
    inverse=st.integers(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_the_transform_is_its_definition(rows, length, inverse, seed):
    random = np.random.default_rng(seed)
    real, imaginary = random.normal(size=(2, rows, length)).astype("f4")
    places = np.outer(np.arange(length), np.arange(length)) % length
    roots = np.exp((1 if inverse else -1) * 2j * np.pi * places / length)
    wanted = (real + 1j * imaginary) @ roots
    given = {"inverse": inverse}
    found = run_kernel("fourier", [real, imaginary], [real.shape] * 2, given)
    meant = [np.empty(real.shape) for _ in range(2)]
    ops.op_type("fourier").numpy(given, [real, imaginary], meant)
    atol = 2e-6 * np.abs(wanted).max()
    for a, b in (found, meant):
        np.testing.assert_allclose(a, wanted.real, 2e-6, atol)
        np.testing.assert_allclose(b, wanted.imag, 2e-6, atol)


@st.composite
def windows(draw):
    length, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    size = (length - 1) * dilation + 1 + draw(st.integers(0, 9))
    step = draw(st.integers(1, 6))
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    return lead, size, {"length": length, "step": step, "dilation": dilation}


@given(drawn=windows(), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_windows_and_their_sums(drawn, seed):
    lead, size, a = drawn
    x = np.random.default_rng(seed).normal(size=(*lead, size)).astype("f4")
    reach = (a["length"] - 1) * a["dilation"] + 1
    starts = range(0, size - reach + 1, a["step"])
    rows = [x[..., s : s + reach : a["dilation"]] for s in starts]
    wanted = np.stack(rows, -2)
    (found,) = run_kernel("frames", [x], [wanted.shape], a)
    np.testing.assert_array_equal(found, wanted)
    total = np.zeros(x.shape)
    for place, start in enumerate(starts):
        total[..., start : start + reach : a["dilation"]] += wanted[..., place, :]
    a = {"size": size, "step": a["step"], "dilation": a["dilation"]}
    (found,) = run_kernel("overlap_add", [wanted], [x.shape], a)
    np.testing.assert_allclose(found, total, 1e-5, 1e-5)
    meant = np.empty(x.shape)
    ops.op_type("overlap_add").numpy(a, [wanted], [meant])
    np.testing.assert_allclose(meant, total, 1e-6, 1e-6)


def test_what_is_not_finite_stays_so():
    x = np.zeros((2, 6), np.float32)
    x[0, 1] = np.inf
    x[1, 2] = np.nan
    for made in run_kernel("fourier", [x, x], [x.shape] * 2, {"inverse": 0}):
        assert np.isnan(made[1]).all()


def test_the_bits_are_those_of_one_thread():
    random = np.random.default_rng(0)
    parts = [*random.normal(size=(2, 130, 300)).astype("f4")]
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            made = run_kernel("fourier", parts, [(130, 300)] * 2, {"inverse": 1})
            bits.add(b"".join(each.tobytes() for each in made))
    assert len(bits) == 1


@pytest.mark.parametrize("length", [8, 6])
def test_gradients(length):
    random = np.random.default_rng(0)
    parts = list(random.normal(size=(2, 2, length)))
    for inverse in (0, 1):
        check_gradient("fourier", parts, {"inverse": inverse}, (0, 1))
    a = {"length": 3, "step": 2, "dilation": 2}
    check_gradient("frames", [random.normal(size=(2, length + 3))], a)
    a = {"size": 8, "step": 2, "dilation": 1}
    check_gradient("overlap_add", [random.normal(size=(2, 3, 4))], a)


def test_what_does_not_fit():
    builder = Builder("signals")
    x, y = builder.tensor("x", (2, 3)), builder.tensor("y", (2, 4))
    i = builder.tensor("i", (2, 3), "int32")
    a = {"length": 5, "step": 1, "dilation": 1}
    for kind, inputs, attributes, words in (
        ("fourier", (x, y), {"inverse": 0}, "they have one shape"),
        ("fourier", (i, i), {"inverse": 0}, "parts are floats"),
        ("fourier", (x, x), {}, "needs inverse alone"),
        ("frames", (x,), a, "3 elements are fewer than a window of 5"),
        ("frames", (x,), {**a, "step": 0}, "are 1 or more"),
        ("overlap_add", (x,), {**a, "size": 9}, "do not have 2 windows of 3"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, attributes)
    with pytest.raises(KernelError, match="has other windows"):
        run_kernel("frames", [np.zeros(4, np.float32)], [(3, 3)], {**a, "length": 3})

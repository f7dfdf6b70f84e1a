"""Convolutions over volumes: the kernels of oneDNN against NumPy's meaning."""

from __future__ import annotations

import numpy as np
import pytest
from family_cases import case, normal, window
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from older_processors import check_with_avx2

from memcfg import ops
from memcfg.errors import GraphError

KINDS = ("conv3d", "conv3d_gradient_kernel", "conv3d_gradient_input")


@st.composite
def convolutions(draw):
    """The shapes of a volume and a kernel, and attributes."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels = groups * draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17]))
    units = groups * draw(st.sampled_from([1, 2, 6, 8, 16, 24]))
    sizes = [draw(st.integers(1, 3)) for _ in range(3)]
    if draw(st.booleans()):
        sizes = [1, 1, 1]  # of pixels, which strides may skip
    strides = tuple(draw(st.integers(1, 3)) for _ in range(3))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(3))
    padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in sizes)
    lengths = [
        max((size - 1) * apart + 1 - sum(pair), 1) + draw(st.integers(0, 5))
        for size, apart, pair in zip(sizes, dilation, padding, strict=True)
    ]
    x = (draw(st.integers(1, 3)), *lengths, channels)
    kernel = (*sizes, channels // groups, units)
    return x, kernel, window(strides, padding, dilation, groups)


@given(drawn=convolutions())
@settings(max_examples=60, deadline=None)
def test_kernels_compute_what_ops_mean(drawn):
    x, kernel, a = drawn
    volume, taps = normal(*x), normal(*kernel, seed=1)
    y = case("conv3d", [volume, taps], a)
    dy = normal(*y.outputs[0][0], seed=2)
    more = {**a, "kernel_shape": kernel, "input_shape": x}
    for kind, inputs in zip(
        KINDS, ([volume, taps], [volume, dy], [taps, dy]), strict=True
    ):
        made = case(kind, inputs, a if kind == "conv3d" else more)
        shapes = [shape for shape, _ in made.outputs]
        (found,) = run_kernel(kind, inputs, shapes, made.attributes)
        (again,) = run_kernel(kind, inputs, shapes, made.attributes)
        np.testing.assert_array_equal(found, again)
        (wanted,) = made.reference()
        scale = np.abs(wanted).max(initial=1e-30)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * scale)


def test_they_do_with_avx2():
    """Where no primitive is for gradients of kernels, they are made plane by plane."""
    check_with_avx2(test_kernels_compute_what_ops_mean, 1)


@pytest.mark.parametrize(
    ("x", "kernel", "groups", "message"),
    [
        ((2, 4, 4, 3), (2, 2, 2, 3, 4), 1, r"conv3d reads \[N, D, H, W, C\]"),
        ((2, 4, 4, 4, 3), (2, 2, 3, 4), 1, r"kernel is \[KD, KH, KW, C/groups, O\]"),
        ((2, 4, 4, 4, 3), (2, 2, 2, 2, 4), 1, "3 channels and kernel"),
        ((2, 4, 4, 4, 4), (2, 2, 2, 2, 3), 2, "with 2 groups"),
        ((2, 4, 1, 4, 3), (2, 2, 2, 3, 4), 1, "a window of 2 does not fit into 1"),
    ],
)
def test_shapes_that_do_not_fit(x, kernel, groups, message):
    a = window((1, 1, 1), ((0, 0),) * 3, (1, 1, 1), groups)
    specs = [ops.Spec(shape, "float32") for shape in (x, kernel)]
    with pytest.raises(GraphError, match=message):
        ops.op_type("conv3d").infer(specs, a)

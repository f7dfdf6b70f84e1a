"""Enlarging by straight lines: kernel and meaning against np.interp, gradients."""

from __future__ import annotations

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
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    factor=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_it_is_numpys(shape, factor, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    length = shape[axis]
    places = (np.arange(length * factor) + 0.5) / factor - 0.5
    wanted = np.apply_along_axis(
        lambda row: np.interp(places, np.arange(length), row), axis, x
    )
    a = {"axis": axis, "factor": factor}
    (found,) = run_kernel("interpolate", [x], [wanted.shape], a)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    meant = np.empty(wanted.shape)
    ops.op_type("interpolate").numpy(a, [x.astype(np.float64)], [meant])
    np.testing.assert_allclose(meant, wanted, rtol=1e-5, atol=1e-6)
    # the gradient is the transposed map: <A x, dy> = <x, A' dy>
    dy = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (dx,) = run_kernel("interpolate_gradient", [dy], [shape], a)
    np.testing.assert_allclose(
        (wanted * dy).sum(), (x * dx).sum(), rtol=1e-4, atol=1e-4
    )
    meant = np.empty(shape)
    ops.op_type("interpolate_gradient").numpy(a, [dy.astype(np.float64)], [meant])
    np.testing.assert_allclose(dx, meant, rtol=1e-4, atol=1e-5)


def test_gradients():
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    for kind in ("interpolate", "interpolate_gradient"):
        check_gradient(kind, [x], {"axis": 1, "factor": 3})


def test_what_does_not_fit():
    builder = Builder("enlarged")
    x = builder.tensor("x", (2, 3))
    for kind, attributes, words in (
        ("interpolate", {"axis": 2, "factor": 2}, "no axis 2"),
        ("interpolate", {"axis": 1, "factor": 0}, "a factor of 0"),
        ("interpolate_gradient", {"axis": 1, "factor": 2}, "not the shape of"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, (x,), attributes)
    a = {"axis": 1, "factor": 2}
    with pytest.raises(KernelError, match="larger by the factor"):
        run_kernel("interpolate", [np.ones((2, 3), np.float32)], [(2, 5)], a)

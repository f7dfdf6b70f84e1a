"""Ops of several operands against NumPy: joining arrays, layer normalisation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@given(
    rank=st.integers(1, 4),
    data=st.data(),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
@settings(max_examples=40, deadline=None)
def test_concatenate_is_numpys_and_its_gradient_splits(rank, data, lengths):
    axis = data.draw(st.integers(-rank, rank - 1))
    shape = [data.draw(st.integers(1, 6)) for _ in range(rank)]
    inputs = []
    for seed, length in enumerate(lengths):
        shape[axis] = length
        inputs.append(normal(*shape, seed=seed))
    whole = np.concatenate(inputs, axis)
    attributes = {"axis": axis, "lengths": tuple(lengths)}
    (found,) = run_kernel("concatenate", inputs, [whole.shape], attributes)
    np.testing.assert_array_equal(found, whole)
    parts = run_kernel("split", [whole], [x.shape for x in inputs], attributes)
    meant = [np.empty_like(x) for x in inputs]
    ops.op_type("split").numpy(attributes, [whole], meant)
    for part, expected, x in zip(parts, meant, inputs, strict=True):
        np.testing.assert_array_equal(part, x)
        np.testing.assert_array_equal(expected, x)


def test_concatenate_of_other_types_and_of_what_does_not_fit():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    (found,) = run_kernel("concatenate", [x, x], [(2, 6)], {"axis": 1}, (), ["int32"])
    np.testing.assert_array_equal(found, np.hstack([x, x]))
    builder = Builder("joined")
    a, b = builder.tensor("a", (2, 3)), builder.tensor("b", (2, 4))
    (y,) = builder.apply("concatenate", (a, b, a), {"axis": -1})
    assert builder.shape(y) == (2, 10)
    for inputs, axis, words in (
        ((a, b), 0, "along axis 0"),
        ((a, b), 2, "no axis 2"),
        ((), 0, "at least one input"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply("concatenate", inputs, {"axis": axis})
    with pytest.raises(KernelError, match="agree in all but one axis"):
        run_kernel("concatenate", [normal(2, 3), normal(3, 3)], [(2, 6)], {"axis": 1})
    with pytest.raises(KernelError, match="bytes"):
        run_kernel("concatenate", [normal(2, 3)] * 2, [(2, 7)], {"axis": 1})
    with pytest.raises(KernelError, match="'axis'"):
        run_kernel("concatenate", [normal(2, 3)], [(2, 3)])


@given(
    lead=st.lists(st.integers(1, 20), min_size=1, max_size=2),
    channels=st.sampled_from([2, 3, 15, 16, 17, 64, 100, 700]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_layer_normalization_and_its_gradient(lead, channels, seed):
    shape, a = (*lead, channels), {"epsilon": 1e-3}
    x, dy = normal(*shape, seed=seed) + 3, normal(*shape, seed=seed + 1)
    gamma, beta = normal(channels, seed=seed + 2), normal(channels, seed=seed + 3)
    shapes = [shape, tuple(lead), tuple(lead)]

    def meaning(name, inputs, shapes):
        outputs = [np.empty(each) for each in shapes]
        wide = [np.asarray(each, np.float64) for each in inputs]
        ops.op_type(name).numpy(a, wide, outputs)
        return outputs

    forward = [x, gamma, beta]
    found = run_kernel("layer_normalization", forward, shapes, a)
    wanted = meaning("layer_normalization", forward, shapes)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    again = run_kernel("layer_normalization", forward, shapes, a, {0: 0})
    assert [each.tobytes() for each in again] == [each.tobytes() for each in found]

    name = "layer_normalization_gradient"
    backward = [x, dy, gamma, *found[1:]]
    shapes = [shape, (channels,), (channels,)]
    gradients = run_kernel(name, backward, shapes, a)
    for got, expected in zip(gradients, meaning(name, backward, shapes), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * scale)
    again = run_kernel(name, backward, shapes, a, {1: 0})
    assert [each.tobytes() for each in again] == [each.tobytes() for each in gradients]


def test_layer_normalization_of_operands_that_do_not_fit():
    builder = Builder("normalized")
    x, wrong = builder.tensor("x", (2, 3)), builder.tensor("wrong", (4,))
    with pytest.raises(GraphError, match="layer_normalization: gamma"):
        builder.apply("layer_normalization", (x, wrong, wrong), {"epsilon": 1e-3})


def test_fill():
    (found,) = run_kernel("fill", [], [(3, 5)], {"value": 2.5, "shape": (3, 5)})
    np.testing.assert_array_equal(found, np.full((3, 5), 2.5, np.float32))


def test_constant():
    numbers = np.array([[1.5, -0.0, np.inf], [1e-40, 3e38, np.nan]], np.float32)
    data = numbers.astype(">f4").tobytes().hex()
    attributes = {"shape": (2, 3), "data": data}
    (found,) = run_kernel("constant", [], [(2, 3)], attributes)
    assert found.tobytes() == numbers.tobytes()
    meant = np.empty((2, 3))
    ops.op_type("constant").numpy(attributes, [], [meant])
    np.testing.assert_array_equal(meant, numbers.astype(np.float64))
    with pytest.raises(GraphError, match="40 digits"):
        Builder("short").apply("constant", (), {"shape": (2, 3), "data": data[8:]})
    for wrong, words in ((data[8:], "8 digits"), (data[:-1] + "g", "hexadecimal")):
        with pytest.raises(KernelError, match=words):
            run_kernel("constant", [], [(2, 3)], {"data": wrong})

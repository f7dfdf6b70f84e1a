"""The CUDA of element-wise ops, compiled for the host, against what NumPy means."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from cuda_compiler import run_source
from elementwise_cases import ATTRIBUTES, ROUGH, bits, count_outputs, operands_of

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cuda._sources import (
    Launch,
    Number,
    Operand,
    Scratch,
    cuda_source,
)
from memcfg.errors import KernelError

ELEMENTWISE = [kind.name for kind in ops.op_types() if kind.formula is not None]


def source_of(name, count, attributes=ATTRIBUTES):
    kind = ops.op_type(name)
    inputs = [OperandSpec(x.shape, x.dtype.name) for x in operands_of(kind, count)]
    outputs = [OperandSpec((count,), "float32")] * count_outputs(kind)
    return cuda_source(name, attributes, inputs, outputs)


@pytest.fixture(scope="module")
def everything():
    """The sources of all, which are compiled at once."""
    settings = [ATTRIBUTES, {**ATTRIBUTES, "nesterov": False}]
    return "".join(source_of(n, 1, a).text for n in ELEMENTWISE for a in settings)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_op_computes_what_it_means(everything, name):
    kind = ops.op_type(name)
    for nesterov in (False, True) if name.startswith("sgd_momentum") else (False,):
        attributes = {**ATTRIBUTES, "nesterov": nesterov}
        for count in (0, 1, 1003):
            inputs = operands_of(kind, count)
            shapes = [(count,)] * count_outputs(kind)
            found = run_source(name, inputs, shapes, attributes, text=everything)
            expected = [np.empty(shape, np.float32) for shape in shapes]
            with np.errstate(all="ignore"):
                kind.numpy(attributes, inputs, expected)
            for one, meaning in zip(found, expected, strict=True):
                rtol, atol = (1e-4, 1e-5) if name.startswith(ROUGH) else (1e-5, 1e-30)
                np.testing.assert_allclose(one, meaning, rtol=rtol, atol=atol)
        pairs = [dict(kind.in_place)]
        if not kind.formula.state:
            pairs = [{i: 0} for i, _ in kind.in_place]
        for each in pairs:
            again = run_source(
                name, inputs, shapes, attributes, each, text=everything, backwards=True
            )
            assert list(map(bits, again)) == list(map(bits, found))


def test_a_loop_of_more_elements_than_threads(everything):
    x = np.arange(5_000_001, dtype=np.float32)
    (found,) = run_source("add", [x, x], [x.shape], text=everything)
    np.testing.assert_array_equal(found, 2 * x)


def test_lengths_and_attributes_are_no_part_of_a_source():
    other = {**ATTRIBUTES, "beta_1": 0.5, "epsilon": 1e-3}
    assert source_of("adam", 7).text == source_of("adam", 9000, other).text
    assert source_of("adam", 7).text.isascii()


def test_a_users_op_has_a_source():
    kind = ops.elementwise("a user's, 2×", lambda x, *, by=2.0: x * by + 0.1)
    try:
        x = np.float32([1, 2, np.nan])
        (found,) = run_source(kind.name, [x], [x.shape], {"by": 3})
        np.testing.assert_array_equal(found, x * np.float32(3) + np.float32(0.1))
        (gradient,) = kind.formula.gradients
        (found,) = run_source(gradient, [x], [x.shape], {"by": -np.inf})
        np.testing.assert_array_equal(found, x * -np.inf)
    finally:
        ops.unregister(kind.name)


def test_operands_without_a_kernel():
    x, wide = OperandSpec((4,), "float32"), OperandSpec((4,), "float64")
    for name, inputs, outputs, words in (
        ("relu", [wide], [x], "reads float32, not float64"),
        ("relu", [x], [wide], "writes float32, not float64"),
        ("relu", [x, x], [x], "takes 1 inputs"),
        ("no_such", [x], [x], "unknown op type"),
        ("affine", [x], [x], "needs the attribute"),
        ("adam", [x] * 6, [x, x, OperandSpec((5,), "float32")], "several sizes"),
    ):
        attributes = ATTRIBUTES if name == "adam" else {}
        with pytest.raises(KernelError, match=words):
            cuda_source(name, attributes, inputs, outputs)


def test_parameters_lie_as_a_kernel_has_them():
    launch = Launch(
        "f",
        (1, 1, 1),
        (256, 1, 1),
        0,
        (
            Number("uint32", 7),
            Operand(1, 16),
            Number("float32", 0.5),
            Number("float64", 0.25),
            Scratch(256),
            Number("float32", 1e300),
        ),
    )
    packed, offsets = launch.pack([1000, 2000], 4096)
    assert offsets == (0, 8, 16, 24, 32, 40)
    assert packed == struct.pack("<IxxxxQfxxxxdQf", 7, 2016, 0.5, 0.25, 4352, np.inf)

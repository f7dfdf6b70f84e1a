"""The CUDA of ops, compiled for the host, and all of it by nvcc.

That each op computes what it means is tested in tests/devices/test_op_matrix.py.
"""

from __future__ import annotations

import struct
import warnings

import numpy as np
import pytest
from cuda_compiler import HostCuda, compile_with_nvcc, run_source
from elementwise_cases import ATTRIBUTES, elementwise_source, sources_of_formulas
from family_cases import (
    CPU_ONLY,
    EXACT,
    all_cases,
    case,
    empty_cases,
    normal,
    outputs_of,
    source_of,
    sources_of_all,
)
from hypothesis import given, settings
from kernel_cases import check, check_convolution, convolutions, depthwise, pools

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cuda._sources import (
    Launch,
    Number,
    Operand,
    Scratch,
    _writer,
    cuda_source,
)
from memcfg.errors import KernelError
from memcfg.ops.sections import BESIDE


@pytest.fixture(scope="module")
def everything():
    return sources_of_all()


@pytest.fixture(scope="module")
def table(everything):
    return HostCuda(everything)


PLAIN = [
    kind.name
    for kind in ops.op_types()
    if kind.formula is None and kind.name not in (*CPU_ONLY, *BESIDE)
]


def test_the_mean_of_an_infinity_is_one(table):
    x = normal(70, 8)
    x[0, :3] = x[5, 2:5] = np.inf
    with np.errstate(invalid="ignore"):
        check(table, case("batch_moments", [x]))


@given(drawn=convolutions())
@settings(max_examples=25, deadline=None)
def test_convolutions(table, drawn):
    check_convolution(table, drawn)


@given(drawn=depthwise())
@settings(max_examples=8, deadline=None)
def test_depthwise_convolutions(table, drawn):
    check_convolution(table, drawn)


@given(drawn=pools())
@settings(max_examples=20, deadline=None)
def test_pools(table, drawn):
    a, shape, _ = drawn
    made = case("max_pool2d", [np.round(normal(*shape))], a)
    check(table, made, exact=True)
    y, index = outputs_of(made)
    dy = normal(*y.shape)
    check(table, case("max_pool2d_gradient", [index, dy], {**a, "input_shape": shape}))
    check(table, case("average_pool2d", [normal(*shape)], a))
    check(table, case("average_pool2d_gradient", [dy], {**a, "input_shape": shape}))


def test_operands_without_elements():
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        cases = empty_cases()
        sources = [source_of(each) for each in cases]
        table = HostCuda("".join({source.text: None for source in sources}))
        for each in cases:
            check(table, each, exact=each.op_type in EXACT)
    assert all(min(launch.grid) > 0 for each in sources for launch in each.launches)
    # NumPy's meaning of the others takes no empty operands.
    others = {"slice", "max_pool2d", "max_pool2d_inference", "average_pool2d"}
    others |= {"max_pool2d_at", "dequantize"}
    assert {each.op_type for each in cases} == set(PLAIN) - others


def test_large_operands_are_counted_in_64_bits(monkeypatch):
    """The same sources with the other type of indices, an op of each file."""
    monkeypatch.setattr(_writer, "_MOST_OF_32_BITS", 0)
    names = ("conv2d", "matmul", "norm", "argmax", "pad", "reverse", "split")
    chosen = [all_cases()[name][-1] for name in (*names, "average_pool2d", "gru")]
    text = "".join(source_of(each).text for each in chosen)
    assert "typedef unsigned long long Index" in text
    wide = HostCuda(text)
    for each in chosen:
        check(wide, each)


def test_a_source_is_the_same_for_other_lengths():
    one, other = (case("softmax", [normal(n, 10)]) for n in (3, 900))
    assert source_of(one).text == source_of(other).text
    assert source_of(one).launches != source_of(other).launches


def test_joined_sources_define_a_kernel_once():
    text = source_of(case("softmax", [normal(3, 10)])).text
    table = HostCuda(text + text)
    check(table, case("softmax", [normal(5, 7)]))


def test_operands_without_a_kernel():
    x, wide = OperandSpec((2, 3), "float32"), OperandSpec((2, 3), "float64")
    step, narrow = OperandSpec((), "int64"), OperandSpec((4,), "bfloat16")
    shape = {"shape": (4,)}
    for name, attributes, inputs, outputs, words in (
        ("softmax", {}, [wide], [wide], "inputs of float32, not"),
        ("argmax", {}, [x], [x], "has outputs .*int32"),
        ("reshape", {"shape": (6,)}, [x], [x], "has outputs"),
        ("reshape", {"shape": (5,)}, [x], [x], "cannot reshape"),
        ("reshape", {}, [x], [x], "needs the attribute 'shape'"),
        ("concatenate", {"axis": 0}, [x, wide], [x], "dtypes differ"),
        ("cast", {"dtype": "float16"}, [x], [x], "float16 is not one of"),
        ("dropout", {"rate": 2, "key": 0}, [x, step], [x], "rate 2 is not in"),
        ("constant", {"shape": (2, 3), "data": "00"}, [], [x], "2 digits"),
        ("bias", {}, [x], [x], "takes 2 inputs"),
        ("relu", {}, [wide], [x], "reads float32, not float64"),
        ("relu", {}, [x], [wide], "writes float32, not float64"),
        ("relu", {}, [x, x], [x], "takes 1 inputs"),
        ("no_such", {}, [x], [x], "unknown op type"),
        ("relu", {}, [narrow], [narrow], "relu' for CUDA takes no bfloat16"),
        ("reshape", shape, [narrow], [narrow], "reshape' for CUDA takes no bfloat16"),
        ("affine", {}, [x], [x], "needs the attribute"),
        ("adam", ATTRIBUTES, [x] * 6, [x, x, step], "several sizes|writes float32"),
    ):
        with pytest.raises(KernelError, match=words):
            cuda_source(name, attributes, inputs, outputs)


def test_a_users_op_without_an_expression_has_no_kernel():
    kind = ops.op_type("softmax")
    ops.register(ops.OpType("own", 1, kind.infer, kind.numpy))
    try:
        with pytest.raises(KernelError, match="no CUDA kernel of type 'own'"):
            cuda_source("own", {}, [], [])
    finally:
        ops.unregister("own")


def test_every_type_of_op_has_a_source():
    assert set(all_cases()) == set(PLAIN)


# Element-wise ops, whose sources are written from their expressions.


@pytest.fixture(scope="module")
def formulas():
    return sources_of_formulas()


def test_a_loop_of_more_elements_than_threads(formulas):
    x = np.arange(5_000_001, dtype=np.float32)
    (found,) = run_source("add", [x, x], [x.shape], text=formulas)
    np.testing.assert_array_equal(found, 2 * x)


def test_lengths_and_attributes_are_no_part_of_a_source():
    other = {**ATTRIBUTES, "beta_1": 0.5, "epsilon": 1e-3}
    assert (
        elementwise_source("adam", 7).text
        == elementwise_source("adam", 9000, other).text
    )
    assert elementwise_source("adam", 7).text.isascii()


def test_a_users_formula_has_a_source():
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


@pytest.mark.parametrize(
    ("architecture", "form"),
    [
        ("compute_80", "-ptx"),
        pytest.param("sm_80", "-cubin", marks=pytest.mark.slow),
        pytest.param("sm_90", "-cubin", marks=pytest.mark.slow),
    ],
)
@pytest.mark.always
def test_nvcc_compiles_all_sources(everything, architecture, form):
    assert compile_with_nvcc(everything + sources_of_formulas(), architecture, form)

"""Ops that move elements: native kernels and meanings against NumPy, gradients."""

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

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool", "float16")
LENGTHS = st.lists(st.integers(1, 5), max_size=5)


def numbers(shape, dtype="float32"):
    x = np.random.default_rng(0).permutation(np.prod(shape, dtype=int))
    return x.reshape(shape).astype(dtype)


def check(kind, x, attributes, wanted):
    """The op's shape, its meaning and its kernel against what NumPy gives."""
    builder = Builder("moved")
    tensor = builder.tensor("x", x.shape, x.dtype.name)
    (y,) = builder.apply(kind, (tensor,), attributes)
    assert builder.shape(y) == wanted.shape
    assert builder.dtype(y) == wanted.dtype == x.dtype
    meant = np.empty(wanted.shape, wanted.dtype)
    ops.op_type(kind).numpy(attributes, [x], [meant])
    np.testing.assert_array_equal(meant, wanted)
    (found,) = run_kernel(kind, [x], [wanted.shape], attributes, (), [x.dtype.name])
    np.testing.assert_array_equal(found, wanted)


@st.composite
def transpositions(draw):
    shape = draw(LENGTHS)
    return shape, {"axes": tuple(draw(st.permutations(range(len(shape)))))}


@st.composite
def slices(draw):
    begin, end, strides, shape = [], [], [], draw(LENGTHS)
    for length in shape:
        begin.append(draw(st.integers(0, length - 1)))
        end.append(draw(st.integers(begin[-1] + 1, length)))
        strides.append(draw(st.integers(1, 3)))
    a = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    return shape, a if draw(st.booleans()) else {"begin": a["begin"], "end": a["end"]}


@st.composite
def pads(draw):
    shape = draw(LENGTHS)
    a = {
        name: tuple(draw(st.integers(least, 3)) for _ in shape)
        for name, least in (("before", 0), ("after", 0), ("strides", 1))
    }
    return shape, {**a, "value": draw(st.sampled_from([0.0, 1.0]))}


@st.composite
def reversals(draw):
    shape = draw(LENGTHS)
    axes = draw(st.sets(st.sampled_from(range(len(shape))))) if shape else ()
    return shape, {
        "axes": tuple(axis - len(shape) * draw(st.booleans()) for axis in axes)
    }


@st.composite
def broadcasts(draw):
    wide = draw(LENGTHS)
    shape = [draw(st.sampled_from([1, length])) for length in wide]
    drop = draw(st.integers(0, len(wide)))
    return shape[drop:], {"shape": tuple(wide)}


def numpys_pad(x, a):
    spread = [(n - 1) * s + 1 for n, s in zip(x.shape, a["strides"], strict=True)]
    wide = np.full(spread, a["value"], x.dtype)
    wide[tuple(slice(None, None, s) for s in a["strides"])] = x
    widths = list(zip(a["before"], a["after"], strict=True))
    if not widths:
        return wide
    return np.pad(wide, widths, constant_values=np.array(a["value"], x.dtype))


def numpys_slice(x, a):
    strides = a.get("strides", [1] * x.ndim)
    return x[tuple(map(slice, a["begin"], a["end"], strides))]


CASES = {
    "transpose": (transpositions(), lambda x, a: np.transpose(x, a["axes"])),
    "slice": (slices(), numpys_slice),
    "pad": (pads(), numpys_pad),
    "reverse": (reversals(), lambda x, a: np.flip(x, a["axes"])),
    "broadcast_to": (broadcasts(), lambda x, a: np.broadcast_to(x, a["shape"])),
}


@pytest.mark.parametrize("kind", CASES)
def test_kernels_and_meanings(kind):
    strategy, numpys = CASES[kind]

    @given(drawn=strategy, dtype=st.sampled_from(DTYPES))
    @settings(max_examples=50, deadline=None)
    def run(drawn, dtype):
        shape, attributes = drawn
        if kind == "pad" and dtype == "float16":
            dtype = "float32"
        x = numbers(shape, dtype)
        check(kind, x, attributes, np.asarray(numpys(x, attributes)))

    run()


@pytest.mark.parametrize("kind", CASES)
def test_gradients(kind):
    strategy, _ = CASES[kind]

    @given(drawn=strategy)
    @settings(max_examples=12, deadline=None)
    def run(drawn):
        shape, attributes = drawn
        check_gradient(kind, [numbers(shape) / 8.0], attributes)

    run()


@pytest.mark.parametrize(
    ("kind", "shape", "attributes"),
    [
        ("transpose", (70, 900), {"axes": (1, 0)}),
        ("transpose", (4, 65, 3, 33), {"axes": (0, 2, 1, 3)}),
        ("transpose", (4, 65, 3, 33), {"axes": (3, 1, 0, 2)}),
        ("transpose", (33, 2, 40, 11), {"axes": (0, 3, 2, 1)}),
        ("reverse", (7, 4000, 2), {"axes": (1,)}),
        ("reverse", (30_000,), {"axes": (0,)}),
        ("broadcast_to", (), {"shape": (50_000,)}),
        ("broadcast_to", (500, 1), {"shape": (3, 500, 100)}),
        ("broadcast_to", (100,), {"shape": (3, 500, 100)}),
        ("slice", (50_000, 2), {"begin": (1, 0), "end": (49_000, 1)}),
    ],
)
def test_large_ones(kind, shape, attributes):
    x = numbers(shape)
    check(kind, x, attributes, np.asarray(CASES[kind][1](x, attributes)))


def test_what_does_not_fit():
    builder = Builder("moved")
    x = builder.tensor("x", (2, 3))
    for kind, attributes, words in (
        ("transpose", {"axes": (0, 0)}, "not a permutation"),
        ("slice", {"begin": (0, 0), "end": (2, 4)}, "slice: "),
        ("slice", {"begin": (0, 3), "end": (2, 3)}, "slice: "),
        ("slice", {"begin": (0,), "end": (2,)}, "begin"),
        ("slice", {"begin": (0, -1), "end": (2, 3)}, "below 0"),
        ("pad", {"before": (0, 0), "after": (0, 0), "strides": (1, 0)}, "below 1"),
        ("reverse", {"axes": (2,)}, "no axis 2"),
        ("broadcast_to", {"shape": (2, 4)}, "does not fit"),
        ("broadcast_to", {"shape": (3,)}, "does not fit"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, (x,), attributes)
    array = numbers((2, 3))
    for kind, shape, attributes, words in (
        ("transpose", (2, 3), {"axes": (1, 0)}, "permutation"),
        ("slice", (2, 3), {"begin": (0, 1)}, "lies in the input"),
        ("pad", (2, 3), {"before": (0, 1), "value": 0.0}, "holds the input"),
        ("reverse", (3, 2), {"axes": (0,)}, "keeps the shape"),
        ("reverse", (2, 3), {"axes": (2,)}, "no axis 2"),
        ("broadcast_to", (3, 3), {}, "equal or 1"),
        ("slice", (2, 3, 1), {"begin": (0, 1)}, "number of dimensions"),
    ):
        with pytest.raises(KernelError, match=words):
            run_kernel(kind, [array], [shape], attributes)

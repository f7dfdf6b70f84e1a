"""Inputs that kernels read packed: the same bits as of what packs them in each run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from family_cases import following_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Case, Room, check, execute, f32, normal
from kernels import make_packing, onednn

from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError

LEAST = 16384  # bytes


@pytest.fixture(scope="module")
def table():
    onednn()
    return kernel_table("onednn")


class Packing:
    """A table whose kernels read an input packed; it is packed before a run."""

    def __init__(self, table, algorithm=None):
        self._table = table
        self._algorithm = algorithm

    def make(self, *op):
        found = self._table.packing(*op, self._algorithm)
        assert found is not None

        def run(addresses, scratch):
            packed = Room(found.nbytes, 0xAA, 64)
            read = [addresses[operand] for operand in found.operands]
            found.pack.run([*read, packed.address], 0)
            packed.check_guards()
            own = list(addresses)
            own[found.operand] = packed.address
            before = packed.bytes.tobytes()
            found.kernel.run(own, scratch)
            assert packed.bytes.tobytes() == before
            packed.check_guards()

        return SimpleNamespace(run=run, scratch_bytes=found.kernel.scratch_bytes)


def specs(case):
    inputs = [OperandSpec(x.shape, "float32") for x in case.inputs]
    outputs = [OperandSpec(shape, dtype) for shape, dtype in case.outputs]
    return case.op_type, case.attributes, inputs, outputs


def check_in_place(found, case):
    """Compare with packing to another place, and come back to the same bits."""
    if found.unpack is None:
        assert not found.layout
        return
    kernel = case.inputs[found.operand]
    there, here = Room(found.nbytes, 0xAA, 64), Room(found.nbytes, 0x55, 64)
    here.bytes[: kernel.nbytes] = np.frombuffer(kernel.tobytes(), np.uint8)
    found.pack.run([here.address, there.address], 0)
    found.pack.run([here.address] * 2, 0)
    assert here.bytes.tobytes() == there.bytes.tobytes()
    found.unpack.run([here.address] * 2, 0)
    assert here.bytes[: kernel.nbytes].tobytes() == kernel.tobytes()
    here.bytes[:] = 0
    found.unpack.run([there.address, here.address], 0)
    assert here.bytes[: kernel.nbytes].tobytes() == kernel.tobytes()
    here.check_guards()
    there.check_guards()


def check_packing(table, case):
    """Compare with NumPy and, bit by bit, with the kernel that packs for itself."""
    if table.packing(*specs(case)) is None:
        return False
    check(Packing(table), case)
    check_in_place(table.packing(*specs(case)), case)
    assert execute(Packing(table), case, 0xFF, 64) == execute(table, case, 0xFF, 64)
    return True


@st.composite
def products(draw):
    """dense and what follows, or the gradient by x; a kernel has `LEAST` bytes."""
    k, n = draw(st.integers(20, 400)), draw(st.integers(20, 400))
    if 4 * k * n < LEAST:
        k = LEAST // (4 * n) + 1
    rows = draw(st.sampled_from([1, 2, 7, 16, 33, 100, 255]))
    x, kernel, bias = normal(rows, k), normal(k, n, seed=1), normal(n, seed=2)
    made = Case("dense", [x, kernel], [f32((rows, n))])
    kind = draw(st.sampled_from(["", "_bias", "following", "gradient"]))
    if kind == "following":
        return draw(st.sampled_from([*following_cases(made)]))
    if kind != "gradient":
        inputs = [x, kernel, bias] if kind else [x, kernel]
        return replace(made, op_type=f"dense{kind}", inputs=inputs)
    attributes = {"input_shape": (rows, k)}
    return Case(
        "dense_gradient_input", [kernel, normal(rows, n)], [f32((rows, k))], attributes
    )


@st.composite
def convolutions(draw):
    """conv2d and what follows, or the gradient by x; a kernel has `LEAST` bytes."""
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    size = draw(st.sampled_from([1, 2, 3]))
    channels = groups * draw(st.sampled_from([24, 32, 45, 64]))
    units = groups * draw(st.sampled_from([48, 64, 70]))
    units *= LEAST // (4 * size * size * channels // groups * units) + 1
    stride, n = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3]))
    length = size + draw(st.integers(0, 6))
    pad = draw(st.integers(0, 1))
    out = (length + 2 * pad - size) // stride + 1
    x, y = (n, length, length, channels), (n, out, out, units)
    kernel = (size, size, channels // groups, units)
    attributes = {
        "strides": (stride,) * 2,
        "padding": ((pad, pad),) * 2,
        "dilation": (1, 1),
        "groups": groups,
        "input_shape": x,
    }
    inputs = [normal(*x), normal(*kernel), normal(units)]
    made = Case("conv2d", inputs[:2], [f32(y)], attributes)
    kind = draw(st.sampled_from(["", "_bias", "following", "gradient"]))
    if kind == "following":
        return draw(st.sampled_from([*following_cases(made)]))
    if kind != "gradient":
        return replace(made, op_type=f"conv2d{kind}", inputs=inputs[: 3 if kind else 2])
    return Case(
        "conv2d_gradient_input", [normal(*kernel), normal(*y)], [f32(x)], attributes
    )


@given(case=products())
@settings(max_examples=60, deadline=None)
def test_a_product_keeps_every_promise(table, case):
    check_packing(table, case)


@given(case=convolutions())
@settings(max_examples=60, deadline=None)
def test_a_convolution_keeps_every_promise(table, case):
    check_packing(table, case)


def convolution(size, channels, units, n=1):
    attributes = {"strides": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1)}
    shape = (n, size, size)
    return Case(
        "conv2d",
        [normal(*shape, channels), normal(3, 3, channels, units)],
        [f32((*shape, units))],
        {**attributes, "groups": 1},
    )


def dense(rows, k, n):
    return Case("dense", [normal(rows, k), normal(k, n)], [f32((rows, n))])


def test_which_ones_are_packed(table):
    """Where the kernel is large and used for few rows."""
    assert check_packing(table, convolution(7, 64, 64))
    assert table.packing(*specs(convolution(7, 8, 8))) is None  # 2304 bytes
    assert table.packing(*specs(convolution(46, 64, 64))) is None  # 2116 pixels
    assert table.packing(*specs(dense(256, 256, 256))) is None  # rows
    assert table.packing(*specs(dense(1, 4096, 1))) is None  # one column is padded
    one = Case("add", [normal(64, 128)] * 2, [f32((64, 128))])
    assert table.packing(*specs(one)) is None


def test_each_algorithm_has_a_packing_of_its_own(table):
    case = convolution(7, 64, 64)
    for name in ("onednn", "brgemm", "direct"):
        found = table.packing(*specs(case), name)
        if found is None:  # it reads the kernel as it is
            continue
        assert found.kernel.algorithm == name
        naming = SimpleNamespace(make=lambda *op, name=name: table.make(*op, name))
        packed = execute(Packing(table, name), case, 0xFF, 64)
        assert packed == execute(naming, case, 0xFF, 64)
    assert table.packing(*specs(case), "reference") is None
    with pytest.raises(KernelError, match="no algorithm"):
        table.packing(*specs(case), "nothing")


def test_operands_and_bytes(table):
    found = table.packing(*specs(convolution(7, 64, 64)))
    assert found.operand == 1
    assert found.nbytes >= 4 * 3 * 3 * 64 * 64
    assert found.pack.kernel.operands == [(147456, False), (found.nbytes, True)]
    assert found.kernel.kernel.operands[1] == (found.nbytes, False)
    assert found.pack.scratch_bytes == 0
    in_each_run = table.make(*specs(convolution(7, 64, 64)))
    assert in_each_run.scratch_bytes >= found.kernel.scratch_bytes + found.nbytes


def test_a_normalised_kernel_is_packed_as_it_is(table):
    made = convolution(7, 64, 64)
    normalized = next(
        each for each in following_cases(made) if "_batch_normalization" in each.op_type
    )
    plain, found = table.packing(*specs(made)), table.packing(*specs(normalized))
    assert (found.operands, found.nbytes) == (plain.operands, plain.nbytes)
    assert found.layout == plain.layout != ""
    assert found.pack.scratch_bytes == 0
    assert found.kernel.kernel.operands[1] == (found.nbytes, False)
    assert check_packing(table, normalized)


def test_what_does_not_fit_is_refused(table):
    case = convolution(7, 64, 64)
    bad = replace(case, outputs=[f32((1, 7, 8, 64))])
    with pytest.raises(KernelError):
        table.packing(*specs(bad))
    assert make_packing(*specs(case), None) is None  # no library, no layouts
    assert kernel_table("reference").packing(*specs(case)) is None

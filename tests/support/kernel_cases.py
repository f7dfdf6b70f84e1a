"""Cases for kernels, and the promises of every kernel: each byte of an output is
written, none is read before, nothing else is touched, and the bits depend on the inputs
alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from memcfg import ops
from memcfg.devices import OperandSpec

GUARD = 64  # bytes on either side of an operand that must stay as they were


@dataclass
class Case:
    """One op with its inputs. `pairs`: output -> input that share their memory."""

    op_type: str
    inputs: list[np.ndarray]
    outputs: list[tuple[tuple[int, ...], str]]
    attributes: dict = field(default_factory=dict)
    pairs: dict[int, int] = field(default_factory=dict)

    def reference(self):
        """The outputs by the reference, in float64."""
        inputs = [
            np.asarray(x, np.float64) if x.dtype == np.float32 else x.copy()
            for x in self.inputs
        ]
        outputs = [
            np.zeros(shape, np.float64 if dtype == "float32" else dtype)
            for shape, dtype in self.outputs
        ]
        ops.op_type(self.op_type).numpy(self.attributes, inputs, outputs)
        return outputs


class Room:
    """Bytes at a chosen distance from a 4096-byte boundary, between guards."""

    def __init__(self, nbytes: int, garbage: int, distance: int):
        self.base = np.full(nbytes + 2 * GUARD + distance + 8192, garbage, np.uint8)
        self.start = -self.base.ctypes.data % 4096 + 4096 + distance
        self.nbytes = nbytes
        self.garbage = garbage

    @property
    def address(self) -> int:
        return self.base.ctypes.data + self.start

    @property
    def bytes(self) -> np.ndarray:
        return self.base[self.start : self.start + self.nbytes]

    def check_guards(self):
        before = self.base[: self.start]
        after = self.base[self.start + self.nbytes :]
        assert (before == self.garbage).all()
        assert (after == self.garbage).all()


def execute(table, case: Case, garbage: int, distance: int):
    """Run with outputs and scratch full of `garbage`; return the outputs' bytes."""
    specs = [OperandSpec(x.shape, x.dtype.name) for x in case.inputs]
    out_specs = [OperandSpec(shape, dtype) for shape, dtype in case.outputs]
    made = table.make(case.op_type, case.attributes, specs, out_specs)
    rooms = [Room(x.nbytes, garbage, distance) for x in case.inputs]
    for room, x in zip(rooms, case.inputs, strict=True):
        room.bytes[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    outs = [
        rooms[case.pairs[i]]
        if i in case.pairs
        else Room(spec.nbytes, garbage, 2 * distance)
        for i, spec in enumerate(out_specs)
    ]
    scratch = Room(made.scratch_bytes, garbage, 3 * distance)
    made.run([room.address for room in [*rooms, *outs]], scratch.address)
    for room in [*rooms, *outs, scratch]:
        room.check_guards()
    for i, (room, x) in enumerate(zip(rooms, case.inputs, strict=True)):
        if i not in case.pairs.values():
            assert room.bytes.tobytes() == x.tobytes(), f"input {i} was changed"
    return [room.bytes.tobytes() for room in outs]


def check(table, case: Case, exact: bool = False):
    """Compare with the reference; run twice over different garbage elsewhere."""
    found = execute(table, case, 0xFF, 64)  # 0xFFFFFFFF is a NaN
    again = execute(table, case, 0x5A, 0)
    assert found == again, "the bits depend on something else than the inputs"
    for i, (shape, dtype) in enumerate(case.outputs):
        output = np.frombuffer(found[i], dtype).reshape(shape)
        expected = case.reference()[i]
        if exact or dtype != "float32":
            np.testing.assert_array_equal(output, expected.astype(dtype))
        else:
            finite = np.isfinite(expected)
            scale = np.abs(expected).max(initial=1e-30, where=finite)
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5 * scale)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def f32(shape):
    return (tuple(shape), "float32")


@st.composite
def convolutions(draw):
    """Shapes and attributes of a convolution; channels are rarely multiples of 8."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.sampled_from([1, 2, 3, 5, 8, 13, 16, 17]))
    units = groups * draw(st.sampled_from([1, 2, 3, 6, 8, 11, 16, 24]))
    return _window_attributes(draw, groups, channels, units)


@st.composite
def depthwise(draw):
    groups = draw(st.integers(2, 20))
    return _window_attributes(draw, groups, groups, groups * draw(st.integers(1, 2)))


def _window_attributes(draw, groups, channels, units):
    kernel = tuple(draw(st.integers(1, 5)) for _ in range(2))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(2))
    dilation = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(2))
    padding = tuple(tuple(draw(st.integers(0, 3)) for _ in range(2)) for _ in range(2))
    size, out = [], []
    for k, s, d, p in zip(kernel, strides, dilation, padding, strict=True):
        reach = (k - 1) * d + 1
        length = max(reach - sum(p), 1) + draw(st.integers(0, 8))
        size.append(length)
        out.append((length + sum(p) - reach) // s + 1)
    batch = draw(st.sampled_from([1, 2, 5]))
    attributes = {
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    x = (batch, *size, channels)
    weights = (*kernel, channels // groups, units)
    return attributes, x, weights, (batch, *out, units)


def check_convolution(table, drawn):
    a, x, kernel, y = drawn
    for op_type, inputs, output in (
        ("conv2d", (x, kernel), y),
        ("conv2d_gradient_kernel", (x, y), kernel),
        ("conv2d_gradient_input", (kernel, y), x),
    ):
        arrays = [normal(*shape, seed=i) for i, shape in enumerate(inputs)]
        more = {**a, "kernel_shape": kernel, "input_shape": x}
        check(table, Case(op_type, arrays, [f32(output)], more))


@st.composite
def pools(draw):
    size = tuple(draw(st.integers(1, 4)) for _ in range(2))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(2))
    padding = tuple(tuple(draw(st.integers(0, k - 1)) for _ in range(2)) for k in size)
    shape = tuple(k + draw(st.integers(0, 7)) for k in size)
    out = tuple(
        (length + sum(p) - k) // s + 1
        for length, p, k, s in zip(shape, padding, size, strides, strict=True)
    )
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 19))
    a = {"pool_size": size, "strides": strides, "padding": padding}
    return a, (batch, *shape, channels), (batch, *out, channels)


# Channels below, at and above one period of the column loops, and long columns.
ROWS = [(1, 1), (7, 3), (64, 10), (5, 63), (9, 64), (3, 65), (2, 700), (40000, 6)]

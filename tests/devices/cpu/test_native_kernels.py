"""The native kernels against the reference, and the promises of every kernel."""

from __future__ import annotations

from math import prod

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    ROWS,
    Case,
    Room,
    check,
    check_convolution,
    convolutions,
    depthwise,
    execute,
    f32,
    normal,
    pools,
)

from memcfg import ops
from memcfg.devices import CpuDevice, OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError, MissingDependencyError
from memcfg.ops.sections import BESIDE


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


@given(drawn=convolutions())
@settings(max_examples=60, deadline=None)
def test_convolutions(table, drawn):
    check_convolution(table, drawn)


@given(drawn=depthwise())
@settings(max_examples=15, deadline=None)
def test_depthwise_convolutions(table, drawn):
    check_convolution(table, drawn)


@pytest.mark.parametrize(
    "shape", [(64, 14, 14, 6, 5, 16), (8, 8, 8, 16, 3, 32), (2, 32, 32, 32, 3, 32)]
)
def test_convolutions_of_usual_size(table, shape):
    n, h, w, c, k, o = shape
    a = {
        "strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "groups": 1,
    }
    out = (n, h + 3 - k, w + 3 - k, o)
    check_convolution(table, (a, (n, h, w, c), (k, k, c, o), out))


@given(
    lead=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    k=st.sampled_from([1, 3, 8, 31, 400]),
    n=st.sampled_from([1, 5, 10, 16, 33]),
)
@settings(max_examples=30, deadline=None)
def test_dense(table, lead, k, n):
    check_dense(table, lead, k, n)


def test_dense_that_is_computed_in_blocks(table):
    check_dense(table, [300], 270, 520)


def check_dense(table, lead, k, n):
    x, kernel = normal(*lead, k), normal(k, n, seed=1)
    dy = normal(*lead, n, seed=2)
    check(table, Case("dense", [x, kernel], [f32(dy.shape)]))
    check(table, Case("dense_gradient_kernel", [x, dy], [f32(kernel.shape)]))
    check(table, Case("dense_gradient_input", [kernel, dy], [f32(x.shape)]))


@given(drawn=pools(), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_pools(table, drawn, seed):
    a, x_shape, y_shape = drawn
    # small integers: ties are common, and sums are exact
    x = np.random.default_rng(seed).integers(-3, 3, x_shape).astype(np.float32)
    outputs = [f32(y_shape), (y_shape, "uint8")]
    check(table, Case("max_pool2d", [x], outputs, a), exact=True)
    check(table, Case("max_pool2d_inference", [x], outputs[:1], a), exact=True)
    check(table, Case("average_pool2d", [x], outputs[:1], a))
    dy = normal(*y_shape, seed=1)
    index = Case("max_pool2d", [x], outputs, a).reference()[1]
    check(table, Case("max_pool2d_gradient", [index, dy], [f32(x_shape)], a))
    other = normal(*x_shape, seed=2)
    check(table, Case("max_pool2d_at", [index, other], outputs[:1], a), exact=True)
    check(table, Case("average_pool2d_gradient", [dy], [f32(x_shape)], a))


def test_max_pool_takes_the_first_nan(table):
    x = np.zeros((1, 4, 4, 5), np.float32)
    x[0, 0, 1], x[0, 1, 0], x[0, 2, 2] = np.nan, np.nan, np.inf
    a = {"pool_size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}
    shape = (1, 2, 2, 5)
    check(table, Case("max_pool2d", [x], [f32(shape), (shape, "uint8")], a), exact=True)


def test_max_pool_windows_of_256_places_and_no_more(table):
    x = normal(1, 16, 17, 3)
    a = {"pool_size": (16, 16), "strides": (1, 1), "padding": ((0, 0), (0, 0))}
    shape = (1, 1, 2, 3)
    check(table, Case("max_pool2d", [x], [f32(shape), (shape, "uint8")], a), exact=True)
    a["pool_size"], shape = (16, 17), (1, 1, 1, 3)
    case = Case("max_pool2d", [x], [f32(shape), (shape, "uint8")], a)
    with pytest.raises(KernelError, match="256 places"):
        execute(table, case, 0, 0)


@given(batch=st.integers(1, 3), h=st.integers(1, 9), c=st.sampled_from([1, 6, 32, 70]))
@settings(max_examples=20, deadline=None)
def test_global_average_pool(table, batch, h, c):
    x, dy = normal(batch, h, 5, c), normal(batch, c, seed=1)
    check(table, Case("global_average_pool2d", [x], [f32(dy.shape)]))
    check(table, Case("global_average_pool2d_gradient", [dy], [f32(x.shape)]))


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_bias(table, shape, in_place):
    x, b = normal(*shape), normal(shape[1], seed=1)
    pairs = {0: 0} if in_place else {}
    check(table, Case("bias", [x, b], [f32(shape)], {}, pairs))
    check(table, Case("bias_gradient", [x], [f32(shape[1:])]))


@pytest.mark.parametrize("shape", [(2, 1), *ROWS[1:]], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_batch_normalization(table, shape, in_place):
    a, c = {"epsilon": 1e-3}, shape[1:]
    x = normal(*shape) + 3
    gamma, beta = normal(*c, seed=1), normal(*c, seed=2)
    pairs = {0: 0} if in_place else {}
    moments = Case("batch_moments", [x], [f32(c)] * 2)
    check(table, moments)
    mean, variance = (v.astype(np.float32) for v in moments.reference())
    for kind in ("batch_normalization", "batch_normalization_inference"):
        inputs = [x, gamma, beta, mean, variance]
        check(table, Case(kind, inputs, [f32(shape)], a, pairs))
    check(
        table,
        Case(
            "batch_normalization_gradient",
            [x, normal(*shape, seed=3), gamma, mean, variance],
            [f32(shape), f32(c), f32(c)],
            a,
            {0: 1} if in_place else {},
        ),
    )


@pytest.mark.parametrize("channels", [1, 3, 700])
@pytest.mark.parametrize("kernel", ["native", "reference"])
def test_one_value_a_channel_has_no_gradient(table, channels, kernel):
    """One value is its own mean: whatever it is, the output is beta."""
    shape, c = (1, channels), (channels,)
    x, dy, gamma = (normal(*shape, seed=s) for s in range(3))
    case = Case(
        "batch_normalization_gradient",
        [x, dy, gamma.reshape(c), x.reshape(c), np.zeros(c, np.float32)],
        [f32(shape), f32(c), f32(c)],
        {"epsilon": 1e-3},
    )
    if kernel == "native":
        dx, dgamma, dbeta = (
            np.frombuffer(each, np.float32) for each in execute(table, case, 0xFF, 64)
        )
    else:
        dx, dgamma, dbeta = outputs = [np.empty(s, t) for s, t in case.outputs]
        ops.op_type(case.op_type).numpy(case.attributes, case.inputs, outputs)
    assert not dx.any()
    assert not dgamma.any()
    np.testing.assert_array_equal(dbeta.ravel(), dy.ravel())


def test_batch_normalization_far_from_zero(table):
    """The variance of values near 1000 is not lost to cancellation."""
    case = Case("batch_moments", [1000 + normal(5000, 3)], [f32((3,))] * 2)
    variance = np.frombuffer(execute(table, case, 0xFF, 64)[1], np.float32)
    np.testing.assert_allclose(variance, case.reference()[1], rtol=1e-3)


COUNTS = [1, 7, 64, 1000, 8192, 50001]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize(("key", "step"), [(0, 0), (2**63 - 1, 2**40 + 9)])
def test_dropout_agrees_bit_for_bit(table, count, rate, key, step):
    x, a = normal(count), {"rate": rate, "key": key}
    inputs = [x, np.array(step, np.int64)]
    for pairs in ({}, {0: 0}):
        case = Case("dropout", inputs, [f32((count,))], a, pairs)
        expected = np.empty_like(x)
        ops.op_type("dropout").numpy(a, inputs, [expected])
        found = np.frombuffer(execute(table, case, 0xFF, 64)[0], np.float32)
        np.testing.assert_array_equal(found, expected)
        assert execute(table, case, 0x5A, 0) == [found.tobytes()]


@given(rows=st.integers(1, 70), classes=st.integers(1, 40), spread=st.floats(0, 60))
@settings(max_examples=30, deadline=None)
def test_softmax_cross_entropy(table, rows, classes, spread):
    logits = normal(rows, classes) * np.float32(spread)
    labels = np.random.default_rng(1).integers(0, classes, rows).astype(np.int32)
    out = [f32(()), f32(logits.shape)]
    inputs = [logits, labels]
    for pairs in ({}, {1: 0}):
        check(table, Case("softmax_cross_entropy", inputs, out, {}, pairs))
    check(table, Case("softmax_cross_entropy_inference", inputs, out[:1]))
    check(table, Case("correct_count", inputs, out[:1]), exact=True)
    p = Case("softmax_cross_entropy", inputs, out).reference()[1].astype(np.float32)
    for pairs in ({}, {0: 0}):
        op_type = "softmax_cross_entropy_gradient"
        check(table, Case(op_type, [p, labels], out[1:], {}, pairs))


@pytest.mark.parametrize("label", [-1, 10, -(2**31), 2**31 - 1])
def test_a_label_out_of_range_makes_the_loss_nan_and_reads_nothing(table, label):
    labels = np.array([1, label, 2], np.int32)
    case = Case("softmax_cross_entropy", [normal(3, 10), labels], [f32(())])
    case.outputs.append(f32((3, 10)))
    loss = np.frombuffer(execute(table, case, 0, 0)[0], np.float32)
    assert np.isnan(loss).all()
    check(table, Case("softmax_cross_entropy_gradient", case.inputs, [f32((3, 10))]))


def test_ties_and_nan_in_the_count_of_correct_rows(table):
    logits = np.zeros((4, 3), np.float32)
    logits[1, 2] = np.nan
    logits[2, 1:] = 5
    labels = np.array([0, 2, 1, 1], np.int32)
    case = Case("correct_count", [logits, labels], [f32(())])
    assert case.reference()[0] == 3
    check(table, case, exact=True)


def execute_in_program(table, case: Case, threads: int):
    """Run in an arena on so many threads; nothing but operands may be touched."""
    specs = [OperandSpec(x.shape, x.dtype.name) for x in case.inputs]
    out_specs = [OperandSpec(shape, dtype) for shape, dtype in case.outputs]
    made = table.make(case.op_type, case.attributes, specs, out_specs)
    offsets, sizes, end = [], [], 64
    for nbytes in [*(s.nbytes for s in [*specs, *out_specs]), made.scratch_bytes]:
        offsets.append(end)
        sizes.append(nbytes)
        end += -(-nbytes // 64) * 64 + 64
    with_scratch = offsets.pop(), sizes.pop()
    device = CpuDevice("/device:CPU:0")
    arena = device.pool.arena(tag="test")
    arena.grow(end)
    view = np.frombuffer(arena, np.uint8)
    view[:] = 0xFF
    for offset, x in zip(offsets, case.inputs, strict=False):
        view[offset : offset + x.nbytes] = x.reshape(-1).view(np.uint8)
    program = device.program(arena, {})
    bound = made.instruction()
    program.compute(bound, offsets, sizes, with_scratch[0])
    with machine.threads(threads):
        program.run()
    outside = np.ones(end, bool)
    for offset, nbytes in [*zip(offsets, sizes, strict=True), with_scratch]:
        outside[offset : offset + nbytes] = False
    assert (view[outside] == 0xFF).all()
    starts = offsets[len(specs) :]
    return [
        view[offset : offset + spec.nbytes].tobytes()
        for offset, spec in zip(starts, out_specs, strict=True)
    ]


@pytest.mark.parametrize("op_type", ["bias_gradient", "batch_moments"])
def test_own_sums_have_the_same_bits_on_any_number_of_threads(table, op_type):
    outputs = [f32((6,))] * (2 if op_type == "batch_moments" else 1)
    case = Case(op_type, [normal(50000, 6)], outputs)
    first, *others = [execute_in_program(table, case, n) for n in (1, 2, 3, 7)]
    assert all(other == first for other in others)


@given(drawn=convolutions())
@settings(max_examples=15, deadline=None)
def test_convolutions_on_more_threads_than_they_were_made_for(table, drawn):
    a, x, kernel, y = drawn
    for op_type, inputs, output in (
        ("conv2d", (x, kernel), y),
        ("conv2d_gradient_kernel", (x, y), kernel),
        ("conv2d_gradient_input", (kernel, y), x),
    ):
        arrays = [normal(*shape, seed=i) for i, shape in enumerate(inputs)]
        case = Case(op_type, arrays, [f32(output)], a)
        expected = case.reference()[0]
        for threads in (1, 5):
            found = np.frombuffer(
                execute_in_program(table, case, threads)[0], np.float32
            )
            np.testing.assert_allclose(
                found.reshape(output),
                expected,
                rtol=1e-4,
                atol=1e-5 * np.abs(expected).max(initial=1e-30),
            )


def test_one_kernel_serves_many_places(table):
    """The same kernel, run at one address after another."""
    x, kernel = normal(4, 6), normal(6, 3, seed=1)
    specs = [OperandSpec(v.shape, "float32") for v in (x, kernel)]
    made = table.make("dense", {}, specs, [OperandSpec((4, 3), "float32")])
    bound = made.instruction()
    scratch = Room(made.scratch_bytes, 0, 0)
    for distance in (0, 64, 128):
        rooms = [Room(v.nbytes, 0, distance) for v in (x, kernel)]
        for room, v in zip(rooms, (x, kernel), strict=True):
            room.bytes[:] = v.reshape(-1).view(np.uint8)
        y = Room(48, 0xFF, distance)
        bound.run([room.address for room in [*rooms, y]], scratch.address)
        found = y.bytes.view(np.float32).reshape(4, 3)
        np.testing.assert_allclose(found, x @ kernel, rtol=1e-5)


@pytest.mark.parametrize(
    "op_type",
    [kind.name for kind in ops.op_types() if kind.name not in BESIDE],
)
def test_every_type_of_op_has_a_native_kernel(table, op_type):
    """Without operands each is refused, but none as unknown, unless Python runs it."""
    with pytest.raises(KernelError, match=f"kernel '{op_type}'"):
        table.make(op_type, {}, [], [])


def test_unknown_types_and_wrong_operands_are_refused(table):
    spec = OperandSpec((2, 3), "float32")
    with pytest.raises(KernelError, match="no kernel of type 'nothing'"):
        table.make("nothing", {}, [spec], [spec])
    with pytest.raises(KernelError, match="float64"):
        table.make("relu", {}, [OperandSpec((2, 3), "float64")], [spec])
    with pytest.raises(KernelError, match="inputs"):
        table.make("add", {}, [spec], [spec])
    step = OperandSpec((), "int64")
    with pytest.raises(KernelError, match="'dropout' needs 0 <= rate <= 1"):
        table.make("dropout", {"rate": 1.5, "key": 0}, [spec, step], [spec])
    for attributes, words in (
        ({"rate": 0.5}, "'dropout' needs the attribute 'key'"),
        ({"rate": 0.5, "key": -1}, "'dropout' needs key >= 0"),
        ({"rate": 0.5, "key": 0.5}, "'dropout' needs a whole number 'key'"),
        ({"rate": "a", "key": 0}, "'dropout' needs a number 'rate'"),
        ({"rate": (0.5,), "key": 0}, "attribute 'rate' is \\(0.5,\\)"),
        ({"rate": 0.5, "key": 2**70}, "attribute 'key'"),
        ({"rate": object(), "key": 0}, "attribute 'rate'"),
    ):
        with pytest.raises(KernelError, match=words):
            table.make("dropout", attributes, [spec, step], [spec])
    with pytest.raises(KernelError, match="operands of 24 12 24 bytes, got 24 24 24"):
        table.make("bias", {}, [spec, spec], [spec])
    for shape in ((0, 3), (2**40, 2**40)):
        with pytest.raises(KernelError, match=r"dimensions >= 1|too large a shape"):
            table.make("relu", {}, [OperandSpec(shape, "float32")], [spec])


def test_an_output_that_does_not_fit_its_windows_is_refused(table):
    a = {
        "strides": (1, 1),
        "padding": ((0, 0), (0, 0)),
        "dilation": (1, 1),
        "groups": 1,
        "pool_size": (2, 2),
    }
    x, kernel = (
        OperandSpec((1, 4, 4, 1), "float32"),
        OperandSpec((2, 2, 1, 1), "float32"),
    )
    with pytest.raises(KernelError, match="output shape"):
        table.make("conv2d", a, [x, kernel], [x])
    with pytest.raises(KernelError, match="output shape"):
        table.make("average_pool2d", a, [x], [x])


def test_operand_sizes():
    spec = OperandSpec((2, 3), "int64")
    assert spec.size == prod((2, 3))
    assert spec.nbytes == 48
    assert OperandSpec((), "float32").nbytes == 4

"""What oneDNN offers for a convolution: listed by name, with its scratch, and run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import random_values
from kernel_cases import Case, check, convolutions, depthwise, execute, f32, normal
from kernels import list_algorithms, onednn
from networks import chain

from memcfg import plan as planning
from memcfg.devices import CpuDevice, OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError
from memcfg.graph import Builder, fuse_ops
from memcfg.runtime import Executor
from memcfg.units import align_up

NAMES = ["onednn", "brgemm", "direct"]
PLAIN = {
    "strides": (1, 1),
    "padding": ((1, 1), (1, 1)),
    "dilation": (1, 1),
    "groups": 1,
}


@pytest.fixture(scope="module")
def library():
    return onednn()


@pytest.fixture(scope="module")
def table(library):
    return kernel_table("onednn")


@pytest.fixture
def device(library, monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    return CpuDevice("/device:CPU:0")


class Naming:
    """A table that makes one algorithm."""

    def __init__(self, table, algorithm):
        self._table = table
        self._algorithm = algorithm

    def make(self, *op):
        made = self._table.make(*op, self._algorithm)
        assert made.algorithm == self._algorithm
        return made


def cases(drawn):
    """A drawn convolution and its gradients."""
    a, x, kernel, y = drawn
    more = {**a, "kernel_shape": kernel, "input_shape": x}
    for op_type, inputs, output in (
        ("conv2d", (x, kernel), y),
        ("conv2d_gradient_kernel", (x, y), kernel),
        ("conv2d_gradient_input", (kernel, y), x),
    ):
        arrays = [normal(*shape, seed=i) for i, shape in enumerate(inputs)]
        yield Case(op_type, arrays, [f32(output)], more)


def op_of(case):
    inputs = [OperandSpec(x.shape, "float32") for x in case.inputs]
    outputs = [OperandSpec(shape, dtype) for shape, dtype in case.outputs]
    return case.op_type, case.attributes, inputs, outputs


def native_names(table, op):
    *names, last = [name for name, _, _ in table.algorithms(*op)]
    assert last == "reference"
    return names


def check_all(table, drawn):
    for case in cases(drawn):
        op = op_of(case)
        for name in native_names(table, op):
            check(Naming(table, name), case)


def convolution(n, size, channels, units, window=3, stride=1):
    pad = window // 2
    a = {**PLAIN, "strides": (stride,) * 2, "padding": ((pad, pad),) * 2}
    out = (size + 2 * pad - window) // stride + 1
    x, y = (n, size, size, channels), (n, out, out, units)
    return a, x, (window, window, channels, units), y


@given(drawn=convolutions())
@settings(max_examples=60, deadline=None)
def test_each_algorithm_keeps_every_promise(table, drawn):
    check_all(table, drawn)


@given(drawn=depthwise())
@settings(max_examples=20, deadline=None)
def test_so_it_does_of_depthwise_convolutions(table, drawn):
    check_all(table, drawn)


@st.composite
def windows_of_one_pixel(draw):
    """Where oneDNN gathers what it reads; strides often divide the image."""
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    channels, units = (
        groups * draw(st.sampled_from([1, 2, 3, 5, 7, 8, 12, 16, 17, 24, 32, 40, 64]))
        for _ in range(2)
    )
    strides = tuple(draw(st.integers(1, 3)) for _ in range(2))
    out = tuple(draw(st.integers(1, 7)) for _ in range(2))
    size = tuple(
        (n - 1) * s + 1 + draw(st.integers(0, s - 1))
        for n, s in zip(out, strides, strict=True)
    )
    n = draw(st.integers(1, 3))
    a = {**PLAIN, "strides": strides, "padding": ((0, 0),) * 2, "groups": groups}
    kernel = (1, 1, channels // groups, units)
    return a, (n, *size, channels), kernel, (n, *out, units)


@given(drawn=windows_of_one_pixel())
@settings(max_examples=60, deadline=None)
def test_so_it_does_of_windows_of_one_pixel(table, drawn):
    check_all(table, drawn)


@pytest.mark.parametrize("channels", [1, 3, 7, 12, 16, 17])
@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3, 3)])
@pytest.mark.parametrize("size", [(12, 18), (8, 6), (7, 5)])
def test_windows_of_one_pixel_a_stride_apart(table, channels, strides, size):
    """For few channels oneDNN would write behind its scratch."""
    a = {**PLAIN, "strides": strides, "padding": ((0, 0),) * 2}
    out = [(n - 1) // step + 1 for n, step in zip(size, strides, strict=True)]
    check_all(table, (a, (3, *size, channels), (1, 1, channels, 4), (3, *out, 4)))


@pytest.mark.parametrize(
    "shape",
    [(8, 14, 32, 32), (4, 12, 16, 64, 1), (4, 12, 32, 16, 1, 2), (2, 20, 3, 8, 7, 2)],
)
def test_usual_shapes(table, shape):
    check_all(table, convolution(*shape))


def test_what_is_listed_is_what_is_made(table):
    for case in cases(convolution(2, 8, 16, 32)):
        rows = table.algorithms(*op_of(case))
        names = [name for name, _, _ in rows]
        assert names[0] == table.make(*op_of(case)).algorithm == "onednn"
        ours = ["im2col", "im2col/1"]
        assert names == [n for n in (*NAMES, *ours, "reference") if n in names]
        assert "im2col/1" in names
        assert "direct" in names
        for name, scratch, seconds in rows:
            made = table.make(*op_of(case), name)
            assert (made.algorithm, made.scratch_bytes) == (name, scratch)
            assert seconds == 0


def test_scratch_has_the_kernel_as_it_is_packed(table):
    """A multiple of 16 channels: nothing is padded, and nothing else is kept."""
    op = op_of(next(cases(convolution(2, 8, 16, 32))))
    scratch = {name: nbytes for name, nbytes, _ in table.algorithms(*op)}
    assert scratch["direct"] == 3 * 3 * 16 * 32 * 4


@pytest.mark.parametrize("name", ["winograd", "gemm", "Direct", "", "native"])
def test_another_name_is_refused(table, name):
    for case in cases(convolution(2, 8, 16, 32)):
        with pytest.raises(KernelError, match=f"no algorithm '{name}'"):
            table.make(*op_of(case), name)


def test_an_op_that_cannot_be_has_no_list(table, library):
    a, x, kernel, _ = convolution(2, 8, 16, 32)
    specs = [OperandSpec(shape, "float32") for shape in (x, kernel, (2, 9, 8, 32))]
    op = ("conv2d", a, specs[:2], specs[2:])
    with pytest.raises(KernelError, match="output shape"):
        table.algorithms(*op)
    with pytest.raises(KernelError, match="needs oneDNN"):
        list_algorithms(*op, None)
    with pytest.raises(KernelError, match="no kernel of type 'nothing'"):
        table.algorithms("nothing", {}, [], [])


# -- columns, and parts of the batch -----------------------------------------


def of_kind(drawn, kind):
    return next(case for case in cases(drawn) if case.op_type == kind)


def test_columns_have_the_bytes_of_all_windows(table):
    """Images x windows x pixels of a window x channels, in float32."""
    case = of_kind(convolution(8, 12, 5, 24), "conv2d")
    scratch = {name: nbytes for name, nbytes, _ in table.algorithms(*op_of(case))}
    for images in (8, 4, 2, 1):
        name = "im2col" if images == 8 else f"im2col/{images}"
        columns = align_up(images * 12 * 12 * 3 * 3 * 5 * 4)
        assert columns <= scratch[name] < columns + 70_000  # and the product's own


def test_pixels_that_are_read_in_order_are_their_own_columns(table):
    for case in cases(convolution(8, 14, 32, 128, window=1)):
        names = native_names(table, op_of(case))
        assert names[-1] == "im2col"  # and no parts of the batch
    rows = table.algorithms(*op_of(of_kind(convolution(8, 14, 32, 128, 1), "conv2d")))
    assert dict(row[:2] for row in rows)["im2col"] < 8 * 14 * 14 * 32 * 4


def test_columns_beyond_64_mib_are_not_listed(table):
    case = of_kind(convolution(8, 112, 64, 8), "conv2d")
    rows = {name: nbytes for name, nbytes, _ in table.algorithms(*op_of(case))}
    assert "im2col" not in rows
    assert "im2col/2" in rows
    assert "im2col/4" not in rows
    assert table.make(*op_of(case), "im2col/4").scratch_bytes > 64 << 20


def test_groups_have_no_columns(table):
    a, x, _, y = convolution(4, 8, 16, 32)
    drawn = {**a, "groups": 2}, x, (3, 3, 8, 32), y
    for case in cases(drawn):
        assert not any("im2col" in name for name in native_names(table, op_of(case)))


@st.composite
def divisible(draw):
    """A convolution whose batch has parts that end on lines of 64 bytes."""
    window = draw(st.sampled_from([1, 2, 3, 5]))
    stride = draw(st.integers(1, 2))
    size = draw(st.integers(window, 10))
    channels, units = (draw(st.sampled_from([16, 32, 48, 64])) for _ in range(2))
    n = draw(st.sampled_from([2, 4, 6, 8]))
    return convolution(n, size, channels, units, window, stride)


@given(drawn=divisible())
@settings(max_examples=60, deadline=None)
def test_parts_of_any_size_give_the_values_of_the_whole(table, drawn):
    images = drawn[1][0]
    for case in cases(drawn):
        for name in native_names(table, op_of(case)):
            if "/" in name:
                continue
            for part in (k for k in range(1, images) if images % k == 0):
                divided = f"{name}/{part}"
                check(Naming(table, divided), case)


@pytest.mark.parametrize(
    "name",
    [
        *("im2col/", "im2col/0", "im2col/08", "im2col/3", "im2col/8", "im2col/16"),
        *("im2col/2/2", "im2col/-2", "im2col/2x", "/2", "winograd/2", "im2col/2 "),
    ],
)
def test_parts_that_do_not_divide_the_batch_are_refused(table, name):
    for case in cases(convolution(8, 8, 16, 32)):
        with pytest.raises(KernelError, match="no algorithm"):
            table.make(*op_of(case), name)


def test_parts_end_where_lines_do(table):
    """An image of 5 x 5 x 3 has 300 bytes: 16 of them are 75 lines."""
    case = of_kind(convolution(32, 5, 3, 16), "conv2d")
    names = native_names(table, op_of(case))
    assert [name for name in names if "/" in name] == ["im2col/16"]
    with pytest.raises(KernelError, match="no algorithm"):
        table.make(*op_of(case), "direct/8")


def test_parts_take_less_scratch_where_pixels_are_gathered(table):
    a = {**PLAIN, "strides": (2, 2), "padding": ((0, 0),) * 2}
    drawn = a, (8, 16, 16, 4), (1, 1, 4, 32), (8, 8, 8, 32)
    op = op_of(of_kind(drawn, "conv2d_gradient_kernel"))
    scratch = {name: nbytes for name, nbytes, _ in table.algorithms(*op)}
    assert scratch["onednn/1"] < scratch["onednn"]


def test_no_default_grows_with_the_batch(library, monkeypatch):
    """Policies that weigh no scratch take it."""
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    monkeypatch.setenv("MEMCFG_CPU_ALGORITHMS", "least_scratch")
    op = op_of(of_kind(convolution(2, 2, 512, 512), "conv2d"))
    rows = CpuDevice("/device:CPU:0").kernels.algorithms(*op)
    assert min(rows[:-1], key=lambda row: row[1])[0] == "im2col/1"
    assert rows[0][0] in NAMES


# -- seconds ----------------------------------------------------------------


def test_algorithms_are_measured_on_request(device, monkeypatch):
    op = op_of(next(cases(convolution(2, 8, 16, 32))))
    unknown = device.kernels.algorithms(*op)
    assert not any(seconds for _, _, seconds in unknown)
    assert device.pool.stats().peak_bytes == 0
    measured = device.kernels.measure(*op)
    assert [row[:2] for row in measured] == [row[:2] for row in unknown]
    *native, reference = measured
    assert all(seconds > 0 for _, _, seconds in native)
    assert reference == ("reference", 0, 0.0)
    assert device.kernels.measure(*op) == measured  # and has not run again
    largest = max(align_up(scratch) for _, scratch, _ in native)
    operands = sum(align_up(spec.nbytes) for specs in op[2:] for spec in specs)
    assert device.pool.stats().peak_bytes == operands + largest
    assert device.pool.stats().current_bytes == 0
    vector = OperandSpec((16,), "float32")
    only = device.kernels.measure("add", {}, [vector] * 2, [vector])
    assert only[0][:2] == ("native", 0)
    assert only[0][2] > 0
    assert only[1:] == [("reference", 0, 0.0)]

    monkeypatch.setenv("MEMCFG_MEASURE", "1")
    asked = CpuDevice("/device:CPU:0").kernels.algorithms(*op)
    assert all(seconds > 0 for _, _, seconds in asked[:-1])
    kernels = CpuDevice("/device:CPU:0").kernels
    chosen = kernels.algorithms("add", {}, [vector] * 2, [vector])
    assert chosen == [("native", 0, 0.0), ("reference", 0, 0.0)]  # nothing to choose
    without_pool = kernel_table("onednn").algorithms(*op)
    assert without_pool == unknown
    monkeypatch.setenv("MEMCFG_MEASURE", "often")
    with pytest.raises(KernelError, match="MEMCFG_MEASURE is 'often'; it takes 0 or 1"):
        _ = CpuDevice("/device:CPU:0").kernels


def test_so_are_those_of_a_convolution_with_a_bias(device):
    _, attributes, inputs, outputs = op_of(next(cases(convolution(2, 8, 16, 32))))
    biased = [*inputs, OperandSpec((32,), "float32")]
    *native, reference = device.kernels.measure(
        "conv2d_bias", attributes, biased, outputs
    )
    assert all(seconds > 0 for _, _, seconds in native)
    assert reference == ("reference", 0, 0.0)
    plain = device.kernels.algorithms("conv2d", attributes, inputs, outputs)
    assert [row[:2] for row in native] == [row[:2] for row in plain[:-1]]


def test_without_memory_seconds_are_unknown_until_there_is_some(library, monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    device = CpuDevice("/device:CPU:0", limit_bytes=1 << 20)
    op = op_of(next(cases(convolution(2, 16, 16, 32))))
    with device.pool.allocate(1 << 19, tag="others"), device.pool.allocate(1 << 19):
        assert not any(seconds for _, _, seconds in device.kernels.measure(*op))
    *native, _ = device.kernels.measure(*op)
    assert all(seconds > 0 for _, _, seconds in native)
    assert device.pool.stats().peak_bytes <= 1 << 20


def test_seconds_of_those_that_have_room_are_kept(library, monkeypatch, tmp_path):
    """Columns may be more than a small pool has."""
    folder = tmp_path / "seconds"
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(folder))
    op = op_of(of_kind(convolution(8, 16, 16, 32), "conv2d"))
    small = CpuDevice("/device:CPU:0", limit_bytes=600 << 10).kernels
    rows = {name: seconds for name, _, seconds in small.measure(*op)}
    assert rows["im2col"] == 0 < rows["direct"]
    (path,) = folder.iterdir()
    before = path.read_bytes()
    large = CpuDevice("/device:CPU:0").kernels
    more = {name: seconds for name, _, seconds in large.measure(*op)}
    assert more["im2col"] > 0
    assert {**more, **{n: t for n, t in rows.items() if t}} == more  # not run again
    assert path.read_bytes() != before
    again = CpuDevice("/device:CPU:0").kernels.measure(*op)
    assert {name: seconds for name, _, seconds in again} == more


# -- plans --------------------------------------------------------------------


def naming(name):
    """A policy: `keep_all`, whose convolutions are of one algorithm."""

    def plan(graph, limit_bytes=None):
        found = planning.keep_all()(graph)
        actions = [
            replace(each, algorithm=name)
            if isinstance(each, planning.Compute) and is_convolution(graph, each.op)
            else each
            for each in found.actions
        ]
        found = replace(found, actions=tuple(actions))
        peak = planning.simulate(graph, found).peak_bytes
        return replace(found, predicted=planning.Predicted(peak_bytes=peak))

    return plan


def is_convolution(graph, op):
    return graph.ops[op].type.startswith("conv2d")


class Noting:
    """A kernel that notes its algorithm where it goes into a program."""

    def __init__(self, made, ran):
        self._made = made
        self._ran = ran

    def __getattr__(self, name):
        return getattr(self._made, name)

    def instruction(self):
        self._ran.append(self._made.algorithm)
        return self._made.instruction()


def biased_chain():
    """Two convolutions with a bias, which takes part in them."""
    builder = Builder("biased")
    x = builder.tensor("x", (2, 8, 8, 16), role="input")
    for i in range(2):
        kernel = builder.tensor(f"k{i}", (3, 3, 16, 16), role="parameter")
        bias = builder.tensor(f"b{i}", (16,), role="parameter")
        (x,) = builder.apply("conv2d", (x, kernel), PLAIN)
        (x,) = builder.apply("bias", (x, bias))
        (x,) = builder.apply("tanh", (x,))
    graph = fuse_ops(builder.build([x]))
    assert [op.type for op in graph.ops] == ["conv2d_bias", "tanh"] * 2
    return graph


@pytest.mark.parametrize("make_graph", [lambda: chain(depth=2), biased_chain])
@pytest.mark.parametrize("name", ["onednn", "direct", "reference"])
def test_the_algorithm_that_a_plan_names_runs(device, monkeypatch, name, make_graph):
    ran = []
    make = device.kernels.make

    def noting(*op):
        made = make(*op)
        return Noting(made, ran) if op[0].startswith("conv2d") else made

    monkeypatch.setattr(device.kernels, "make", noting)
    graph = make_graph()
    executor = Executor(device, name="model")
    executor.load({"train": graph}, naming(name), random_values(graph))
    executor.run("train")
    executor.close()
    assert ran == [name] * sum(is_convolution(graph, i) for i in range(len(graph.ops)))
    assert len(ran) > 1


@pytest.mark.parametrize("channels", [1, 6, 15, 16])
def test_convolutions_of_few_channels_are_direct(table, library, channels):
    image, kernel, out = (2, 9, 9, channels), (3, 3, channels, 16), (2, 9, 9, 16)
    for case in cases((PLAIN, image, kernel, out)):
        names = [name for name, _ in list_algorithms(*op_of(case), library)]
        scratch = {name: table.make(*op_of(case), name).scratch_bytes for name in names}
        listed = dict(list_algorithms(*op_of(case), library))
        assert listed == scratch
        if channels < 16 and "direct" in names and "kernel" not in case.op_type:
            assert scratch["onednn"] == scratch["direct"]
            found, wanted = (
                execute(Naming(table, name), case, 0xFF, 64)
                for name in ("onednn", "direct")
            )
            assert found == wanted
        check(table, case)

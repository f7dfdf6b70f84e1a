"""Convolutions by cuDNN: on a double that checks and computes, and its real plans."""

from __future__ import annotations

import builtins
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import cuda_stand_in
import cudnn_plans
import cudnn_stand_in
import gpus
import numpy as np
import pytest
from cudnn_plans import GPUS, MISSING
from cudnn_stand_in import ENGINES, PLAIN, STAGED
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
import memcfg.workspaces  # before `logical_device`, which it imports, is replaced
from memcfg import plan as planning
from memcfg._core import CudaStream
from memcfg.devices import OperandSpec
from memcfg.devices.cuda._convolution_ranks import ranked, workspace_limit
from memcfg.devices.cuda._convolution_spec import ConvolutionSpec, describe_convolution
from memcfg.devices.cuda.libraries import _cudnn
from memcfg.devices.cuda.libraries._cudnn import find_cudnn
from memcfg.errors import KernelError, MemcfgError, MissingDependencyError
from memcfg.ops import op_type

DEFAULT = f"cudnn:{STAGED}"
KINDS = ("conv2d", "conv2d_gradient_input", "conv2d_gradient_kernel")
MADE = dict(zip(KINDS, "yxw", strict=True))


@pytest.fixture
def module():
    """A fresh double."""
    yield cudnn_stand_in.StandIn()
    cuda_stand_in.late(0)


@pytest.fixture
def device(module):
    """A GPU where it is loaded."""
    return gpus.made(gpus.fresh(load_convolutions=module.load))


def op_of(kind, x, kernel, strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1)):
    """Return an op and its operands' shapes; as many groups as the channels are of."""
    lengths = (
        (x[1 + i] + sum(padding[i]) - dilation[i] * (kernel[i] - 1) - 1) // strides[i]
        for i in (0, 1)
    )
    y = (x[0], *(length + 1 for length in lengths), kernel[3])
    attributes = {
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "groups": x[3] // kernel[2],
    }
    shapes = {
        "conv2d": (x, kernel, y),
        "conv2d_bias": (x, kernel, kernel[3:], y),
        "conv2d_gradient_input": (kernel, y, x),
        "conv2d_gradient_kernel": (x, y, kernel),
    }[kind]
    more = {"conv2d_gradient_input": "input_shape"}.get(kind, "kernel_shape")
    if "gradient" in kind:
        attributes[more] = shapes[2]
    *inputs, output = (OperandSpec(shape, "float32") for shape in shapes)
    return kind, attributes, inputs, [output]


SMALL = op_of("conv2d", (2, 5, 6, 3), (3, 2, 3, 4))


def convolve(device, op, algorithm=None, values=None, runs=3):
    """Run an op on random operands in a program: what it gives, and the operands."""
    inputs, outputs = op[2:]
    kernel = device.kernels.make(*op, algorithm)
    rng = np.random.default_rng(0)
    values = values or [
        rng.standard_normal(spec.shape).astype(np.float32) for spec in inputs
    ]
    sizes = [-(-spec.nbytes // 64) * 64 for spec in (*inputs, *outputs)]
    places = [64 + sum(sizes[:i]) for i in range(len(sizes) + 1)]
    scratch, end = places[-1], places[-1] + -(-kernel.scratch_bytes // 64) * 64
    arena = device.pool.arena(tag="test")
    arena.grow(end + 64)
    guard = np.full(64, 0xA5, np.uint8)
    rest = end - scratch - kernel.scratch_bytes  # which nobody may write
    device.write(arena, scratch + kernel.scratch_bytes, np.full(rest, 7, np.uint8))
    device.write(arena, end, guard)
    device.write(arena, 0, guard)
    for place, value in zip(places, values, strict=False):
        device.write(arena, place, value)
    program = device.program(arena, {})
    where = scratch if kernel.scratch_bytes else None
    program.compute(kernel.instruction(), places[:-1], sizes, where)
    for _ in range(runs):  # call by call, and as a graph
        device.zero(arena, places[-2], sizes[-1])
        assert program.run() == -1
    found = np.empty(outputs[0].shape, np.float32)
    device.read(arena, places[-2], found)
    for place in (0, end):
        around = np.empty_like(guard)
        device.read(arena, place, around)
        assert np.array_equal(around, guard)
    behind = np.empty(rest, np.uint8)
    device.read(arena, scratch + kernel.scratch_bytes, behind)
    assert (behind == 7).all()
    for place, value in zip(places, values, strict=False):
        kept = np.empty_like(value)
        device.read(arena, place, kept)
        assert kept.tobytes() == value.tobytes()
    return found, values


def meant(op, values):
    expected = np.empty(op[3][0].shape, np.float32)
    op_type(op[0]).numpy(op[1], values, [expected])
    return expected


def named(device, op):
    return [name for name, _, _ in device.kernels.algorithms(*op)]


# -- convolutions ------------------------------------------------------------

SAME = ((1, 1), (1, 1))
CASES = [
    ((2, 7, 8, 3), (3, 3, 3, 9), (1, 1), SAME),
    ((2, 9, 9, 8), (3, 3, 4, 16), (2, 2), SAME),  # two groups
    ((1, 9, 10, 5), (2, 3, 5, 2), (1, 2), ((2, 0), (0, 1)), (2, 3)),
    ((3, 8, 8, 6), (3, 3, 1, 6), (1, 1), SAME),  # depthwise
    ((3, 8, 8, 2), (3, 3, 1, 6), (2, 1), SAME),
    ((2, 4, 4, 3), (1, 1, 3, 4)),
    ((2, 4, 4, 3), (2, 2, 3, 1)),  # a kernel that lies the same for both
    ((2, 4, 4, 1), (1, 1, 1, 5)),
    ((2, 4, 4, 4), (2, 2, 4, 4), (3, 3)),  # pixels that no window reads
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_are_those_of_numpy(device, module, kind, case):
    op = op_of(kind, *case)
    cuda_stand_in.late(7)
    names = named(device, op)
    ran = names_of(op)
    assert names == [*(f"cudnn:{name}" for name in ran), "cuda"]
    results = []
    for name in names:
        found, values = convolve(device, op, name)
        np.testing.assert_allclose(found, meant(op, values), rtol=1e-5, atol=1e-5)
        again, _ = convolve(device, op, name)
        assert again.tobytes() == found.tobytes()
        results.append(found)
    assert set(module.executed) == set(ran)


def names_of(op):
    """The plans of the double for an op: those that are right, the first ones first."""
    spec = describe_convolution(*op)
    staged = f"{ENGINES[MADE.get(op[0], 'y')]}_k2=4"
    loop = ["eng0"] if spec.groups > 1 else []
    if not spec.lopsided:
        return [staged, *loop, PLAIN]
    return [] if op[0] == "conv2d_bias" else [staged, *loop]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_with_a_bias_are_those_of_numpy(device, case):
    """Plans without it come first: cuDNN has more engines for them."""
    op = op_of("conv2d_bias", *case)
    cuda_stand_in.late(7)
    names = named(device, op)
    plain = op_of("conv2d", *case)
    apart = [f"cudnn:{name}+bias" for name in names_of(plain)]
    assert names == [*apart, *(f"cudnn:{name}" for name in names_of(op)), "cuda"]
    scratch = [size for _, size, _ in device.kernels.algorithms(*op)][: len(apart)]
    assert scratch == [
        size for _, size, _ in device.kernels.algorithms(*plain)[: len(apart)]
    ]
    for name in names:
        found, values = convolve(device, op, name)
        np.testing.assert_allclose(found, meant(op, values), rtol=1e-5, atol=1e-5)
        values[2][0] = np.nan
        found, _ = convolve(device, op, name, values)
        assert np.isnan(found[..., 0]).all()
        assert np.isfinite(found[..., 1:]).all()


@pytest.fixture(scope="module")
def real():
    """The GPU of this machine, with cuDNN; or a skip."""
    found = gpus.made(gpus.real())
    with warnings.catch_warnings(action="ignore"):
        if found.kernels.modules.cudnn is None:
            pytest.skip("needs cuDNN and its front end")
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "conv2d_bias"])
def test_convolutions_on_a_gpu_are_those_of_numpy(real, kind, case):
    """Call by call and captured, by every plan; with the scratch that it asks for."""
    op = op_of(kind, *case)
    measured = real.kernels.measure(*op)
    assert any(name.startswith("cudnn:") for name, _, _ in measured)
    for name, _, seconds in measured:
        assert seconds > 0
        found, values = convolve(real, op, name)
        np.testing.assert_allclose(found, meant(op, values), rtol=1e-4, atol=1e-4)
        again, _ = convolve(real, op, name)
        assert again.tobytes() == found.tobytes()


@st.composite
def convolutions(draw):
    groups = draw(st.integers(1, 3))
    channels, units = (groups * draw(st.integers(1, 3)) for _ in "xy")
    kernel = [draw(st.integers(1, 3)) for _ in "hw"]
    strides, dilation = ([draw(st.integers(1, 3)) for _ in "hw"] for _ in "sd")
    padding = [[draw(st.integers(0, 2)) for _ in "be"] for _ in "hw"]
    image = [
        max(1, dilation[i] * (kernel[i] - 1) + 1 - sum(padding[i]))
        + draw(st.integers(0, 4))
        for i in (0, 1)
    ]
    return op_of(
        draw(st.sampled_from([*KINDS, "conv2d_bias"])),
        (draw(st.integers(1, 4)), *image, channels),
        (*kernel, channels // groups, units),
        tuple(strides),
        tuple(map(tuple, padding)),
        tuple(dilation),
    )


@given(
    op=convolutions(),
    seed=st.integers(0, 1000),
    first=st.booleans(),
    limit=st.sampled_from([1 << 8, 1 << 10, 64 << 20]),
)
@settings(max_examples=80, deadline=None)
def test_any_convolution_is_that_of_numpy(shared, op, seed, first, limit):
    cuda_stand_in.late(seed)
    with mock.patch.object(_cudnn, "workspace_limit", return_value=limit):
        shared.kernels.modules.cudnn._found.clear()
        names = named(shared, op)
        name = names[0 if first or len(names) < 2 else -2]
        found, values = convolve(shared, op, name, runs=2)
    np.testing.assert_allclose(found, meant(op, values), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def shared():
    yield gpus.made(gpus.fresh(load_convolutions=cudnn_stand_in.StandIn().load))
    cuda_stand_in.late(0)


# -- parts of a batch ------------------------------------------------------------


def limit_workspaces(monkeypatch, nbytes):
    monkeypatch.setattr(_cudnn, "workspace_limit", lambda spec: nbytes)


@pytest.mark.parametrize("kind", [*KINDS, "conv2d_bias"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_is_divided_where_its_workspace_is_too_large(
    device, module, monkeypatch, kind, groups
):
    """A part of it has the bits that it has by itself; sums are added up in order."""
    case = ((6, 5, 6, 4), (3, 3, 4 // groups, 8), (1, 1), SAME)
    op = op_of(kind, *case)
    whole = names_of(op_of("conv2d", *case) if kind == "conv2d_bias" else op)
    needed = {"conv2d_gradient_input": 5 * 6 * 4, "conv2d_gradient_kernel": 0}
    images = 4 * needed.get(kind, 5 * 6 * 8) + 40  # bytes of workspace of each
    rest = 4 * 3 * 3 * 4 // groups * 8 if kind == "conv2d_gradient_kernel" else 0
    limit_workspaces(monkeypatch, rest + 2 * images)
    made = device.kernels.algorithms(*op)
    bias = "+bias" if kind == "conv2d_bias" else ""
    first = f"cudnn:{whole[0]}/2{bias}"
    assert made[0][0] == first
    assert [name for name, *_ in made[: 2 * len(whole) - 1]] == [
        *(f"cudnn:{name}/2{bias}" for name in whole),
        *(f"cudnn:{name}{bias}" for name in whole[1:]),
    ]
    kernel = -(-4 * 3 * 3 * 4 // groups * 8 // 256) * 256
    parts = 2 if kind == "conv2d_gradient_kernel" else 1
    assert made[0][1] == parts * kernel + rest + 2 * images + 256
    for name in (first, made[1][0]):
        cuda_stand_in.late(5)
        module.executed.clear()
        found, values = convolve(device, op, name, runs=1)
        assert len(module.executed) == 3
        np.testing.assert_allclose(found, meant(op, values), rtol=1e-5, atol=1e-5)
        again, _ = convolve(device, op, name)
        assert again.tobytes() == found.tobytes()


def test_a_batch_that_cannot_be_divided_takes_what_needs_less(device, monkeypatch):
    limit_workspaces(monkeypatch, 1000)  # bytes, which one image needs
    prime = op_of("conv2d", (7, 5, 6, 4), (3, 3, 4, 8), (1, 1), SAME)
    assert named(device, prime)[0] == f"cudnn:{STAGED}/1"
    odd = op_of("conv2d", (7, 5, 5, 3), (3, 3, 3, 8), (1, 1), SAME)
    assert named(device, odd)[0] == f"cudnn:{PLAIN}"  # an image has 300 bytes
    limit_workspaces(monkeypatch, 999)
    large = op_of("conv2d", (6, 5, 6, 4), (3, 3, 4, 8), (1, 1), SAME)
    assert named(device, large)[0] == f"cudnn:{PLAIN}"


# -- algorithms ------------------------------------------------------------


def test_plans_are_listed_with_their_scratch(device):
    kernel = -(-4 * 3 * 2 * 3 * 4 // 256) * 256
    sums = 2 * 3 * 5 * 4
    assert device.kernels.algorithms(*SMALL) == [
        (DEFAULT, kernel + 4 * sums + 2 * 40 + 256, 0.0),
        (f"cudnn:{PLAIN}", kernel + 256, 0.0),
        ("cuda", 0, 0.0),
    ]
    flat = op_of("conv2d", (2, 4, 4, 3), (2, 2, 3, 1))  # nothing to transpose
    assert device.kernels.algorithms(*flat)[0][1] == 4 * 2 * 3 * 3 + 2 * 40 + 256
    assert device.kernels.algorithms(*flat)[1][1] == 0


def test_what_is_named_runs(device, module):
    for name, expected in (
        (None, [STAGED]),
        (f"cudnn:{PLAIN}", [PLAIN]),
        (DEFAULT, [STAGED]),
        ("cuda", []),
    ):
        module.executed.clear()
        assert device.kernels.make(*SMALL, name).algorithm == (name or DEFAULT)
        convolve(device, SMALL, name, runs=1)
        assert module.executed == expected
    for name in (
        "cudnn",
        "cudnn:eng9_k2=0",
        "cudnn:eng7",
        "cudnn:jit[None]",
        "cudnn:eng0",
    ):
        with pytest.raises(KernelError, match="no algorithm"):
            device.kernels.make(*SMALL, name)


def test_an_algorithm_that_a_plan_names_is_the_one_that_runs(
    device, module, monkeypatch
):
    def policy(graph, *, limit_bytes=None):
        plan = planning.share()(graph, limit_bytes=limit_bytes)
        return replace(plan, actions=tuple(named(graph, each) for each in plan.actions))

    def named(graph, action):
        if not isinstance(action, planning.Compute):
            return action
        names = [each.name for each in graph.ops[action.op].algorithms]
        frugal = f"cudnn:{PLAIN}"
        return replace(action, algorithm=frugal) if frugal in names else action

    train(device, monkeypatch, policy)
    assert set(module.executed) == {PLAIN}
    module.executed.clear()
    train(device, monkeypatch, planning.share())
    assert set(module.executed) == {f"{each}_k2=4" for each in ENGINES.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_has_no_plan_kernels_are_generated(device, kind):
    op = op_of(kind, (1, 4, 4, 2), (2, 2, 2, cudnn_stand_in.UNSUPPORTED))
    assert named(device, op) == ["cuda"]
    found, values = convolve(device, op)
    np.testing.assert_allclose(found, meant(op, values), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_it_refuses_is_told_once(device, monkeypatch):
    monkeypatch.setattr(_cudnn, "_told", set())
    op = op_of("conv2d", (1, 4, 4, 2), (2, 2, 2, cudnn_stand_in.REFUSED))
    with pytest.warns(RuntimeWarning, match=r"refuses conv2d of .*17 units\.") as told:
        assert [named(device, op) for _ in range(2)] == [["cuda"]] * 2
    assert len(told) == 1


def test_other_ops_and_empty_convolutions_are_none_of_its(device, module):
    assert describe_convolution(*op_of("conv2d", (0, 4, 4, 2), (2, 2, 2, 3))) is None
    vector = OperandSpec((4,), "float32")
    assert named(device, ("add", {}, [vector] * 2, [vector])) == ["cuda"]
    assert module.searches == 0


def test_a_graph_is_searched_once_for_a_shape(device, module):
    for _ in range(3):
        device.kernels.make(*SMALL)
        device.kernels.algorithms(*SMALL)
    assert module.searches == 1


def test_all_that_was_made_goes_back(module):
    device = gpus.made(gpus.fresh(load_convolutions=module.load))
    convolve(device, SMALL)
    assert len(module.handles) == 1
    del device
    gc.collect()
    assert not module.handles


def test_tf32_is_on_request(monkeypatch, device, module):
    exact, values = convolve(device, SMALL)
    monkeypatch.setenv("MEMCFG_CUDA_TF32", "1")
    other = gpus.made(gpus.fresh(load_convolutions=module.load))
    assert named(other, SMALL)[0] == "cudnn:eng5_k1=3"
    assert "cudnn:eng9_k2=0" not in named(other, SMALL)
    short, _ = convolve(other, SMALL, values=values)
    assert 1e-5 < np.abs(short - exact).max() < 1e-1
    monkeypatch.setenv("MEMCFG_CUDA_TF32", "yes")
    third = gpus.made(gpus.fresh(load_convolutions=module.load))
    with pytest.raises(KernelError, match="MEMCFG_CUDA_TF32 is 'yes'; it takes 0 or 1"):
        third.kernels.make(*SMALL)


# -- seconds ----------------------------------------------------------------


def test_each_algorithm_is_measured_on_request(monkeypatch, device, module):
    unknown = device.kernels.algorithms(*SMALL)
    assert not module.executed
    before = device.pool.stats().current_bytes
    measured = device.kernels.measure(*SMALL)
    assert [each[:2] for each in measured] == [each[:2] for each in unknown]
    assert all(seconds > 0 for _, _, seconds in measured)
    assert module.executed == 2 * [STAGED] + 2 * [PLAIN]  # a run, and a capture
    assert device.pool.stats().current_bytes == before
    assert device.kernels.measure(*SMALL) == measured  # and has not run again
    assert len(module.executed) == 4
    other = op_of("conv2d", (2, 5, 6, 3), (3, 2, 3, 4), (1, 2))
    device.kernels.measure(*other)
    assert len(module.executed) == 8
    monkeypatch.setenv("MEMCFG_MEASURE", "1")
    asked = gpus.made(gpus.fresh(load_convolutions=module.load))
    assert all(seconds > 0 for _, _, seconds in asked.kernels.algorithms(*SMALL))
    vector = OperandSpec((4,), "float32")
    only = asked.kernels.algorithms("add", {}, [vector] * 2, [vector])
    assert only == [("cuda", 0, 0.0)]  # there is nothing to choose
    monkeypatch.setenv("MEMCFG_MEASURE", "often")
    third = gpus.made(gpus.fresh(load_convolutions=module.load))
    with pytest.raises(KernelError, match="MEMCFG_MEASURE is 'often'; it takes"):
        third.kernels.make(*SMALL)


def test_without_memory_times_are_unknown_until_there_is_some(module):
    limit = 4 << 20
    hardware = gpus.fresh(load_convolutions=module.load)
    device = gpus.made(hardware, limit_bytes=limit)
    large = op_of("conv2d", (1, 40, 40, 2), (3, 3, 2, 200))
    with device.pool.allocate(limit - (1 << 20), tag="others"):
        for _, _, seconds in device.kernels.measure(*large):
            assert seconds == 0
        assert device.pool.stats().current_bytes <= limit
    assert not module.executed
    assert all(seconds > 0 for _, _, seconds in device.kernels.measure(*large))
    assert device.pool.stats().peak_bytes <= limit


def test_a_measurement_that_fails_gives_everything_back(device, module):
    module.fails = "execute_plan_at_index"
    with pytest.raises(KernelError, match="cuDNN, eng70"):
        device.kernels.measure(*SMALL)
    assert device.pool.stats().current_bytes == 0
    module.fails = None
    assert device.kernels.measure(*SMALL)[0][2] > 0


# -- failures, threads, processes --------------------------------------------


def test_an_execution_that_fails_names_the_plan(device, module):
    kernel = device.kernels.make(*SMALL, f"cudnn:{PLAIN}")
    module.fails = "execute_plan_at_index"
    block = device.pool.allocate(1 << 16, tag="test")
    places = [block.address + 4096 * i for i in range(3)]
    with pytest.raises(
        KernelError, match=rf"^cuDNN, {PLAIN}: execute_plan\w+ failed"
    ) as e:
        kernel.run(places, block.address + (1 << 14))
    assert "and more" not in str(e.value)
    module.fails = None
    kernel.run(places, block.address + (1 << 14))


@pytest.mark.filterwarnings("ignore:a step cannot be captured:RuntimeWarning")
def test_a_driver_that_fails_anywhere_is_an_error_and_the_next_try_works(device):
    expected, values = convolve(device, SMALL)
    before = cuda_stand_in.calls()
    convolve(device, SMALL, values=values)
    count = cuda_stand_in.calls() - before
    failed = 0
    for after in range(count):
        cuda_stand_in.fail_calls(after)
        try:
            found, _ = convolve(device, SMALL, values=values)
        except MemcfgError:
            failed += 1
        else:
            assert found.tobytes() == expected.tobytes()
        finally:
            cuda_stand_in.fail_calls(None)
        gc.collect()
        assert device.pool.stats().current_bytes == 0
    assert failed > count // 2
    found, _ = convolve(device, SMALL, values=values)
    assert found.tobytes() == expected.tobytes()


def test_a_handle_is_told_once_of_each_stream(device, module):
    """Also of one that lies where another has gone, and has its number."""
    kernel = device.kernels.make(*SMALL)
    block = device.pool.allocate(1 << 16, tag="test")
    places = [block.address + 4096 * i for i in range(3)]
    launches = kernel.bind(places, block.address + (1 << 14))
    device.kernels.load(launches)
    told = []
    for _ in range(4):
        stream = CudaStream(device.context)
        told.append(stream.handle)
        for _ in range(3):
            for launch in launches:
                launch.issue(stream)
        stream.synchronize()
        assert [each for each in module.streams if each] == told
        del stream
    kernel.run(places, block.address + (1 << 14))
    assert len([each for each in module.streams if each]) == 5


def test_plans_that_do_not_build_are_passed_over(device, module):
    module.fails = "build_plan_at_index"
    assert named(device, SMALL) == ["cuda"]


@pytest.mark.parametrize(
    "call", ["validate", "build_operation_graph", "create_execution_plans"]
)
def test_a_search_that_fails_is_told(device, module, monkeypatch, call):
    monkeypatch.setattr(_cudnn, "_told", set())
    module.fails = call
    with pytest.warns(RuntimeWarning, match=f"refuses conv2d of x .*{call} failed"):
        assert device.kernels.make(*SMALL).algorithm == "cuda"


def test_threads_take_turns(device):
    kernel = device.kernels.make(*SMALL)
    block = device.pool.allocate(1 << 20, tag="test")
    errors = []

    def work(first):
        places = [first + 4096 * i for i in range(3)]
        try:
            for _ in range(50):
                kernel.run(places, first + 16384)
        except Exception as error:
            errors.append(error)

    work(block.address)  # which loads what it needs
    gc.collect()  # the stand-in lets no module go while a thread has work queued
    gc.disable()
    threads = [
        threading.Thread(target=work, args=(block.address + (i << 16),))
        for i in range(4)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
    assert not errors


def test_a_forked_child_neither_uses_it_nor_gives_it_back(device, module):
    device.kernels.make(*SMALL)
    other = op_of("conv2d", (1, 5, 6, 3), (3, 2, 3, 4))
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            try:
                device.kernels.make(*other)
            except RuntimeError as error:
                status = 0 if "fork" in str(error) else 2
            library = device.kernels.modules.cudnn
            _cudnn._destroy(library._context, module, library._handle, library._found)
            status = status if module.handles and library._found else 3
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- training ------------------------------------------------------------


def train(device, monkeypatch, policy):
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 6, 6, 2)).astype(np.float32)
    y = rng.integers(0, 3, 16)
    mc.nn.set_random_seed(0)
    layers = [
        mc.nn.Conv2D(4, 3, activation="relu", padding="same"),
        mc.nn.Conv2D(4, 3, strides=2, activation="relu"),
        mc.nn.Flatten(),
        mc.nn.Dense(3),
    ]
    model = mc.nn.Sequential(layers)
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=policy)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=0)
    found = [np.float32(history.history["loss"]), *model.get_weights()]
    model.close()
    return [each.tobytes() for each in found]


def test_training_has_the_same_bits_in_every_policy(device, module, monkeypatch):
    first = train(device, monkeypatch, planning.share())
    # forward and kernels of two, the input of one; a run, and a capture
    assert len(module.executed) == 2 * 5
    for policy in (planning.keep_all(), planning.sqrt_checkpoint()):
        cuda_stand_in.late(3)
        assert train(device, monkeypatch, policy) == first
    monkeypatch.setenv("MEMCFG_CUDA_GRAPHS", "0")
    module.executed.clear()
    assert train(device, monkeypatch, planning.share()) == first
    assert len(module.executed) == 4 * 5


# -- the library ------------------------------------------------------------


@pytest.fixture
def without(monkeypatch):
    """Have the front end be another module, or none."""
    monkeypatch.setattr(_cudnn, "_told", set())
    monkeypatch.delenv("MEMCFG_CUDNN", raising=False)

    def instead(found):
        real = builtins.__import__

        def load(name, *rest):
            if name != "cudnn":
                return real(name, *rest)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(builtins, "__import__", load)

    return instead


def fresh():
    return gpus.made(gpus.fresh(load_convolutions=_cudnn.load_cudnn))


def fails():
    raise RuntimeError("Unable to find symbol cudnnGetVersion")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ImportError("No module named 'cudnn'"), "pip install 'nvidia-cudnn-frontend"),
        (OSError("libcudnn.so: no such file"), "pip install nvidia-cudnn-cu13`"),
        (SimpleNamespace(backend_version=fails), "pip install nvidia-cudnn-cu13`"),
    ],
    ids=["front end", "library", "later library"],
)
def test_what_is_missing_is_told_once(without, monkeypatch, found, words):
    without(found)
    devices = [fresh() for _ in range(2)]
    with pytest.warns(RuntimeWarning, match=words) as told:
        made = [device.kernels.make(*SMALL) for device in devices]
    assert [kernel.algorithm for kernel in made] == ["cuda", "cuda"]
    assert len(told) == 1
    assert "MEMCFG_CUDNN=none" in str(told[0].message)
    monkeypatch.setenv("MEMCFG_CUDNN", "required")
    with pytest.raises(MissingDependencyError, match=words):
        fresh().kernels.make(*SMALL)
    monkeypatch.setenv("MEMCFG_CUDNN", "none")
    with warnings.catch_warnings(action="error"):
        device = fresh()
        assert device.kernels.make(*SMALL).algorithm == "cuda"
        monkeypatch.setenv("MEMCFG_CUBLASLT_LIBRARY", "none")
        assert "cuDNN" not in device.describe_kernels()


def test_a_library_of_an_older_cuda_is_named_for_an_older_driver(without):
    without(OSError())
    with pytest.raises(MissingDependencyError, match="nvidia-cudnn-cu12"):
        find_cudnn(12040)


def test_a_package_has_the_library(without, module, monkeypatch):
    """Wherever it is installed: the front end finds what is loaded already."""
    without(module)
    loaded = []
    monkeypatch.setattr(_cudnn.ctypes, "CDLL", loaded.append)
    monkeypatch.setattr(
        _cudnn, "packaged_library", lambda package, name: f"{package}/{name}"
    )
    assert find_cudnn(13010) is module
    assert find_cudnn(12040) is module
    names = [f"nvidia-cudnn-cu{major}/libcudnn.so.9" for major in (13, 12)]
    assert loaded == names


def test_a_setting_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDNN", "yes")
    with pytest.raises(
        KernelError, match="MEMCFG_CUDNN is 'yes'; it takes auto, required, none"
    ):
        fresh().kernels.make(*SMALL)


def test_nothing_is_looked_for_before_the_first_convolution(without):
    without(AssertionError("imported"))
    vector = OperandSpec((4,), "float32")
    fresh().kernels.algorithms("add", {}, [vector] * 2, [vector])


def test_it_is_found_and_described(without, module):
    without(module)
    device = fresh()
    assert device.kernels.make(*SMALL).algorithm == DEFAULT
    assert device.describe_kernels().endswith("; convolutions by cuDNN 9.28.1")


def test_a_library_that_does_not_work_is_told(without, module, monkeypatch):
    without(module)
    module.fails = "create_handle"
    with pytest.warns(RuntimeWarning, match="does not work: create_handle failed"):
        assert fresh().kernels.make(*SMALL).algorithm == "cuda"
    monkeypatch.setenv("MEMCFG_CUDNN", "required")
    with pytest.raises(KernelError, match="does not work"):
        fresh().kernels.make(*SMALL)


# -- the order of plans, against what they took on a GPU -----------------------

RESULTS = Path(__file__).parents[3] / "bench/results"


MIB = 1 << 20


def spec_of(op, images, side, channels, units):
    x, y = (images, side, side, channels), (images, side, side, units)
    return ConvolutionSpec(op, x, (3, 3, channels, units), y, (1, 1), (1, 1), SAME)


RANKED = spec_of("conv2d", 32, 16, 64, 128)


def measured():
    """Yield convolutions that an H100 timed: with all plans, and their milliseconds."""
    (path,) = RESULTS.glob("cudnn-nvidia-h100-*.json")
    for row in json.loads(path.read_text())["times"]:
        if row["workspace"] != "4 GiB":
            continue
        spec = spec_of(*(row[k] for k in ("op", "images", "side", "channels", "units")))
        times = {each["plan"]: each["milliseconds"] for each in row["plans"]}
        del times["cuda"]
        times = {name: ms for name, ms in times.items() if name != "eng0"}
        yield spec, times


def test_the_first_plan_is_about_the_fastest_that_was_measured():
    first, own, best = 0.0, 0.0, 0.0
    for spec, times in measured():
        order = ranked(times, spec, 90, tf32=False)
        assert sorted(order) == sorted(times)
        if spec.x[3] < 64:
            assert order == list(times)
            continue
        took, least = times[order[0]], min(times.values())
        assert took <= 1.35 * least, (spec, order[0])
        first, own, best = first + took, own + times[next(iter(times))], best + least
    assert first < 1.03 * best
    assert own > 1.3 * best


@pytest.mark.parametrize(
    "spec",
    [
        replace(RANKED, kernel=(1, 1, 64, 128)),
        replace(RANKED, strides=(2, 2)),
        replace(RANKED, dilation=(2, 2)),
        replace(RANKED, padding=((0, 1), (0, 1))),
        replace(RANKED, kernel=(3, 3, 1, 128)),  # groups
        replace(RANKED, op_type="conv2d_bias"),
    ],
)
def test_what_was_not_measured_is_as_cudnn_ranks_it(spec):
    names = ["eng28", "eng70_k2=2_k18=0", "eng50", "eng70_k2=4_k18=0", "eng17_k25=0"]
    assert ranked(names, spec, 90, tf32=False) == names
    for capability, tf32 in ((80, False), (120, False), (90, True)):
        assert ranked(names, RANKED, capability, tf32=tf32) == names


def test_a_number_of_a_plan_is_read_to_its_end():
    names = ["eng70_k2=40_k18=0", "eng505", "eng70_k2=2_k18=0", "eng28"]
    assert ranked(names, RANKED, 90, tf32=False) == [
        *("eng70_k2=2_k18=0", "eng70_k2=40_k18=0", "eng505", "eng28")
    ]
    gradient = replace(RANKED, op_type="conv2d_gradient_input")
    assert ranked(["eng505", "eng50"], gradient, 90, tf32=False) == ["eng50", "eng505"]


@pytest.mark.parametrize("op", ["conv2d", "conv2d_bias", "conv2d_gradient_input"])
def test_workspace_grows_with_the_images_between_two_bounds(op):
    limits = [
        workspace_limit(spec_of(op, images, 16, 128, 128)) / MIB
        for images in (1, 170, 256, 512, 4096)
    ]
    assert limits == [64, 64, 96, 192, 256]


# -- the plans of the real library, without a GPU -------------------------------

LOPSIDED = ("asymmetric", "dilated")  # their padding


DRIVER = (
    *("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData"),
    *("cuModuleUnload", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"),
)


# Cases that no cuDNN engine computes exactly; a generated kernel does.
WITHOUT = {
    *((name, f"conv2d_bias, {what}") for name in GPUS for what in LOPSIDED),
    *(("A100", f"{kind}, {what}") for kind in cudnn_plans.KINDS for what in LOPSIDED),
    *((name, "conv2d_gradient_kernel, gaps") for name in GPUS),
    ("A100", "conv2d_gradient_kernel, one unit"),
}


@cache
def planned(folder, tf32=False):
    """Plan in another process, whose driver library is none."""
    if find_spec("cudnn") is None:
        pytest.skip("needs nvidia-cudnn-frontend")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    source = "".join(f'extern "C" int {name}() {{ return 100; }}\n' for name in DRIVER)
    stub = folder / "libcuda.so.1"
    command = [compiler, "-x", "c++", "-shared", "-fPIC", "-", "-o", str(stub)]
    command += ["-Wl,-soname,libcuda.so.1"]
    subprocess.run(command, input=source, text=True, check=True)
    done = subprocess.run(
        [sys.executable, cudnn_plans.__file__, str(stub)],
        env={**os.environ, "MEMCFG_CUDA_TF32": str(int(tf32))},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    if done.returncode == MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("driver")


def test_every_convolution_has_plans_within_the_limit(folder):
    answer = planned(folder)
    assert answer["told"] == []
    specs = dict(cudnn_plans.specs())
    for name in GPUS:
        for what, spec in specs.items():
            plans = answer["plans"][f"{name}, {what}"]
            # A divided batch has plans of its parts, and of the whole.
            assert len(plans) <= 8 * (2 if what.endswith("large") else 1), (name, what)
            assert plans or (name, what) in WITHOUT
            names = [each for each, _, _ in plans]
            assert len(set(names)) == len(names)
            assert all(each.startswith("cudnn:eng") for each in names)
            turned = spec.kernel[3] > 1 and prod(spec.kernel[:3]) > 1
            kernel = -(-4 * prod(spec.kernel) // 256) * 256 if turned else 0
            for _, workspace, scratch in plans:
                assert 0 <= workspace <= workspace_limit(spec)
                needed = kernel + workspace
                assert scratch == (needed + 256 if needed else 0)


def test_some_plan_of_the_forward_phase_needs_little(folder):
    """So that a planner has a choice; gradients of images turn them in workspace."""
    for what, plans in planned(folder)["plans"].items():
        if "gradient" not in what and plans:
            assert min(workspace for _, workspace, _ in plans) < 1 << 20, what


def test_tf32_adds_plans_that_come_first(folder):
    exact, short = planned(folder)["plans"], planned(folder, tf32=True)["plans"]
    for name in GPUS:
        what = f"{name}, conv2d, common"
        assert short[what][0] not in exact[what]

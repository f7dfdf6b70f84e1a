"""GPUs, on the driver's stand-in: what the contract of devices does not say."""

from __future__ import annotations

import gc
import os
import threading
import time

import cublaslt_stand_in
import cuda_stand_in
import cudnn_stand_in
import gpus
import numpy as np
import pytest
from internals import set_copy_seconds
from interpreter import random_values
from networks import chain

from memcfg import plan as planning
from memcfg.devices import OperandSpec
from memcfg.errors import (
    KernelError,
    ResourceExhaustedError,
)
from memcfg.runtime import Executor

VECTOR = OperandSpec((16,), "float32")
MIB = 2**20


@pytest.fixture
def device():
    return gpus.made(gpus.stand_in())


@pytest.fixture
def arena(device):
    found = device.pool.arena(tag="test")
    found.grow(4096)
    return found


def read(device, arena, offset=0, count=16):
    found = np.empty(count, np.float32)
    device.read(arena, offset, found)
    return found


def add(device, program, a, b, c):
    kernel = device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR])
    return program.compute(kernel.instruction(), [a, b, c], [64] * 3, None)


# -- graphs ------------------------------------------------------------


def swapping_program(device, arena):
    program = device.program(
        arena, {"host": device.tier_memory("host", 4096, tag="test")}
    )
    add(device, program, 0, 0, 64)
    program.copy(1, (0, 64), (1, 0), 64)
    program.guard(64)
    add(device, program, 64, 64, 128)
    program.copy(2, (1, 0), (0, 64), 64)
    add(device, program, 64, 128, 192)
    return program


def test_later_runs_launch_graphs(device, arena, monkeypatch):
    program = swapping_program(device, arena)
    issued = []
    issue = type(program)._issue
    monkeypatch.setattr(
        type(program),
        "_issue",
        lambda self, *part: issued.append(part[:2]) or issue(self, *part),
    )
    for value in range(5):
        device.write(arena, 0, np.full(16, value, np.float32))
        assert program.run() == -1
        assert read(device, arena, 192).tolist() == [6 * value] * 16
    parts = [(0, 3), (3, 6)]
    assert issued == parts * 2  # in the first run, and for the capture
    device.write(arena, 0, np.full(16, np.nan, np.float32))
    device.zero(arena, 192, 64)
    assert program.run() == 2
    assert not read(device, arena, 192).any()
    assert program.run(guard=False) == -1
    assert np.isnan(read(device, arena, 192)).all()


def test_graphs_can_be_left_out(device, arena, monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_GRAPHS", "0")
    program = swapping_program(device, arena)
    for value in range(3):
        device.write(arena, 0, np.full(16, value, np.float32))
        assert program.run() == -1
        assert read(device, arena, 192).tolist() == [6 * value] * 16
    assert program._graphs == []
    monkeypatch.setenv("MEMCFG_CUDA_GRAPHS", "off")
    with pytest.raises(KernelError, match="MEMCFG_CUDA_GRAPHS is 'off'; it takes"):
        swapping_program(device, arena)


def test_a_capture_that_is_refused_is_told_once(device, arena, monkeypatch):
    program = swapping_program(device, arena)

    def refuse(*part):
        raise KernelError("no")

    monkeypatch.setattr(program, "_captured", refuse)
    assert program.run() == -1
    with pytest.warns(RuntimeWarning, match="call by call: no"):
        assert program.run() == -1
    for value in range(3):
        device.write(arena, 0, np.full(16, value, np.float32))
        assert program.run() == -1
        assert read(device, arena, 192).tolist() == [6 * value] * 16


# -- encodings ---------------------------------------------------------


@pytest.mark.parametrize("density", [0, 0.3, 1])
@pytest.mark.parametrize("count", [0, 1, 33, 9000])
def test_encodings_come_back(device, density, count):
    rng = np.random.default_rng(count)
    value = np.where(rng.random(count) < density, rng.random(count), 0)
    value = value.astype(np.float32)
    room = -(-(value.nbytes + 64) // 64) * 64
    arena = device.pool.arena(tag="test")
    arena.grow(3 * room)
    device.write(arena, 0, value)
    program = device.program(arena, {})
    program.encode("zvc", 0, value.nbytes, room, value.nbytes + 64)
    program.decode("zvc", room, value.nbytes + 64, 2 * room, value.nbytes)
    for _ in range(3):
        device.zero(arena, 2 * room, room)
        assert program.run() == -1
        assert read(device, arena, 2 * room, count).tobytes() == value.tobytes()


def test_an_encoding_that_does_not_fit_fails_and_state_comes_back(device, arena):
    host = device.tier_memory("host", 4096, tag="test")
    program = device.program(arena, {"host": host})
    program.protect(64, (1, 0))
    add(device, program, 0, 0, 0)
    index = program.encode("zvc", 0, 1024, 2048, 128)
    assert program.run() == -1  # zeros
    value = np.ones(256, np.float32)
    for _ in range(3):
        device.write(arena, 0, value)
        with pytest.raises(KernelError, match=f"instruction {index} failed: .*not fit"):
            program.run()
        assert read(device, arena, 0, 256).tobytes() == value.tobytes()
        assert program.failed_at == index


# -- kernels ------------------------------------------------------------


def test_a_kernel_runs_alone(device, arena):
    device.write(arena, 0, np.ones(16, np.float32))
    kernel = device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR])
    base = arena.address
    kernel.run([base, base, base + 64], 0)
    assert read(device, arena, 64).tolist() == [2] * 16


def test_ops_without_elements_run_in_programs(device, arena):
    empty, wide = OperandSpec((0,), "float32"), OperandSpec((0, 16), "float32")
    program = device.program(arena, {})
    made = device.kernels.make("add", {}, [empty, empty], [empty])
    program.compute(made.instruction(), [0, 0, 0], [0] * 3, None)
    axes = {"axes": (0,), "keepdims": False}
    made = device.kernels.make("reduce_sum", axes, [wide], [VECTOR])
    program.compute(made.instruction(), [0, 64], [0, 64], None)
    for _ in range(3):
        device.write(arena, 64, np.ones(16, np.float32))
        assert program.run() == -1
        assert not read(device, arena, 64).any()


def test_an_op_without_a_source_is_refused(device):
    with pytest.raises(KernelError, match="'nonsense'"):
        device.kernels.make("nonsense", {}, [VECTOR], [VECTOR])


def test_the_op_is_named_whose_source_does_not_compile():
    def refuse(text, capability):
        if "memcfg_softmax_" in text:
            raise KernelError("kernel.cu(1): error: no")
        return gpus.compile_for_stand_in(text, capability)

    hardware = gpus.fresh(compiler=refuse)
    device = gpus.made(hardware)
    arena = device.pool.arena(tag="test")
    arena.grow(4096)
    program = device.program(arena, {})
    for kind in ("relu", "tanh"):
        kernel = device.kernels.make(kind, {}, [VECTOR], [VECTOR])
        program.compute(kernel.instruction(), [0, 64], [64] * 2, None)
    kernel = device.kernels.make("softmax", {}, [VECTOR], [VECTOR])
    program.compute(kernel.instruction(), [0, 64], [64] * 2, None)
    named = r"^memcfg_softmax_[0-9a-f]{12}: kernel\.cu\(1\): error: no$"
    with pytest.raises(KernelError, match=named):
        program.run()


def test_a_source_that_does_not_compile_changes_nothing():
    def refuse(text, capability):
        raise KernelError("line 1: no")

    device = gpus.made(gpus.fresh(compiler=refuse))
    arena = device.pool.arena(tag="test")
    arena.grow(4096)
    program = device.program(arena, {})
    add(device, program, 0, 0, 64)
    for _ in range(2):
        with pytest.raises(KernelError, match="line 1: no"):
            program.run()
    assert not read(device, arena, 64).any()


# -- memory ------------------------------------------------------------


def test_a_limit_holds_as_the_driver_sees_it():
    hardware = gpus.fresh()
    device = gpus.made(hardware, 8 * MIB)
    free, total = device.context.memory_info()
    assert total == hardware.memory_bytes
    arena = device.pool.arena(tag="test")
    arena.grow(7 * MIB)
    assert 0 < free - device.context.memory_info()[0] <= 8 * MIB
    with pytest.raises(ResourceExhaustedError):
        arena.grow(9 * MIB)
    assert free - device.context.memory_info()[0] <= 8 * MIB
    arena.free()
    device.pool.trim()
    assert device.context.memory_info()[0] == free


def test_without_growth_memory_is_taken_at_once():
    hardware = gpus.fresh()
    device = gpus.made(hardware, 64 * MIB, growth=False)
    free, total = device.context.memory_info()
    assert total - free >= 64 * MIB
    del device
    whole = gpus.made(hardware, hardware.memory_bytes, growth=False)
    assert whole.pool.limit <= hardware.memory_bytes
    free, total = whole.context.memory_info()
    assert total / 20 < free < total / 10  # what the driver needs beside it


def test_staged_inputs_lie_in_pinned_memory(device, arena):
    staged = device.staging(arena, 0, (4, 4), "float32")
    assert device.host_pool.stats().current_bytes == 64
    assert not staged.any()
    del staged
    assert device.host_pool.stats().current_bytes == 0
    assert device.staging(arena, 0, (0, 3), "int32").shape == (0, 3)


def test_a_forked_child_is_told(device, arena):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            read(device, arena)
            text = "it worked"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"fork" in os.read(reader, 4096)
    os.close(reader)
    os.close(writer)


# -- threads, and other libraries --------------------------------------------


def test_threads_compile_a_source_once():
    compiled, together = [], threading.Barrier(6)

    def compiler(text, capability):
        compiled.append(text)
        time.sleep(0.05)
        return gpus.compile_for_stand_in(text, capability)

    hardware = gpus.fresh(compiler=compiler)
    device = gpus.made(hardware)
    functions = []

    def load():
        kernel = device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR])
        launches = kernel.bind([0, 64, 128], 0)
        together.wait()
        device.kernels.load(launches)
        functions.append(launches[0].function)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert len(functions) == 6
    assert len({id(each) for each in functions}) == 1


def test_a_source_that_failed_is_compiled_again():
    fails = [True]

    def compiler(text, capability):
        if fails.pop():
            raise KernelError("no nvcc today")
        return gpus.compile_for_stand_in(text, capability)

    hardware = gpus.fresh(compiler=compiler)
    kernels = gpus.made(hardware).kernels
    launches = kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR]).bind([0, 64, 128], 0)
    with pytest.raises(KernelError, match="no nvcc today"):
        kernels.load(launches)
    fails.append(False)
    kernels.load(launches)
    assert launches[0].function is not None


@pytest.mark.parametrize("blocking", [False, True])
def test_models_train_and_go_amid_a_capture_of_another_library(blocking):
    """PyTorch's captures forbid calls that may be unsafe; none of ours breaks one."""
    module = cudnn_stand_in.StandIn()
    with cuda_stand_in.foreign_capture(blocking=blocking):
        hardware = gpus.fresh(
            load_products=cublaslt_stand_in.load, load_convolutions=module.load
        )
        device = gpus.made(hardware)
        graph = chain(depth=2)
        values = random_values(graph)
        executor = Executor(device, name="model")
        executor.load({"train": graph}, planning.share(), values)
        for tensor in graph.tensors:
            if tensor.role == "input" and tensor.name in values:
                executor.feed("train", tensor.name)[...] = values[tensor.name]
        for _ in range(3):
            assert executor.run("train", guard=True)
        executor.close()
        device.pool.trim()
        device.host_pool.trim()
        del executor, device, hardware
        gc.collect()
        assert not module.handles


def test_a_wait_that_somebody_asks_for_is_for_everything(device):
    with cuda_stand_in.foreign_capture():
        device.context.wait()  # but for what others capture
    device.synchronize()


@pytest.mark.parametrize("tier", ["host", "file"])
def test_streams_are_measured_once_a_process(device, tier, monkeypatch, tmp_path):
    """Copies that were captured, in memory that goes again; nothing is on the disk."""
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(tmp_path / "seconds"))
    set_copy_seconds(monkeypatch, [2.0, 5.0])
    for _ in range(2):
        assert device.copy_rate(tier) == pytest.approx((64 << 20) / 5)
    assert device.pool.stats().current_bytes == 0
    assert device.host_pool.stats().current_bytes == 0
    assert not (tmp_path / "seconds").exists()

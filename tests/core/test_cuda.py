"""The faces of the CUDA driver, on a driver that is none; in part on a GPU too."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import cuda_stand_in
import numpy as np
import pytest
from cuda_compiler import compile_on_host, compile_with_nvcc

from memcfg import memory
from memcfg._core import (
    CudaContext,
    CudaDriver,
    CudaEvent,
    CudaGraph,
    CudaModule,
    CudaResource,
    CudaStream,
    Pool,
)
from memcfg.errors import KernelError, MissingDependencyError, ResourceExhaustedError

SOURCE = """
extern "C" __global__ void __launch_bounds__(256)
add_scaled(float* y, const float* x, float a, int count)
{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += a * x[i];
}
extern "C" __global__ void __launch_bounds__(32)
reverse_blocks(float* y)
{
  __shared__ float shared[32];
  shared[threadIdx.x] = y[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = shared[31 - threadIdx.x];
}
"""


on_a_gpu_too = pytest.mark.parametrize(
    "driver", ["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True
)


@pytest.fixture
def driver(request):
    if getattr(request, "param", "stand-in") == "gpu":
        try:
            yield CudaDriver("libcuda.so.1")
        except MissingDependencyError as error:
            pytest.skip(f"needs a GPU: {error}")
        return
    with cuda_stand_in.stand_in() as path:
        yield CudaDriver(path)
        request.node.funcargs.clear()  # which would keep what has to go back


@pytest.fixture
def context(driver):
    return CudaContext(driver, 0)


@pytest.fixture
def pool(context):
    return Pool(context.resource(name="GPU:0"), limit="64MiB")


@pytest.fixture
def pinned(context):
    return Pool(context.pinned_resource(name="pinned"), limit="16MiB")


@pytest.fixture
def module(context):
    return CudaModule(context, image_for(context))


def image_for(context):
    info = context.driver.info(0)
    if info.name == "GPU of a test":
        return bytes(compile_on_host(SOURCE))
    return compile_with_nvcc(SOURCE, f"sm_{info.capability}")


def floats(block, count):
    return np.frombuffer(block, np.float32, count)


def packed(y, x, a, count):
    """The parameters of `add_scaled` as a compiler lays them out, and their offsets."""
    return struct.pack("QQfi", y, x, a, count), (0, 8, 16, 20)


def test_a_driver_tells_what_there_is(driver):
    assert driver.version == 13000
    assert driver.device_count == 1
    info = driver.info(0)
    assert info == ("GPU of a test", 1 << 30, 90, True)
    assert info.capability == 90
    with pytest.raises(KernelError, match=r"cuDeviceGet.*CUDA_ERROR_INVALID_VALUE"):
        driver.info(1)


def test_the_abi_is_that_of_the_driver_s_header():
    found = [
        Path(root, "include")
        for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")
        if Path(root, "include/cuda.h").exists()
    ]
    compiler = shutil.which("g++")
    if not found or compiler is None:
        pytest.skip("needs cuda.h and g++")
    native = cuda_stand_in.ROOT / "tests/native/cuda_abi.cpp"
    command = [compiler, "-std=c++17", "-fsyntax-only", str(native)]
    command += [f"-I{cuda_stand_in.ROOT / '_native/include'}", f"-I{found[0]}"]
    subprocess.run(command, check=True)


def test_without_a_driver_or_a_gpu_a_sentence_says_so(driver):
    with pytest.raises(MissingDependencyError, match="NVIDIA's driver, which cannot"):
        CudaDriver("/none/libcuda.so.1")
    with pytest.raises(MissingDependencyError, match="no function 'cu"):
        CudaDriver("libm.so.6")
    cuda_stand_in.machine(count=0)
    with pytest.raises(MissingDependencyError, match="no GPU that it can use"):
        CudaDriver(cuda_stand_in.driver_path())
    cuda_stand_in.machine()


def test_a_context_tells_memory_and_priorities(context, pool):
    assert context.ordinal == 0
    assert list(context.priorities)[:2] == [0, -1]
    assert context.memory_info() == (1 << 30, 1 << 30)
    block = pool.allocate(3 << 20)
    free, total = context.memory_info()
    assert total - free == cuda_stand_in.used() == 4 << 20
    assert pool.stats().reserved_bytes == 4 << 20
    block.free()
    pool.trim()
    assert context.memory_info() == (1 << 30, 1 << 30)


@pytest.mark.parametrize(
    "call", ["cuMemGetAllocationGranularity", "cuMemCreate", "cuMemMap"]
)
def test_a_driver_that_refuses_pages_has_blocks(context, call):
    cuda_stand_in.refuse(call)
    told = f"refuses it \\({call}: CUDA_ERROR_.*cuMemAlloc"
    with pytest.warns(RuntimeWarning, match=told):
        pool = Pool(context.resource(name="GPU:0"), limit="64MiB")
    assert pool.upstream.page_bytes == 1
    context.resource()  # once is enough
    with pool.allocate(3 << 20):
        assert cuda_stand_in.used() == pool.stats().reserved_bytes
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(65 << 20)
    pool.trim()
    assert cuda_stand_in.used() == 0


def test_a_full_gpu_refuses_no_pages(context):
    cuda_stand_in.machine(memory=1 << 20)
    assert context.resource().page_bytes == 2 << 20


def test_several_gpus(driver):
    cuda_stand_in.machine(count=2)
    contexts = [CudaContext(driver, ordinal) for ordinal in range(driver.device_count)]
    for context in contexts:
        pool = Pool(context.resource(), limit="8MiB")
        stream = CudaStream(context)
        with pool.allocate(100) as block:
            stream.fill(block.address, 1, 100)
            stream.synchronize()


def test_what_does_not_fit_is_told_and_the_limit_holds(driver, pool):
    blocks = [pool.allocate(20 << 20) for _ in range(3)]
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(20 << 20)
    assert caught.value.limit_bytes == 64 << 20
    assert caught.value.device == "GPU:0"
    assert cuda_stand_in.peak() <= 64 << 20
    cuda_stand_in.machine(memory=100 << 20)
    full = Pool(CudaContext(driver, 0).resource(name="GPU:0"))
    with pytest.raises(ResourceExhaustedError, match="device has no more memory"):
        full.allocate(50 << 20)
    del blocks


@on_a_gpu_too
def test_the_host_cannot_touch_a_gpu_s_memory(pool, pinned):
    block = pool.allocate(64)
    with pytest.raises(BufferError, match="a GPU's is out of its reach"):
        memoryview(block)
    with pytest.raises(ValueError, match="arrays need memory of the host"):
        memory.NumpyAllocator(pool)
    resource = pool.upstream
    assert isinstance(resource, CudaResource)
    assert resource.page_bytes == 2 << 20
    assert not resource.pinned
    with pinned.allocate(64) as host:
        floats(host, 16)[:] = 3
    assert pinned.upstream.pinned
    assert pinned.upstream.page_bytes == 1


def test_reports_count_pages_of_a_gpu_once(pool, pinned):
    blocks = [pool.allocate(1 << 20, tag="a"), pinned.allocate(1 << 20, tag="b")]
    held = {row.tag: row.nbytes for row in memory.list_live(pool, pinned)}
    assert held == {"a": 1 << 20, "b": 1 << 20}
    every = memory.list_live(pool, pinned, pool.upstream, pinned.upstream)
    assert sum(row.nbytes for row in every) == 2 << 20
    assert "GPU:0" in str(memory.summary(pool))
    del blocks


@on_a_gpu_too
@pytest.mark.parametrize("seed", range(4))
def test_copies_and_fills_in_order(context, pool, pinned, seed):
    cuda_stand_in.late(seed)
    one, two = CudaStream(context, context.priorities[-1]), CudaStream(context)
    event = CudaEvent(context)
    there, here = pool.allocate(5 << 20), pinned.allocate(5 << 20)
    view = np.frombuffer(here, np.uint8)
    view[:] = 7
    one.copy(there.address, here.address, 5 << 20)
    one.fill(there.address + (2 << 20) - 3, 9, 6)  # over the end of a page
    one.record(event)
    two.wait(event)
    two.copy(here.address, there.address, 5 << 20)
    if context.driver.info(0).name == "GPU of a test":
        assert (view == 7).all()  # work is late
    two.synchronize()
    assert (view == 9).sum() == 6
    assert one.done()
    assert one.handle != two.handle
    del view


@on_a_gpu_too
def test_pageable_memory_is_copied_at_once(context, pool):
    stream = CudaStream(context)
    block = pool.allocate(4096)
    source = np.arange(1024, dtype=np.float32)
    target = np.zeros_like(source)
    stream.copy(block.address, source.ctypes.data, 4096)
    source[:] = 0
    stream.copy(target.ctypes.data, block.address, 4096)
    stream.synchronize()
    assert (target == np.arange(1024)).all()


def test_events_have_times(context, pool):
    stream = CudaStream(context)
    first, last = CudaEvent(context, timing=True), CudaEvent(context, timing=True)
    block = pool.allocate(64)
    assert first.done()  # never recorded
    stream.record(first)
    stream.fill(block.address, 1, 64)
    stream.record(last)
    assert not last.done()
    with pytest.raises(KernelError, match="cuEventElapsedTime"):
        last.seconds_since(first)
    last.synchronize()
    assert 0 <= last.seconds_since(first) < 10
    assert last.timing
    assert not CudaEvent(context).timing


@on_a_gpu_too
def test_kernels_run(context, pool, pinned, module):
    stream = CudaStream(context)
    x, y, host = pool.allocate(4000), pool.allocate(4000), pinned.allocate(4000)
    floats(host, 1000)[:] = np.arange(1000)
    stream.copy(x.address, host.address, 4000)
    stream.fill(y.address, 0, 4000)
    function = module.function("add_scaled")
    assert function.name == "add_scaled"
    arguments, offsets = packed(y.address, x.address, 0.5, 1000)
    stream.launch(function, (4, 1, 1), (256, 1, 1), 0, arguments, offsets)
    stream.copy(host.address, y.address, 4000)
    del function  # what was queued keeps nothing, but its module waits for it
    stream.synchronize()
    assert (floats(host, 1000) == np.arange(1000) * 0.5).all()


@on_a_gpu_too
def test_threads_of_a_block_meet(context, pool, pinned, module):
    stream = CudaStream(context)
    y, host = pool.allocate(256), pinned.allocate(256)
    floats(host, 64)[:] = np.arange(64)
    stream.copy(y.address, host.address, 256)
    kernel = module.function("reverse_blocks")
    stream.launch(kernel, [2, 1, 1], [32, 1, 1], 0, struct.pack("Q", y.address), [0])
    stream.copy(host.address, y.address, 256)
    stream.synchronize()
    expected = np.arange(64).reshape(2, 32)[:, ::-1].ravel()
    assert (floats(host, 64) == expected).all()


def test_kernels_that_are_none(context, pool, module):
    stream = CudaStream(context)
    with pytest.raises(KernelError, match="no kernel 'none'"):
        module.function("none")
    with pytest.raises(KernelError, match="CUDA_ERROR_INVALID_IMAGE"):
        CudaModule(context, b"/none.so")
    kernel = module.function("add_scaled")
    arguments, offsets = packed(0, 0, 1, 0)
    with pytest.raises(ValueError, match="three numbers"):
        stream.launch(kernel, (1, 1), (1, 1, 1), 0, arguments, offsets)
    with pytest.raises(ValueError, match="three positive numbers"):
        stream.launch(kernel, (0, 1, 1), (1, 1, 1), 0, arguments, offsets)
    with pytest.raises(ValueError, match="no argument at offset 24"):
        stream.launch(kernel, (1, 1, 1), (1, 1, 1), 0, arguments, (0, 8, 16, 24))
    with pytest.raises(KernelError, match=r"cuLaunchKernel.*INVALID_VALUE"):
        stream.launch(kernel, (1, 1, 1), (1025, 1, 1), 0, arguments, offsets)
    with pytest.raises(KernelError, match="cuFuncSetAttribute"):
        stream.launch(kernel, (1, 1, 1), (1, 1, 1), 1 << 20, arguments, offsets)
    with pytest.raises(ValueError, match="cannot be negative"):
        stream.copy(-1, 0, 8)
    with pytest.raises(ValueError, match="at most 255"):
        stream.fill(0, 256, 8)
    stream.copy(0, 0, 0)  # nothing
    stream.synchronize()


def capture_step(context, pool, pinned, module):
    """A step on two streams: y += 0.5 x, and its copy to the host; two blocks more."""
    one, two = CudaStream(context), CudaStream(context)
    forth, back = CudaEvent(context), CudaEvent(context)
    x, y, host = pool.allocate(4000), pool.allocate(4000), pinned.allocate(4000)
    one.fill(x.address, 0, 4000)
    one.fill(y.address, 0, 4000)
    one.begin_capture()
    assert one.capturing
    assert not two.capturing
    arguments, offsets = packed(y.address, x.address, 0.5, 1000)
    one.copy(x.address, host.address, 4000)
    one.record(forth)
    two.wait(forth)
    assert two.capturing
    two.launch(
        module.function("add_scaled"), (4, 1, 1), (256, 1, 1), 0, arguments, offsets
    )
    two.copy(host.address, y.address, 4000)
    two.record(back)
    one.wait(back)
    graph = one.end_capture()
    assert not one.capturing
    assert not two.capturing
    return one, graph, host, (x, y)


@on_a_gpu_too
def test_graphs_are_launched_again_and_again(context, pool, pinned, module):
    stream, graph, host, blocks = capture_step(context, pool, pinned, module)
    assert isinstance(graph, CudaGraph)
    assert graph.node_count == 3
    view = floats(host, 1000)
    del module  # the graph keeps its kernels
    for step in range(3):
        view[:] = np.arange(1000) * (step + 1)
        stream.launch_graph(graph)
        stream.synchronize()
        assert (view == np.arange(1000) * 0.5 * sum(range(step + 2))).all()
    stream.launch_graph(graph)
    del graph, view, host, blocks  # it goes when it has run
    stream.synchronize()
    with pytest.raises(TypeError, match="end_capture"):
        CudaGraph()


@on_a_gpu_too
def test_a_graph_is_not_launched_into_a_capture(context, pool, pinned, module):
    stream, graph, host, blocks = capture_step(context, pool, pinned, module)
    stream.begin_capture()
    with pytest.raises(KernelError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        stream.launch_graph(graph)
    with suppress(KernelError):  # where that has broken it off
        stream.end_capture()
    assert not stream.capturing
    floats(host, 1000)[:] = 1
    stream.launch_graph(graph)
    stream.synchronize()
    assert (floats(host, 1000) == 0.5).all()
    del blocks


@on_a_gpu_too
def test_captures_that_fail_end(context, pool, module):
    stream, other = CudaStream(context), CudaStream(context)
    event, block = CudaEvent(context), pool.allocate(64)
    with pytest.raises(KernelError, match="no capture"):
        stream.end_capture()
    stream.begin_capture()
    stream.fill(block.address, 1, 64)
    with pytest.raises(KernelError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        stream.synchronize()
    with pytest.raises(KernelError, match="cuStreamEndCapture"):
        stream.end_capture()
    stream.begin_capture()
    stream.record(event)
    other.wait(event)
    other.fill(block.address, 1, 64)  # and never waited for
    with pytest.raises(KernelError, match="cuStreamEndCapture"):
        stream.end_capture()
    assert not other.capturing
    other.fill(block.address, 2, 64)
    stream.begin_capture()
    stream.fill(block.address, 3, 64)
    assert stream.end_capture().node_count == 1
    context.synchronize()


def test_failed_work_is_told_where_it_is_waited_for(context, pool):
    stream, event, block = CudaStream(context), CudaEvent(context), pool.allocate(64)
    cuda_stand_in.fail_work(0)
    stream.fill(block.address, 1, 64)
    stream.record(event)
    for wait in (stream.synchronize, event.synchronize, stream.done, event.done):
        with pytest.raises(KernelError, match="CUDA_ERROR_LAUNCH_FAILED"):
            wait()
    with pytest.raises(KernelError, match="cuCtxSynchronize"):
        context.synchronize()


def one_of_everything(driver):
    context = CudaContext(driver, 0)
    pool = Pool(context.resource(), limit="64MiB")
    pinned = Pool(context.pinned_resource(), limit="64MiB")
    module = CudaModule(context, image_for(context))
    stream, graph, host, blocks = capture_step(context, pool, pinned, module)
    floats(host, 1000)[:] = 1
    stream.launch_graph(graph)
    event = CudaEvent(context)
    stream.record(event)
    event.synchronize()
    assert (floats(host, 1000) == 0.5).all()
    del blocks


@pytest.mark.filterwarnings("ignore:the GPU's driver announces")
@pytest.mark.parametrize("once", [True, False])
def test_a_failure_at_any_call_is_an_error_and_loses_nothing(driver, once):
    one_of_everything(driver)
    before = cuda_stand_in.calls()
    one_of_everything(driver)
    count = cuda_stand_in.calls() - before
    assert count > 40
    gc.collect()
    clean, used = cuda_stand_in.all_back(), cuda_stand_in.used()
    failures = 0
    for after in range(count):
        cuda_stand_in.fail_calls(after, once=once)
        try:
            one_of_everything(driver)
        except (KernelError, ResourceExhaustedError) as error:
            failures += 1
            error.__traceback__ = None
        finally:
            cuda_stand_in.fail_calls(None)
        assert cuda_stand_in.all_back() or not clean  # another test's GPU is there
        assert cuda_stand_in.used() == used
    assert failures > count // 3  # the others give something back


@on_a_gpu_too
def test_a_forked_child_is_told_at_once(context, pool, pinned, module):
    stream, graph, host, blocks = capture_step(context, pool, pinned, module)
    stream.launch_graph(graph)
    event = CudaEvent(context)
    real = context.driver.info(0).name != "GPU of a test"
    path = "libcuda.so.1" if real else cuda_stand_in.driver_path()
    calls = [
        stream.synchronize,
        stream.done,
        event.synchronize,
        event.done,
        context.synchronize,
        context.memory_info,
        stream.begin_capture,
        lambda: stream.launch_graph(graph),
        lambda: stream.record(event),
        lambda: stream.wait(event),
        lambda: stream.fill(blocks[0].address, 1, 8),
        lambda: module.function("add_scaled"),
        lambda: CudaStream(context),
        lambda: CudaEvent(context),
        lambda: context.driver.info(0),
        lambda: CudaDriver(path),
    ]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        told = 0
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                told += "forked" in str(error)
        try:
            pool.allocate(32 << 20)
        except ResourceExhaustedError as error:
            told += "forked" in str(error)
        pool.trim()
        del stream, graph, event, calls, call, module, blocks, host
        os._exit(told != 17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.synchronize()


@on_a_gpu_too
def test_threads_have_streams_of_their_own(context, pool, pinned):
    failures = []

    def work(number):
        stream, host = CudaStream(context), pinned.allocate(64)
        for step in range(20):
            with pool.allocate(1000 + 5000 * step) as block:
                stream.fill(block.address, number, 64)
                stream.copy(host.address, block.address, 64)
                stream.synchronize()
                if bytes(host)[:64] != bytes([number]) * 64:
                    failures.append(step)
            pool.trim()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@on_a_gpu_too
def test_objects_keep_what_they_need(driver, pool, pinned, module):
    stream = CudaStream(CudaContext(driver, 0))
    module = CudaModule(stream.context, image_for(stream.context))
    kernel = module.function("reverse_blocks")
    del module
    resource = CudaContext(driver, 0).resource()
    with Pool(resource, limit="8MiB").allocate(128) as block:
        stream.fill(block.address, 0, 128)
        arguments = struct.pack("Q", block.address)
        stream.launch(kernel, (1, 1, 1), (32, 1, 1), 0, arguments, [0])
        stream.synchronize()
    assert stream.context.driver.version == 13000

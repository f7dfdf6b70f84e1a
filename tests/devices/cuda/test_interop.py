"""Allocators for PyTorch, CuPy and PyCUDA, against doubles of what they call."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import gpus
import numpy as np
import pytest
from cuda_stand_in import late, reset

import memcfg as mc
from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration
from memcfg.errors import MissingDependencyError, ResourceExhaustedError

MIB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in's GPU, of 4 and 8 MiB."""
    gpus.find_stand_in(monkeypatch)
    (found,) = config.list_physical_devices("GPU")
    config.set_logical_device_configuration(
        found, [Configuration(memory_limit=limit) for limit in (4, 8)]
    )
    yield
    reset()


def current(name):
    return config.get_memory_info(name)["current"]


def cupy(monkeypatch, ordinal=0, stream=lambda: SimpleNamespace(ptr=0)):
    """CuPy's allocator calls its functions with the current GPU's number."""

    class PythonFunctionAllocator:
        def __init__(self, take, free):
            self.take, self.free = take, free

        def malloc(self, nbytes):
            address = self.take(nbytes, ordinal)
            return SimpleNamespace(
                ptr=address, free=lambda: self.free(address, ordinal)
            )

    made = ModuleType("cupy")
    made.cuda = SimpleNamespace(
        PythonFunctionAllocator=PythonFunctionAllocator,
        get_current_stream=stream,
    )
    monkeypatch.setitem(sys.modules, "cupy", made)


class OwnStream:
    """CuPy's: it destroys its stream when it is garbage."""

    def __init__(self, context):
        self.stream = gpus.CudaStream(context)
        self.ptr = self.stream.handle


@pytest.mark.parametrize("freed_before", [False, True])
def test_a_stream_of_cupys_outlives_the_arrays_that_were_made_on_it(
    gpu, monkeypatch, freed_before
):
    late(1)
    device = config.logical_device("/GPU:0")
    current_one = [OwnStream(device.context)]
    cupy(monkeypatch, stream=lambda: current_one[0])
    take = mc.interop.cupy_allocator("/GPU:0")
    gone = weakref.ref(current_one[0])
    memory = take(3 * MIB)
    for _ in range(40):
        current_one[0].stream.fill(memory.ptr, 7, 3 * MIB)
    if freed_before:
        memory.free()
    current_one[0] = SimpleNamespace(ptr=0)
    gc.collect()
    assert gone() is not None  # else its handle may be another's
    if not freed_before:
        memory.free()
    assert gone() is not None
    assert current("GPU:0") == 3 * MIB  # its work is queued
    other = take(4 * MIB)  # waits for that work
    take(0)
    gc.collect()
    assert gone() is None
    other.free()


def test_cupy_takes_and_frees_in_the_pool(gpu, monkeypatch):
    cupy(monkeypatch)
    small, large = (mc.interop.cupy_allocator(f"/GPU:{i}") for i in (0, 1))
    memory = large(5 * MIB)
    assert (current("GPU:0"), current("GPU:1")) == (0, 5 * MIB)
    with pytest.raises(ResourceExhaustedError, match="/device:GPU:0"):
        small(5 * MIB)
    with pytest.raises(ResourceExhaustedError, match="CuPy"):  # who holds it
        large(4 * MIB)
    memory.free()
    large(6 * MIB).free()
    assert small(0).ptr == 0
    cupy(monkeypatch, ordinal=3)
    with pytest.raises(
        ValueError, match="CuPy asks for memory of GPU 3, and /device:G"
    ):
        mc.interop.cupy_allocator("/GPU:0")(64)


def pycuda(monkeypatch):
    made, driver = ModuleType("pycuda"), ModuleType("pycuda.driver")
    driver.PointerHolderBase = type("PointerHolderBase", (), {})
    made.driver = driver
    monkeypatch.setitem(sys.modules, "pycuda", made)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    return driver


def test_pycuda_takes_and_frees_in_the_pool(gpu, monkeypatch):
    driver = pycuda(monkeypatch)
    allocator = mc.interop.pycuda_allocator("/GPU:0")
    memory = allocator(3 * MIB)
    assert isinstance(memory, driver.PointerHolderBase)
    assert memory.get_pointer() == int(memory) == memory.__index__() > 0
    assert np.uintp(memory.gpudata) == int(memory)  # so PyCUDA packs arguments
    with pytest.raises(ResourceExhaustedError):
        allocator(3 * MIB)
    memory.free()
    memory.free()
    again = allocator(3 * MIB)
    assert current("GPU:0") == 3 * MIB
    del memory, again
    gc.collect()
    allocator(4 * MIB).free()
    mc.interop.pycuda_allocator("/GPU:0")(64).free()


def test_pytorch_is_given_the_functions_of_c(gpu, monkeypatch):
    installed = []
    monkeypatch.setattr(  # installing is for ever; test_cuda_allocators.py does it
        "memcfg.interop.CudaAllocator",
        lambda pool, context, tag: SimpleNamespace(
            install=lambda: installed.append(pool) or 77
        ),
    )
    torch = ModuleType("torch")
    torch.__version__, torch._C = "2.0", SimpleNamespace(_cuda_customAllocator=None)
    recorded = []
    made = SimpleNamespace(set_record_stream_fn=recorded.append)
    memory = SimpleNamespace(
        CUDAPluggableAllocator=lambda *names: SimpleNamespace(
            names=names, allocator=lambda: made
        )
    )
    torch.cuda = SimpleNamespace(memory=memory)
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = mc.interop.torch_allocator("/GPU:1")
    names = (gpus.ENGINE, "memcfg_cuda_allocate", "memcfg_cuda_free")
    assert found.names == names
    assert recorded == [77]
    assert [pool.name for pool in installed] == ["/device:GPU:1"]
    mc.interop._allocators.clear()
    torch._C = SimpleNamespace()
    with pytest.raises(
        MissingDependencyError, match=r"PyTorch 2\.0 is older than 2\.0, or a build"
    ):
        mc.interop.torch_allocator()


@pytest.mark.parametrize("name", ["torch", "cupy", "pycuda"])
def test_what_is_missing_is_told(name, monkeypatch):
    title = {"torch": "PyTorch", "cupy": "CuPy", "pycuda": "PyCUDA"}[name]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=f"{title} cannot be imported"):
        getattr(mc.interop, f"{name}_allocator")()


def test_a_device_that_is_no_gpu_is_refused(monkeypatch):
    cupy(monkeypatch)
    config.experimental.add_simulated_device("GPU", memory="1GiB")
    for name in ("CPU:0", "GPU:0"):
        with pytest.raises(ValueError, match=f"{name} is not on an NVIDIA GPU"):
            mc.interop.cupy_allocator(name)

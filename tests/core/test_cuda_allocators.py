"""A GPU's pool for other libraries, on a driver without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cuda_stand_in import late, stand_in, used

from memcfg import memory
from memcfg._core import CudaAllocator, CudaContext, CudaDriver, CudaStream
from memcfg.errors import InvalidFreeError, ResourceExhaustedError

MIB = 1 << 20


@pytest.fixture
def path():
    with stand_in() as found:
        yield found


def made(path, limit="8MiB"):
    context = CudaContext(CudaDriver(path), 0)
    pool = memory.Pool(context.resource(), limit=limit, name="/device:GPU:0")
    return CudaAllocator(pool, context)


def test_a_block_goes_back_when_the_work_before_is_done(path):
    late(1)
    allocator = made(path)
    stream = CudaStream(allocator.context)
    block = allocator.allocate(3 * MIB, stream.handle)
    for _ in range(20):  # each question to an event lets some work be done
        stream.fill(block, 7, 3 * MIB)
    allocator.free(block, stream.handle)
    assert allocator.waiting_bytes == 3 * MIB
    assert allocator.pool.stats().current_bytes == 3 * MIB
    assert allocator.allocate(3 * MIB, stream.handle) == block
    allocator.free(block, stream.handle)
    allocator.settle()
    assert allocator.waiting_bytes == allocator.pool.stats().current_bytes == 0


def test_a_model_has_what_another_library_freed(path):
    late(1)
    allocator = made(path)
    stream = CudaStream(allocator.context)
    block = allocator.allocate(6 * MIB, stream.handle)
    for _ in range(40):
        stream.fill(block, 7, 6 * MIB)
    allocator.free(block, stream.handle)
    assert allocator.waiting_bytes == 6 * MIB
    arena = allocator.pool.arena(tag="model")
    arena.grow(7 * MIB)
    assert stream.done()
    assert allocator.waiting_bytes == 0


def test_the_limit_is_the_pools(path):
    allocator = made(path)
    blocks = [allocator.allocate(2 * MIB) for _ in range(4)]
    assert len(set(blocks)) == 4
    with pytest.raises(ResourceExhaustedError, match="/device:GPU:0"):
        allocator.allocate(1)
    assert used() <= 8 * MIB
    allocator.free(blocks.pop())
    blocks.append(allocator.allocate(MIB))
    for block in blocks:
        allocator.free(block)


def test_what_cannot_be_freed_or_asked_for(path):
    allocator = made(path)
    block = allocator.allocate(MIB)
    for wrong in (block + 64, 4096):
        with pytest.raises(InvalidFreeError, match=f"{wrong:#x} is no block of /dev"):
            allocator.free(wrong)
    allocator.free(block)
    with pytest.raises(InvalidFreeError):
        allocator.free(block)
    assert allocator.allocate(0) == 0
    allocator.free(0)
    with pytest.raises(ValueError, match="a size"):
        allocator.allocate(-1)


# Installing is for ever, so it is done in a process of its own.
C_CALLS = """
import ctypes, sys
from memcfg import memory
from memcfg._core import CudaAllocator, CudaContext, CudaDriver, CudaStream, engine

library = ctypes.CDLL(engine.__file__)  # as PyTorch finds its functions
allocate, free = library.memcfg_cuda_allocate, library.memcfg_cuda_free
allocate.restype = ctypes.c_void_p
allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
context = CudaContext(CudaDriver(sys.argv[1]), 0)
pool = memory.Pool(context.resource(), limit="8MiB", name="GPU")
allocator = CudaAllocator(pool, context)
record = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(allocator.install())
block = allocate(3 << 20, 0, None)
assert pool.stats().requested_bytes == 3 << 20
stream = CudaStream(context)
record(block, stream.handle)
for _ in range(20):
    stream.fill(block, 1, 3 << 20)
free(block, 3 << 20, 0, None)
assert allocator.waiting_bytes == 3 << 20
allocator.settle()
assert stream.done()
assert pool.stats().requested_bytes == 0
try:
    other = memory.Pool(context.resource(), limit="8MiB", name="GPU")
    CudaAllocator(other, context).install()
except ValueError as error:
    print(error)
"""


def test_the_functions_of_c(path):
    command = [sys.executable, "-c", C_CALLS, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = "another pool serves GPU 0 already, and its blocks come back to it\n"
    assert done.stdout == words

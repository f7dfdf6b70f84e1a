"""A pool's functions of C, as a library that is not linked with it calls them."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import sys

import pytest

from memcfg import memory
from memcfg._core import HostAllocator, intern_tag, swap_thread_tag
from memcfg.errors import ResourceExhaustedError


class Refusal(ctypes.Structure):
    _fields_ = (
        *(("number", ctypes.c_uint64), ("requested", ctypes.c_size_t)),
        *(("in_use", ctypes.c_size_t), ("limit", ctypes.c_size_t)),
        ("sentence", ctypes.c_char_p),
    )


class Functions(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        (
            "allocate",
            ctypes.CFUNCTYPE(
                *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p),
                ctypes.POINTER(Refusal),
            ),
        ),
        ("free", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
    )


class Library:
    """Has nothing but the address of the functions."""

    def __init__(self, address: int) -> None:
        self.functions = Functions.from_address(address)
        self.refusal = Refusal()

    def take(self, size: int, tag: bytes = b"") -> int | None:
        functions = self.functions
        return functions.allocate(
            functions.context, size, tag, ctypes.byref(self.refusal)
        )

    def free(self, address: int) -> bool:
        return bool(self.functions.free(self.functions.context, address))


@pytest.fixture
def pool():
    return memory.Pool(limit="64KiB", name="host")


def test_blocks_are_the_pools_until_they_are_freed(pool):
    library = Library(HostAllocator(pool).functions)
    assert library.functions.version == 1
    address = library.take(1000, b"library")
    assert address % 64 == 0
    assert pool.owners() == {"library": 1024}
    assert library.free(address)
    assert not library.free(address)
    assert pool.stats().current_bytes == 0


def test_the_functions_outlive_the_object(pool):
    library = Library(HostAllocator(pool).functions)
    gc.collect()
    address = library.take(64)
    del pool
    gc.collect()
    assert library.free(address)


def test_a_refusal_has_the_fields_of_an_error(pool):
    allocator = HostAllocator(pool)
    library = Library(allocator.functions)
    address = library.take(10_000, b"holder")
    assert library.take(60_000) is None
    assert library.refusal.sentence == b"A request does not fit the memory limit."
    fields = allocator.refusal(library.refusal.number)
    error = ResourceExhaustedError("no", **fields)
    assert (error.requested_bytes, error.in_use_bytes) == (60_000, 10_048)
    assert (error.limit_bytes, error.device) == (65_536, "host")
    assert error.owners == {"holder": 10_048}
    assert allocator.refusal(0) is None
    assert allocator.refusal(10**9) is None
    assert library.free(address)


def test_a_tag_of_the_thread_names_what_it_takes(pool):
    library = Library(HostAllocator(pool).functions)
    number = intern_tag("layer é")
    assert intern_tag("layer é") == number
    assert intern_tag("") == 0
    assert swap_thread_tag(number) == 0
    taken = [library.take(64, b"call")]
    assert swap_thread_tag(0) == number
    taken.append(library.take(64, b"call"))
    assert pool.owners() == {"call": 64, "layer é": 64}
    assert all(map(library.free, taken))


# OpenMP threads take blocks, as PyTorch's do, and so have caches of the pool.
PARALLEL = """
#include <stddef.h>
#include <stdint.h>
struct functions {
  uint32_t version;
  void* context;
  void* (*allocate)(void*, size_t, const char*, void*);
  int (*free)(void*, void*);
};
int take_in_parallel(const struct functions* of) {
  int taken = 0;
#pragma omp parallel for num_threads(4) schedule(static, 1) reduction(+ : taken)
  for (int i = 0; i < 4; ++i) {
    char refusal[64];
    taken += of->free(of->context, of->allocate(of->context, 1000, "", refusal));
  }
  return taken;
}
"""
FORKS = """
import ctypes, os, sys
from memcfg._core import HostAllocator, Pool
pool = Pool(limit="1MiB")
allocator = HostAllocator(pool)
take = ctypes.CDLL(sys.argv[1]).take_in_parallel
for _ in range(3):
    assert take(ctypes.c_void_p(allocator.functions)) == 4
    child = os.fork()
    if child == 0:
        os._exit(0 if take(ctypes.c_void_p(allocator.functions)) == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
pool.check()
print(pool.stats().current_bytes)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler of C")
def test_a_fork_ends_openmp_threads_that_have_caches(tmp_path):
    """They end before the pools are closed to all: each waits for its own."""
    source, library = tmp_path / "parallel.c", tmp_path / "parallel.so"
    source.write_text(PARALLEL)
    flags = ["-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, source, "-o", library], check=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, library],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_what_is_no_pool_or_tag_is_refused():
    with pytest.raises(TypeError):
        HostAllocator(memory.system())
    with pytest.raises(TypeError):
        intern_tag(None)
    with pytest.raises(ValueError, match="cannot touch"):
        HostAllocator(memory.Pool(memory.simulated("1GiB")))

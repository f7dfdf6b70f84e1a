"""One of every resource, for tests that all of them must pass."""

from __future__ import annotations

import os
import secrets
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import cuda_stand_in
import pytest

from memcfg import memory
from memcfg._core import CudaContext, CudaDriver, CudaResource
from memcfg.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.memory import Resource


def cuda(virtual_memory: bool = True) -> CudaContext:
    """A GPU that is none, whose memory comes in pages or in blocks."""
    cuda_stand_in.machine(virtual_memory=virtual_memory)
    return CudaContext(CudaDriver(cuda_stand_in.driver_path()), 0)


def small_cuda() -> CudaContext:
    """Another one, whose memory nobody else takes."""
    cuda_stand_in.machine(memory=1 << 26, count=2)
    return CudaContext(CudaDriver(cuda_stand_in.driver_path()), 1)


@cache
def gpu() -> CudaContext:
    """The first GPU of this machine, or a skip."""
    try:
        driver = CudaDriver(os.environ.get("MEMCFG_CUDA_LIBRARY") or "libcuda.so.1")
    except MissingDependencyError as error:
        pytest.skip(f"needs a GPU: {error}")
    return CudaContext(driver, 0)


def mapped() -> memory.MappedFile:
    """A file that nobody needs the name of."""
    path = Path(tempfile.gettempdir(), f"memcfg-{secrets.token_hex(8)}")
    return memory.mmap_file(path, "64MiB", delete=True)


MAKERS: dict[str, Callable[[], Resource]] = {
    "system": memory.system,
    "simulated": lambda: memory.simulated("1GiB", name="GPU:0"),
    "pool": lambda: memory.Pool(limit="256MiB"),
    "pool without a limit": memory.Pool,
    "pool on simulated": lambda: memory.Pool(memory.simulated("1GiB")),
    "pool on blocks": lambda: memory.Pool(memory.system(), limit="256MiB"),
    "mapped file": mapped,
    "pool on a mapped file": lambda: memory.Pool(mapped(), limit="64MiB"),
    "CUDA": lambda: small_cuda().resource(name="GPU:0"),
    "pool on CUDA": lambda: memory.Pool(cuda().resource(), limit="64MiB"),
    "pool on CUDA blocks": lambda: memory.Pool(cuda(False).resource(), limit="64MiB"),
    "pinned": lambda: cuda().pinned_resource(name="pinned"),
    "pool on pinned": lambda: memory.Pool(cuda().pinned_resource(), limit="64MiB"),
    "limiting": lambda: memory.limiting(memory.system(), "256MiB"),
    "statistics": lambda: memory.statistics(memory.Pool()),
    "failure callback": lambda: memory.failure_callback(
        memory.Pool(limit="256MiB"), lambda _: False
    ),
    "tracking": lambda: memory.tracking(memory.Pool(limit="256MiB")),
    "tracking with stacks": lambda: memory.tracking(
        memory.system(), stacks=True, max_entries=100
    ),
    "logging": lambda: memory.logging(memory.Pool(), os.devnull, overwrite=True),
    "all at once": lambda: memory.tracking(
        memory.statistics(
            memory.limiting(
                memory.failure_callback(
                    memory.Pool(memory.simulated("1GiB")), lambda _: False
                ),
                "256MiB",
            )
        ),
        stacks=True,
    ),
}

GPU_MAKERS: dict[str, Callable[[], Resource]] = {  # each of the stand-in's, of a GPU
    "GPU": lambda: gpu().resource(name="GPU:0"),
    "GPU blocks": lambda: gpu().resource(name="GPU:0", pages=False),
    "pool on GPU": lambda: memory.Pool(gpu().resource(), limit="64MiB"),
    "pool on GPU blocks": lambda: memory.Pool(
        gpu().resource(pages=False), limit="64MiB"
    ),
    "GPU's pinned": lambda: gpu().pinned_resource(name="pinned"),
    "pool on GPU's pinned": lambda: memory.Pool(gpu().pinned_resource(), limit="64MiB"),
}
ALL_MAKERS = {**MAKERS, **GPU_MAKERS}
NAMES = [
    *MAKERS,
    *(pytest.param(name, marks=pytest.mark.gpu) for name in GPU_MAKERS),
]


def touchable(resource: Resource) -> bool:
    """Whether there is memory behind the addresses."""
    while resource.upstream is not None:
        resource = resource.upstream
    if isinstance(resource, CudaResource):
        return resource.pinned
    return not isinstance(resource, memory.SimulatedResource)

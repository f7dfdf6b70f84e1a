"""One of every resource, for tests that all of them must pass."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import cuda_stand_in

from memcfg import memory
from memcfg._core import CudaContext, CudaDriver, CudaResource

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


def touchable(resource: Resource) -> bool:
    """Whether there is memory behind the addresses."""
    while resource.upstream is not None:
        resource = resource.upstream
    if isinstance(resource, CudaResource):
        return resource.pinned
    return not isinstance(resource, memory.SimulatedResource)

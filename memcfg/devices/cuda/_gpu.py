"""A GPU of this machine, and logical GPUs: a pool under a limit, streams, kernels.

See docs/decisions/0027-cuda-from-cpp.md.
"""

from __future__ import annotations

import mmap
import tempfile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._cached import cached_property
from memcfg._core import CudaContext, CudaStream
from memcfg.devices._contract import Device, Hardware
from memcfg.devices._copy_times import copy_rate
from memcfg.devices._tiers import ANYWHERE, Spill
from memcfg.devices.cuda._codec_sources import CODECS
from memcfg.devices.cuda._cuda_kernels import CudaKernels, CudaModules
from memcfg.devices.cuda._cuda_program import CudaProgram
from memcfg.devices.cuda._mapped_space import MappedSpace
from memcfg.devices.cuda._nvcc import compile_with_nvcc
from memcfg.devices.cuda.libraries._cublaslt import load_cublaslt
from memcfg.devices.cuda.libraries._cudnn import load_cudnn
from memcfg.memory import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from memcfg._core import Arena, Block, CudaDriver
    from memcfg.devices._tiers import Space, TierSpace
    from memcfg.devices.cuda._cuda_kernels import (
        Compiler,
        LoadCublasLt,
        LoadCudnn,
    )


class CudaDevice(Device):
    """A logical GPU.

    Several may exist of one GPU. Each has its own pool and limit; all share the context
    and compiled kernels. `write` and `read` return when the copy is complete, and `run`
    of a program when it has ended.

    Parameters
    ----------
    name : str
        The device's name, such as ``"/device:GPU:0"``.
    modules : CudaModules
        The GPU's context and compiled kernels.
    limit_bytes : int or None, default None
        The limit of its pool in bytes; None for no limit.
    growth : bool, default True
        Whether memory is allocated as needed; False allocates the whole limit at once.
    priority : int, default 0
        The priority of its streams.
    pages : bool, default True
        Whether to allocate virtual memory in pages if the GPU supports it, instead of
        blocks.
    spill : Spill, default ANYWHERE
        The tiers of swapped tensors; bandwidth limits have no effect.

    Raises
    ------
    ResourceExhaustedError
        If memory is to be allocated at once and the GPU has too little.
    """

    space: Space = "device"
    fallible = False  # a failing kernel destroys the context with all memory
    spares_scratch = True  # libraries use up to 64 MiB
    takes_bfloat16 = False
    stages_collectives = True
    tier_kinds: Mapping[str, Space] = MappingProxyType(
        {"host": "pinned", "file": "file"}
    )
    codecs = tuple(dict.fromkeys(name for name, _ in CODECS))

    def __init__(
        self,
        name: str,
        modules: CudaModules,
        limit_bytes: int | None = None,
        *,
        growth: bool = True,
        priority: int = 0,
        pages: bool = True,
        spill: Spill = ANYWHERE,
    ) -> None:
        self.name = name
        self.use_spill(spill)
        self.context = modules.context
        self.priority = priority
        self._modules = modules
        memory = self.context.resource(name=name, pages=pages)
        self.page_bytes = max(
            memory.page_bytes, mmap.PAGESIZE
        )  # blocks have pages of the host's size
        self.pool = Pool(memory, limit=limit_bytes, growth=growth, name=name)

    @cached_property
    def kernels(self) -> CudaKernels:
        """The kernels that run here, compiled at their first run."""
        return CudaKernels(self._modules, self.pool)

    @cached_property
    def host_pool(self) -> Pool:
        """The pool of page-locked host memory."""
        name = f"{self.name} on the host"
        return Pool(self.context.pinned_resource(name=name), name=name)

    @cached_property
    def _stream(self) -> CudaStream:
        """The stream of copies outside of programs."""
        return CudaStream(self.context, self.priority)

    def write(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Copy an array into an arena."""
        self._copy(arena.address + offset, _address(array), array.nbytes)

    def read(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Copy an array from an arena."""
        self._copy(_address(array), arena.address + offset, array.nbytes)

    def zero(self, arena: Arena, offset: int, nbytes: int) -> None:
        """Write zeros."""
        if nbytes:
            self._stream.fill(arena.address + offset, 0, nbytes)
            self._stream.synchronize()

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        if nbytes:
            self._stream.copy(target, source, nbytes)
            self._stream.synchronize()

    def staging(
        self, arena: Arena, offset: int, shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any]:
        """Return zeroed page-locked memory, from which copies are fastest."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        if not nbytes:
            return np.zeros(shape, kind)
        block = self.host_pool.allocate(nbytes, tag="staging")
        cells = np.frombuffer(memoryview(block), np.uint8, nbytes)
        cells[...] = 0
        return np.ndarray(shape, kind, cells)

    def synchronize(self) -> None:
        """Wait for all work of the GPU."""
        self.context.synchronize()

    def tier_memory(self, tier: str, nbytes: int, *, tag: str) -> Block | MappedSpace:
        """Allocate page-locked host memory, or map a file."""
        if tier != "host":
            folder = self.spill.at(tier).folder or tempfile.gettempdir()
            return MappedSpace(folder, nbytes)
        return self.host_pool.allocate(nbytes, tag=tag)

    def copy_rate(self, tier: str) -> float:
        """Measure copies on streams, once for each GPU in a process."""

        def make(arena: Arena, memory: TierSpace) -> CudaProgram:
            return self.program(arena, {tier: memory})

        return copy_rate(self, tier, self._modules.times, make)

    def program(
        self, arena: Arena, tiers: Mapping[str, TierSpace], *, network: bool = False
    ) -> CudaProgram:
        """Make an empty program with its own streams."""
        return CudaProgram(
            arena,
            list(tiers.values()),
            self.kernels,
            self.host_pool,
            self.priority,
            network=network,
        )

    def describe_kernels(self) -> str:
        """Return a sentence that names the kernels."""
        text = "CUDA, generated and compiled by nvcc"
        products, convolutions = self._modules.cublaslt, self._modules.cudnn
        if products is not None:
            version = _version(products.version)
            text += f"; matrix products by cuBLASLt {version} ({products.path})"
        if convolutions is not None:
            version = _version(convolutions.version)
            text += f"; convolutions by cuDNN {version}"
        return text

    def __repr__(self) -> str:
        return f"CudaDevice({self.name!r}, limit_bytes={self.pool.limit!r})"


class CudaHardware(Hardware):
    """A GPU of this machine; its context is created on first use.

    Parameters
    ----------
    driver : CudaDriver
        The driver.
    ordinal : int
        The GPU's number for the driver.
    compiler : callable, optional
        ``compiler(source, capability)`` returns the image of a module.
    load_products : callable, optional
        ``load_products(context)`` returns the library of matrix products, or None.
    load_convolutions : callable, optional
        ``load_convolutions(context)`` returns the library of convolutions, or None.
    pages : bool, default True
        Whether devices allocate virtual memory in pages if the GPU supports it.
    """

    device_type = "GPU"
    space: Space = "device"
    bounded = True
    divisible = True

    def __init__(
        self,
        driver: CudaDriver,
        ordinal: int,
        compiler: Compiler = compile_with_nvcc,
        load_products: LoadCublasLt = load_cublaslt,
        load_convolutions: LoadCudnn = load_cudnn,
        *,
        pages: bool = True,
    ) -> None:
        self.name = f"/physical_device:GPU:{ordinal}"
        self._driver = driver
        self._ordinal = ordinal
        self._compiler = compiler
        self._load_products = load_products
        self._load_convolutions = load_convolutions
        self._pages = pages
        self._info = driver.info(ordinal)
        self.memory_bytes: int = self._info.memory_bytes

    @cached_property
    def _modules(self) -> CudaModules:
        context = CudaContext(self._driver, self._ordinal)
        return CudaModules(
            context,
            self._info.capability,
            self._compiler,
            self._load_products,
            self._load_convolutions,
        )

    @cached_property
    def priorities(self) -> range | None:
        """The priorities of its streams; lower numbers have precedence."""
        result = self._modules.context.priorities
        return range(min(result), max(result) + 1)

    def details(self) -> dict[str, Any]:
        """Return the name, the memory, and the compute capability."""
        return {
            "device_name": self._info.name,
            "memory": self.memory_bytes,
            "compute_capability": divmod(self._info.capability, 10),
        }

    def make(
        self,
        name: str,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int,
        spill: Spill = ANYWHERE,
    ) -> CudaDevice:
        """Make a logical device, with its pool.

        If all memory is to be allocated at once, the limit is the memory that is free
        now less 512 MiB (at most a sixteenth) for the driver, in whole pages.
        """
        context = self._modules.context
        if not growth and limit_bytes == self.memory_bytes:
            free, _ = context.memory_info()
            kept = min(_KEPT, free // 16)
            limit_bytes = max((free - kept) // _PAGE, 1) * _PAGE
        return CudaDevice(
            name,
            self._modules,
            limit_bytes,
            growth=growth,
            priority=priority,
            pages=self._pages,
            spill=spill,
        )


_PAGE = 1 << 21  # bytes
_KEPT = 1 << 29  # bytes for machine code, page tables and graphs outside of the pool


def _version(number: int) -> str:
    major, rest = divmod(number, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

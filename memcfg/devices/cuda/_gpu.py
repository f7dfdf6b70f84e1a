"""A GPU of this machine, and logical GPUs: a pool under a limit, streams, kernels."""

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
from memcfg.devices.cuda._cublaslt import load_cublaslt
from memcfg.devices.cuda._cuda_kernels import CudaKernels, CudaModules
from memcfg.devices.cuda._cuda_program import CudaProgram
from memcfg.devices.cuda._cudnn import load_cudnn
from memcfg.devices.cuda._mapped_space import MappedSpace
from memcfg.devices.cuda._nvcc import compile_with_nvcc
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

    Several may exist of one GPU; each has a pool and a limit of its own, all share its
    context and what was compiled. What is written and read waits until it has arrived;
    a program has ended when `run` returns.

    Parameters
    ----------
    name : str
        The device's name, such as ``"/device:GPU:0"``.
    modules : CudaModules
        The GPU's context and compiled kernels.
    limit_bytes : int or None, default None
        The limit of its pool in bytes; None is no limit.
    growth : bool, default True
        Whether memory is taken as it is needed; False takes the whole limit at once.
    priority : int, default 0
        The priority of its streams.
    pages : bool, default True
        Whether memory comes in pages, where the GPU has them; else in blocks.

    spill : Spill, default ANYWHERE
        Where tensors go that leave it; its lanes keep to no bandwidth.

    Raises
    ------
    ResourceExhaustedError
        If memory is to be taken at once and the GPU does not have it.
    """

    space: Space = "device"
    fallible = False  # a kernel that fails takes the context with it, and all memory
    spares_scratch = True  # libraries take up to 64 MiB
    takes_bfloat16 = False
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
        )  # blocks have the host's
        self.pool = Pool(memory, limit=limit_bytes, growth=growth, name=name)

    @cached_property
    def kernels(self) -> CudaKernels:
        """The kernels that run here; compiled when they first run."""
        return CudaKernels(self._modules, self.pool)

    @cached_property
    def host_pool(self) -> Pool:
        """Page-locked memory of the host."""
        name = f"{self.name} on the host"
        return Pool(self.context.pinned_resource(name=name), name=name)

    @cached_property
    def _stream(self) -> CudaStream:
        """What writes and reads outside of programs."""
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
        """Return page-locked memory, which is copied fastest; zeros."""
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
        """Take page-locked memory of the host, or a file."""
        if tier != "host":
            folder = self.spill.at(tier).folder or tempfile.gettempdir()
            return MappedSpace(folder, nbytes)
        return self.host_pool.allocate(nbytes, tag=tag)

    def copy_rate(self, tier: str) -> float:
        """Measure streams, once for a GPU in a process."""

        def make(arena: Arena, memory: TierSpace) -> CudaProgram:
            return self.program(arena, {tier: memory})

        return copy_rate(self, tier, self._modules.times, make)

    def program(self, arena: Arena, tiers: Mapping[str, TierSpace]) -> CudaProgram:
        """Make an empty program, which has streams of its own."""
        spaces = list(tiers.values())
        return CudaProgram(arena, spaces, self.kernels, self.host_pool, self.priority)

    def describe_kernels(self) -> str:
        """Return which kernels run here."""
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
    """A GPU of this machine; its context is made when something needs it.

    Parameters
    ----------
    driver : CudaDriver
        The driver.
    ordinal : int
        Which GPU, as the driver counts them.
    compiler : callable, optional
        ``compiler(source, capability)``: what modules are loaded from.
    load_products : callable, optional
        ``load_products(context)``: what multiplies matrices, or None.
    load_convolutions : callable, optional
        ``load_convolutions(context)``: what computes convolutions, or None.
    pages : bool, default True
        Whether its devices have memory in pages, where it has them; else in blocks.
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
        """The priorities of its streams; the lowest number goes first."""
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

        All memory at once is what is free now, but for what the driver needs beside
        it, in whole pages.
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
_KEPT = 1 << 29  # bytes: machine code, page tables and graphs lie beside the pool


def _version(number: int) -> str:
    major, rest = divmod(number, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

"""Allocators on a GPU's pool for PyTorch, CuPy and PyCUDA, which obey its limit.

Memory that they free is reused on its stream at once. It returns to the pool when the
work that was queued before is done: in a later call of the allocator, or before the
pool refuses any request, which waits for that work if necessary. A library is imported
only when its function is called.

Memory cannot be allocated during a capture: CUDA graphs need the library's own
allocator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from memcfg import config
from memcfg._core import CudaAllocator, CudaContext, engine
from memcfg.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from memcfg.devices import Device

__all__ = ["cupy_allocator", "pycuda_allocator", "torch_allocator"]

_kinds: dict[ModuleType, type] = {}  # classes of memory, by PyCUDA's driver
# By library.
_allocators: WeakKeyDictionary[Device, dict[str, CudaAllocator]] = WeakKeyDictionary()


def torch_allocator(device: str = "/GPU:0") -> Any:
    """Return an allocator for `torch.cuda.memory.change_current_allocator`.

    PyTorch accepts it only before it has used the GPU, and for the whole process. All
    its tensors are then allocated from the device's pool. `torch.cuda.memory_allocated`
    and similar functions raise an error with any such allocator; use
    `memcfg.config.get_memory_info` instead. `Tensor.record_stream` works as with
    PyTorch's own.

    Parameters
    ----------
    device : str, default "/GPU:0"
        A logical device on an NVIDIA GPU.

    Returns
    -------
    torch.cuda.memory.CUDAPluggableAllocator
        The allocator. If the limit is reached, PyTorch raises a RuntimeError with the
        pool's numbers.

    Raises
    ------
    MissingDependencyError
        If PyTorch is not installed, is a build without CUDA, or older than 2.0.
    ValueError
        If not exactly one device on a GPU matches, or PyTorch already uses the pool of
        another logical device of that GPU.

    Examples
    --------
    >>> import memcfg as mc
    >>> import torch  # doctest: +SKIP
    >>> allocator = mc.interop.torch_allocator("/GPU:0")  # doctest: +SKIP
    >>> torch.cuda.memory.change_current_allocator(allocator)  # doctest: +SKIP
    """
    torch = _library("torch", "PyTorch")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise MissingDependencyError(
            f"PyTorch {torch.__version__} is older than 2.0, or a build without CUDA: "
            "install another"
        )
    kind = torch.cuda.memory.CUDAPluggableAllocator
    made = kind(engine.__file__, "memcfg_cuda_allocate", "memcfg_cuda_free")
    record_stream = _allocator(device, "PyTorch").install()
    # PyTorch has no public function for it
    made.allocator().set_record_stream_fn(record_stream)
    return made


def cupy_allocator(device: str = "/GPU:0") -> Callable[[int], Any]:
    """Return an allocator for `cupy.cuda.set_allocator`.

    Parameters
    ----------
    device : str, default "/GPU:0"
        A logical device on an NVIDIA GPU, which is CuPy's current device.

    Returns
    -------
    callable
        Takes a size in bytes, returns a `cupy.cuda.MemoryPointer`. It raises
        `ResourceExhaustedError` where the limit is reached.

    Raises
    ------
    MissingDependencyError
        If CuPy is not installed.
    ValueError
        If no device, several, or none on a GPU match.

    Examples
    --------
    >>> import memcfg as mc
    >>> import cupy  # doctest: +SKIP
    >>> cupy.cuda.set_allocator(mc.interop.cupy_allocator())  # doctest: +SKIP
    """
    cuda = _library("cupy", "CuPy").cuda
    allocator = _allocator(device, "CuPy")
    # A stream ends with its object, and its handle may be reused. The object is
    # therefore kept while blocks that were taken on it are in use, which CuPy's pools
    # free on that stream as well, and until all freed blocks have returned to the pool.
    streams: dict[int, Any] = {}  # by address
    behind: dict[int, Any] = {}  # streams of freed blocks, by handle

    def take(nbytes: int, ordinal: int) -> int:
        _require_gpu(allocator, ordinal, "CuPy")
        stream = cuda.get_current_stream()
        address = allocator.allocate(nbytes, stream.ptr)
        if address:
            streams[address] = stream
        if behind and not allocator.waiting_bytes:
            behind.clear()
        return address

    def free(address: int, ordinal: int) -> None:
        del ordinal
        stream = streams.pop(address, None)
        if stream is not None:
            behind[stream.ptr] = stream
        allocator.free(address, 0 if stream is None else stream.ptr)

    malloc: Callable[[int], Any] = cuda.PythonFunctionAllocator(take, free).malloc
    return malloc


def pycuda_allocator(device: str = "/GPU:0") -> Callable[[int], Any]:
    """Return an allocator for `pycuda.gpuarray.GPUArray` and its relatives.

    PyCUDA's arrays must be used in the GPU's primary context, which ``import
    pycuda.autoprimaryctx`` makes the current one.

    Parameters
    ----------
    device : str, default "/GPU:0"
        A logical device on an NVIDIA GPU.

    Returns
    -------
    callable
        Takes a size in bytes, returns the memory: a `pycuda.driver.PointerHolderBase`,
        which frees it with ``free()``, or when it is garbage-collected. It raises
        `ResourceExhaustedError` where the limit is reached.

    Raises
    ------
    MissingDependencyError
        If PyCUDA is not installed.
    ValueError
        If no device, several, or none on a GPU match.

    Examples
    --------
    >>> import memcfg as mc
    >>> from pycuda import gpuarray  # doctest: +SKIP
    >>> allocator = mc.interop.pycuda_allocator()  # doctest: +SKIP
    >>> x = gpuarray.zeros((3, 4), "float32", allocator=allocator)  # doctest: +SKIP
    """
    kind = _memory_of_pycuda(_library("pycuda.driver", "PyCUDA"))
    allocator = _allocator(device, "PyCUDA")
    return lambda nbytes: kind(allocator, nbytes)


class _PoolAllocation:
    """Memory of a pool, which queued work of the default stream may still use."""

    def __init__(self, allocator: CudaAllocator, nbytes: int) -> None:
        super().__init__()
        self._allocator = allocator
        self._address = allocator.allocate(nbytes)

    def get_pointer(self) -> int:
        """Return the address."""
        return self._address

    def __index__(self) -> int:
        return self._address

    __int__ = __index__

    @property
    def gpudata(self) -> int:
        """The address, for PyCUDA's kernels that take memory instead of an array."""
        return self._address

    def free(self) -> None:
        """Free the memory."""
        address, self._address = self._address, 0
        self._allocator.free(address)

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            self.free()


def _memory_of_pycuda(driver: ModuleType) -> Any:
    """Return the class of memory for PyCUDA, derived from a class of its own."""
    if driver not in _kinds:
        bases = (_PoolAllocation, driver.PointerHolderBase)
        _kinds[driver] = type("PoolAllocation", bases, {})
    return _kinds[driver]


def _allocator(name: str, who: str) -> CudaAllocator:
    """Return the allocator of a logical GPU for a library."""
    device = config.logical_device(name)
    context = getattr(device, "context", None)
    if not isinstance(context, CudaContext):
        raise ValueError(f"{device.name} is not on an NVIDIA GPU")
    result = _allocators.setdefault(device, {})
    if who not in result:
        result[who] = CudaAllocator(device.pool, context, tag=who)
    return result[who]


def _require_gpu(allocator: CudaAllocator, ordinal: int, who: str) -> None:
    own = allocator.context.ordinal
    if ordinal != own:
        raise ValueError(
            f"{who} asks for memory of GPU {ordinal}, and {allocator.pool.name} is on "
            f"GPU {own}"
        )


def _library(name: str, title: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{title} cannot be imported: {error}") from None

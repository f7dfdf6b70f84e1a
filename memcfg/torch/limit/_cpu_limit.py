"""All CPU tensors of the process in one pool, under a limit.

Owns the pool and its registration with PyTorch. The pool is never destroyed, since its
tensors may live as long as the process.
"""

from __future__ import annotations

import os
from ctypes import PyDLL, c_int, c_void_p, py_object
from threading import Lock

from memcfg._cached import cached_property
from memcfg._core import HostAllocator, Pool
from memcfg._core._machine import machine_bytes
from memcfg.config._types import limit_from_bytes
from memcfg.errors import KernelError
from memcfg.torch.limit._allocator_library import load_allocator
from memcfg.torch.limit._module_tags import ModuleTags
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.units import parse_bytes

__all__ = ["cpu_pool", "get_memory_info", "limit_cpu", "reset_memory_stats", "trim"]

_NAME = "PyTorch's CPU"
_REFUSALS = {
    1: "PyTorch has another library's CPU allocator, registered with a higher priority",
    2: "the compiled allocator is of another version of memcfg",
}


class _CpuLimit:
    """The pool, the compiled allocator and the hooks, each created on first use."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.tags = ModuleTags()
        self._allocator: HostAllocator | None = None
        self._library: PyDLL | None = None
        self._limit: int | None = None

    @cached_property
    def pool(self) -> Pool:
        """The pool that holds the tensors."""
        return Pool(name=_NAME)

    @property
    def is_limited(self) -> bool:
        """Whether new tensors are in the pool."""
        return self._limit is not None

    def replace(self, limit: int | None, tag_modules: bool | None) -> int | None:
        """Change the limit, and return the previous one."""
        with self._lock:
            before = self._limit
            if limit is not None:
                if tag_modules is None:
                    tag_modules = before is None or self.tags.is_on
                library = self._registered()
                self.pool.set_limit(limit)
                self.tags.turn(tag_modules)
                library.memcfg_torch_enable(1)
            elif self._library is not None:
                self._library.memcfg_torch_enable(0)
                self.tags.turn(False)
                self.pool.set_limit(None)
            self._limit = limit
            return before

    def renew_lock(self) -> None:
        """Replace the lock in the child of a fork, where nobody can release it."""
        self._lock = Lock()

    def _registered(self) -> PyDLL:
        """Register the compiled allocator with PyTorch, and return its library."""
        library = self._library
        if library is None:
            library = load_allocator()
            library.memcfg_torch_register.argtypes = (c_void_p, py_object)
            library.memcfg_torch_register.restype = c_int
            library.memcfg_torch_enable.argtypes = (c_int,)
            library.memcfg_torch_enable.restype = None
        if self._allocator is None:
            self._allocator = HostAllocator(self.pool)
            OutOfMemoryError.refusal = self._allocator.refusal
        status = library.memcfg_torch_register(
            self._allocator.functions, OutOfMemoryError
        )
        if status != 0:
            raise KernelError(_REFUSALS[status])
        self._library = library
        return library


_cpu = _CpuLimit()
os.register_at_fork(after_in_child=_cpu.renew_lock)


def limit_cpu(
    limit: int | str | None, *, tag_modules: bool | None = None
) -> int | None:
    """Take all CPU tensors of the process from a pool under a limit.

    Call it before the model is created: existing tensors are not counted, and return
    their memory to where it came from. It may be called again at any time. Tensors that
    are alive when the limit is removed stay in the pool.

    Parameters
    ----------
    limit : int, str or None
        The most bytes in use: a number of bytes, a string with a unit (``"6GiB"``), or
        a share of the machine's memory (``"50%"``). None removes the limit, and PyTorch
        takes memory from the system again.
    tag_modules : bool or None, default None
        Whether modules and optimizers tag their allocations, by hooks that PyTorch
        calls for all of them. None keeps the current choice, which is True at first.
        ``torch.compile(module)`` warns of such hooks, and calls them once for the whole
        compiled module.

    Returns
    -------
    int or None
        The previous limit in bytes.

    Raises
    ------
    ResourceExhaustedError
        If more than `limit` is in use; the limit stays as it was.
    TypeError, ValueError
        If `limit` has another type, is not positive, or is not a size; if `tag_modules`
        is neither a bool nor None.
    MissingDependencyError
        If there is no C++ compiler or Python's headers are missing. Both are needed
        once to compile the allocator for the installed PyTorch; the result is cached
        (``MEMCFG_TORCH_CACHE``).
    KernelError
        If the compilation fails, or another library has registered an allocator that
        must not be replaced.

    Warns
    -----
    RuntimeWarning
        If `limit` is a number below 1 KiB, or the compiled library cannot be cached.

    Notes
    -----
    The size of each tensor is rounded up to 64 bytes, its alignment. A tensor that does
    not fit raises `OutOfMemoryError`, which names the modules that hold the most, and
    nothing is allocated. If that happens in the step of one of PyTorch's optimizers,
    some parameters may have been updated, and the state of others be incomplete;
    ``optimizer.state.clear()`` drops such a state. The pool does not hold tensors over
    foreign memory (`torch.from_numpy`), shared memory (``share_memory_()``, batches
    from the workers of a DataLoader), mapped files, pinned memory, and the scratch
    memory of oneDNN and similar libraries.

    ``cpu_pool().owners()`` and `memcfg.memory.snapshot` list memory by tag: the
    innermost module whose forward pass runs, else the name given by `tag`, else
    ``"backward"`` in a backward pass.

    A child of a fork has a copy of the pool, with the same limit.

    Examples
    --------
    >>> import torch
    >>> import memcfg.torch as mt
    >>> mt.limit_cpu("64MiB")
    >>> try:
    ...     x = torch.empty(2**25)
    ... except MemoryError as error:
    ...     print(error.requested_bytes, error.limit_bytes)
    134217728 67108864
    >>> mt.limit_cpu(None)
    67108864
    """
    nbytes = limit_from_bytes(
        limit, total_bytes=machine_bytes(), name="limit", stacklevel=2
    )
    if not isinstance(tag_modules, bool | None):
        raise TypeError(f"tag_modules is True, False or None, not {tag_modules!r}")
    return _cpu.replace(nbytes, tag_modules)


def cpu_pool() -> Pool:
    """Return the pool of `limit_cpu`, which has its statistics.

    Returns
    -------
    Pool
        ``stats()``, ``owners()`` and ``occupancy()`` are those of `memcfg.memory.Pool`;
        `memcfg.memory.snapshot` writes it to a file that PyTorch's memory_viz opens.
        `limit_cpu` sets its limit.
    """
    return _cpu.pool


def is_limited() -> bool:
    """Return whether new CPU tensors are allocated in the pool."""
    return _cpu.is_limited


def module_tags() -> ModuleTags | None:
    """Return the hooks that tag allocations by module, or None while they are off."""
    return _cpu.tags if _cpu.tags.is_on else None


def get_memory_info() -> dict[str, int]:
    """Return how much memory the tensors in the pool of `limit_cpu` use.

    Returns
    -------
    dict of str to int
        ``"current"``, the bytes in use now, and ``"peak"``, the most in use since the
        last `reset_memory_stats`.
    """
    stats = _cpu.pool.stats()
    return {"current": stats.current_bytes, "peak": stats.peak_bytes}


def reset_memory_stats() -> None:
    """Reset the peak to the bytes in use now."""
    _cpu.pool.reset_peak()


def trim(keep: int | str = 0) -> int:
    """Return unused memory of the pool to the system.

    Parameters
    ----------
    keep : int or str, default 0
        How much unused memory to keep: bytes, or a string with a unit.

    Returns
    -------
    int
        The bytes returned to the system.

    Raises
    ------
    TypeError, ValueError
        If `keep` is neither an int nor a string, is negative, or is not a size.
    """
    return _cpu.pool.trim(parse_bytes(keep))

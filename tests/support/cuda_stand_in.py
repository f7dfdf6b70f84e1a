"""The tests' CUDA driver without a GPU, as a library that `CudaDriver` loads.

It is one machine a process: what a test changes of it, `reset` takes back.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@functools.cache
def driver_path() -> str:
    """Build the library once, or find that of an earlier process of these sources."""
    compiler = shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the stand-in for a CUDA driver needs g++ and Linux")
    source = ROOT / "tests/native/cuda_stand_in.cpp"
    parts = [
        *(ROOT / "tests/native").glob("cuda_*"),
        ROOT / "tests/native/systems.hpp",
        ROOT / "_native/include/memcfg/cuda_abi.h",
    ]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(parts)))
    folder = Path(tempfile.gettempdir(), f"memcfg-stand-in-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"libcuda-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        made = folder / f"{os.getpid()}.so"
        command = [compiler, "-std=c++17", "-O1", "-g1", "-fPIC", "-shared"]
        command += ["-Wl,-Bsymbolic", "-o", str(made), str(source), "-ldl"]
        command += [f"-I{ROOT / 'tests/native'}", f"-I{ROOT / '_native/include'}"]
        subprocess.run(command, check=True)
        made.replace(path)
    return str(path)


@functools.cache
def _library() -> ctypes.CDLL:
    """What `CudaDriver(driver_path())` loads: the same copy."""
    library = ctypes.CDLL(driver_path())
    library.memcfg_stand_in_machine.argtypes = [
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.memcfg_stand_in_begin_foreign.argtypes = [ctypes.c_bool]
    library.memcfg_stand_in_end_foreign.restype = ctypes.c_bool
    library.memcfg_stand_in_refuse.argtypes = [ctypes.c_char_p]
    library.memcfg_stand_in_late.argtypes = [ctypes.c_bool, ctypes.c_uint]
    library.memcfg_stand_in_fail_calls.argtypes = [ctypes.c_long, ctypes.c_bool]
    library.memcfg_stand_in_fail_work.argtypes = [ctypes.c_long]
    library.memcfg_stand_in_calls.restype = ctypes.c_long
    for name in ("used", "peak"):
        getattr(library, f"memcfg_stand_in_{name}").restype = ctypes.c_size_t
    for name in ("pending", "all_back"):
        getattr(library, f"memcfg_stand_in_{name}").restype = ctypes.c_bool
    return library


def machine(memory: int = 1 << 30, count: int = 1, virtual_memory: bool = True) -> None:
    """Say how many bytes each GPU has, how many there are, and what they can."""
    _library().memcfg_stand_in_machine(memory, count, virtual_memory)


def refuse(call: str | None) -> None:
    """Refuse a call of the virtual memory that the driver announces; None: none."""
    _library().memcfg_stand_in_refuse((call or "").encode())


def late(seed: int | None) -> None:
    """Do work when somebody waits, in an order by the seed; None: as it comes."""
    _library().memcfg_stand_in_late(seed is not None, seed or 0)


def fail_calls(after: int | None, *, once: bool = True) -> None:
    """Let a call of the driver fail after so many, or all from there; None: none."""
    _library().memcfg_stand_in_fail_calls(-1 if after is None else after, once)


def fail_work(after: int | None) -> None:
    """Let queued work fail after so many pieces, and all after it; None: none."""
    _library().memcfg_stand_in_fail_work(-1 if after is None else after)


@contextmanager
def foreign_capture(*, blocking: bool = False) -> Iterator[None]:
    """Let another library capture, as PyTorch does, and demand that nothing breaks it.

    Its mode is global: calls of threads whose own mode is not relaxed are forbidden.
    """
    _library().memcfg_stand_in_begin_foreign(blocking)
    try:
        yield
    finally:
        assert _library().memcfg_stand_in_end_foreign()


def calls() -> int:
    """How many calls that may fail there were."""
    return int(_library().memcfg_stand_in_calls())


def used() -> int:
    """Bytes of the GPUs' memory in use."""
    return int(_library().memcfg_stand_in_used())


def peak() -> int:
    """The highest `used` since `reset`."""
    return int(_library().memcfg_stand_in_peak())


def pending() -> bool:
    """Whether work is queued."""
    return bool(_library().memcfg_stand_in_pending())


def all_back() -> bool:
    """Whether everything that was made or taken has gone back."""
    return bool(_library().memcfg_stand_in_all_back())


def reset() -> None:
    """Make the machine what it was at first; what is in use stays."""
    machine()
    refuse(None)
    late(0)
    fail_calls(None)
    fail_work(None)
    _library().memcfg_stand_in_reset_peak()


@contextmanager
def stand_in() -> Iterator[str]:
    """Give the path of a fresh driver, and demand that all goes back to it."""
    reset()
    before = all_back()
    try:
        yield driver_path()
    finally:
        reset()
        gc.collect()
        assert all_back() or not before

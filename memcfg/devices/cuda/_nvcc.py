"""Compilation of kernels by nvcc, through pycuda."""

from __future__ import annotations

import os
import shutil
from typing import Any

from memcfg.devices._file_cache import CacheKind, digest, find_file_cache
from memcfg.devices.cuda._sources import COMPILER_OPTIONS
from memcfg.errors import KernelError, MissingDependencyError

_LINES = 3  # of nvcc's errors that are reported
_TOOLKIT = "/usr/local/cuda"  # folder of NVIDIA's packages
IMAGES = CacheKind(
    "cuda",
    "MEMCFG_CUDA_CACHE",
    256 << 20,
    "compiled kernels are not kept on the disk ({reason}), and are compiled again in "
    "each process",
)


def compile_with_nvcc(text: str, capability: int) -> bytes:
    """Compile a source, or return its image from the disk cache.

    Parameters
    ----------
    text : str
        CUDA C++.
    capability : int
        The GPU's compute capability: 90 is 9.0.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    MissingDependencyError
        If pycuda or nvcc is missing.
    KernelError
        If nvcc cannot compile the source.

    Warns
    -----
    RuntimeWarning
        If the image cannot be cached; once a process.
    """
    missing = "kernels of a GPU are compiled when they first run"
    try:
        from pycuda import compiler
    except ImportError as error:
        raise MissingDependencyError(
            f"{missing}, by pycuda: `pip install pycuda` ({error})"
        ) from None
    nvcc = find_nvcc()
    if nvcc is None:
        raise MissingDependencyError(
            f"{missing}, by nvcc, which is neither on the PATH nor in CUDA_HOME nor in "
            f"{_TOOLKIT}: it is part of the CUDA toolkit"
        )
    architecture = f"sm_{capability}"
    cache = find_file_cache(IMAGES)
    key, image = "", None
    if cache is not None:
        version = compiler.get_nvcc_version(nvcc)
        key = digest(version, architecture, *COMPILER_OPTIONS, text)
        image = cache.read(key)
    if image is None:
        image = _compile(compiler, text, architecture, nvcc)
        if cache is not None:
            cache.write(key, image)
    return image


def find_nvcc() -> str | None:
    """Return the path of nvcc on the PATH or in the toolkit's folder, or None."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes = [*filter(None, named), _TOOLKIT]
    folders = [None, *(os.path.join(home, "bin") for home in homes)]
    places = (shutil.which("nvcc", path=folder) for folder in folders)
    return next(filter(None, places), None)


def _compile(compiler: Any, text: str, architecture: str, nvcc: str) -> bytes:
    """Compile with pycuda, without its cache, which a killed process can damage."""
    try:
        image: bytes = compiler.compile(
            text,
            nvcc=nvcc,
            no_extern_c=True,
            arch=architecture,
            options=[*COMPILER_OPTIONS, "-w"],  # pycuda would raise warnings of nvcc
            cache_dir=False,
        )
    except Exception as error:  # pycuda raises several classes
        raise KernelError(f"nvcc cannot compile a kernel: {_told(error)}") from error
    return image


def _told(error: Exception) -> str:
    """Return the first errors in nvcc's output, or its first lines."""
    lines = str(getattr(error, "stderr", None) or error).splitlines()
    errors = [line.strip() for line in lines if "error" in line or "fatal" in line]
    return "; ".join((errors or [line.strip() for line in lines])[:_LINES])

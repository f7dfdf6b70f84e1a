"""The C++ allocator of this package, compiled once for the installed PyTorch.

Owns how it is compiled and how the compiled library is cached: by the source, PyTorch's
version, Python's ABI and the compiler that ``CXX`` names.

See docs/decisions/0030-pytorch-reaches-the-pool-by-functions.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from ctypes import PyDLL
from pathlib import Path

import torch

from memcfg.devices._file_cache import CacheKind, digest, find_file_cache
from memcfg.errors import KernelError, MissingDependencyError

_SOURCE = Path(__file__).with_name("allocator.cpp")
_LIBRARIES = ("c10", "torch_cpu")
# -w: PyTorch's headers warn. The libraries are already loaded and are found by name.
_OPTIONS = (
    *("-std=c++20", "-O2", "-DNDEBUG", "-w", "-shared", "-fPIC"),
    *("-fvisibility=hidden", "-Wl,--no-as-needed"),
)
_COMPILERS = ("c++", "g++", "clang++")
_WHAT = "memcfg.torch.limit_cpu compiles a file of its own when it is first called"
_LINES = 3  # the number of the compiler's error messages to quote
COMPILED = CacheKind(
    "torch",
    "MEMCFG_TORCH_CACHE",
    64 << 20,
    "the compiled allocator for PyTorch is not kept on the disk ({reason}), and is "
    "compiled again in each process",
)


def load_allocator() -> PyDLL:
    """Load the compiled allocator, from the cache if it is there.

    Raises MissingDependencyError if there is no compiler or Python's headers are
    missing, and KernelError if the compiler fails. Warns once per process, by a
    RuntimeWarning, if the compiled library cannot be cached.
    """
    source = _SOURCE.read_text(encoding="utf-8")
    cache = find_file_cache(COMPILED)
    key = digest(
        source,
        torch.__version__,
        str(torch.version.git_version),
        str(sysconfig.get_config_var("SOABI")),
        os.environ.get("CXX", ""),
        *_options(),
    )
    data = None if cache is None else cache.read(key)
    with tempfile.TemporaryDirectory(prefix="memcfg-") as folder:
        library = Path(folder, "allocator.so")
        if data is None:
            _compile(library)
            if cache is not None:
                cache.write(key, library.read_bytes())
        else:
            library.write_bytes(data)
        return PyDLL(str(library))  # it stays loaded after the file is deleted


def _options() -> list[str]:
    abi = int(torch.compiled_with_cxx11_abi())
    return [*_OPTIONS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]


def _compile(library: Path) -> None:
    """Compile the source into a library."""
    home = Path(torch.__file__).parent
    headers = Path(sysconfig.get_path("include"))
    compiler = _find_compiler()
    if not (headers / "Python.h").exists():
        raise MissingDependencyError(
            f"{_WHAT}, and there is no {headers / 'Python.h'}: install Python's "
            "headers (Debian's python3-dev)"
        )
    command = [
        *(*compiler, *_options(), str(_SOURCE), "-o", str(library)),
        *(f"-I{each}" for each in (home / "include", headers)),
        *(f"-I{home / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",),
        *(f"-L{home / 'lib'}", *(f"-l{name}" for name in _LIBRARIES)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingDependencyError(f"{_WHAT}: {error}") from None
    if done.returncode != 0:
        raise KernelError(
            f"{compiler[0]} cannot compile the allocator for PyTorch "
            f"{torch.__version__}: {_told(done.stderr)}"
        )


def _find_compiler() -> list[str]:
    """Return the command of the C++ compiler."""
    named = shlex.split(os.environ.get("CXX", ""))
    for name in [named[0]] if named else _COMPILERS:
        result = shutil.which(name)
        if result is not None:
            return [result, *named[1:]]
    where = f"CXX names {named[0]!r}" if named else "there is no C++ compiler"
    raise MissingDependencyError(
        f"{_WHAT}, and {where}: install g++ 10 or later (Debian's g++), or let CXX "
        "name another compiler"
    )


def _told(text: str) -> str:
    """Return the first errors in the output of the compiler."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line]
    return "; ".join((errors or lines or ["it says nothing"])[:_LINES])

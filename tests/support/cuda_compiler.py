"""CUDA sources compiled for the host by g++ and the shim, and run there."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from memcfg.devices import OperandSpec
from memcfg.devices.cuda._sources import COMPILER_OPTIONS, CudaSource, cuda_source

SHIM = Path(__file__).resolve().parents[1] / "native" / "cuda_shim.hpp"
KERNEL = re.compile(r"__global__ void [^\n]*\n?(\w+)\(")
FLAGS = (
    *("-std=c++17", "-O0", "-fPIC", "-shared", "-w", "-ffp-contract=off"),
    *("-fvisibility=hidden", "-fno-gnu-unique"),
)


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.gettempdir(), f"memcfg-kernels-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.iterdir():  # of sources that are others now
        if time.time() - path.stat().st_mtime > 86400:
            path.unlink(missing_ok=True)
    return folder


@functools.cache
def compile_on_host(text: str) -> Path:
    """Compile CUDA C++ to a shared library; once for each text, in one process."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    names = dict.fromkeys(KERNEL.findall(text))
    whole = f'#include "{SHIM}"\n{text}\n'
    whole += "".join(f"CUDA_SHIM_KERNEL({name})\n" for name in names)
    mark = sha256((whole + SHIM.read_text() + str(FLAGS)).encode()).hexdigest()[:16]
    made, unfinished = (_folder() / f"{mark}.{end}" for end in ("so", "unfinished"))
    with open(_folder() / f"{mark}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            command = [compiler, *FLAGS, "-x", "c++", "-", "-o", str(unfinished)]
            done = subprocess.run(command, input=whole, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
            unfinished.replace(made)
    return made


def compile_with_nvcc(text: str, architecture: str, form: str = "-cubin") -> bytes:
    """Compile CUDA C++ to machine code, or to PTX; warnings are errors."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "all.cu"), Path(folder, "all.cubin")
        source.write_text(text)
        command = [compiler, f"-arch={architecture}", *COMPILER_OPTIONS, form]
        command += ["-Werror", "all-warnings", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return made.read_bytes()


class _Size(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Kernel(ctypes.Structure):
    _fields_ = (
        (
            "run",
            ctypes.CFUNCTYPE(
                None,
                ctypes.POINTER(_Size),
                ctypes.POINTER(_Size),
                ctypes.POINTER(ctypes.c_void_p),
            ),
        ),
        ("count", ctypes.c_size_t),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
    )


def run_on_host(source: CudaSource, addresses, scratch, library, backwards=False):
    """Run all launches of a source, compiled into `library`, on memory of the host."""
    ctypes.c_int.in_dll(library, "cuda_shim_backwards").value = backwards
    for launch in source.launches:
        kernel = _Kernel.in_dll(library, f"{launch.function}_kernel")
        packed, offsets = launch.pack(addresses, scratch)
        assert kernel.count == len(offsets)
        for size, begin, end in zip(
            kernel.sizes[: kernel.count],
            offsets,
            [*offsets[1:], len(packed)],
            strict=True,
        ):
            assert begin + size <= end
        memory = ctypes.create_string_buffer(packed, len(packed))
        base = ctypes.addressof(memory)
        parameters = (ctypes.c_void_p * len(offsets))(*(base + at for at in offsets))
        grid, block = _Size(*launch.grid), _Size(*launch.block)
        run = functools.partial(kernel.run, ctypes.byref(grid), ctypes.byref(block))
        thread = threading.Thread(target=run, args=(parameters,))
        thread.start()  # a new one: what blocks share begins as zeros
        thread.join()


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


@dataclass
class HostKernel:
    """A source that runs on the host."""

    source: CudaSource
    text: str  # what is compiled: the source's, or several with it
    backwards: bool = False

    @property
    def scratch_bytes(self) -> int:
        return self.source.scratch_bytes

    def instruction(self):
        return self

    def run(self, addresses, scratch):
        library = _loaded(compile_on_host(self.text))
        run_on_host(self.source, addresses, scratch, library, self.backwards)
        self.backwards = not self.backwards


class HostCuda:
    """A table of kernels whose sources run on the host, each run in another order.

    `text` is compiled at once; a source that is not in it is compiled alone.
    """

    name = "cuda on the host"

    def __init__(self, text=""):
        self.text = text
        self.backwards = False

    def make(self, op_type, attributes, inputs, outputs):
        source = cuda_source(op_type, attributes, inputs, outputs)
        self.backwards = not self.backwards
        known = all(f"{each.function}(" in self.text for each in source.launches)
        return HostKernel(source, self.text if known else source.text, self.backwards)


def run_source(
    name, inputs, shapes, attributes=(), pairs=(), dtypes=(), text=None, backwards=False
):
    """Return the outputs; `pairs` has input -> output that share their memory."""
    dtypes = [*dtypes, *["float32"] * (len(shapes) - len(dtypes))]
    source = cuda_source(
        name,
        dict(attributes),
        [OperandSpec(x.shape, x.dtype.name) for x in inputs],
        [OperandSpec(*each) for each in zip(shapes, dtypes, strict=True)],
    )
    arrays = [np.array(x) for x in inputs]
    outputs = [
        np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    for place, output in dict(pairs).items():
        outputs[output] = arrays[place]
    scratch = np.full(source.scratch_bytes + 256, 0xFF, np.uint8)
    start = -scratch.ctypes.data % 256
    addresses = [x.ctypes.data for x in [*arrays, *outputs]]
    kernel = HostKernel(source, text or source.text, backwards)
    kernel.run(addresses, scratch.ctypes.data + start)
    return outputs

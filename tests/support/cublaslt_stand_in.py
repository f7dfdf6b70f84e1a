"""The tests' cuBLASLt, whose products are kernels of the driver's stand-in."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

from cuda_compiler import compile_on_host
from cuda_stand_in import ROOT, driver_path

from memcfg.devices.cuda.libraries._cublaslt import CublasLt

# Matrices column by column. All of the workspace is written.
KERNEL = """
__device__ float rounded(float x, int tf32) {
  return tf32 ? __int_as_float((__float_as_int(x) + 0x1000) & ~0x1fff) : x;
}
extern "C" __global__ void __launch_bounds__(1)
product(
    const float* a, const float* b, float* out, float* part, size_t part_bytes,
    size_t rows, size_t columns, size_t depth, size_t batch, long long a_leading,
    long long b_leading, long long leading, long long a_stride, long long b_stride,
    long long stride, int a_turned, int b_turned, int tf32, const float* bias) {
  for (size_t i = 0; i < part_bytes / 4; ++i) part[i] = __int_as_float(0x7fc00000);
  for (size_t g = 0; g < batch; ++g) {
    for (size_t n = 0; n < columns; ++n) {
      for (size_t m = 0; m < rows; ++m) {
        float sum = 0.0f;
        for (size_t k = 0; k < depth; ++k) {
          const float x = a[g * a_stride + (a_turned ? k + m * a_leading
                                                     : m + k * a_leading)];
          const float y = b[g * b_stride + (b_turned ? n + k * b_leading
                                                     : k + n * b_leading)];
          sum += rounded(x, tf32) * rounded(y, tf32);
        }
        float* place = part_bytes ? part + (g * columns + n) * rows + m : &sum;
        *place = sum;
        out[g * stride + m + n * leading] = bias ? *place + bias[m] : *place;
      }
    }
  }
}
"""


@functools.cache
def cublaslt_path() -> str:
    """Build the library once, or find that of an earlier process."""
    source = ROOT / "tests/native/cublaslt_stand_in.cpp"
    mark = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    path = Path(driver_path()).with_name(f"libcublasLt-{mark}.so")
    if not path.exists():
        made = path.with_name(f"{os.getpid()}-{path.name}")
        command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
        command += ["-fPIC", "-shared", "-o", str(made), str(source), "-ldl"]
        subprocess.run(command, check=True)
        made.replace(path)
    _set_up(str(path))
    return str(path)


def _set_up(path: str) -> None:
    kernels = os.fsencode(compile_on_host(KERNEL))
    ctypes.CDLL(path).memcfg_cublaslt(os.fsencode(driver_path()), kernels)


def load(context):
    """Load it for a GPU of the stand-in."""
    return CublasLt(context, cublaslt_path())


def counted(what: str) -> int:
    """Count what is alive, the products, or the searches for algorithms."""
    return int(getattr(ctypes.CDLL(cublaslt_path()), f"memcfg_cublaslt_{what}")())


def fail(on: bool) -> None:
    """Let products fail, or no longer."""
    ctypes.CDLL(cublaslt_path()).memcfg_cublaslt_fail(on)

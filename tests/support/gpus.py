"""GPUs for tests: those of the stand-in driver, and real ones where there are any."""

from __future__ import annotations

import os
from functools import cache

import pytest
from cuda_compiler import compile_on_host
from cuda_stand_in import driver_path

from memcfg import config
from memcfg._core import CudaDriver, CudaStream, engine
from memcfg.devices.cuda import _detect, _gpu, find_gpus
from memcfg.devices.cuda._gpu import CudaHardware

__all__ = [
    "ENGINE",
    "CudaStream",
    "compile_for_stand_in",
    "find_none",
    "find_stand_in",
    "forbid_contexts",
    "fresh",
    "made",
    "real",
    "stand_in",
]
ENGINE = engine.__file__  # where other libraries find functions in C


def compile_for_stand_in(text, capability):
    """A module of the stand-in is the path of a library."""
    assert capability > 0
    return os.fsencode(compile_on_host(text))


def nothing(context):
    """No library."""


def fresh(
    ordinal=0,
    load_products=nothing,
    load_convolutions=nothing,
    pages=True,
    compiler=compile_for_stand_in,
):
    """The hardware of the stand-in, where nothing has been loaded yet."""
    driver = CudaDriver(driver_path())
    libraries = (load_products, load_convolutions)
    return CudaHardware(driver, ordinal, compiler, *libraries, pages=pages)


def find_stand_in(patch):
    """Have the configuration find the stand-in's GPUs, without any library."""
    patch.setenv("MEMCFG_CUDA_LIBRARY", driver_path())
    defaults = (compile_for_stand_in, nothing, nothing)
    patch.setattr(CudaHardware.__init__, "__defaults__", defaults)
    config.reset()


def find_none(patch, library="/nonexistent/libcuda.so.1"):
    """Have the configuration look for the driver in one place, where it is not."""
    patch.delenv("MEMCFG_CUDA_LIBRARY", raising=False)
    patch.setattr(_detect, "_LIBRARY", library)
    config.reset()


def forbid_contexts(patch):
    """Have any use of a GPU fail."""
    patch.setattr(_gpu, "CudaContext", None)


@cache
def stand_in(pages=True):
    """The same for all tests of a process, which load each kernel once."""
    return fresh(pages=pages)


@cache
def real(pages=True):
    """The first GPU of this machine, or a skip."""
    gpus, missing = find_gpus()
    if not gpus:
        pytest.skip(f"needs a GPU: {missing}")
    return gpus[0] if pages else CudaHardware(gpus[0]._driver, 0, pages=False)


def made(hardware, limit_bytes=None, *, growth=True, name="/device:GPU:0"):
    return hardware.make(name, limit_bytes=limit_bytes, growth=growth, priority=0)

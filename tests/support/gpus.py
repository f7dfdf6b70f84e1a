"""GPUs for tests: those of the stand-in driver, and real ones where there are any."""

from __future__ import annotations

import os
from functools import cache

import pytest
from cuda_compiler import compile_on_host
from cuda_stand_in import driver_path

from memcfg._core import CudaDriver
from memcfg.devices.cuda import find_gpus
from memcfg.devices.cuda._gpu import CudaHardware


def compile_for_stand_in(text, capability):
    """A module of the stand-in is the path of a library."""
    assert capability > 0
    return os.fsencode(compile_on_host(text))


def nothing(context):
    """No library."""


DEFAULTS = (compile_for_stand_in, nothing, nothing)  # of `CudaHardware`, in its place


def fresh(ordinal=0, load_products=nothing, load_convolutions=nothing, pages=True):
    """The hardware of the stand-in, where nothing has been loaded yet."""
    driver = CudaDriver(driver_path())
    libraries = (load_products, load_convolutions)
    return CudaHardware(driver, ordinal, compile_for_stand_in, *libraries, pages=pages)


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

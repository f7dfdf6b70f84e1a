"""The GPUs of this machine, if it has a driver: found when they are first asked for.

`cuInit` takes a part of a second, and a process that is forked behind it cannot use
CUDA. A program that uses the CPU alone is spared both.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from memcfg._core import CudaDriver
from memcfg.errors import KernelError, MissingDependencyError

if TYPE_CHECKING:
    from memcfg.devices._contract import Hardware

_VARIABLE = "MEMCFG_CUDA_LIBRARY"
_LIBRARY = "libcuda.so.1"
# Why a library cannot be loaded. It is not looked for again: the loader's lists may be
# half written in the child of a process that is forked meanwhile.
_missing: dict[str, str] = {}


class FoundGpus(NamedTuple):
    """The GPUs of this machine.

    Attributes
    ----------
    hardware : tuple of Hardware
        One for each.
    missing : str
        Why there is none; empty where there are some.
    """

    hardware: tuple[Hardware, ...]
    missing: str


def find_gpus() -> FoundGpus:
    """Find the GPUs of the driver, or of the one that ``MEMCFG_CUDA_LIBRARY`` names.

    Without pycuda, which compiles their kernels, only a driver that is named has any.

    Returns
    -------
    FoundGpus
        None, where there is no driver or no pycuda.

    Raises
    ------
    MissingDependencyError
        If a driver is named and cannot be loaded, or finds no GPU.
    """
    named = os.environ.get(_VARIABLE, "")
    if not named and _LIBRARY in _missing:
        return FoundGpus((), _missing[_LIBRARY])
    try:
        driver = CudaDriver(named or _LIBRARY)
        gpus = tuple(map(driver.info, range(driver.device_count)))
    except (MissingDependencyError, KernelError) as error:  # or a GPU that is broken
        if named:
            raise MissingDependencyError(f"{_VARIABLE} is {named!r}: {error}") from None
        if isinstance(error, MissingDependencyError):
            _missing[_LIBRARY] = str(error)
        return FoundGpus((), str(error))
    except RuntimeError as error:  # the child of a process that has one
        return FoundGpus((), str(error))
    if not named and find_spec("pycuda") is None:
        return FoundGpus(
            (), "pycuda, which it needs, is not installed: `pip install pycuda`"
        )
    from memcfg.devices.cuda._gpu import CudaHardware

    return FoundGpus(
        tuple(CudaHardware(driver, ordinal) for ordinal in range(len(gpus))),
        "",
    )

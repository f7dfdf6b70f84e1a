"""Detection of this machine's GPUs, at the first request.

`cuInit` takes a fraction of a second, and processes forked after it cannot use CUDA.
Programs that use only the CPU avoid both.
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
# Why a library cannot be loaded. It is not searched for again: in a forked child, the
# loader's lists may be half written.
_missing: dict[str, str] = {}


class FoundGpus(NamedTuple):
    """The GPUs of this machine.

    Attributes
    ----------
    hardware : tuple of Hardware
        The GPUs.
    missing : str
        The reason if there are none; otherwise empty.
    """

    hardware: tuple[Hardware, ...]
    missing: str


def find_gpus() -> FoundGpus:
    """Find the GPUs of the driver, or of the library ``MEMCFG_CUDA_LIBRARY`` names.

    Without pycuda, which is needed to compile kernels, only a named library is tried.

    Returns
    -------
    FoundGpus
        The GPUs, or the reason why there are none, such as no driver or no pycuda.

    Raises
    ------
    MissingDependencyError
        If the named library cannot be loaded or has no GPU.
    """
    named = os.environ.get(_VARIABLE, "")
    if not named and _LIBRARY in _missing:
        return FoundGpus((), _missing[_LIBRARY])
    try:
        driver = CudaDriver(named or _LIBRARY)
        gpus = tuple(map(driver.info, range(driver.device_count)))
    except (MissingDependencyError, KernelError) as error:  # or a broken GPU
        if named:
            raise MissingDependencyError(f"{_VARIABLE} is {named!r}: {error}") from None
        if isinstance(error, MissingDependencyError):
            _missing[_LIBRARY] = str(error)
        return FoundGpus((), str(error))
    except RuntimeError as error:  # forked after cuInit
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

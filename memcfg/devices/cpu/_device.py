"""A logical CPU: a pool under its own limit, and the kernels of this process.

Owns the pairing of the two. Refuses to parse limits and to choose kernels: the one
is the business of `memcfg.config`, the other of the kernel table.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from memcfg._core import OneDNN, Pool
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._table import kernel_table

if TYPE_CHECKING:
    from memcfg.devices.cpu._table import KernelTable

__all__ = ["CpuDevice", "discover_cpus"]


class CpuDevice:
    """A logical CPU device.

    Several may exist in one process; each has a pool and a limit of its own, all
    share the cores and the kernels.

    Parameters
    ----------
    name : str
        The device's name, such as ``"/device:CPU:0"``.
    limit_bytes : int or None, default None
        The limit of its pool in bytes; None is no limit.

    Attributes
    ----------
    name : str
        The device's name.
    pool : Pool
        Where all memory of the device comes from.
    """

    def __init__(self, name: str, limit_bytes: int | None = None) -> None:
        self.name = name
        self.pool = Pool(limit_bytes, name=name)

    @cached_property
    def kernels(self) -> KernelTable:
        """The kernels that run here; loaded when first asked for.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """
        return kernel_table()

    def describe_kernels(self) -> str:
        """Tell which kernels run here, for people.

        Returns
        -------
        str
            The library's name, with its version and file where it has them.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """
        if self.kernels.name == "reference":
            return "NumPy (reference)"
        path = find_onednn()
        return f"oneDNN {OneDNN(path).version} ({path}), memcfg's own element-wise"

    def __repr__(self) -> str:
        return f"CpuDevice({self.name!r}, limit_bytes={self.pool.limit!r})"


def discover_cpus() -> tuple[str, ...]:
    """List the physical CPUs of this machine.

    Returns
    -------
    tuple of str
        Their names. All cores together are one device, as everywhere in the field.
    """
    return ("/physical_device:CPU:0",)

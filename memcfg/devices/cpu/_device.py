"""A logical CPU: a pool under its own limit, and the kernels of this process.

Owns the pairing of the two. Refuses to parse limits and to choose kernels: the one
is the business of `memcfg.config`, the other of the kernel table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._core import OneDNN
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._table import kernel_table
from memcfg.memory import Pool

if TYPE_CHECKING:
    from memcfg.devices.cpu._table import KernelTable

__all__ = ["CpuDevice"]


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
    growth : bool, default True
        Whether memory is taken as it is needed; False takes the whole limit at once.

    Attributes
    ----------
    name : str
        The device's name.
    pool : Pool
        Where all memory of the device comes from.
    simulated : bool
        False: there is memory behind the addresses.

    Raises
    ------
    ResourceExhaustedError
        If memory is to be taken at once and the machine does not have it.
    ValueError
        If memory is to be taken at once and there is no limit.
    """

    simulated = False

    def __init__(
        self, name: str, limit_bytes: int | None = None, *, growth: bool = True
    ) -> None:
        self.name = name
        self._kernels: KernelTable | None = None
        self.pool = Pool(limit=limit_bytes, growth=growth, name=name)

    @property
    def kernels(self) -> KernelTable:
        """The kernels that run here; loaded when first asked for.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """
        if self._kernels is None:  # no lock, which a fork could leave taken
            self._kernels = kernel_table()
        return self._kernels

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

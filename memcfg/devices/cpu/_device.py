"""A logical CPU: a pool under its own limit, and the kernels of this process.

Owns the pairing of the two. Refuses to parse limits and to choose kernels: the one
is the business of `memcfg.config`, the other of the kernel table.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from memcfg._core import Lane, OneDNN, Program, ScratchFile
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._table import kernel_table
from memcfg.memory import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg._core import Arena
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
        self._host: Pool | None = None
        self._lanes: dict[str, Lane] = {}  # by tier and direction
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

    tiers = ("host", "file")

    def tier_memory(self, tier: str, nbytes: int, *, tag: str) -> Arena | ScratchFile:
        """Take memory of a tier, beside the device's limit.

        Parameters
        ----------
        tier : str
            One of `tiers`.
        nbytes : int
            How much, in bytes.
        tag : str
            Who holds it.

        Returns
        -------
        Arena or ScratchFile
            The memory.

        Raises
        ------
        OSError
            If the disk has not the room.
        ResourceExhaustedError
            If the host has not the memory.
        """
        if tier == "file":
            return ScratchFile(tempfile.gettempdir(), nbytes)
        if self._host is None:
            self._host = Pool(name=f"{self.name} swapped out")
        arena = self._host.arena(tag=tag)
        arena.grow(nbytes)
        return arena

    def program(
        self, arena: Arena, tiers: Mapping[str, Arena | ScratchFile]
    ) -> Program:
        """Make an empty program.

        Its space 0 is the arena, those of the tiers are 1, 2, ...; its queue 0
        computes, and tier number n has queue 1 + 2n for copies out and 2 + 2n for
        copies in.

        Parameters
        ----------
        arena : Arena
            Memory of the pool.
        tiers : mapping of str to Arena or ScratchFile
            What `tier_memory` returned, by tier.

        Returns
        -------
        Program
            The program.
        """
        lanes = [f"{tier} {way}" for tier in tiers for way in ("out", "in")]
        for lane in lanes:
            if lane not in self._lanes:
                self._lanes[lane] = Lane()
        return Program(arena, tiers.values(), [self._lanes[lane] for lane in lanes])

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

"""The CPU of this machine, and logical CPUs: a pool under a limit, and kernels."""

from __future__ import annotations

import tempfile
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from memcfg._cached import cached_property
from memcfg._core import Lane, OneDNN, Program, ScratchFile, codec_bounds
from memcfg._core._machine import cores, machine_bytes
from memcfg.devices._algorithm_times import AlgorithmTimes
from memcfg.devices._contract import Device, Hardware
from memcfg.devices._copy_times import copy_rate, filesystem_of
from memcfg.devices._tiers import ANYWHERE, Spill
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._processor import processor_facts, processor_name
from memcfg.devices.cpu._table import kernel_table
from memcfg.memory import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from memcfg._core import Arena
    from memcfg.devices._contract import KernelTable
    from memcfg.devices._tiers import Space


class CpuDevice(Device):
    """A logical CPU device.

    Several may exist in one process. Each has its own pool and limit; all share the
    cores and the kernels.

    Parameters
    ----------
    name : str
        The device's name, such as ``"/device:CPU:0"``.
    limit_bytes : int or None, default None
        The limit of its pool in bytes; None for no limit.
    growth : bool, default True
        Whether memory is allocated as needed; False allocates the whole limit at once.
    spill : Spill, default ANYWHERE
        The tiers of swapped tensors.

    Raises
    ------
    ResourceExhaustedError
        If memory is to be allocated at once and the machine has too little.
    ValueError
        If memory is to be allocated at once and there is no limit.
    """

    space: Space = "host"
    fallible = False
    page_bytes = 1
    codecs = tuple(codec_bounds(0))
    takes_overflow = True
    tier_kinds: Mapping[str, Space] = MappingProxyType({"host": "host", "file": "file"})
    coded_tiers: tuple[str, ...] = ("host",)

    def __init__(
        self,
        name: str,
        limit_bytes: int | None = None,
        *,
        growth: bool = True,
        spill: Spill = ANYWHERE,
    ) -> None:
        self.name = name
        self._host: Pool | None = None
        self.use_spill(spill)
        self.pool = self.host_pool = Pool(limit=limit_bytes, growth=growth, name=name)

    def use_spill(self, spill: Spill) -> None:
        """Change the tiers for swapped tensors, with new lanes to measure."""
        super().use_spill(spill)
        self._lanes: dict[tuple[str, str], Lane] = {}  # by tier and direction
        self._networks: WeakKeyDictionary[Arena, Lane] = WeakKeyDictionary()
        self._copy_times = AlgorithmTimes()

    def _folder(self, tier: str) -> str:
        """Return the folder of a tier's file."""
        return self.spill.at(tier).folder or tempfile.gettempdir()

    @cached_property
    def kernels(self) -> KernelTable:
        """The kernels that run here, loaded on first use."""
        return kernel_table(pool=self.pool)

    def write(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Copy an array into an arena, unless it is already there."""
        operand = self.staging(arena, offset, array.shape, array.dtype.str)
        if operand.__array_interface__["data"] != array.__array_interface__["data"]:
            operand[...] = array

    def read(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Copy an array from an arena, unless it is already there."""
        operand = self.staging(arena, offset, array.shape, array.dtype.str)
        if operand.__array_interface__["data"] != array.__array_interface__["data"]:
            array[...] = operand

    def zero(self, arena: Arena, offset: int, nbytes: int) -> None:
        """Write zeros."""
        self.staging(arena, offset, (nbytes,), "uint8")[...] = 0

    def staging(
        self, arena: Arena, offset: int, shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any]:
        """Return the operand itself, as an array that keeps the arena alive."""
        kind = np.dtype(dtype)
        cells = np.frombuffer(memoryview(arena), np.uint8)
        cells = cells[offset : offset + prod(shape) * kind.itemsize]
        return np.ndarray(shape, kind, cells)

    def synchronize(self) -> None:
        """Do nothing: programs leave no work behind when they return."""

    def tier_memory(self, tier: str, nbytes: int, *, tag: str) -> Arena | ScratchFile:
        """Allocate memory of the host or of the disk."""
        if tier != "host":
            return ScratchFile(self._folder(tier), nbytes)
        if self._host is None:
            self._host = Pool(name=f"{self.name} swapped out")
        arena = self._host.arena(tag=tag)
        arena.grow(nbytes)
        return arena

    def copy_rate(self, tier: str) -> float:
        """Measure lanes of its own, once per machine; for a file, per file system."""
        place = "" if tier == "host" else filesystem_of(self._folder(tier))
        machine = processor_facts(), place
        timeout = None if tier == "host" else self.spill.timeout

        def make(arena: Arena, memory: Arena | ScratchFile) -> Program:
            # without a bandwidth limit
            lanes = [Lane(None, timeout), Lane(None, timeout)]
            return Program(arena, [memory], lanes)

        return copy_rate(self, tier, self._copy_times, make, machine)

    def program(
        self,
        arena: Arena,
        tiers: Mapping[str, Arena | ScratchFile],
        *,
        network: bool = False,
    ) -> Program:
        """Make an empty program, which uses the device's lanes.

        The queue of collectives is the arena's: two ranks may share a device.
        """
        lanes = [(tier, way) for tier in tiers for way in ("out", "in")]
        for lane in lanes:
            if lane not in self._lanes:
                # Copies within memory always end.
                timeout = None if lane[0] == "host" else self.spill.timeout
                self._lanes[lane] = Lane(self.spill.at(lane[0]).bandwidth, timeout)
        used = [self._lanes[lane] for lane in lanes]
        if network:
            if arena not in self._networks:
                self._networks[arena] = Lane(None, self.spill.timeout)
            used.append(self._networks[arena])
        return Program(arena, tiers.values(), used)

    def describe_kernels(self) -> str:
        """Return a sentence on the kernels; KernelError if they cannot be loaded."""
        if self.kernels.name == "reference":
            return "NumPy (reference)"
        if self.kernels.name == "blas":
            return f"BLAS of NumPy {np.__version__}, memcfg's own for other ops"
        path = find_onednn()
        return f"oneDNN {OneDNN(path).version} ({path}), memcfg's own element-wise"

    def __repr__(self) -> str:
        return f"CpuDevice({self.name!r}, limit_bytes={self.pool.limit!r})"


class CpuHardware(Hardware):
    """The processors of this machine; all cores together are one device."""

    name = "/physical_device:CPU:0"
    device_type = "CPU"
    space: Space = "host"
    bounded = False
    divisible = True
    priorities: range | None = None

    def __init__(self) -> None:
        self.memory_bytes = machine_bytes()

    def details(self) -> dict[str, Any]:
        """Return the name, the cores that this process may use, and the memory."""
        return {
            "device_name": processor_name(),
            "cores": cores(),
            "memory": self.memory_bytes,
        }

    def make(
        self,
        name: str,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int,
        spill: Spill = ANYWHERE,
    ) -> CpuDevice:
        """Make a logical device, whose priority must be 0."""
        assert priority == 0, "a CPU has no priorities"
        return CpuDevice(name, limit_bytes, growth=growth, spill=spill)

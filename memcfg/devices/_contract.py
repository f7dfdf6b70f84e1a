"""What a piece of hardware and a logical device promise, of whichever kind.

Owns the two protocols. Refuses to know any kind of device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg._core import Arena, Program, ScratchFile
    from memcfg.devices.cpu import KernelTable
    from memcfg.memory import Pool

__all__ = ["Device", "Hardware"]


class Device(Protocol):
    """A logical device: a pool under a limit of its own, and kernels."""

    @property
    def name(self) -> str:
        """Such as ``"/device:CPU:0"``."""

    @property
    def pool(self) -> Pool:
        """Where all memory of the device comes from."""

    @property
    def simulated(self) -> bool:
        """Whether the pool hands out addresses without memory: nothing can run."""

    @property
    def kernels(self) -> KernelTable:
        """The kernels that run here, or that are planned with."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """The spaces that tensors can be swapped to, such as ``"host"``."""

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

    def describe_kernels(self) -> str:
        """Tell which kernels these are, for people."""


class Hardware(Protocol):
    """A physical device, from which logical devices are made."""

    @property
    def name(self) -> str:
        """Such as ``"/physical_device:CPU:0"``."""

    @property
    def device_type(self) -> str:
        """Such as ``"CPU"``."""

    @property
    def memory_bytes(self) -> int:
        """All memory that the hardware has."""

    @property
    def simulated(self) -> bool:
        """Whether there are addresses only."""

    @property
    def bounded(self) -> bool:
        """Whether a device without a limit of its own is limited to `memory_bytes`.

        A GPU's memory is its own; a CPU's is the machine's, which others use too.
        """

    @property
    def divisible(self) -> bool:
        """Whether several logical devices can be made of it."""

    @property
    def priorities(self) -> range | None:
        """The priorities that a logical device can have; None where there are none."""

    def details(self) -> dict[str, Any]:
        """Tell what is known about the hardware; a new dict each time."""

    def make(
        self, name: str, *, limit_bytes: int | None, growth: bool, priority: int
    ) -> Device:
        """Make a logical device, with its pool.

        Parameters
        ----------
        name : str
            Such as ``"/device:GPU:0"``.
        limit_bytes : int or None
            The limit of its pool in bytes; None is no limit.
        growth : bool
            Whether memory is taken as it is needed; False takes the limit at once.
        priority : int
            The priority of its streams; 0 where there are none.

        Returns
        -------
        Device
            The device.

        Raises
        ------
        ResourceExhaustedError
            If the device is to take its memory at once and cannot.
        """

"""The tiers of a logical device, to which tensors are swapped.

See docs/decisions/0033-lanes-of-files-time-out.md.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ANYWHERE",
    "LANE_TIMEOUT",
    "Space",
    "Spill",
    "SpillPlace",
    "TierLimit",
    "TierSpace",
]

LANE_TIMEOUT = 300.0  # seconds; disks and networks that wake up take less


Space: TypeAlias = str
"""Kinds of memory: ``"host"``, which the device shares; ``"pinned"``, page-locked
memory of the host; ``"device"``, its own; ``"file"``; and ``"addresses"``, without
memory."""


TierSpace: TypeAlias = Any
"""Memory of a tier: what `tier_memory` returns and `program` of the same device takes.
It has `nbytes`; an `Arena` grows and shrinks."""


@dataclass(frozen=True)
class SpillPlace:
    """The settings of one tier of a logical device.

    Parameters
    ----------
    tier : str
        Its name in plans: ``"host"`` or ``"file"``, with a number from the second file
        on.
    folder : str or None, default None
        The folder of the file; None for the system's folder of temporary files.
    limit_bytes : int or None, default None
        The most bytes of swapped tensors at a time; None for no limit.
    bandwidth : float or None, default None
        The most bytes per second that each of its two lanes copies; None for no limit.
    """

    tier: str
    folder: str | None = None
    limit_bytes: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Spill:
    """The settings of the tiers of a logical device.

    Parameters
    ----------
    places : tuple of SpillPlace, default ()
        The only tiers to use, in order of preference. Empty for all that such devices
        have.
    timeout : float, default 300.0
        Seconds after which a file copy, or a collective, without progress is an error;
        infinity for never.
    """

    places: tuple[SpillPlace, ...] = ()
    timeout: float = LANE_TIMEOUT

    def at(self, tier: str) -> SpillPlace:
        """Return the settings of a tier.

        Parameters
        ----------
        tier : str
            Its name; a tier that is not listed has default settings.
        """
        return next((p for p in self.places if p.tier == tier), SpillPlace(tier))

    def of(self, tiers: Mapping[str, Space]) -> Mapping[str, Space]:
        """Return the tiers that a device has under these settings.

        Parameters
        ----------
        tiers : mapping of str to Space
            The tiers that such devices have, ``"host"`` and ``"file"``.

        Returns
        -------
        mapping of str to Space
            The listed places, or all tiers if none is listed.
        """
        if not self.places:
            return tiers
        return MappingProxyType(
            {p.tier: tiers["host" if p.tier == "host" else "file"] for p in self.places}
        )


ANYWHERE = Spill()


class TierLimit:
    """The reservations of programs in a device's tiers, each under its limit.

    Parameters
    ----------
    device : str
        The device's name.
    spill : Spill
        The settings of its tiers.
    """

    def __init__(self, device: str, spill: Spill) -> None:
        self._device = device
        self._limits = {
            place.tier: place.limit_bytes
            for place in spill.places
            if place.limit_bytes is not None
        }
        self._lock = threading.Lock()
        self._reserved: WeakKeyDictionary[object, dict[str, int]] = WeakKeyDictionary()

    def reserve(self, owner: object, tiers: Mapping[str, int]) -> None:
        """Set the bytes that an owner reserves of each tier, in place of earlier ones.

        Parameters
        ----------
        owner : object
            The owner, until it reserves none or is garbage-collected.
        tiers : mapping of str to int
            Bytes by tier; tiers without a limit are not counted.

        Raises
        ------
        ResourceExhaustedError
            If the limit of a tier would be exceeded; the owner's earlier reservations
            remain.
        """
        if not self._limits:
            return
        wanted = {tier: tiers.get(tier, 0) for tier in self._limits}
        with self._lock:
            others = [held for who, held in self._reserved.items() if who is not owner]
            for tier, limit in self._limits.items():
                held = sum(each[tier] for each in others)
                if held + wanted[tier] > limit:
                    raise ResourceExhaustedError(
                        f"The tier {tier!r} of {self._device} is full.",
                        requested_bytes=wanted[tier],
                        in_use_bytes=held,
                        limit_bytes=limit,
                        device=self._device,
                        hint="Raise spill_limit, close another model, or swap less.",
                    )
            self._reserved[owner] = wanted

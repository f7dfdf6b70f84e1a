"""The tiers of a logical device, where tensors go that leave it: how much, how fast."""

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

LANE_TIMEOUT = 300.0  # seconds: disks that wake up take less, and networks, too


Space: TypeAlias = str
"""Kinds of memory: ``"host"``, which the device shares; ``"pinned"``, page-locked
memory of the host; ``"device"``, its own; ``"file"``; and ``"addresses"``, without
memory."""


TierSpace: TypeAlias = Any
"""Memory of a tier: what `tier_memory` returns and `program` of the same device takes.
It has `nbytes`; an `Arena` grows and shrinks."""


@dataclass(frozen=True)
class SpillPlace:
    """What a logical device was told of one of its tiers.

    Parameters
    ----------
    tier : str
        Its name in plans: ``"host"``, or ``"file"``, with a number from the second file
        on.
    folder : str or None, default None
        Where the file lies; None: where the system keeps temporary ones.
    limit_bytes : int or None, default None
        The most bytes of swapped tensors there at a time; None is no limit.
    bandwidth : float or None, default None
        Bytes a second that each of its two lanes copies at most; None: as fast as it
        can.
    """

    tier: str
    folder: str | None = None
    limit_bytes: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Spill:
    """What a logical device was told of its tiers.

    Parameters
    ----------
    places : tuple of SpillPlace, default ()
        The only ones that there are, in the order in which tensors take them; empty:
        all that such devices have.
    timeout : float, default 300.0
        Seconds after which a copy to or from a file that does not get on is an error;
        infinity: never.
    """

    places: tuple[SpillPlace, ...] = ()
    timeout: float = LANE_TIMEOUT

    def at(self, tier: str) -> SpillPlace:
        """Return what was said of a tier.

        Parameters
        ----------
        tier : str
            Its name; of one that nobody spoke of nothing was said.
        """
        return next((p for p in self.places if p.tier == tier), SpillPlace(tier))

    def of(self, tiers: Mapping[str, Space]) -> Mapping[str, Space]:
        """Return those of a kind of device's tiers that are left.

        Parameters
        ----------
        tiers : mapping of str to Space
            The kinds that such devices have, ``"host"`` and ``"file"``.

        Returns
        -------
        mapping of str to Space
            The places, or all.
        """
        if not self.places:
            return tiers
        return MappingProxyType(
            {p.tier: tiers["host" if p.tier == "host" else "file"] for p in self.places}
        )


ANYWHERE = Spill()


class TierLimit:
    """What programs have reserved of a device's tiers, each under its limit.

    Parameters
    ----------
    device : str
        The device's name.
    spill : Spill
        What it was told.
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
        """Have an owner reserve so many bytes of each tier, instead of what it had.

        Parameters
        ----------
        owner : object
            Who has them, until it reserves none or goes.
        tiers : mapping of str to int
            Bytes by tier; of those without a limit nothing is counted.

        Raises
        ------
        ResourceExhaustedError
            If others have so much of one that its limit would be exceeded; the owner
            keeps what it had of all.
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

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

__all__ = ["ANYWHERE", "LANE_TIMEOUT", "Space", "Spill", "TierLimit", "TierSpace"]

LANE_TIMEOUT = 300.0  # seconds: disks that wake up take less, and networks, too


Space: TypeAlias = str
"""Kinds of memory: ``"host"``, which the device shares; ``"pinned"``, page-locked
memory of the host; ``"device"``, its own; ``"file"``; and ``"addresses"``, without
memory."""


TierSpace: TypeAlias = Any
"""Memory of a tier: what `tier_memory` returns and `program` of the same device takes.
It has `nbytes`; an `Arena` grows and shrinks."""


@dataclass(frozen=True)
class Spill:
    """What a logical device was told of its tiers.

    Parameters
    ----------
    tier : str or None, default None
        The only one that there is, ``"host"`` or ``"file"``; None: both.
    folder : str or None, default None
        Where files lie; None: where the system keeps temporary ones.
    limit_bytes : int or None, default None
        The most bytes of swapped tensors there at a time; None is no limit.
    bandwidth : float or None, default None
        Bytes a second that each lane copies at most; None: as fast as it can.
    timeout : float, default 300.0
        Seconds after which a copy to or from a file that does not get on is an error;
        infinity: never.
    """

    tier: str | None = None
    folder: str | None = None
    limit_bytes: int | None = None
    bandwidth: float | None = None
    timeout: float = LANE_TIMEOUT

    def of(self, tiers: Mapping[str, Space]) -> Mapping[str, Space]:
        """Return those of a kind of device's tiers that are left.

        Parameters
        ----------
        tiers : mapping of str to Space
            All that such devices have.

        Returns
        -------
        mapping of str to Space
            One of them, or all.
        """
        if self.tier is None:
            return tiers
        return MappingProxyType({self.tier: tiers[self.tier]})


ANYWHERE = Spill()


class TierLimit:
    """What programs have reserved of a device's tier, under a limit.

    Parameters
    ----------
    device : str
        The device's name.
    spill : Spill
        What it was told.
    """

    def __init__(self, device: str, spill: Spill) -> None:
        self._device = device
        self._spill = spill
        self._lock = threading.Lock()
        self._reserved: WeakKeyDictionary[object, int] = WeakKeyDictionary()

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
            If others have so much that the limit would be exceeded; the owner keeps
            what it had.
        """
        limit = self._spill.limit_bytes
        nbytes = tiers.get(self._spill.tier or "", 0)
        if limit is None:
            return
        with self._lock:
            held = sum(n for who, n in self._reserved.items() if who is not owner)
            if held + nbytes > limit:
                raise ResourceExhaustedError(
                    f"The tier {self._spill.tier!r} of {self._device} is full.",
                    requested_bytes=nbytes,
                    in_use_bytes=held,
                    limit_bytes=limit,
                    device=self._device,
                    hint="Raise spill_limit, close another model, or swap less.",
                )
            self._reserved[owner] = nbytes

"""The tiers of a logical device, where tensors go that leave it: how much, how fast."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakSet

from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Made = TypeVar("_Made")

__all__ = ["ANYWHERE", "Space", "Spill", "TierLimit", "TierSpace"]


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
        The most bytes of the tier at a time; None is no limit.
    bandwidth : float or None, default None
        Bytes a second that each lane copies at most; None: as fast as it can.
    """

    tier: str | None = None
    folder: str | None = None
    limit_bytes: int | None = None
    bandwidth: float | None = None

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
    """The limit on what a device has of a tier whose spaces do not grow.

    Parameters
    ----------
    device : str
        The device's name.
    tier : str
        The tier's.
    limit_bytes : int or None
        The limit in bytes; None is no limit.
    """

    def __init__(self, device: str, tier: str, limit_bytes: int | None) -> None:
        self._device = device
        self._tier = tier
        self._limit = limit_bytes
        self._held: WeakSet[TierSpace] = WeakSet()

    def take(self, nbytes: int, make: Callable[[], _Made]) -> _Made:
        """Make a space of so many bytes, unless that exceeds the limit."""
        held = sum(space.nbytes for space in self._held)
        if self._limit is not None and held + nbytes > self._limit:
            raise ResourceExhaustedError(
                f"The tier {self._tier!r} of {self._device} is full.",
                requested_bytes=nbytes,
                in_use_bytes=held,
                limit_bytes=self._limit,
                device=self._device,
                hint="Raise spill_limit, close another model, or swap less.",
            )
        made = make()
        self._held.add(made)
        return made

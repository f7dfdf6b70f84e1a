"""Assignment of copies to tiers: the first with enough free bytes over their lifetime.

Copies choose in the order in which they are swapped out. In most networks the first
feature maps are the largest relative to their compute time, so a slow lane would stall
ops there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memcfg.graph import NOMINAL_COPY, Tier
from memcfg.plan.format._place import Buffer, plan_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Graph

ENCODES = "host"  # the tier whose lanes encode
HEADER = 64  # bytes that an encoded copy may exceed the tensor by


def tiers_of(graph: Graph) -> tuple[Tier, ...]:
    """Return a graph's tiers in order of preference; a nominal host tier if none."""
    return graph.tiers or (Tier("host", NOMINAL_COPY["host"]),)


def is_one(tiers: Sequence[Tier]) -> bool:
    """Return whether the first tier is the only one or has no limit."""
    return len(tiers) == 1 or tiers[0].limit_bytes is None


class Life(NamedTuple):
    """A copy that occupies bytes of a tier in [begin, end), in any unit of time."""

    begin: int
    end: int
    nbytes: int  # rounded up
    coded: int  # bytes on the tier whose lanes encode; more than `nbytes` if encoded

    def size(self, tier: str) -> int:
        """Return the bytes that the copy needs on a tier."""
        return self.coded if tier == ENCODES else self.nbytes


class Place(NamedTuple):
    """Tier and offset of a copy."""

    tier: str
    offset: int | None = None  # None: not chosen yet


class Rooms:
    """The bytes in use on each tier over time.

    Parameters
    ----------
    tiers : sequence of Tier
        The tiers in order of preference.
    times : int
        The number of points in time, which count from 0.
    """

    def __init__(self, tiers: Sequence[Tier], times: int) -> None:
        self._tiers = tiers
        self._times = times
        self._loads: dict[str, np.ndarray] = {}

    def first(self, life: Life) -> str:
        """Return the first tier with enough free bytes for a copy, else the last."""
        for tier in self._tiers[:-1]:
            limit, load = tier.limit_bytes, self._loads.get(tier.name)
            used = 0 if load is None else int(load[life.begin : life.end].max())
            if limit is None or used + life.size(tier.name) <= limit:
                return tier.name
        return self._tiers[-1].name

    def take(self, life: Life, tier: str) -> None:
        """Add a copy's bytes to those in use on a tier."""
        if tier not in self._loads:
            self._loads[tier] = np.zeros(self._times, np.int64)
        self._loads[tier][life.begin : life.end] += life.size(tier)


def likely_tiers(tiers: Sequence[Tier], lives: Sequence[Life]) -> list[str]:
    """Return the tier of each copy, ignoring fragmentation on the tiers.

    Parameters
    ----------
    tiers : sequence of Tier
        The tiers in order of preference.
    lives : sequence of Life
        The copies, with times from 0.
    """
    if is_one(tiers):
        return [tiers[0].name] * len(lives)
    rooms = Rooms(tiers, max((life.end for life in lives), default=0))
    result = [""] * len(lives)
    for number in sorted(range(len(lives)), key=lambda n: lives[n].begin):
        result[number] = rooms.first(lives[number])
        rooms.take(lives[number], result[number])
    return result


def assign(tiers: Sequence[Tier], lives: Sequence[Life], alignment: int) -> list[Place]:
    """Place each copy on the first tier with enough free bytes.

    Parameters
    ----------
    tiers : sequence of Tier
        The tiers in order of preference.
    lives : sequence of Life
        The copies.
    alignment : int
        Alignment of offsets, in bytes.

    Returns
    -------
    list of Place
        The place of each copy. Copies that fit nowhere go to the last tier, beyond its
        limit; of several orders, the one that exceeds it least is taken. Offsets are
        None if there is one tier, or the first has no limit.
    """
    if is_one(tiers):
        return [Place(tiers[0].name)] * len(lives)
    return _best(tiers, lives, alignment)[0]


def excess(tiers: Sequence[Tier], lives: Sequence[Life], alignment: int) -> int:
    """Return the bytes by which copies exceed the last tier's limit."""
    limit = tiers[-1].limit_bytes
    if limit is None or tiers[0].limit_bytes is None:
        return 0
    return _best(tiers, lives, alignment)[1]


def _best(
    tiers: Sequence[Tier], lives: Sequence[Life], alignment: int
) -> tuple[list[Place], int]:
    """Try each order until every copy fits; return the best places and their excess."""
    best: list[Place] = []
    least: float = float("inf")
    for order in _ORDERS:
        numbers = sorted(range(len(lives)), key=lambda n: (order(lives[n]), n))
        places, height = _assigned(tiers, lives, numbers, alignment)
        limit = tiers[-1].limit_bytes
        over = 0 if limit is None else max(height - limit, 0)
        if over < least:
            best, least = places, over
        if not over or len(tiers) == 1:
            break
    return best, int(least)


_ORDERS: tuple[Callable[[Life], int], ...] = (
    lambda life: life.begin,
    lambda life: -life.nbytes,
    lambda life: -life.begin,
)


def _assigned(
    tiers: Sequence[Tier], lives: Sequence[Life], order: Sequence[int], alignment: int
) -> tuple[list[Place], int]:
    """Fill the tiers in turn; return the places and the height of the last tier."""
    places: dict[int, Place] = {}
    left = list(order)
    for tier in tiers[:-1]:
        offsets = _filled(tier, lives, left, alignment)
        places |= {n: Place(tier.name, offset) for n, offset in offsets.items()}
        left = [number for number in left if number not in offsets]
    last = tiers[-1].name
    offsets = _packed(last, lives, sorted(left), alignment)
    places |= {n: Place(last, offset) for n, offset in offsets.items()}
    result = [places[number] for number in range(len(lives))]
    return result, _height(last, lives, offsets)


def _filled(
    tier: Tier, lives: Sequence[Life], order: Sequence[int], alignment: int
) -> dict[int, int]:
    """Return offsets of the copies, chosen in the given order, that fit on a tier."""
    limit = tier.limit_bytes
    if limit is None:
        return _packed(tier.name, lives, sorted(order), alignment)
    rooms = Rooms((tier, _BEYOND), max((life.end for life in lives), default=0))
    taken = []
    for number in order:
        if rooms.first(lives[number]) == tier.name:
            rooms.take(lives[number], tier.name)
            taken.append(number)
    offsets = _packed(tier.name, lives, sorted(taken), alignment)
    if _height(tier.name, lives, offsets) <= limit:
        return offsets
    return _first_fit(tier.name, lives, order, limit)


_BEYOND = Tier("", 0.0)  # stands for the tiers after the one that is being filled


def _packed(
    tier: str, lives: Sequence[Life], numbers: Sequence[int], alignment: int
) -> dict[int, int]:
    """Return offsets of copies on a tier, packed as low as possible."""
    buffers = [
        Buffer(str(n), lives[n].begin, lives[n].end, lives[n].size(tier))
        for n in numbers
    ]
    return dict(zip(numbers, plan_offsets(buffers, alignment), strict=True))


def _first_fit(
    tier: str, lives: Sequence[Life], order: Sequence[int], limit: int
) -> dict[int, int]:
    """Place copies in order at the lowest free offset; skip those above the limit."""
    offsets: dict[int, int] = {}
    for number in order:
        own = lives[number]
        size, offset = own.size(tier), 0
        overlapping = sorted(
            (offsets[n], offsets[n] + lives[n].size(tier))
            for n in offsets
            if lives[n].begin < own.end and own.begin < lives[n].end
        )
        for begin, end in overlapping:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        if offset + size <= limit:
            offsets[number] = offset
    return offsets


def _height(tier: str, lives: Sequence[Life], offsets: dict[int, int]) -> int:
    ends = (offset + lives[n].size(tier) for n, offset in offsets.items())
    return max(ends, default=0)

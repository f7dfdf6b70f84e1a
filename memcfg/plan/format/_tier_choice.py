"""Which tier each copy goes to: the first that has room for it as long as it is there.

What leaves first chooses first: in most networks the first maps are the largest for the
time in which they are made, so that a slow lane would be waited for there.
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
HEADER = 64  # bytes that an encoded copy may need more than the tensor


def tiers_of(graph: Graph) -> tuple[Tier, ...]:
    """Return where tensors of a graph go, in order; a nominal tier if it has none."""
    return graph.tiers or (Tier("host", NOMINAL_COPY["host"]),)


def is_one(tiers: Sequence[Tier]) -> bool:
    """Return whether the first tier is the only one, or the only one needed."""
    return len(tiers) == 1 or tiers[0].limit_bytes is None


class Life(NamedTuple):
    """Bytes of a tensor that are on a tier in [begin, end), in any unit of time."""

    begin: int
    end: int
    nbytes: int  # rounded up
    coded: int  # the same where lanes encode; with a codec, those that it may need

    def size(self, tier: str) -> int:
        """Return the bytes that it needs there."""
        return self.coded if tier == ENCODES else self.nbytes


class Place(NamedTuple):
    """Where bytes of a tensor go."""

    tier: str
    offset: int | None = None  # None: nobody has said


class Rooms:
    """The bytes in use on each tier over time, as copies take them one by one.

    Parameters
    ----------
    tiers : sequence of Tier
        In the order in which they are taken.
    times : int
        How many there are, from 0.
    """

    def __init__(self, tiers: Sequence[Tier], times: int) -> None:
        self._tiers = tiers
        self._times = times
        self._loads: dict[str, np.ndarray] = {}

    def first(self, life: Life) -> str:
        """Return the first tier that has room for a life, or else the last."""
        for tier in self._tiers[:-1]:
            limit, load = tier.limit_bytes, self._loads.get(tier.name)
            used = 0 if load is None else int(load[life.begin : life.end].max())
            if limit is None or used + life.size(tier.name) <= limit:
                return tier.name
        return self._tiers[-1].name

    def take(self, life: Life, tier: str) -> None:
        """Have a life's bytes in use on a tier."""
        if is_one(self._tiers):
            return
        if tier not in self._loads:
            self._loads[tier] = np.zeros(self._times, np.int64)
        self._loads[tier][life.begin : life.end] += life.size(tier)


def likely_tiers(tiers: Sequence[Tier], lives: Sequence[Life]) -> list[str]:
    """Return where copies will go, if each tier holds as much as its limit says.

    Parameters
    ----------
    tiers : sequence of Tier
        In the order in which they are taken.
    lives : sequence of Life
        What leaves, by times from 0.
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
    """Place copies on tiers, each on the first that has room for it.

    Parameters
    ----------
    tiers : sequence of Tier
        In the order in which they are taken.
    lives : sequence of Life
        What leaves.
    alignment : int
        Of offsets, in bytes.

    Returns
    -------
    list of Place
        By life. What has no room anywhere is on the last tier, beyond its limit, where
        as few bytes are beyond it as several orders of choice allow. There are no
        offsets where there is one tier, or the first has no limit.
    """
    if is_one(tiers):
        return [Place(tiers[0].name)] * len(lives)
    return _best(tiers, lives, alignment)[0]


def excess(tiers: Sequence[Tier], lives: Sequence[Life], alignment: int) -> int:
    """Return the bytes for which no tier has room."""
    limit = tiers[-1].limit_bytes
    if limit is None or tiers[0].limit_bytes is None:
        return 0
    return _best(tiers, lives, alignment)[1]


def _best(
    tiers: Sequence[Tier], lives: Sequence[Life], alignment: int
) -> tuple[list[Place], int]:
    """Assign in one order after the other until all has room; say what has none."""
    best: list[Place] = []
    least: float = float("inf")
    for order in _ORDERS:
        numbers = sorted(range(len(lives)), key=lambda n: (order(lives[n]), n))
        found, height = _assigned(tiers, lives, numbers, alignment)
        limit = tiers[-1].limit_bytes
        over = 0 if limit is None else max(height - limit, 0)
        if over < least:
            best, least = found, over
        if not over or len(tiers) == 1:
            break
    return best, int(least)


_ORDERS: tuple[Callable[[Life], int], ...] = (
    lambda life: life.begin,
    lambda life: -life.nbytes,  # if those have no room
    lambda life: -life.begin,
)


def _assigned(
    tiers: Sequence[Tier], lives: Sequence[Life], order: Sequence[int], alignment: int
) -> tuple[list[Place], int]:
    """Fill one tier after the other in an order; return the last one's bytes, too."""
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
    """Take what has room on a tier, in an order; return offsets."""
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


_BEYOND = Tier("", 0.0)  # where goes what has no room


def _packed(
    tier: str, lives: Sequence[Life], numbers: Sequence[int], alignment: int
) -> dict[int, int]:
    """Give each of some lives an offset, as low as it gets."""
    buffers = [
        Buffer(str(n), lives[n].begin, lives[n].end, lives[n].size(tier))
        for n in numbers
    ]
    return dict(zip(numbers, plan_offsets(buffers, alignment), strict=True))


def _first_fit(
    tier: str, lives: Sequence[Life], order: Sequence[int], limit: int
) -> dict[int, int]:
    """Give each life in an order the lowest free offset, if that is below a limit."""
    offsets: dict[int, int] = {}
    for number in order:
        own = lives[number]
        size, offset = own.size(tier), 0
        beside = sorted(
            (offsets[n], offsets[n] + lives[n].size(tier))
            for n in offsets
            if lives[n].begin < own.end and own.begin < lives[n].end
        )
        for begin, end in beside:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        if offset + size <= limit:
            offsets[number] = offset
    return offsets


def _height(tier: str, lives: Sequence[Life], offsets: dict[int, int]) -> int:
    ends = (offset + lives[n].size(tier) for n, offset in offsets.items())
    return max(ends, default=0)

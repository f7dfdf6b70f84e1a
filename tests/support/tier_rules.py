"""What plans have on tiers, read from their actions alone; shared with no planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan import Decode, Encode, Free, SwapIn, SwapOut, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph, Tier
    from memcfg.plan import Plan

LINE = 64  # bytes
CODED = ("host",)  # where lanes encode


class Held(NamedTuple):
    """Bytes [start, end) of a tier, from one action to before another."""

    tier: str
    start: int
    end: int
    begin: int
    until: int
    coded: bool


def rounded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def held(graph: Graph, plan: Plan) -> list[Held]:
    """What each copy, and what an encoding may leave over, has and when."""
    waits = {a.action: n for n, a in enumerate(plan.actions) if isinstance(a, Wait)}
    found = []
    for begin, action in enumerate(plan.actions):
        later = [*enumerate(plan.actions)][begin + 1 :]
        if isinstance(action, SwapOut):
            until = waits[begin]
            for n, each in later:
                if isinstance(each, SwapOut | SwapIn) and (
                    (each.tensor, each.tier) == (action.tensor, action.tier)
                ):
                    if isinstance(each, SwapOut):
                        break
                    assert each.offset == action.offset
                    until = waits[n]
            size = rounded(
                graph.tensors[action.tensor].nbytes + (64 if action.codec else 0)
            )
            assert action.codec is None or action.tier in CODED
            row = (action.tier, action.offset, size, until, action.codec is not None)
        elif isinstance(action, Encode) and action.tier is not None:
            ends = [
                n
                for n, each in later
                if isinstance(each, Decode) and each.tensor == action.tensor
            ]
            frees = [
                n
                for n, each in later
                if isinstance(each, Free) and each.tensor == action.tensor
            ]
            until = ends[0] if ends else frees[1]
            size = max(graph.tensors[action.tensor].nbytes - action.nbytes, 0)
            row = (action.tier, action.overflow, rounded(size), until, False)
        else:
            continue
        tier, offset, size, until, coded = row
        assert offset is not None
        found.append(Held(tier, offset, offset + size, begin, until, coded))
    return found


def bytes_by_tier(graph: Graph, plan: Plan) -> dict[str, int]:
    """The highest end of anything on each tier."""
    found: dict[str, int] = {}
    for each in held(graph, plan):
        if each.end > each.start:
            found[each.tier] = max(each.end, found.get(each.tier, 0))
    return found


def broken(graph: Graph, plan: Plan, tiers: Sequence[Tier]) -> list[str]:
    """Say where bytes overlap, a limit is exceeded, or a faster tier had room."""
    rows = held(graph, plan)
    names = [tier.name for tier in tiers]
    limits = {tier.name: tier.limit_bytes for tier in tiers}
    found = []
    for n, each in enumerate(rows):
        if each.tier not in names:
            found.append(f"{each}: no such tier")
            continue
        for other in rows[:n]:
            together = other.begin < each.until and each.begin < other.until
            share = other.start < each.end and each.start < other.end
            if other.tier == each.tier and together and share:
                found.append(f"{each} and {other} overlap")
        limit = limits[each.tier]
        if limit is not None and each.end > limit:
            found.append(f"{each}: beyond {limit}")
        size = each.end - each.start
        for name in names[: names.index(each.tier)]:
            most = size + (64 if name in CODED and not each.coded else 0)
            room = free(rows, name, each, most)
            if size and (limits[name] is None or room + most <= limits[name]):
                found.append(f"{each}: there was room on {name} at {room}")
    return found


def free(rows: Sequence[Held], tier: str, own: Held, size: int) -> int:
    """The lowest offset of a tier that is free as long as something is there."""
    start = 0
    for each in sorted(rows, key=lambda row: row.start):
        if each.tier != tier or each.end == each.start:
            continue
        if each.begin < own.until and own.begin < each.until:
            if start + size <= each.start:
                break
            start = max(start, each.end)
    return start

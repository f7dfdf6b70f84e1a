"""When the events of a schedule take place, and how long copies are on their tiers.

The clock is that of `simulate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.format._clock import (
    Clock,
    cost_of,
    decode_seconds,
    encode_seconds,
    lane_seconds,
)
from memcfg.plan.format._tier_choice import (
    ENCODES,
    HEADER,
    Life,
    assign,
    excess,
    is_one,
    tiers_of,
)
from memcfg.plan.search.swaps._swap_events import (
    EndSwapIn,
    EndSwapOut,
    Pack,
    Run,
    StartSwapIn,
    StartSwapOut,
    Unpack,
)
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.search.swaps._swap_events import Event


def clock(graph: Graph, events: Iterable[Event]) -> Clock:
    """Tell the time of the plan of a schedule, whose copies are where it has them.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    events : iterable of Event
        What happens, as for `plan_events`.

    Returns
    -------
    Clock
        Its ``elapsed_seconds`` and ``stall_seconds`` are those of the plan.
    """
    result = Clock()
    events = with_tiers_told(graph, events)
    sent: dict[int, tuple[StartSwapOut, float]] = {}  # and when the copies end
    coming: dict[int, float] = {}
    codecs: dict[int, str] = {}  # of what is encoded
    for event in events:
        match event:
            case Run(index, algorithm):
                op = graph.ops[index]
                ends = [coming.pop(t) for t in op.inputs if t in coming]
                result.wait(max(ends, default=0.0))
                result.run(cost_of(op, algorithm)[0])
            case StartSwapOut(tensor):
                end = result.swap_out(swap_out_seconds(graph, event), event.tier)
                sent[tensor] = event, end
            case EndSwapOut(tensor):
                result.wait(sent[tensor][1])
            case StartSwapIn(tensor):
                leave = sent[tensor][0] if tensor in sent else StartSwapOut(tensor)
                coming[tensor] = result.swap_in(
                    swap_in_seconds(graph, leave), leave.tier
                )
            case EndSwapIn(tensor):
                result.wait(coming.pop(tensor, 0.0))
            case Pack(tensor, codec):
                codecs[tensor] = codec
                result.run(encode_seconds(codec, graph.tensors[tensor].nbytes))
            case Unpack(tensor):
                nbytes = graph.tensors[tensor].nbytes
                result.run(decode_seconds(codecs.pop(tensor), nbytes))
    return result


def swap_out_seconds(graph: Graph, leave: StartSwapOut) -> float:
    """Return the seconds of a copy out."""
    coding = encode_seconds(leave.codec, graph.tensors[leave.tensor].nbytes)
    return _seconds(graph, leave, coding)


def swap_in_seconds(graph: Graph, leave: StartSwapOut) -> float:
    """Return the seconds of a copy in of what left so."""
    coding = decode_seconds(leave.codec, graph.tensors[leave.tensor].nbytes)
    return _seconds(graph, leave, coding)


def _seconds(graph: Graph, leave: StartSwapOut, coding: float) -> float:
    own = graph.tensors[leave.tensor].nbytes
    moved = own if leave.codec is None else leave.nbytes or 0
    return lane_seconds(moved, rate_of(graph, leave.tier), coding)


def rate_of(graph: Graph, tier: str | None) -> float:
    """Return the bytes a second that a tier's lanes copy; None: the first tier's."""
    for each in tiers_of(graph):
        if tier is None or each.name == tier:
            return each.bytes_per_second
    raise KeyError(tier)


def with_tiers_told(graph: Graph, events: Iterable[Event]) -> Sequence[Event]:
    """Say of each copy out of a schedule to which tier it goes in its plan.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    events : iterable of Event
        What happens, as for `plan_events`.

    Returns
    -------
    sequence of Event
        The same events.
    """
    tiers, result = tiers_of(graph), [*events]
    if is_one(tiers):
        return result
    lives = copy_lives(graph, result)
    places = assign(tiers, lives, ALIGNMENT)
    for life, (tier, _) in zip(lives, places, strict=True):
        event = result[life.begin]
        if isinstance(event, StartSwapOut):
            result[life.begin] = on_tier(event, tier)
    return result


def has_room(graph: Graph, events: Sequence[Event], most: int) -> bool:
    """Return whether tiers have room for what leaves, which is so many bytes in all."""
    tiers = tiers_of(graph)
    if any(t.limit_bytes is None or most <= t.limit_bytes for t in tiers):
        return True
    return not excess(tiers, copy_lives(graph, events), ALIGNMENT)


def on_tier(leave: StartSwapOut, tier: str) -> StartSwapOut:
    """Return a copy out to a tier; it is encoded where lanes encode."""
    if tier != ENCODES:
        leave = StartSwapOut(leave.tensor)
    return leave._replace(tier=tier)


def life_of(graph: Graph, leave: StartSwapOut, begin: int, end: int) -> Life:
    """Return the life of a copy: that of its bytes, and those of its code at worst."""
    own = graph.tensors[leave.tensor].nbytes
    coded = own + HEADER if leave.codec else own
    return Life(begin, end, align_up(own), align_up(coded))


def copy_lives(graph: Graph, events: Sequence[Event]) -> list[Life]:
    """List lives on tiers in the order in which they begin, by numbers of events."""
    begun: dict[int, int] = {}  # tensors -> their copies, or encodings
    ends: dict[int, int] = {}  # by copy
    coming: set[int] = set()
    for at, event in enumerate(events):
        for tensor in coming.intersection(_waited_for(graph, event)):
            coming.remove(tensor)
            ends[begun[tensor]] = at
        match event:
            case StartSwapOut(tensor) | Pack(tensor):
                begun[tensor] = at
            case EndSwapOut(tensor) | Unpack(tensor):  # it may come back later
                ends[begun[tensor]] = at
            case StartSwapIn(tensor):
                coming.add(tensor)
    return [_life(graph, events[at], at, end) for at, end in sorted(ends.items())]


def _waited_for(graph: Graph, event: Event) -> Sequence[int]:
    """Return the tensors whose copies in an event waits for, if they are coming."""
    match event:
        case Run(index):
            return graph.ops[index].inputs
        case StartSwapOut(tensor) | Pack(tensor) | EndSwapIn(tensor):
            return (tensor,)
    return ()


def _life(graph: Graph, event: Event, begin: int, end: int) -> Life:
    if isinstance(event, StartSwapOut):
        return life_of(graph, event, begin, end)
    assert isinstance(event, Pack)
    own = graph.tensors[event.tensor].nbytes
    left = align_up(max(own - event.nbytes, 0)) if event.overflows else 0
    return Life(begin, end, left, left)

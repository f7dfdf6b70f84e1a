"""Times of the events of a schedule, and lifetimes of copies on tiers.

The clock is the one of `simulate`.
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
    """Simulate the time of a schedule's plan, with copies on the plan's tiers.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    events : iterable of Event
        The events, as for `plan_events`.

    Returns
    -------
    Clock
        Its ``elapsed_seconds`` and ``stall_seconds`` are those of the plan.
    """
    result = Clock()
    events = with_tiers_told(graph, events)
    sent: dict[int, tuple[StartSwapOut, float]] = {}  # copy out and its end
    coming: dict[int, float] = {}  # tensor -> end of its copy in
    codecs: dict[int, str] = {}  # encoded tensor -> codec
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
    """Return the seconds of a copy in after a copy out."""
    coding = decode_seconds(leave.codec, graph.tensors[leave.tensor].nbytes)
    return _seconds(graph, leave, coding)


def _seconds(graph: Graph, leave: StartSwapOut, coding: float) -> float:
    own = graph.tensors[leave.tensor].nbytes
    moved = own if leave.codec is None else leave.nbytes or 0
    return lane_seconds(moved, rate_of(graph, leave.tier), coding)


def rate_of(graph: Graph, tier: str | None) -> float:
    """Return the bytes per second of a tier's lanes; None is the first tier."""
    for each in tiers_of(graph):
        if tier is None or each.name == tier:
            return each.bytes_per_second
    raise KeyError(tier)


def with_tiers_told(graph: Graph, events: Iterable[Event]) -> Sequence[Event]:
    """Set the tier of each copy out to the one that the plan will use.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    events : iterable of Event
        The events, as for `plan_events`.

    Returns
    -------
    sequence of Event
        The events with tiers. With one tier, or one without a limit, they are
        unchanged.
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
    """Return whether the tiers have room for all copies, `most` bytes in total."""
    tiers = tiers_of(graph)
    if any(t.limit_bytes is None or most <= t.limit_bytes for t in tiers):
        return True
    return not excess(tiers, copy_lives(graph, events), ALIGNMENT)


def on_tier(leave: StartSwapOut, tier: str) -> StartSwapOut:
    """Return a copy out to a tier, without a codec if its lanes do not encode."""
    if tier != ENCODES:
        leave = StartSwapOut(leave.tensor)
    return leave._replace(tier=tier)


def life_of(graph: Graph, leave: StartSwapOut, begin: int, end: int) -> Life:
    """Return the lifetime of a copy, with its plain and its largest encoded size."""
    own = graph.tensors[leave.tensor].nbytes
    coded = own + HEADER if leave.codec else own
    return Life(begin, end, align_up(own), align_up(coded))


def copy_lives(graph: Graph, events: Sequence[Event]) -> list[Life]:
    """Return the lifetimes of copies on tiers, in event indices, in order of begin."""
    begun: dict[int, int] = {}  # tensor -> event of its copy or encoding
    ends: dict[int, int] = {}  # that event -> event that ends it
    coming: set[int] = set()
    for at, event in enumerate(events):
        for tensor in coming.intersection(_waited_for(graph, event)):
            coming.remove(tensor)
            ends[begun[tensor]] = at
        match event:
            case StartSwapOut(tensor) | Pack(tensor):
                begun[tensor] = at
            case EndSwapOut(tensor) | Unpack(tensor):  # a copy in may extend it
                ends[begun[tensor]] = at
            case StartSwapIn(tensor):
                coming.add(tensor)
    return [_life(graph, events[at], at, end) for at, end in sorted(ends.items())]


def _waited_for(graph: Graph, event: Event) -> Sequence[int]:
    """Return the tensors whose pending copies in an event waits for."""
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

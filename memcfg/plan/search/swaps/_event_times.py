"""The time of a schedule with copies, on the clock of `simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.format._clock import (
    Clock,
    cost_of,
    decode_seconds,
    encode_seconds,
    lane_seconds,
)
from memcfg.plan.format._tier_choice import tiers_of
from memcfg.plan.search.swaps._copy_lives import with_tiers_told
from memcfg.plan.search.swaps._swap_events import (
    EndSwapIn,
    EndSwapOut,
    Pack,
    Run,
    StartSwapIn,
    StartSwapOut,
    Unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.graph import Graph
    from memcfg.plan.search.swaps._swap_events import Event


def clock(graph: Graph, events: Iterable[Event]) -> Clock:
    """Tell the time of the plan of a schedule, whose copies are where it has them."""
    found = Clock()
    events = with_tiers_told(graph, events)
    sent: dict[int, tuple[StartSwapOut, float]] = {}  # and when the copies end
    coming: dict[int, float] = {}
    codecs: dict[int, str] = {}  # of what is encoded
    for event in events:
        match event:
            case Run(index, algorithm):
                op = graph.ops[index]
                ends = [coming.pop(t) for t in op.inputs if t in coming]
                found.wait(max(ends, default=0.0))
                found.run(cost_of(op, algorithm)[0])
            case StartSwapOut(tensor):
                end = found.swap_out(swap_out_seconds(graph, event), event.tier)
                sent[tensor] = event, end
            case EndSwapOut(tensor):
                found.wait(sent[tensor][1])
            case StartSwapIn(tensor):
                leave = sent[tensor][0] if tensor in sent else StartSwapOut(tensor)
                coming[tensor] = found.swap_in(
                    swap_in_seconds(graph, leave), leave.tier
                )
            case EndSwapIn(tensor):
                found.wait(coming.pop(tensor, 0.0))
            case Pack(tensor, codec):
                codecs[tensor] = codec
                found.run(encode_seconds(codec, graph.tensors[tensor].nbytes))
            case Unpack(tensor):
                nbytes = graph.tensors[tensor].nbytes
                found.run(decode_seconds(codecs.pop(tensor), nbytes))
    return found


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

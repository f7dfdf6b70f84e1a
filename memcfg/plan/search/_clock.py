"""The time of a schedule with copies, by the rules of `simulate`.

Ops run one after another; copies out do beside them, and so do copies back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.plan.format._simulate import cost_of, decode_seconds, encode_seconds
from memcfg.plan.format._tier_choice import tiers_of
from memcfg.plan.search._copy_lives import with_tiers_told
from memcfg.plan.search._tensor_moves import (
    Leave,
    Left,
    Pack,
    Return,
    Returned,
    Run,
    Unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.graph import Graph
    from memcfg.plan.search._tensor_moves import Event


@dataclass
class Clock:
    """Seconds of what has happened, told by whoever walks through a schedule."""

    now: float = 0.0  # when the last op has ended, and what it was waited for
    stall_seconds: float = 0.0  # that ops waited for copies
    # When the lanes of each tier have ended their copies.
    _out: dict[str | None, float] = field(default_factory=dict, init=False)
    _back: dict[str | None, float] = field(default_factory=dict, init=False)

    @property
    def elapsed_seconds(self) -> float:
        """When all has ended, copies too."""
        return max((self.now, *self._out.values(), *self._back.values()))

    def run(self, seconds: float) -> None:
        """Run an op."""
        self.now += seconds

    def out(self, seconds: float, tier: str | None = None) -> float:
        """Start a copy out, behind those before it; return when it ends."""
        end = self._out[tier] = max(self.now, self._out.get(tier, 0.0)) + seconds
        return end

    def back(self, seconds: float, tier: str | None = None) -> float:
        """Start a copy back, behind those before it; return when it ends."""
        end = self._back[tier] = max(self.now, self._back.get(tier, 0.0)) + seconds
        return end

    def wait(self, end: float) -> float:
        """Have ops wait for a copy; return for how long."""
        waited = max(end - self.now, 0.0)
        self.now = max(self.now, end)
        self.stall_seconds += waited
        return waited


def clock(graph: Graph, events: Iterable[Event]) -> Clock:
    """Tell the time of the plan of a schedule, whose copies are where it has them."""
    found = Clock()
    events = with_tiers_told(graph, events)
    sent: dict[int, tuple[Leave, float]] = {}  # and when the copies end
    coming: dict[int, float] = {}
    codecs: dict[int, str] = {}  # of what is encoded
    for event in events:
        match event:
            case Run(index, algorithm):
                op = graph.ops[index]
                ends = [coming.pop(t) for t in op.inputs if t in coming]
                found.wait(max(ends, default=0.0))
                found.run(cost_of(op, algorithm)[0])
            case Leave(tensor):
                end = found.out(out_seconds(graph, event), event.tier)
                sent[tensor] = event, end
            case Left(tensor):
                found.wait(sent[tensor][1])
            case Return(tensor):
                leave = sent[tensor][0] if tensor in sent else Leave(tensor)
                coming[tensor] = found.back(back_seconds(graph, leave), leave.tier)
            case Returned(tensor):
                found.wait(coming.pop(tensor, 0.0))
            case Pack(tensor, codec):
                codecs[tensor] = codec
                found.run(encode_seconds(codec, graph.tensors[tensor].nbytes))
            case Unpack(tensor):
                nbytes = graph.tensors[tensor].nbytes
                found.run(decode_seconds(codecs.pop(tensor), nbytes))
    return found


def out_seconds(graph: Graph, leave: Leave) -> float:
    """Return the seconds of a copy out, of which the lane encodes meanwhile."""
    own = graph.tensors[leave.tensor].nbytes
    took = encode_seconds(leave.codec, own) if leave.codec else 0.0
    return max(_seconds(graph, leave), took)


def back_seconds(graph: Graph, leave: Leave) -> float:
    """Return the seconds of a copy back of what left so."""
    own = graph.tensors[leave.tensor].nbytes
    took = decode_seconds(leave.codec, own) if leave.codec else 0.0
    return max(_seconds(graph, leave), took)


def _seconds(graph: Graph, leave: Leave) -> float:
    own = graph.tensors[leave.tensor].nbytes
    nbytes = own if leave.codec is None else leave.nbytes or 0
    rate = rate_of(graph, leave.tier)
    return nbytes / rate if rate else 0.0


def rate_of(graph: Graph, tier: str | None) -> float:
    """Return the bytes a second of a tier's lanes; None: of the first."""
    for each in tiers_of(graph):
        if tier is None or each.name == tier:
            return each.bytes_per_second
    raise KeyError(tier)

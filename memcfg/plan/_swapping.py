"""Schedules in which tensors leave the device and come back, as plans.

A method says of each tensor that leaves between which ops it does what; places,
buffers that outputs take over and the bytes of tiers come from here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import NOMINAL_COPY, Op, Tier
from memcfg.plan._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Free,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan._simulate import simulate, with_copies_placed
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan


class Away(NamedTuple):
    """A tensor's time on a tier, by places in a schedule.

    Nothing reads it from `leave` on and before `back`.
    """

    tensor: int
    begin: int  # the copy out starts before this op, which may read it
    leave: int  # and has ended before this one: from here on its bytes are free
    arrive: int  # the copy in starts before this op
    back: int  # and has ended before this one


def tier_of(graph: Graph) -> Tier:
    """Return where tensors of a graph go: the device's first tier, or a nominal one."""
    return graph.tiers[0] if graph.tiers else Tier("host", NOMINAL_COPY["host"])


def plan_swaps(request: Request, sequence: Sequence[int], away: Iterable[Away]) -> Plan:
    """Make the plan of a schedule that computes each op once, and these copies.

    Parameters
    ----------
    request : Request
        What was asked.
    sequence : sequence of int
        All ops of its graph, in order.
    away : iterable of Away
        What leaves; a tensor at most once.
    """
    writer = _Writer(request, sequence, {each.tensor: each for each in away})
    made = replace(request, graph=writer.graph, known={})
    actions = writer.translated(made.written(range(len(writer.graph.ops))))
    return with_copies_placed(request.graph, request.plan(actions))


def tier_excess(request: Request, plan: Plan) -> int:
    """Return the bytes that a plan has on its tier beyond the limit; 0: it fits."""
    tier = tier_of(request.graph)
    if tier.limit_bytes is None or not plan.predicted.moved_bytes:
        return 0
    needed = simulate(request.graph, in_own_numbers(request, plan)).tier_peak_bytes
    return max(needed.get(tier.name, 0) - tier.limit_bytes, 0)


def within_tier(request: Request, plan: Plan, enough: int | None = None) -> Plan:
    """Return a plan whose tier has room for it.

    Else raises InfeasiblePlanError, if the method plans with `enough` bytes on the
    device and swaps nothing then, or PlanError.
    """
    excess = tier_excess(request, plan)
    if not excess:
        return plan
    tier = tier_of(request.graph)
    assert tier.limit_bytes is not None
    told = (
        f"{request.method} swaps "
        f"{format_bytes(excess + tier.limit_bytes, exact=True)} of {plan.graph!r} to "
        f"{tier.name!r}, whose limit is {format_bytes(tier.limit_bytes, exact=True)}."
    )
    if enough is None:
        raise PlanError(f"{told} Raise spill_limit, or take another method")
    raise InfeasiblePlanError(
        f"{request.method} cannot plan {plan.graph!r} within both limits.",
        smallest_limit_bytes=enough,
        lower_bound_bytes=plan.lower_bound_bytes,
        is_smallest=False,
        requested_bytes=enough,
        limit_bytes=plan.limit_bytes,
        hint=f"{told} Raise spill_limit, or the device's limit, to swap less.",
    )


def in_own_numbers(request: Request, plan: Plan) -> Plan:
    """Return a plan with ops in the numbers of the request's graph."""
    number = {given: index for index, given in enumerate(request.order)}
    actions = tuple(
        replace(action, op=number[action.op]) if isinstance(action, Compute) else action
        for action in plan.actions
    )
    return replace(plan, actions=actions)


class _Writer:
    """A graph in which leaving and coming back are ops, and what its plan means.

    A tensor that comes back is another tensor there. So buffers are shared, and outputs
    put in the place of inputs, as in any other plan.
    """

    def __init__(
        self, request: Request, sequence: Sequence[int], away: Mapping[int, Away]
    ) -> None:
        self.source = request.graph
        self.sequence = sequence
        self.away = away
        self.tier = tier_of(request.graph).name
        self.twins: dict[int, int] = {}  # what comes back -> what left
        self.meant: list[
            tuple[str, int]
        ] = []  # of each op: "op" or a copy's end; which
        self.graph = self._with_copies()

    def _with_copies(self) -> Graph:
        source = self.source
        tensors = list(source.tensors)
        leaving: dict[int, list[int]] = defaultdict(list)
        arriving: dict[int, list[int]] = defaultdict(list)
        again: dict[int, int] = {}
        for tensor, each in self.away.items():
            leaving[each.leave].append(tensor)
            arriving[each.arrive].append(tensor)
            again[tensor] = len(tensors)
            self.twins[len(tensors)] = tensor
            tensors.append(
                replace(tensors[tensor], name=f"{tensors[tensor].name} back")
            )
        ops: list[Op] = []
        for place, index in enumerate(self.sequence):
            op = source.ops[index]
            for tensor in leaving[place]:
                ops.append(_copy("swap_out", op.phase, (tensor,), ()))
                self.meant.append(("leave", tensor))
            for tensor in arriving[place]:
                ops.append(_copy("swap_in", op.phase, (), (again[tensor],)))
                self.meant.append(("arrive", tensor))
            now = {
                tensor: again[tensor]
                for tensor in op.inputs
                if tensor in self.away and place >= self.away[tensor].back
            }
            ops.append(
                replace(
                    op,
                    inputs=tuple(now.get(t, t) for t in op.inputs),
                    in_place=tuple((now.get(i, i), o) for i, o in op.in_place),
                )
            )
            self.meant.append(("op", place))
        return replace(source, tensors=tuple(tensors), ops=tuple(ops))

    def translated(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions of the graph itself."""
        begins: dict[int, list[int]] = defaultdict(list)
        backs: dict[int, list[int]] = defaultdict(list)
        for tensor, each in self.away.items():
            begins[each.begin].append(tensor)
            backs[each.back].append(tensor)
        found: list[Action] = []
        out: dict[int, int] = {}  # tensor -> the action that copies it
        back: dict[int, int] = {}
        for action in actions:
            match action:
                case Alloc(tensor, offset):
                    found.append(Alloc(self._own(tensor), offset))
                case Alias(output, source):
                    found.append(Alias(self._own(output), self._own(source)))
                case Free(tensor):
                    found.append(Free(self._own(tensor)))
                case Compute(op, _, scratch):
                    what, which = self.meant[op]
                    if what == "leave":
                        found.append(Wait(out[which]))
                        continue
                    if what == "arrive":
                        back[which] = len(found)
                        found.append(SwapIn(which, self.tier, None))
                        continue
                    found += [Wait(back[tensor]) for tensor in backs[which]]
                    for tensor in begins[which]:
                        out[tensor] = len(found)
                        found.append(SwapOut(tensor, self.tier, None))
                    found.append(Compute(self.sequence[which], None, scratch))
        return found

    def _own(self, tensor: int) -> int:
        return self.twins.get(tensor, tensor)


def _copy(
    kind: str, phase: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Op:
    return Op(kind, kind, phase, inputs, outputs, replayable=False)

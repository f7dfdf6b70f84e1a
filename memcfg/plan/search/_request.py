"""Conversion of graphs to numbers for the native search, and of layouts to plans.

All policies use this module, so they agree on the offsets of state, on in-place
outputs, and on the lifetimes of buffers.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from memcfg._cached import cached_property
from memcfg._core import search
from memcfg.errors import GraphError
from memcfg.graph import Graph, update_order
from memcfg.plan.format._actions import Action, Alias, Alloc, Compute, Free, SwapOut
from memcfg.plan.format._collectives import NETWORK, any_beside, runs_beside
from memcfg.plan.format._place import PLAN_EFFORT
from memcfg.plan.format._plan import Group, Plan, Predicted, Summary
from memcfg.plan.format._simulate import Simulation, simulate, tier_rates
from memcfg.plan.search._bound import check_graph, lower_bound
from memcfg.plan.search._watch import check_planning_time
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from memcfg.plan.search._watch import Watch

_Made = TypeVar("_Made")

_TRIES = 1000  # placement orders that the hill climb tries in a small graph
_ROUNDING = 1e-9  # relative rounding error of a sum of seconds
_ORDER_EFFORT = 20_000_000  # numbers visited by a search for an order: about 0.1 s
_EQUAL, _SMALLER_TOO = 1, 2  # in-place rules
_LARGEST = 2**62  # bytes; exclusive bound of sums of sizes, to fit 64 bits
_NO_SIZE = 2**63  # bytes; exclusive bound of a limit
FEW = 3  # names shown per group of a summary
_PHASES = {"forward": 0, "backward": 1, "update": 2}


class Layout(Protocol):
    """Offsets of buffers and scratch for a schedule; `search.Layout` is one."""

    @property
    def instances(self) -> list[tuple[int, int, int, int, bool, int]]:
        """Tensor, first and last step, in-place source or -1, is state, offset."""

    @property
    def scratch(self) -> list[int]:
        """The scratch offset of each step; -1 if it needs none."""


@dataclass(frozen=True)
class Request:
    """A request to plan a graph within a limit, with shared results about the graph.

    A policy finds a schedule: a sequence of ops in which an op may occur more than
    once. `ordered` or `scheduled` turns it into a plan. `Request.of` makes a request.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph, with updates in positions that plans allow.
    order : tuple of int
        The index of each op of `graph` in the original graph.
    method : str
        Name of the policy.
    limit_bytes : int or None
        The limit in bytes; None is no limit.
    began : float
        Start of planning, in seconds of `time.perf_counter`.
    replayed : frozenset of int, optional
        The ops that may be recomputed; all ops by default.
    orders : bool, optional
        Whether to reorder ops; by default the method decides.
    in_place : bool, default True
        Whether outputs may be in place.
    searches : bool, default True
        Whether to search for offsets; False places each buffer by first fit.
    places : bool, default True
        Whether plans have offsets. If False, an allocator chooses addresses at run
        time, peaks are bytes in use, and only pairs of equal size are in place.
    watch : Watch, optional
        Ends the search early.
    below : float, default inf
        Time in seconds. For a slower schedule, a method may return a plan that does not
        fit instead.
    any_fits : bool, default False
        Whether the first plan that fits will do: methods look for no faster one.
    known : dict
        Results about the graph that methods share, so that several methods of `auto`
        need not place the same schedules again.
    """

    graph: Graph
    order: tuple[int, ...]
    method: str
    limit_bytes: int | None
    began: float
    replayed: frozenset[int] | None = None
    orders: bool | None = None
    in_place: bool = True
    searches: bool = True
    places: bool = True
    watch: Watch | None = None
    below: float = math.inf
    any_fits: bool = False
    known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(
        graph: Graph, method: str, limit_bytes: int | None, watch: Watch | None = None
    ) -> Request:
        """Check a policy's arguments and start its clock.

        Parameters
        ----------
        graph : memcfg.graph.Graph
            The graph. Updates are moved if plans do not allow their positions.
        method : str
            Name of the policy.
        limit_bytes : int or None
            The limit in bytes; None is no limit.
        watch : Watch, optional
            Ends the search early.

        Returns
        -------
        Request
            The request.

        Raises
        ------
        TypeError
            If `graph` is not a graph, or the limit is not an integer.
        ValueError
            If the limit is not positive, or not below 2**63 bytes.
        GraphError
            If an update cannot overwrite its state, or sizes are too large.
        """
        check(graph, limit_bytes)
        began = time.perf_counter()
        ordered, order = with_updates_in_time(graph)
        return Request(ordered, order, method, limit_bytes, began, watch=watch)

    @property
    def is_over(self) -> Callable[[], bool]:
        """A callable that returns whether the search should end.

        It does not refer to the request: objects in `known` keep it, so a reference
        would form a cycle.
        """
        return _never if self.watch is None else self.watch.is_over

    def is_slow(self, seconds: float) -> bool:
        """Return whether a plan's time exceeds `below`.

        Parameters
        ----------
        seconds : float
            The time of the plan in seconds.

        Returns
        -------
        bool
            Whether it exceeds `below`, beyond rounding.
        """
        return seconds > self.below * (1 + _ROUNDING)

    def replaying(self, ops: frozenset[int]) -> Request:
        """Return the request with other ops that may be recomputed.

        Parameters
        ----------
        ops : frozenset of int
            The ops that may be recomputed.

        Returns
        -------
        Request
            The new request.
        """
        return replace(self, replayed=ops)

    def of_method(self, method: str) -> Request:
        """Return the request for another method, with a new start time.

        Parameters
        ----------
        method : str
            Name of the method.

        Returns
        -------
        Request
            The new request, which shares `known`.
        """
        return replace(self, method=method, began=time.perf_counter())

    def once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return a shared result, and compute it if no method has before.

        Parameters
        ----------
        key : hashable
            The key, which must determine the result for this graph.
        make : callable
            Called without arguments to compute the result.

        Returns
        -------
        object
            The result.
        """
        if key not in self.known:
            if self.watch is None:  # with a watch, searches end early instead
                check_planning_time()
            self.known[key] = make()
        made: _Made = self.known[key]
        return made

    @property
    def lower_bound(self) -> int:
        """A lower bound of the peak of any plan, in bytes."""
        return self.once("bound", lambda: lower_bound(self.graph))

    @cached_property
    def load_unit(self) -> int:
        """The greatest common divisor of all sizes, in bytes: that of all loads."""
        graph = self.graph
        return math.gcd(*graph.aligned_bytes, *graph.aligned_scratch) or 1

    @cached_property
    def droppable(self) -> tuple[int, ...]:
        """The ops of the forward phase that a plan may recompute."""
        graph, keep = self.graph, set(self.graph.keep)
        forward = _needed_forward(graph)
        return tuple(
            index
            for index, op in enumerate(graph.ops)
            if op.replayable
            and index in forward
            and keep.isdisjoint(op.outputs)
            and (self.replayed is None or index in self.replayed)
        )

    @cached_property
    def repeatable(self) -> frozenset[int]:
        """The ops that a schedule may compute more than once.

        A kept loss must stay where it was first computed, and a state that was
        overwritten cannot be read again.
        """
        graph = self.graph
        fixed = {*graph.losses} & {*graph.keep} | {*state_updates(graph)}
        return frozenset(
            [
                index
                for index, op in enumerate(graph.ops)
                if op.replayable
                and fixed.isdisjoint(op.outputs)
                and (self.replayed is None or index in self.replayed)
            ]
        )

    @property
    def step(self) -> search.Step:
        """The graph as numbers for the native search, which polls `is_over`."""
        return self.once(("step", self.replayed, self.in_place), self._step)

    def _step(self) -> search.Step:
        graph = self.graph if self.in_place else without_pairs(self.graph)
        asked = None if self.watch is None else self.watch.is_over
        return make_step(graph, frozenset(self.droppable), self.repeatable, asked)

    def sequence_of(self, plan: Plan) -> list[int]:
        """Return the schedule of a plan of the original graph.

        Parameters
        ----------
        plan : memcfg.plan.Plan
            A plan.

        Returns
        -------
        list of int
            The ops that the plan computes, as indices of `graph`.
        """
        numbers = {given: index for index, given in enumerate(self.order)}
        return [numbers[a.op] for a in plan.actions if isinstance(a, Compute)]

    def placed(self, dropped: bytes) -> Plan:
        """Return the plan that recomputes dropped ops; see `scheduled`.

        Parameters
        ----------
        dropped : bytes
            One byte per op: 1 if it is recomputed for the backward phase, else 0.

        Returns
        -------
        memcfg.plan.Plan
            The plan.
        """
        return self.scheduled(self.step.sequence(dropped))

    def placed_in_order(self, dropped: bytes) -> Plan:
        """Return the plan that recomputes dropped ops; see `ordered`.

        Parameters
        ----------
        dropped : bytes
            One byte per op: 1 if it is recomputed for the backward phase, else 0.

        Returns
        -------
        memcfg.plan.Plan
            The plan.
        """
        return self.ordered(self.step.sequence(dropped))

    def arranged(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return these ops in the order of the lowest load if `orders` is True.

        Methods call it that otherwise keep the order of their schedules.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        sequence of int
            The same ops.
        """
        return self.reordered(sequence) if self.orders else sequence

    def ordered(self, sequence: Sequence[int]) -> Plan:
        """Return the plan of a schedule, reordered for the lowest peak.

        The given order is kept if no order with a lower peak is found, or `orders` is
        False.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated but not validated.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        return self.laid_out(*self._in_order(sequence))

    def in_order(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return these ops in the order of the plan that `ordered` returns.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        sequence of int
            The same ops.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        return self._in_order(sequence)[0]

    def peak_in_order(self, sequence: Sequence[int]) -> int:
        """Return the peak of the plan that `ordered` returns, without making it.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        int
            Bytes.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        order, layout = self._in_order(sequence)
        if not self.places:
            return self.step.measure(order)[0]
        return self._state_bytes + layout.height

    def least_load(self, sequence: Sequence[int]) -> int:
        """Return the peak of bytes in use, without fragmentation, after reordering.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        int
            Bytes.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        other = sequence if self.orders is False else self.reordered(sequence)
        return self.step.measure(other)[0]

    def _in_order(self, sequence: Sequence[int]) -> tuple[Sequence[int], search.Layout]:
        ops = tuple(sequence)
        how = self.orders is False, self.in_place, self.searches, self.places
        return self.once(("in order", ops, how), lambda: self._lower(ops))

    def _lower(self, ops: Sequence[int]) -> tuple[Sequence[int], search.Layout]:
        """Return the given or the reordered ops, whichever is placed lower; its layout.

        Once the search is over, a given order that fits is not improved.
        """
        self._check(ops)
        limit = self.limit_bytes
        if limit is not None and self.places and self.is_over():
            result = ops, self._lowest(ops, effort=1)
            if self._state_bytes + result[1].height <= limit:
                return result
        other = ops if self.orders is False else self.reordered(ops)
        result = other, self._lowest(other)
        if other is ops or not self.places:
            return result
        load, _, _ = self.step.measure(ops)
        if self._state_bytes + result[1].height <= load:
            return result
        return min(result, (ops, self._lowest(ops)), key=lambda each: each[1].height)

    def reordered(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return the order of the lowest load; the given object if there is no better.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        sequence of int
            The same ops.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        self._check(sequence)
        load, _, _ = self.step.measure(sequence)
        other, least, _ = self.step.reorder(sequence, effort=_ORDER_EFFORT)
        return other if least < load else sequence

    def _check(self, sequence: Sequence[int]) -> None:
        if fault := self.step.fault(sequence):
            raise ValueError(f"graph {self.graph.name!r}: {fault}")

    def scheduled(self, sequence: Sequence[int]) -> Plan:
        """Return the plan of a schedule in the given order, with the lowest layout.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated but not validated.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        self._check(sequence)
        return self.laid_out(sequence, self._lowest(sequence))

    def _lowest(
        self, sequence: Sequence[int], *, effort: int = PLAN_EFFORT
    ) -> search.Layout:
        """Return the lowest layout, with and without smaller outputs in place."""
        graph = self.graph
        smaller = (
            self.in_place
            and self.places
            and self.once("shrinks", lambda: _shrinks_in_place(graph))
        )
        layouts = [
            self._layout(sequence, rule, effort)
            for rule in ((_EQUAL, _SMALLER_TOO) if smaller else (_EQUAL,))
        ]
        return min(layouts, key=lambda layout: layout.height)

    @cached_property
    def _state_bytes(self) -> int:
        return _state_bytes(self.graph)

    def _layout(self, sequence: Sequence[int], rule: int, effort: int) -> search.Layout:
        if not self.searches or not self.places:
            return self.step.first_fit(sequence, rule=rule)
        buffers = len(self.graph.ops) + len(self.graph.tensors)
        effort = min(effort, _TRIES * buffers * buffers // 4)
        return self.step.layout(sequence, rule=rule, effort=effort)

    def written_in_order(self, sequence: Sequence[int]) -> list[Action]:
        """Return the actions of the plan that `ordered` returns.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        list of memcfg.plan.Action
            The actions.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        return _actions(self.graph, *self._in_order(sequence))

    def written(self, sequence: Sequence[int]) -> list[Action]:
        """Return the actions of a schedule in the given order, with the lowest layout.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.

        Returns
        -------
        list of memcfg.plan.Action
            The actions.

        Raises
        ------
        ValueError
            If the ops cannot run in this order.
        """
        self._check(sequence)
        return _actions(self.graph, sequence, self._lowest(sequence))

    def laid_out(self, sequence: Sequence[int], layout: Layout) -> Plan:
        """Return the plan of a schedule with a layout.

        Parameters
        ----------
        sequence : sequence of int
            Ops; an op may occur more than once.
        layout : Layout
            Offsets, such as those of ``step.layout(sequence)`` or
            ``step.first_fit(sequence)``.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated but not validated.
        """
        return self.plan(_actions(self.graph, sequence, layout))

    def plan(self, actions: Sequence[Action]) -> Plan:
        """Return the plan of these actions, simulated but not validated.

        Parameters
        ----------
        actions : sequence of memcfg.plan.Action
            The actions, with op indices of `graph`.

        Returns
        -------
        memcfg.plan.Plan
            The plan, with op indices of the original graph and a summary.
        """
        blank = self.unpriced(actions)
        result = simulate(self.graph, blank, tier_rates(self.graph))
        predicted = Predicted(
            peak_bytes=result.peak_bytes,
            host_peak_bytes=result.host_peak_bytes,
            moved_bytes=result.moved_bytes,
            seconds=result.seconds,
            recompute_seconds=result.recompute_seconds,
            lower_bound_bytes=self.lower_bound,
            planning_seconds=time.perf_counter() - self.began,
            stall_seconds=stall(result),
            codec_seconds=result.codec_seconds,
        )
        if not self._keeps_numbers:
            actions = [self.renumbered(action) for action in actions]
        return replace(
            blank,
            predicted=predicted,
            actions=tuple(actions),
            summary=summary_of(self.graph, blank, result),
        )

    @cached_property
    def _keeps_numbers(self) -> bool:
        """Whether the ops have the same indices as in the original graph."""
        return self.order == tuple(range(len(self.order)))

    def unpriced(self, actions: Sequence[Action]) -> Plan:
        """Return a plan of these actions without predictions.

        Parameters
        ----------
        actions : sequence of memcfg.plan.Action
            The actions, with op indices of `graph`.

        Returns
        -------
        memcfg.plan.Plan
            A plan with a predicted peak of 0 and the same op indices.
        """
        return Plan(
            graph=self.graph.name,
            method=self.method,
            limit_bytes=self.limit_bytes,
            alignment=ALIGNMENT,
            predicted=Predicted(peak_bytes=0),
            actions=tuple(actions),
            places=self.places,
        )

    def renumbered(self, action: Action) -> Action:
        """Return an action with the op index of the original graph.

        Parameters
        ----------
        action : memcfg.plan.Action
            An action, with the op index of `graph`.

        Returns
        -------
        memcfg.plan.Action
            The action, with the op index of the original graph.
        """
        if isinstance(action, Compute) and self.order[action.op] != action.op:
            return replace(action, op=self.order[action.op])
        return action


# `bool()` returns False without a Python frame; searches call it for each schedule.
_never = bool


def check(graph: Graph, limit_bytes: int | None) -> None:
    """Check the arguments of a policy."""
    check_graph(graph)
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int | None):
        raise TypeError(
            f"a limit must be a number of bytes or None, not {limit_bytes!r}"
        )
    if limit_bytes is not None and limit_bytes <= 0:
        raise ValueError(f"a limit must be positive, not {limit_bytes} bytes")
    if limit_bytes is not None and limit_bytes >= _NO_SIZE:
        raise ValueError("a limit must be below 2**63 bytes; None is no limit")
    if 2 * (sum(graph.aligned_bytes) + sum(graph.aligned_scratch)) >= _LARGEST:
        raise GraphError(f"graph {graph.name!r}: sizes beyond 2**62 bytes")


def summary_of(graph: Graph, plan: Plan, simulation: Simulation) -> Summary:
    """Return the summary of a plan, in the names of its graph."""
    seen: set[int] = set()
    again: dict[int, None] = {}
    for action in plan.actions:
        if isinstance(action, Compute):
            if action.op in seen:
                again[action.op] = None
            seen.add(action.op)
    reads = {t for op in graph.ops if op.phase == "backward" for t in op.inputs}
    kept = [
        tensor
        for index, op in enumerate(graph.ops)
        if op.phase == "forward" and index not in again
        for tensor in op.outputs
        if tensor in reads
    ]
    in_place = dict.fromkeys([a.output for a in plan.actions if isinstance(a, Alias)])
    recomputed = [(graph.ops[i].name, graph.ops[i].outputs) for i in again]
    return Summary(
        kept=_group(graph, [(graph.tensors[t].name, (t,)) for t in kept]),
        in_place=_group(graph, [(graph.tensors[t].name, (t,)) for t in in_place]),
        recomputed=_group(graph, recomputed),
        by_role={k: v for k, v in simulation.by_role_at_peak.items() if v},
        peak_op=""
        if simulation.peak_op is None
        else graph.ops[simulation.peak_op].name,
        all_bytes=_own_buffers(graph),
        times=graph.times,
        copies_per_second=measured_rate(graph, plan.actions),
        by_tier=by_tier(graph, simulation),
    )


def by_tier(graph: Graph, simulation: Simulation) -> dict[str, int]:
    """Map tiers to the bytes that a plan uses there, in the order of tiers.

    Unused tiers are omitted, except stated tiers if there are several and one is used.
    """
    there = dict.fromkeys((tier.name for tier in graph.tiers), 0)
    there.update(simulation.tier_peak_bytes)
    stated = [tier.name for tier in graph.tiers if tier.is_stated]
    listed = set(stated) if len(stated) > 1 and any(there.values()) else set()
    return {tier: n for tier, n in there.items() if n or tier in listed}


def stall(simulation: Simulation) -> float:
    """Return how long ops wait for copies and collectives, in seconds."""
    busy = simulation.seconds + simulation.codec_seconds
    waits = simulation.moved_bytes or any(
        each.queue == NETWORK for each in simulation.schedule
    )
    return max(simulation.elapsed_seconds - busy, 0.0) if waits else 0.0


def measured_rate(graph: Graph, actions: Sequence[Action]) -> float:
    """Return the lowest measured bytes per second of the tiers swapped to, or 0."""
    used = {action.tier for action in actions if isinstance(action, SwapOut)}
    rates = (
        tier.bytes_per_second
        for tier in graph.tiers
        if tier.is_measured and tier.name in used
    )
    return min(rates, default=0.0)


def _group(graph: Graph, items: Iterable[tuple[str, Sequence[int]]]) -> Group:
    """Return the group of named items with their tensors; `names` are the largest."""
    own = graph.aligned_bytes
    sizes = [(name, sum(map(own.__getitem__, each))) for name, each in items]
    largest = sorted(sizes, key=itemgetter(1), reverse=True)[:FEW]
    names = tuple([name for name, _ in largest])
    return Group(len(sizes), sum([nbytes for _, nbytes in sizes]), names)


def _own_buffers(graph: Graph) -> int:
    """Return the peak of `keep_all`."""
    sizes = graph.aligned_bytes
    taken = sum([sizes[tensor] for tensor in state_updates(graph)])
    return sum(sizes) - taken + max(graph.aligned_scratch, default=0)


def _state_bytes(graph: Graph) -> int:
    sizes = graph.aligned_bytes
    return sum([sizes[tensor] for tensor in graph.persistent])


def _shrinks_in_place(graph: Graph) -> bool:
    """Return whether an output may take the place of a larger input."""
    tensors = graph.tensors
    for op in graph.ops:
        for source, output in op.in_place:
            if tensors[source].nbytes > tensors[output].nbytes:
                return True
    return False


def without_pairs(graph: Graph) -> Graph:
    """Return the graph without in-place pairs, except updates of state."""
    updates = state_updates(graph)
    ops = (
        replace(
            op, in_place=tuple((i, o) for i, o in op.in_place if updates.get(o) == i)
        )
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops))


def make_step(
    graph: Graph,
    droppable: frozenset[int],
    repeatable: frozenset[int],
    is_over: Callable[[], bool] | None = None,
) -> search.Step:
    """Convert a graph to numbers for the native search, which polls ``is_over()``.

    Costs are seconds; in a graph without times each op costs 1. With times, collectives
    cost nothing, since ops may run meanwhile. In-place pairs that
    update state come first: an output with several pairs must overwrite the state.
    """
    updates = state_updates(graph)
    keep = set(graph.keep)
    persistent = set(graph.persistent)
    timed = any(map(attrgetter("seconds"), graph.ops))
    seconds = [op.seconds if timed else 1.0 for op in graph.ops]
    if timed and any_beside(graph):
        seconds = [0.0 if runs_beside(op) else op.seconds for op in graph.ops]
    tensors = [
        (
            size,
            index in persistent,
            index in keep,
            -1 if maker is None else maker,
        )
        for index, (size, maker) in enumerate(
            zip(graph.aligned_bytes, graph.producer, strict=True)
        )
    ]
    ops = []
    for index, op in enumerate(graph.ops):
        pairs = [*op.in_place]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: updates.get(pair[1]) != pair[0])
        ops.append(
            (
                op.inputs,
                op.outputs,
                [*chain.from_iterable(pairs)],
                graph.aligned_scratch[index],
                _PHASES[op.phase],
                seconds[index],
                index in droppable,
                index in repeatable,
            )
        )
    return search.Step(tensors, ops, is_over=is_over)


def _needed_forward(graph: Graph) -> set[int]:
    """Return the forward ops that must run before the first update.

    An op whose outputs only the backward phase reads could be delayed beyond it.
    """
    forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
    if "update" not in map(attrgetter("phase"), graph.ops):
        return forward
    read = {tensor for i in forward for tensor in graph.ops[i].inputs}
    return {i for i in forward if not read.isdisjoint(graph.ops[i].outputs)}


def _actions(graph: Graph, sequence: Sequence[int], layout: Layout) -> list[Action]:
    """Return the actions of a schedule: state first, then the buffers of the layout."""
    offsets: dict[int, int] = {}
    base = 0  # end of the state
    for tensor in graph.persistent:  # from 0 in id order, the same in all programs
        offsets[tensor] = base
        base += graph.aligned_bytes[tensor]
    begins: dict[int, list[Action]] = defaultdict(list)
    ends: dict[int, list[tuple[bool, int]]] = defaultdict(list)
    taken = {instance[3] for instance in layout.instances}
    for number, (tensor, begin, end, source, state, offset) in enumerate(
        layout.instances
    ):
        if source >= 0:
            begins[begin].append(Alias(tensor, layout.instances[source][0]))
        else:
            begins[begin].append(
                Alloc(tensor, offsets[tensor] if state else base + offset)
            )
        if not state:
            ends[end].append((number not in taken, tensor))  # taken over: free first
    actions: list[Action] = []
    for step in range(-1, len(sequence)):
        actions += begins[step]
        if step >= 0:
            scratch = layout.scratch[step]
            place = base + scratch if scratch >= 0 else None
            actions.append(Compute(sequence[step], None, place))
        if step in ends:
            actions += [Free(tensor) for _, tensor in sorted(ends[step])]
    return actions


def state_updates(graph: Graph) -> dict[int, int]:
    """Return the in-place updates of state.

    A pair is included if its input is in a buffer of the state and not kept, and its op
    is an update and the input's last reader.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    dict of int to int
        Maps the id of each output to the id of the tensor whose buffer it takes over,
        which may itself be such an output.
    """
    state = set(graph.persistent)
    keep, taken = set(graph.keep), set[int]()
    updates: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        for source, output in op.in_place:
            legal = source in state and source not in keep
            legal = legal and graph.consumers[source][-1] == index
            fits = graph.aligned_bytes[output] <= graph.aligned_bytes[source]
            if legal and fits and source not in taken and output not in updates:
                updates[output] = source
                taken.add(source)
                state.add(output)
    return updates


def with_updates_in_time(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Return a graph with updates in positions that plans allow.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    Graph
        The graph itself if its updates are in such positions, else one with updates
        moved.
    tuple of int
        The index of each of its ops in the given graph.

    Raises
    ------
    GraphError
        If there is no such order, or an update cannot overwrite its state.
    """
    order = tuple(range(len(graph.ops)))
    phases = [op.phase for op in graph.ops]
    last_forward = max((i for i in order if phases[i] == "forward"), default=-1)
    if "update" in phases[: last_forward + 1] or _misfit(graph):
        order = update_order(graph)
        graph = replace(graph, ops=tuple(graph.ops[i] for i in order))
    misfit = _misfit(graph)
    if misfit:
        raise GraphError(f"graph {graph.name!r} cannot be planned: {misfit}")
    return graph, order


def _misfit(graph: Graph) -> str:
    """Return a message about an update that cannot overwrite its state, or ''."""
    updates = state_updates(graph)
    state = set(graph.persistent)
    for op in graph.ops:
        pairs: dict[int, int] = {}  # state -> its new value
        made: set[int] = set()
        for source, output in op.in_place if op.phase == "update" else ():
            if source in state and source not in pairs and output not in made:
                pairs[source] = output
                made.add(output)
        for source, output in pairs.items():
            if updates.get(output) != source:
                old, new = graph.tensors[source].name, graph.tensors[output].name
                return (
                    f"op {op.name!r} cannot write {new!r} over {old!r}, which is kept, "
                    "read later, or smaller"
                )
            state.add(output)
    return ""

"""Placement of collectives that run beside compute.

In a schedule, an op reads and writes at one moment. A collective that was started does
so until its results are there: its landing. Until then no other op may get the bytes
that it touches, or that op would have to wait for it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph import Op
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._collectives import runs_beside
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.graph import Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.network._list_schedule import Event

__all__ = ["Landings"]


class Landings:
    """A request with an op behind each collective that reads what it touches.

    Parameters
    ----------
    request : Request
        The request. Plans of the other one have the bytes of these ops, and no time.
    """

    def __init__(self, request: Request) -> None:
        graph = request.graph
        state = {*graph.persistent, *state_updates(graph)}
        ops: list[Op] = []
        self._starts: list[int] = []  # by op of the graph: its index among `ops`
        self._landings: dict[int, int] = {}
        for index, op in enumerate(graph.ops):
            self._starts.append(len(ops))
            ops.append(op)
            if runs_beside(op):
                self._landings[index] = len(ops)
                touched = tuple(each for each in _held(graph, op) if each not in state)
                ops.append(Op(f"{op.name}/landing", "landing", op.phase, touched, ()))
        self._given = {start: index for index, start in enumerate(self._starts)}
        self._request = replace(
            request,
            graph=replace(graph, ops=tuple(ops)),
            order=tuple(range(len(ops))),
            replayed=None,
            known={},
        )

    def load(self, events: Iterable[Event]) -> float:
        """Return the most bytes in use in a schedule, without fragmentation.

        Parameters
        ----------
        events : iterable of Event
            A schedule.

        Returns
        -------
        float
            In bytes; infinity if the events cannot be in this order.
        """
        step, sequence = self._request.step, self._sequence(events)
        if step.fault(sequence):
            return math.inf
        load: int = step.measure(sequence)[0]
        return load

    def written(self, events: Iterable[Event]) -> list[Action]:
        """Return the actions of a schedule, with the lowest layout.

        Parameters
        ----------
        events : iterable of Event
            A schedule.

        Returns
        -------
        list of Action
            Without starts and waits.
        """
        result: list[Action] = []
        for action in self._request.written(self._sequence(events)):
            if not isinstance(action, Compute):
                result.append(action)
            elif action.op in self._given:
                result.append(replace(action, op=self._given[action.op]))
        return result

    def _sequence(self, events: Iterable[Event]) -> list[int]:
        return [
            self._landings[op] if is_landing else self._starts[op]
            for op, is_landing in events
        ]


def _held(graph: Graph, op: Op) -> list[int]:
    """Return the tensors whose bytes a collective needs until it lands.

    Not those that others take over: inputs by the op itself, and its token by the
    collective that follows.
    """
    taken = {source for source, _ in op.in_place}
    is_followed = any(graph.consumers[token] for token in op.outputs[:1])
    tensors = [*op.inputs[1:], *op.outputs[is_followed:]]
    return [tensor for tensor in tensors if tensor not in taken]

"""The validator of the plans of several ranks, which meet in collectives.

Each rank runs its collectives in the order of its plan's actions, one at a time, and
ranks wait for each other in each of them. A group is a sequence of collectives: those
whose ops name the same group, or in graphs from files, those of one chain of tokens.
The groups of a graph correspond to those of other ranks in the order of their first
ops, and so do the collectives of a group.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memcfg.errors import PlanError
from memcfg.plan.format._actions import Compute, Start, Wait
from memcfg.plan.format._judge import COLLECTIVES, violations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph, Op
    from memcfg.plan.format._plan import Plan


def validate_ranks(graphs: Sequence[Graph], plans: Sequence[Plan]) -> None:
    """Raise PlanError unless the plans of several ranks are valid together.

    Parameters
    ----------
    graphs : sequence of Graph
        The graph of each rank. Ranks may differ in their tensors, as where state is
        sharded, but not in their collectives. All are in the same groups.
    plans : sequence of Plan
        The plan of each rank, with its own limit.

    Raises
    ------
    PlanError
        If a plan is invalid for its graph; if ranks differ in the sequence of the
        collectives of a group, in their types, numbers of tensors or bytes; if a
        collective is for another number of ranks; or if ranks wait for each other in
        different collectives. The message names the ranks.
    ValueError
        If there are not as many graphs as plans, or none.

    See Also
    --------
    validate : Check one plan.
    """
    if not plans or len(graphs) != len(plans):
        raise ValueError(f"{len(graphs)} graphs and {len(plans)} plans")
    for rank, (graph, plan) in enumerate(zip(graphs, plans, strict=True)):
        if sentences := violations(graph, plan):
            more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
            raise PlanError(f"the plan of rank {rank} is invalid: {sentences[0]}{more}")
    ranks = [
        _Rank(rank, graph, plan)
        for rank, (graph, plan) in enumerate(zip(graphs, plans, strict=True))
    ]
    for each in ranks:
        each.check_size(len(ranks))
    for each in ranks[1:]:
        _compare(ranks[0], each)
    _meet(ranks)


class _Meeting(NamedTuple):
    """A collective of a plan, the same on all ranks."""

    group: int
    number: int  # in the group, in the order of the graph
    signature: tuple[str, int, tuple[int, ...]]  # type, root, bytes of each tensor

    def __str__(self) -> str:
        kind, _, sizes = self.signature
        tensors = f"{len(sizes)} tensor{'s' * (len(sizes) != 1)}"
        return (
            f"collective {self.number} of group {self.group} ({kind} of {tensors}, "
            f"{sum(sizes)} B)"
        )


class _Rank:
    """The collectives of a rank's plan, and how far it has come in a simulation."""

    def __init__(self, rank: int, graph: Graph, plan: Plan) -> None:
        self.rank = rank
        self._graph = graph
        self._plan = plan
        self.by_op = _meetings(graph)
        self.queue: list[_Meeting] = []  # in the order of actions
        self._positions: dict[int, int] = {}  # action -> index in the queue
        for index, action in enumerate(plan.actions):
            if isinstance(action, Compute) and action.op in self.by_op:
                self._positions[index] = len(self.queue)
                self.queue.append(self.by_op[action.op])
        self._next = 0  # action
        self._begun = 0  # collectives of the queue that were begun
        self.done = 0  # those that have ended

    def check_size(self, ranks: int) -> None:
        """Check the number of ranks that ops state."""
        for index in self.by_op:
            op = self._graph.ops[index]
            stated = op.attributes.get("ranks", ranks)
            if stated != ranks:
                raise PlanError(
                    f"op {op.name!r} of rank {self.rank} is for {stated} ranks, and "
                    f"there are {ranks} plans"
                )

    def sequences(self) -> dict[int, list[_Meeting]]:
        """Return the collectives of each group, in the order of the plan."""
        result: dict[int, list[_Meeting]] = defaultdict(list)
        for each in self.queue:
            result[each.group].append(each)
        return result

    def advance(self) -> None:
        """Follow the plan up to an action that waits for a collective, or its end."""
        actions = self._plan.actions
        while self._next < len(actions):
            action, index = actions[self._next], self._next
            if index in self._positions:
                self._begun = max(self._begun, self._positions[index] + 1)
                needed = 0 if isinstance(action, Start) else self._begun
            elif isinstance(action, Wait) and action.action in self._positions:
                needed = self._positions[action.action] + 1
            else:
                needed = 0
            if self.done < needed:
                return
            self._next += 1

    @property
    def front(self) -> _Meeting | None:
        """The collective that runs, or waits for other ranks; None if there is none."""
        return self.queue[self.done] if self.done < self._begun else None

    @property
    def is_over(self) -> bool:
        """Whether the plan has run to its end."""
        return self._next == len(self._plan.actions) and self.done == len(self.queue)


def _meetings(graph: Graph) -> dict[int, _Meeting]:
    """Return the collectives of a graph, by op."""
    groups: dict[object, int] = {}
    counts: dict[int, int] = defaultdict(int)
    chains: dict[int, int] = {}  # token -> op that begins its chain
    result: dict[int, _Meeting] = {}
    for index, op in enumerate(graph.ops):
        if op.type not in COLLECTIVES:
            continue
        first = index
        if op.inputs:
            first = chains.get(op.inputs[0], index)
        if op.outputs:
            chains[op.outputs[0]] = first
        group = groups.setdefault(op.attributes.get("group", first), len(groups))
        result[index] = _Meeting(group, counts[group], _signature(graph, op))
        counts[group] += 1
    return result


def _signature(graph: Graph, op: Op) -> tuple[str, int, tuple[int, ...]]:
    """Return what must be the same on all ranks: whole tensors, or equal parts."""
    sizes = tuple(graph.tensors[tensor].nbytes for tensor in op.inputs[1:])
    if op.type == "all_gather":  # without the tensor whose bytes it may take
        sizes = sizes[:1]
    return op.type, op.attributes.get("root", 0), sizes


def _compare(first: _Rank, other: _Rank) -> None:
    """Check that two ranks have the same sequence of collectives in each group."""
    ones, others = first.sequences(), other.sequences()
    for group in sorted(ones.keys() | others.keys()):
        one, two = ones.get(group, []), others.get(group, [])
        for a, b in zip(one, two, strict=False):
            if a != b:
                raise PlanError(
                    f"ranks {first.rank} and {other.rank} differ: rank {first.rank} "
                    f"runs {a} where rank {other.rank} runs {b}"
                )
        if len(one) != len(two):
            raise PlanError(
                f"ranks {first.rank} and {other.rank} differ: rank {first.rank} runs "
                f"{len(one)} collectives of group {group}, rank {other.rank} "
                f"{len(two)}"
            )


def _meet(ranks: Sequence[_Rank]) -> None:
    """Simulate ranks that wait for each other; raise PlanError if they do for ever.

    A collective ends when it is at the front of all ranks. The order in which that is
    found does not matter: what one rank can do, it can still do after others.
    """
    while True:
        for each in ranks:
            each.advance()
        fronts = [each.front for each in ranks]
        if fronts[0] is None or any(front != fronts[0] for front in fronts):
            break
        for each in ranks:
            each.done += 1
    stuck = [each for each in ranks if not each.is_over]
    if stuck:
        where = "; ".join(f"rank {each.rank} in {_place(each)}" for each in stuck)
        names = " and ".join(str(each.rank) for each in stuck)
        raise PlanError(f"ranks {names} wait for each other: {where}")


def _place(rank: _Rank) -> str:
    return "no collective" if rank.front is None else str(rank.front)

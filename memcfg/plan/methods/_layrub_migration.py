"""Layrub's migration: data leaves behind its last layer, and returns to slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan.methods._layrub import readers_first
from memcfg.plan.methods._swapping import Away
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search._full_tiers import tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


@dataclass(frozen=True)
class _Migrator:
    """What plans with one look-ahead: a value, so that equal policies are equal."""

    look_ahead: int

    def __post_init__(self) -> None:
        if self.look_ahead < 1:
            raise ValueError(f"look_ahead is at least 1, not {self.look_ahead}")

    def __call__(self, request: Request) -> Plan:
        """Plan in the order of Layrub's reuse, or the graph's if that takes less."""
        graph = request.graph
        orders = [readers_first(graph), [*range(len(graph.ops))]]
        if request.step.fault(orders[0]) or orders[0] == orders[1]:
            orders = orders[1:]
        found: list[Plan] = []
        for sequence in orders:
            away = migrations(graph, sequence, self.look_ahead)
            found.append(TimedSwaps(request, sequence, away).plan())
            fitting = request.limit_bytes is not None and fits(found[-1])
            if request.is_over() or (fitting and not tier_excess(request, found[-1])):
                break

        def order(plan: Plan) -> tuple[bool, int, int]:
            return not fits(plan), tier_excess(request, plan), plan.peak_bytes

        return within_tier(request, min(found, key=order))


def migrations(graph: Graph, sequence: Sequence[int], look_ahead: int) -> list[Away]:
    """Tell what may migrate when, by places in a schedule that computes each op once.

    Data leaves behind its last reader of the forward phase. When the backward phase
    comes to what one op misses, what the next `look_ahead` ops do may be on its way;
    what the first of them do may come back as soon as it has left.
    """
    phases = [graph.ops[op].phase for op in sequence]
    turn = phases.index("backward") if "backward" in phases else len(phases)
    place = {op: at for at, op in enumerate(sequence)}
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    away = []
    for tensor, readers in enumerate(graph.consumers):
        maker = graph.producer[tensor]
        made = -1 if maker is None else place[maker]
        uses = [place[reader] for reader in readers]
        later = [use for use in uses if use >= turn]
        if tensor in fixed or made >= turn or not later:
            continue
        begin = max((use for use in uses if use < turn), default=made) + 1
        away.append(Away(tensor, begin, begin, begin, min(later)))
    backs = sorted({each.back for each in away})
    asked = {
        back: backs[at - look_ahead] if at >= look_ahead else 0
        for at, back in enumerate(backs)
    }
    away = [each._replace(arrive=asked[each.back]) for each in away]
    return sorted(away, key=lambda each: each.begin)


def layrub_migration(look_ahead: int = 2) -> Policy:
    """Let data migrate to the host behind its last layer, and back to slots in time.

    Data leaves when its last reader of the forward phase has read it, and its slot is
    free when the copy has ended. What the next ops of the backward phase miss comes
    back as soon as there are slots, in the order of its uses. An op waits for what it
    reads; within a limit also for a slot.

    Parameters
    ----------
    look_ahead : int, default 2
        For how many of the next ops that miss something it may be on its way.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `look_ahead` is below 1.

    Notes
    -----
    The migration of [1]_, together with the order of its reuse (see `layrub`): readers
    of a layer's data run before its gradient takes the bytes. A slot is bytes that a
    limit leaves, of any size; without a limit there is always one. All that the forward
    phase makes or reads and the backward phase reads migrates, whatever its layer; what
    is still leaving when it may come back stays.

    References
    ----------
    .. [1] H. Jin, B. Liu, W. Jiang, Y. Ma, X. Shi, B. He, S. Zhao, "Layer-Centric
       Memory Reuse and Data Migration for Extreme-Scale Deep Learning on Many-Core
       Architectures", ACM TACO 15(3), 2018.
    """
    return Method("layrub_migration", _Migrator(look_ahead), "auto()", swaps=True)

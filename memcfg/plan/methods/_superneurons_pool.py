"""SuperNeurons' unified tensor pool: what is dear leaves, what is cheap is made again.

Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural
Networks", PPoPP 2018, arXiv:1801.04380.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from memcfg.plan.methods._superneurons import Replay
from memcfg.plan.methods._swapping import Away
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search._full_tiers import tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def offloads(replay: Replay, sequence: Sequence[int]) -> Iterator[Away]:
    """Tell when outputs of checkpoints are away, by places in a schedule.

    One leaves as it is made, and comes back while the backward of a checkpoint runs
    behind which it is read, at the earliest.
    """
    graph, makers = replay.graph, replay.checkpoints
    turn = next(
        (at for at, op in enumerate(sequence) if graph.ops[op].phase == "backward"),
        len(sequence),
    )
    uses: dict[int, list[int]] = {}  # by tensor
    made: dict[int, int] = {}
    for at, index in enumerate(sequence):
        for tensor in graph.ops[index].inputs:
            uses.setdefault(tensor, []).append(at)
        if index in makers and at < turn:
            made.update((tensor, at) for tensor in graph.ops[index].outputs)
    place = {op: at for at, op in enumerate(sequence)}  # of backward ops
    spans = sorted(
        (min(places), max(places))
        for op, row in zip(replay.order, replay.chain.backward, strict=True)
        if op in makers and row
        for places in ([place[each] for each in row],)
    )
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    for tensor, begin in made.items():
        later = [at for at in uses.get(tensor, ()) if at >= turn]
        if tensor in fixed or not later:
            continue
        last = max((at for at in uses[tensor] if at < turn), default=begin)
        yield Away(tensor, begin + 1, last + 1, _asked(spans, later[0], turn), later[0])


def _asked(spans: Sequence[tuple[int, int]], use: int, turn: int) -> int:
    """Return where the backward begins of the checkpoint behind which a use is."""
    at = bisect_right(spans, (use, use)) - 1
    if at >= 0 and use <= spans[at][1]:  # it is its own backward's
        at -= 1
    return spans[at][0] if at >= 0 else turn


def _plans(request: Request) -> Iterator[Plan]:
    """Make the plans of the ladder: nothing, offloads, and with more computed again."""
    count = len(request.graph.ops)
    yield request.ordered(range(count))
    replay = Replay(request)
    working = replay.working()
    rows: list[Sequence[int]] = [
        range(count),
        replay.in_order(working),
        replay.in_order(-1),
    ]
    for row in rows:
        yield TimedSwaps(request, row, offloads(replay, row)).plan()


def _pool(request: Request) -> Plan:
    """Take the first plan of the ladder that fits, on the device and its tier."""
    lowest: Plan | None = None
    over: Plan | None = None  # fits the device, not the tier
    for plan in _plans(request):
        if fits(plan):
            if not tier_excess(request, plan):
                return plan
            over = over or plan
        if lowest is None or plan.peak_bytes < lowest.peak_bytes:
            lowest = plan
        if request.is_over():
            break
    assert lowest is not None
    return lowest if over is None else within_tier(request, over)


def superneurons() -> Policy:
    """Offload what is dear to make, compute again what is cheap, as a limit asks for.

    The first that fits: nothing leaves; outputs of checkpoints do, as they are made;
    cheap ops between them are computed again besides, small segments once and large
    ones for each layer; all of them for each layer. At the backward of a checkpoint
    comes back what the one before it needs, where the limit leaves room, else when it
    is read.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is moved or computed again.

    Notes
    -----
    The unified tensor pool of [1]_, with its cost-aware and then its memory-centric
    recomputation, in the graph's order: a segment is small if its bytes are no more
    than the busiest backward op needs. Checkpoints are convolutions there; here they
    are the ops that `replay_elementwise` does not take for cheap, and those that
    `superneurons_speed` keeps as several segments read what they make. Bytes
    are free when a copy has ended; ops wait for that where the limit would not hold.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons", _pool, swaps=True)

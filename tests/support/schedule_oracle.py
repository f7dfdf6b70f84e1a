"""Schedules of small steps by definition: their bytes, and all of them, one by one."""

from __future__ import annotations

import heapq
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.graph import Graph


def rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def state_of(graph: Graph) -> dict[int, int]:
    """By tensor of the state: the op that overwrites it, or the number of ops."""
    state = {t: len(graph.ops) for t in graph.persistent}
    for index, op in enumerate(graph.ops):
        done: set[int] = set()
        for source, output in op.in_place if op.phase == "update" else ():
            legal = state.get(source) == len(graph.ops) and output not in done
            legal = legal and source not in graph.keep
            legal = legal and graph.consumers[source][-1] == index
            sizes = [rounded(graph.tensors[t].nbytes) for t in (source, output)]
            if legal and sizes[1] <= sizes[0]:
                state[source], state[output] = index, len(graph.ops)
                done.add(output)
    return state


def taken_over(graph: Graph, op: int, ending, state) -> int:
    """Bytes of outputs in the buffers of inputs that end; of one size, first come."""
    used: set[int] = set()
    nbytes = 0
    for source, output in graph.ops[op].in_place:
        sizes = {rounded(graph.tensors[t].nbytes) for t in (source, output)}
        if source in state or output in state or len(sizes) > 1:
            continue
        if source in ending and not used & {source, output}:
            used |= {source, output}
            nbytes += sizes.pop()
    return nbytes


def load(graph: Graph, schedule: Sequence[int]) -> int:
    """The most bytes in use; a value ends with its last read before another."""
    state = state_of(graph)
    ends: list[set[int]] = [set() for _ in schedule]  # values that no later op reads
    later = set(graph.keep)
    for place in reversed(range(len(schedule))):
        op = graph.ops[schedule[place]]
        ends[place] = ({*op.inputs, *op.outputs}) - later - set(state)
        later = (later - set(op.outputs)) | set(op.inputs)
    starts = {t for t in later if graph.producer[t] is None}
    size = [rounded(t.nbytes) for t in graph.tensors]
    base = sum(size[t] for t in graph.persistent)
    most = base + sum(
        size[t]
        for t, maker in enumerate(graph.producer)
        if maker is None and t not in state
    )
    resident = starts - set(state)
    for place, index in enumerate(schedule):
        op = graph.ops[index]
        resident |= set(op.outputs) - set(state)
        here = base + sum(size[t] for t in resident) + rounded(op.scratch_bytes)
        ending = ends[place] & set(op.inputs)
        most = max(most, here - taken_over(graph, index, ending, state))
        resident -= ends[place]
    return max(most, base + sum(size[t] for t in set(graph.keep) - set(state)))


def may_run(graph: Graph, done: frozenset[int], index: int, state) -> bool:
    """Whether an op may run next, what is resident apart."""
    op = graph.ops[index]
    forward = {i for i, each in enumerate(graph.ops) if each.phase == "forward"}
    if op.phase == "update" and not forward <= done:
        return False
    for t in op.inputs:
        maker = graph.producer[t]
        if maker is not None and maker not in done:
            return False
        update = state.get(t, len(graph.ops))
        if update in done:
            return False
        if update == index and not set(graph.consumers[t]) - {index} <= done:
            return False
    return True


def least_over_orders(graph: Graph) -> int:
    """The least load of all orders that compute each op once: by sets of ops."""
    state = state_of(graph)
    size = [rounded(t.nbytes) for t in graph.tensors]
    everything = frozenset(range(len(graph.ops)))
    keep = set(graph.keep)

    def live(done: frozenset[int]) -> set[int]:
        return {
            t
            for t, maker in enumerate(graph.producer)
            if t not in state
            and (maker is None or maker in done)
            and (t in keep or set(graph.consumers[t]) - done)
        }

    base = sum(size[t] for t in graph.persistent)

    @cache
    def least(done: frozenset[int]) -> int:
        """From a set of ops that have run to the end."""
        if done == everything:
            return 0
        best = None
        for op in everything - done:
            if not may_run(graph, done, op, state):
                continue
            here = live(done) | (set(graph.ops[op].outputs) - set(state))
            after = live(done | {op})
            ending = set(graph.ops[op].inputs) - after
            need = base + sum(size[t] for t in here)
            need += rounded(graph.ops[op].scratch_bytes)
            need -= taken_over(graph, op, ending, state)
            need = max(need, least(done | {op}))
            best = need if best is None else min(best, need)
        return 2**62 if best is None else best

    sources = {t for t, maker in enumerate(graph.producer) if maker is None}
    ends = max(sum(size[t] for t in group - set(state)) for group in (sources, keep))
    return max(least(frozenset()), base + ends)


def least_costs(graph: Graph, cost) -> Iterator[tuple[int, float]]:
    """Every limit at which a schedule gets cheaper, and its extra cost: brute force.

    A state is what has run, what is resident and the most bytes so far; each value, of
    what is kept as well, may be dropped after the op that reads or makes it.
    """
    state = state_of(graph)
    size = [rounded(t.nbytes) for t in graph.tensors]
    keep = set(graph.keep) - set(state)
    base = sum(size[t] for t in graph.persistent)
    start = {t for t, maker in enumerate(graph.producer) if maker is None} - set(state)
    ends = base + max(sum(size[t] for t in group) for group in (start, keep))
    start = frozenset(t for t in start if graph.consumers[t] or t in keep)
    ticket = count()
    queue = [(0.0, ends, next(ticket), frozenset[int](), start)]
    seen: dict[tuple[frozenset[int], frozenset[int]], int] = {}  # the least peak
    lowest = 2**62
    while queue:
        extra, peak, _, done, resident = heapq.heappop(queue)
        if peak >= min(lowest, seen.get((done, resident), 2**62)):
            continue
        seen[done, resident] = peak
        if len(done) == len(graph.ops) and keep <= resident:
            lowest = peak
            yield peak, extra
        for index in range(len(graph.ops)):
            if index in done and not graph.ops[index].replayable:
                continue
            if not may_run(graph, done, index, state):
                continue
            paid = extra + cost[index] * (index in done)
            for need, left in _runs(graph, index, resident, state):
                step = paid, max(peak, base + need), next(ticket), done | {index}, left
                heapq.heappush(queue, step)


def _runs(
    graph: Graph, index: int, resident: frozenset[int], state
) -> Iterator[tuple[int, frozenset[int]]]:
    """An op's bytes and what it leaves, for every set of its values that is dropped."""
    op = graph.ops[index]
    reads, makes = set(op.inputs) - set(state), set(op.outputs) - set(state)
    if not reads <= resident:
        return
    here = resident | makes
    need = sum(rounded(graph.tensors[t].nbytes) for t in here)
    need += rounded(op.scratch_bytes)
    choices = sorted(reads | makes)
    for bits in range(2 ** len(choices)):
        gone = {t for k, t in enumerate(choices) if bits >> k & 1}
        yield need - taken_over(graph, index, gone & reads, state), here - gone

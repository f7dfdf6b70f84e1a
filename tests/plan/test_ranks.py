"""Plans of several ranks: what is refused, and random orders against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.errors import PlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Alloc,
    Compute,
    Plan,
    Predicted,
    Start,
    Wait,
    overlap_collectives,
    share,
    validate_ranks,
)

SEEDS = st.integers(0, 2**32 - 1)


def step(groups, *, sizes=None, kinds=None, name="step", attributes=True) -> Graph:
    """A collective for each entry of `groups`, which share no token and no tensor."""
    tensors: list[Tensor] = []
    ops = []
    for number, group in enumerate(groups):
        nbytes = 64 * (1 + number % 3) if sizes is None else sizes[number]
        kind = "all_reduce" if kinds is None else kinds[number]
        first = len(tensors)
        tensors += (Tensor(f"{n}{number}", 4, "input") for n in "t")
        tensors += (Tensor(f"{n}{number}", nbytes, "input") for n in "x")
        tensors.append(Tensor(f"after{number}", 4, "activation"))
        tensors.append(Tensor(f"y{number}", nbytes, "activation"))
        named = {"group": f"{group}"} if attributes else {}
        ops.append(
            Op(
                *(f"c{number}", kind, "forward", (first, first + 1)),
                (first + 2, first + 3),
                seconds=1.0,
                attributes=named,
            )
        )
    return Graph(name, tuple(tensors), tuple(ops))


def written(graph, events) -> Plan:
    """A plan of events: ("compute" or "start" or "wait", op)."""
    actions, end, starts = [], 0, {}
    for tensor in graph.tensors:
        actions.append(Alloc(len(actions), end))
        end += -(-tensor.nbytes // 64) * 64
    for kind, op in events:
        if kind == "compute":
            actions.append(Compute(op))
        elif kind == "start":
            starts[op] = len(actions)
            actions.append(Start(op))
        else:
            actions.append(Wait(starts[op]))
    return Plan(graph.name, "hand", None, 64, Predicted(end), tuple(actions))


def inline(graph, order) -> Plan:
    return written(graph, [("compute", op) for op in order])


def refusal(graphs, plans) -> str:
    with pytest.raises(PlanError) as error:
        validate_ranks(graphs, plans)
    return str(error.value)


def test_the_same_plans_are_right():
    graph = step("aab")
    plans = [inline(graph, (0, 1, 2))] * 3
    assert validate_ranks([graph] * 3, plans) is None
    with pytest.raises(ValueError, match="2 graphs and 3 plans"):
        validate_ranks([graph] * 2, plans)
    with pytest.raises(ValueError, match="0 graphs and 0 plans"):
        validate_ranks([], [])


def test_each_plan_is_judged_with_its_own_limit():
    graph = step("aa")
    good = inline(graph, (0, 1))
    small = replace(good, limit_bytes=64)
    text = refusal([graph] * 2, [good, small])
    assert text.startswith("the plan of rank 1 is invalid: claims: the peak of")
    text = refusal([graph] * 2, [replace(good, actions=()), good])
    assert text.startswith("the plan of rank 0 is invalid")
    assert "more)" in text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"sizes": (64, 64)}, "all_reduce of 1 tensor, 128 B\\) where rank 1 runs"),
        ({"kinds": ("all_reduce", "broadcast")}, "broadcast of 1 tensor, 128 B"),
    ],
)
def test_collectives_are_the_same_on_all_ranks(other, words):
    graphs = [step("aa"), step("aa", **other)]
    plans = [inline(graph, (0, 1)) for graph in graphs]
    with pytest.raises(PlanError, match=f"ranks 0 and 1 differ: .*{words}"):
        validate_ranks(graphs, plans)


def test_a_rank_with_fewer_collectives_is_refused():
    graphs = [step("aaa"), step("aa")]
    plans = [inline(graphs[0], (0, 1, 2)), inline(graphs[1], (0, 1))]
    text = refusal(graphs, plans)
    assert text == (
        "ranks 0 and 1 differ: rank 0 runs 3 collectives of group 0, rank 1 2"
    )


def test_another_number_of_ranks_is_refused():
    graph = step("a")
    ops = tuple(replace(op, attributes={"ranks": 3}) for op in graph.ops)
    graph = replace(graph, ops=ops)
    text = refusal([graph] * 2, [inline(graph, (0,))] * 2)
    assert text == "op 'c0' of rank 0 is for 3 ranks, and there are 2 plans"


def test_the_names_of_groups_differ_by_rank():
    graphs = [step("ab"), step("cd")]
    validate_ranks(graphs, [inline(graph, (0, 1)) for graph in graphs])


def test_ranks_that_wait_for_each_other_are_named():
    graph = step("ab")
    text = refusal([graph] * 2, [inline(graph, (0, 1)), inline(graph, (1, 0))])
    assert text == (
        "ranks 0 and 1 wait for each other: rank 0 in collective 0 of group 0 "
        "(all_reduce of 1 tensor, 64 B); rank 1 in collective 0 of group 1 "
        "(all_reduce of 1 tensor, 128 B)"
    )


def test_starts_are_the_same_sequence_as_collectives_in_between():
    graph = step("ab")
    events = [("start", 0), ("start", 1), ("wait", 1), ("wait", 0)]
    validate_ranks([graph] * 2, [written(graph, events), inline(graph, (0, 1))])
    crossed = [("start", 1), ("start", 0), ("wait", 1), ("wait", 0)]
    assert "wait for each other" in refusal(
        [graph] * 2, [written(graph, events), written(graph, crossed)]
    )


def test_graphs_from_files_have_groups_by_their_tokens():
    graph = step("ab", attributes=False)
    read = Graph.from_json(graph.to_json())
    assert "wait for each other" in refusal(
        [read] * 2, [inline(read, (0, 1)), inline(read, (1, 0))]
    )
    first, second = graph.ops
    chained = replace(second, inputs=(first.outputs[0], second.inputs[1]))
    graph = replace(graph, ops=(first, chained))
    plan = overlap_collectives(graph, share()(graph))
    read = Graph.from_json(graph.to_json())
    validate_ranks([read, graph], [plan, plan])


# -- brute force ----------------------------------------------------------------------


def program(graph, plan):
    """A rank as brute force sees it: what its thread and its network do, in order."""
    first: dict[str, int] = {}
    names, counts = {}, {}
    for index, op in enumerate(graph.ops):
        group = first.setdefault(op.attributes["group"], len(first))
        counts[group] = counts.get(group, -1) + 1
        nbytes = graph.tensors[op.inputs[1]].nbytes
        names[index] = (group, counts[group], op.type, nbytes)
    thread, network, at = [], [], {}
    for index, action in enumerate(plan.actions):
        match action:
            case Start(op):
                at[index] = len(network)
                thread.append(("begin", len(network)))
                network.append(names[op])
            case Compute(op):
                thread += [("begin", len(network)), ("wait", len(network))]
                network.append(names[op])
            case Wait(target):
                thread.append(("wait", at[target]))
    return tuple(thread), tuple(network)


def ends_well(ranks) -> bool:  # noqa: C901  (one search of all states)
    """Whether all interleavings of all threads end, and only likes meet.

    A state is, for each rank, how far its thread has come, how many collectives it has
    begun and how many have ended. In each group, the ranks' calls meet in the order in
    which they come, whatever they are.
    """
    start = tuple((0, 0, 0) for _ in ranks)
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        moves = []
        for rank, (thread, _) in enumerate(ranks):
            place, begun, ended = state[rank]
            if place == len(thread):
                continue
            kind, number = thread[place]
            if kind == "begin":
                moves.append((rank, (place + 1, number + 1, ended)))
            elif ended > number:
                moves.append((rank, (place + 1, begun, ended)))
        states = [(*state[:r], new, *state[r + 1 :]) for r, new in moves]
        heads = [
            network[ended] if ended < begun else None
            for (_, begun, ended), (_, network) in zip(state, ranks, strict=True)
        ]
        groups = {None if head is None else head[0] for head in heads}
        if len(groups) == 1 and None not in groups:  # all are in a call of one group
            if len(set(heads)) > 1:
                return False  # different things meet
            states.append(tuple((p, b, e + 1) for p, b, e in state))
        if not states and any(
            place < len(thread) or ended < len(network)
            for (place, _, ended), (thread, network) in zip(state, ranks, strict=True)
        ):
            return False
        for each in states:
            if each not in seen:
                seen.add(each)
                left.append(each)
    return True


def random_events(order, chance):
    """Starts and computations in this order, with waits somewhere behind."""
    events, waiting = [], []
    for op in order:
        while waiting and chance.random() < 0.4:
            events.append(("wait", waiting.pop(chance.randrange(len(waiting)))))
        if chance.random() < 0.5:
            events.append(("start", op))
            waiting.append(op)
        else:
            events.append(("compute", op))
    chance.shuffle(waiting)
    return events + [("wait", op) for op in waiting]


def tried(seed) -> bool:
    """Whether random plans are accepted, as by brute force."""
    chance = random.Random(seed)
    count, ranks = chance.randint(1, 4), chance.choice([2, 2, 3])
    groups = [chance.choice("aab") for _ in range(count)]
    sizes = [chance.choice([64, 64, 128]) for _ in range(count)]
    graphs, plans = [], []
    order = list(range(count))
    for _ in range(ranks):
        own = list(sizes)
        if chance.random() < 0.1:
            own[chance.randrange(count)] = 192
        graphs.append(step(groups, sizes=own))
        mine = list(order)
        if count > 1 and chance.random() < 0.3:
            k = chance.randrange(count - 1)
            mine[k : k + 2] = mine[k : k + 2][::-1]
        plans.append(written(graphs[-1], random_events(mine, chance)))
    expected = ends_well([program(g, p) for g, p in zip(graphs, plans, strict=True)])
    try:
        validate_ranks(graphs, plans)
    except PlanError:
        found = False
    else:
        found = True
    assert found is expected
    return found


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_random_orders_are_judged_as_brute_force_judges(seed):
    tried(seed)


def test_enough_of_both_is_tried():
    found = [tried(seed) for seed in range(100)]
    assert 20 < sum(found) < 80

"""SuperNeurons' tensor cache, beside caches written for these tests."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import IMAGES, Row, at_a_limit, layer_chain, network, weights_after
from networks import NETWORKS
from training_graphs import Sketch, random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import (
    Alloc,
    Compute,
    Free,
    SwapIn,
    SwapOut,
    Wait,
    lower_bound,
    share,
    simulate,
    superneurons_cache,
    validate,
)
from memcfg.plan.methods._superneurons import Cache
from memcfg.plan.search import Request, StartSwapIn, StartSwapOut, least_load


def traffic(graph, room, *, lru):
    """Bytes that a cache of so many bytes moves in a step: an oracle without plans.

    The graph has no state, scratch or outputs in place. Tensors are evicted by their
    last use, or by when they came; each is copied out once.
    """
    size = [tensor.nbytes for tensor in graph.tensors]
    last = {t: max(readers, default=-1) for t, readers in enumerate(graph.consumers)}
    last.update(dict.fromkeys(graph.keep, len(graph.ops)))
    given_ = (t for t, maker in enumerate(graph.producer) if maker is None)
    cache = OrderedDict((t, 0) for t in given_ if last[t] >= 0)
    outside, moved = set(), 0
    for place, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *op.outputs):
            if tensor in cache:
                if lru:
                    cache.move_to_end(tensor)
                continue
            moved += size[tensor] if tensor in op.inputs else 0
            cache[tensor] = place
        for tensor in [*cache]:
            if sum(size[t] for t in cache) <= room:
                break
            if tensor in (*op.inputs, *op.outputs, *graph.keep):
                continue
            del cache[tensor]
            moved += 0 if tensor in outside else size[tensor]
            outside.add(tensor)
        for tensor in (*op.inputs, *op.outputs):
            if last[tensor] <= place:
                cache.pop(tensor, None)
    return moved


def attended(count, every=1, nbytes=640):
    """A chain of which some layers, and their backward, read one tensor beside."""
    sketch = Sketch()
    context = sketch.tensor("context", nbytes, "input")
    x = [sketch.tensor("x0", nbytes, "input")]
    for n in range(1, count + 1):
        x.append(sketch.tensor(f"x{n}", nbytes, "activation"))
        beside = [] if n % every else [context]
        sketch.op(f"f{n}", "forward", [x[-2], *beside], [x[-1]], seconds=1.0)
    g = sketch.tensor(f"g{count}", nbytes, "activation_gradient")
    sketch.op("loss", "backward", [x[-1]], [g], seconds=1.0)
    for n in reversed(range(count)):
        below = sketch.tensor(f"g{n}", nbytes, "activation_gradient")
        beside = [] if n % every else [context]
        sketch.op(f"b{n}", "backward", [x[n], g, *beside], [below], seconds=2.0)
        g = below
    return sketch.graph("attended", [g])


def test_last_used_is_moved_less_than_first_come():
    """What all layers read is not evicted for being old."""
    graph = attended(12)
    peak = Cache(graph, float("inf")).load
    for room in range(5 * 640, peak, 640):
        cache = Cache(graph, room)
        lru, fifo = (traffic(graph, room, lru=order) for order in (True, False))
        assert cache.moved == lru < fifo
    assert traffic(graph, peak, lru=False) == 0


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20), part=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_it_moves_what_the_oracle_does(seed, ops, part):
    given_ = random_step(seed, ops)
    tensors = (replace(t, nbytes=(t.nbytes + 63) // 64 * 64) for t in given_.tensors)
    bare = (
        replace(op, scratch_bytes=0, in_place=(), phase="backward") for op in given_.ops
    )
    tensors = tuple(replace(t, role="input") for t in tensors)
    graph = replace(given_, tensors=tensors, ops=tuple(bare))
    room = Cache(graph, float("inf")).load * part // 100
    assert Cache(graph, room).moved == traffic(graph, room, lru=True)


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20), part=st.integers(0, 110))
@settings(max_examples=80, deadline=None)
def test_its_bytes_are_those_in_use_and_within_the_goal(seed, ops, part):
    request = Request.of(random_step(seed, ops), "cache", None)
    goal = share()(request.graph).peak_bytes * part // 100
    cache = Cache(request.graph, goal)
    assert least_load(request, cache.events()) <= cache.load
    least = Cache(request.graph, 0).load
    assert cache.load <= max(goal, least)


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_more_memory_never_moves_more(seed, ops):
    graph = random_step(seed, ops)
    peak = share()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 1)
    least = refused.value.smallest_limit_bytes
    moved = []
    for step in range(9):
        plan = superneurons_cache()(
            graph, least + (max(peak, least) - least) * step // 8
        )
        validate(graph, plan)
        moved.append(plan.predicted.moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == 0 or peak < least


@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(2, 25),
    parts=st.lists(st.integers(20, 110), min_size=2, max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_a_larger_cache_that_is_within_a_limit_does_what_one_of_it_does(
    seed, ops, parts
):
    graph = random_step(seed, ops)
    peak = Cache(graph, float("inf")).load
    for limit, goal in pairwise(sorted(peak * part // 100 for part in parts)):
        larger, own = Cache(graph, goal), Cache(graph, limit)
        if larger.load <= limit:
            assert larger.events() == own.events()
            assert (larger.load, larger.moved) == (own.load, own.moved)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_move_nothing_from_the_peak_on_and_less_with_more(name):
    graph = NETWORKS[name]()
    peak = share()(graph).peak_bytes
    for limit in (None, peak, 2 * peak):
        assert superneurons_cache()(graph, limit).predicted.moved_bytes == 0
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 64)
    least = refused.value.smallest_limit_bytes
    assert least < peak
    moved = []
    for limit in (least, *range(least + 1, peak, (peak - least) // 7), peak - 1):
        plan = superneurons_cache()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        moved.append(plan.predicted.moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] > 0


def test_the_smallest_limit_of_a_chain_is_its_busiest_op():
    graph = layer_chain([Row(640)] * 12, 1e6)
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 64)
    assert refused.value.smallest_limit_bytes == 3 * 640 == lower_bound(graph)


@pytest.mark.parametrize("part", [60, 70, 80, 90])
def test_operands_stay_and_clean_copies_are_not_made_again(part):
    graph = NETWORKS["residual"]()
    plan = superneurons_cache()(graph, share()(graph).peak_bytes * part // 100)
    there, away, outs, ins = set(), set(), [], []
    for action in plan.actions:
        match action:
            case Alloc(tensor):
                there.add(tensor)
            case Free(tensor):
                there.discard(tensor)
            case SwapOut(tensor):
                outs.append(tensor)
            case SwapIn(tensor):
                ins.append(tensor)
                away.discard(tensor)
            case Wait(copy) if isinstance(plan.actions[copy], SwapOut):
                away.add(plan.actions[copy].tensor)
            case Compute(op):
                assert away.isdisjoint(graph.ops[op].inputs)
    assert outs
    assert len(set(outs)) == len(outs)
    assert set(ins) == set(outs)


def test_what_left_once_comes_back_as_often_as_needed():
    graph = attended(12, every=4)
    events = Cache(graph, 4 * 640).events()
    backs = Counter(event.tensor for event in events if isinstance(event, StartSwapIn))
    outs = Counter(event.tensor for event in events if isinstance(event, StartSwapOut))
    assert outs[0] == 1
    assert backs[0] == 3
    assert max(outs.values()) == 1
    validate(graph, superneurons_cache()(graph, 4 * 640))


def test_copies_out_start_behind_the_last_use():
    """So they are done when their bytes are asked for, on a lane as fast as layers."""
    graph = layer_chain([Row(640)] * 12, 640.0, input_bytes=640)
    plan = superneurons_cache()(graph, 6 * 640)
    forward = list(plan.actions[: plan.actions.index(Compute(11))])
    outs = [place for place, a in enumerate(forward) if isinstance(a, SwapOut)]
    waits = {a.action: place for place, a in enumerate(forward) if isinstance(a, Wait)}
    between = [
        sum(isinstance(a, Compute) for a in forward[out : waits[out]])
        for out in outs
        if out in waits
    ]
    assert between
    assert min(between) >= 3


def test_ops_wait_for_each_copy_back_and_no_other():
    """A copy takes a tenth of a layer, and what leaves was used a layer ago or more."""
    graph = layer_chain([Row(640)] * 12, 6400.0, input_bytes=640)
    for tensors in (4, 6, 8):
        plan = superneurons_cache()(graph, tensors * 640)
        backs = sum(isinstance(action, SwapIn) for action in plan.actions)
        assert backs
        assert plan.predicted.stall_seconds == pytest.approx(0.1 * backs)


def test_a_full_tier_is_refused_with_a_limit_that_moves_nothing():
    graph = layer_chain([Row(640)] * 12, 1e6)
    plan = superneurons_cache()(graph, 6 * 640)
    needed = simulate(graph, plan).tier_peak_bytes["host"]
    room = replace(graph, tiers=(Tier("host", 1e6, needed),))
    validate(room, superneurons_cache()(room, 6 * 640))
    less = replace(graph, tiers=(Tier("host", 1e6, 64),))
    with pytest.raises(InfeasiblePlanError, match="'host', whose limit is") as refused:
        superneurons_cache()(less, 6 * 640)
    enough = refused.value.smallest_limit_bytes
    assert superneurons_cache()(less, enough).predicted.moved_bytes == 0


@pytest.mark.parametrize("part", [0.7, 0.2])
def test_weights_have_the_bits_of_share(part):
    plans = []
    cached = at_a_limit(superneurons_cache(), part, plans)
    found = weights_after(network, cached, IMAGES)
    assert plans[0].predicted.moved_bytes > 0
    assert found == weights_after(network, share(), IMAGES)

from __future__ import annotations

import math

import pytest
from training_graphs import Sketch, chain, random_step

from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Free,
    lower_bound,
    share,
    sqrt_checkpoint,
    validate,
)
from memcfg.plan.search import Request


def residents(plan) -> int:
    """The most tensors with buffer at any time, counted on the actions alone.

    A buffer that is taken over in place is one tensor, until the taken one is freed
    and after.
    """
    buffers: set[int] = set()
    takers: dict[int, int] = {}
    most = 0
    for action in plan.actions:
        if isinstance(action, Alloc):
            buffers.add(action.tensor)
        elif isinstance(action, Alias):
            takers[action.input] = action.output
        elif isinstance(action, Free):
            buffers.remove(action.tensor)
            if action.tensor in takers:
                buffers.add(takers.pop(action.tensor))
        most = max(most, len(buffers))
    return most


def recomputed(graph, plan) -> list[int]:
    computed = [a.op for a in plan.actions if isinstance(a, Compute)]
    return [op for op in range(len(graph.ops)) for _ in range(computed.count(op) - 1)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("reads", ["input", "output", "both"])
@pytest.mark.parametrize("n", [16, 25, 32, 64, 100, 128, 200, 256])
def test_a_uniform_chain_needs_two_roots(n, reads, in_place):
    graph = chain(n, reads=reads, in_place=in_place)
    plan = sqrt_checkpoint()(graph)
    validate(graph, plan)
    assert residents(plan) <= 2 * math.sqrt(n) + 4
    assert residents(plan) <= math.sqrt(2 * n) + 4.5  # uneven segments do better
    assert plan.peak_bytes == 64 * residents(plan)
    assert len(recomputed(graph, plan)) <= n
    assert plan.predicted.recompute_seconds <= n  # one extra forward


def test_memory_grows_with_the_root():
    for n in (16, 64, 256):
        tensors = sqrt_checkpoint()(chain(n)).peak_bytes / 64
        assert 1 <= tensors - math.sqrt(2 * n) <= 3


def test_ops_are_recomputed_once_at_most_and_only_if_they_may():
    for seed in range(200):
        graph = random_step(seed, 10)
        again = recomputed(graph, sqrt_checkpoint()(graph))
        assert len(again) == len(set(again))
        for op in again:
            assert graph.ops[op].replayable
            assert graph.ops[op].phase == "forward"
            assert not set(graph.ops[op].outputs) & set(graph.keep)


def test_recomputation_stands_right_before_the_backward_op_that_needs_it():
    graph = chain(64, reads="both")
    plan = sqrt_checkpoint()(graph)
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    again = set(recomputed(graph, plan))
    seen: set[int] = set()
    for place, op in enumerate(ops):
        if op in again and op in seen:
            after = next(o for o in ops[place:] if graph.ops[o].phase == "backward")
            batch = set(ops[place : ops.index(after)])
            needed = set(graph.ops[after].inputs)
            for other in sorted(batch, reverse=True):
                if needed & set(graph.ops[other].outputs):
                    needed |= set(graph.ops[other].inputs)
            assert needed & set(graph.ops[op].outputs)
        seen.add(op)


def test_more_memory_never_takes_more_time_on_a_chain():
    graph = chain(48, reads="both")
    least = sqrt_checkpoint()(graph).peak_bytes
    most = share()(graph).peak_bytes
    costs = [
        sqrt_checkpoint()(graph, limit).predicted.recompute_seconds
        for limit in range(least, most + 1, 256)
    ]
    assert costs == sorted(costs, reverse=True)
    assert sqrt_checkpoint()(graph, most).predicted.recompute_seconds == 0


def test_a_choice_that_is_placed_above_the_limit_is_not_tried_again():
    for seed, ops, limit in ((291, 31, 28300), (314, 24, 5369), (417, 37, 10867)):
        graph = random_step(seed, ops)
        plan = sqrt_checkpoint()(graph, limit)
        assert plan.peak_bytes <= limit
        least = sqrt_checkpoint()(graph).predicted.recompute_seconds
        assert plan.predicted.recompute_seconds <= least / 2


def test_the_last_segment_is_not_recomputed():
    graph = chain(64)
    again = recomputed(graph, sqrt_checkpoint()(graph))
    assert max(again) < 63


def overwritten(*, updated_first: bool):
    """f reads w; the last backward op reads f's output, after or before w's update."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    w = sketch.tensor("w", 64, "parameter")
    big = sketch.tensor("big", 4096, "activation")
    y = sketch.tensor("y", 64, "activation")
    d = sketch.tensor("d", 64, "gradient")
    wide = sketch.tensor("wide", 4096, "activation_gradient")
    new = sketch.tensor("w'", 64, "parameter")
    last = sketch.tensor("last", 64, "activation_gradient")
    sketch.op("f", "forward", [x, w], [big], seconds=1.0)
    sketch.op("g", "forward", [big], [y], seconds=1.0)
    sketch.op("wide", "backward", [y], [wide])
    sketch.op("d", "backward", [wide], [d])
    update = ("u", "update", [w, d], [new])
    if updated_first:
        sketch.op(*update, in_place=((w, new),), replayable=False)
        sketch.op("late", "backward", [big, d], [last])
    else:
        sketch.op("late", "backward", [big, d], [last])
        sketch.op(*update, in_place=((w, new),), replayable=False)
    return sketch.graph("overwritten", [last])


def test_an_op_is_not_recomputed_from_an_overwritten_parameter():
    free, bound = overwritten(updated_first=False), overwritten(updated_first=True)
    plans = [sqrt_checkpoint()(graph) for graph in (free, bound)]
    for graph, plan in zip((free, bound), plans, strict=True):
        validate(graph, plan)
    assert 0 in recomputed(free, plans[0])
    assert 0 not in recomputed(bound, plans[1])


def test_what_only_the_backward_phase_needs_is_put_off():
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    aside = sketch.tensor("aside", 4096, "activation")
    y = sketch.tensor("y", 64, "activation")
    wide = sketch.tensor("wide", 4096, "activation_gradient")
    d = sketch.tensor("d", 64, "activation_gradient")
    last = sketch.tensor("last", 64, "activation_gradient")
    sketch.op("aside", "forward", [x], [aside], seconds=1.0)
    sketch.op("f", "forward", [x], [y], seconds=1.0)
    sketch.op("wide", "backward", [y], [wide], seconds=1.0)
    sketch.op("d", "backward", [wide], [d], seconds=1.0)
    sketch.op("last", "backward", [d, aside], [last], seconds=1.0)
    graph = sketch.graph("aside", [last])
    plan = sqrt_checkpoint()(graph)
    validate(graph, plan)
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    assert ops == [1, 2, 3, 0, 4]
    in_order = Request.of(graph, "in order", None).scheduled(range(5))
    assert plan.peak_bytes == share()(graph).peak_bytes < in_order.peak_bytes
    assert plan.predicted.recompute_seconds == 0


def test_outputs_of_one_op_are_dropped_together():
    for seed in range(100):
        graph = random_step(seed, 10)
        plan = sqrt_checkpoint()(graph)
        again = set(recomputed(graph, plan))
        buffers = [a.tensor for a in plan.actions if isinstance(a, Alloc)]
        buffers += [a.output for a in plan.actions if isinstance(a, Alias)]
        for op in again:
            assert [buffers.count(t) for t in graph.ops[op].outputs] == [2] * len(
                graph.ops[op].outputs
            )


def test_a_thousand_ops_below_the_sharing_peak():
    graph = random_step(3, 300)
    plan = sqrt_checkpoint()(graph)
    validate(graph, plan)
    assert len(graph.ops) > 1000
    assert lower_bound(graph) <= plan.peak_bytes <= 0.8 * share()(graph).peak_bytes

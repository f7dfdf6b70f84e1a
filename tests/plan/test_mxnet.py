from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import graph_of_predict, leave_out_rewrite
from networks import zoo_model
from training_graphs import Sketch, random_step, reachable

import memcfg as mc
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    keep_all,
    mxnet,
    share,
    validate,
    with_updates_in_time,
)
from memcfg.plan.search import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph import Graph

A = "activation"


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 24))
def test_plans_of_random_steps_are_valid(seed, ops):
    graph = random_step(seed, ops)
    plan = mxnet()(graph)
    validate(graph, plan)
    assert len(graph.ops) == sum(isinstance(a, Compute) for a in plan.actions)


def graphs(network: str) -> Iterator[Graph]:
    """The training step and the inference of a network, batch 64 as in the paper.

    What follows a convolution is an op of its own there.
    """
    model = zoo_model(network)
    for trace in (mc.nn.Model.graph, graph_of_predict):
        with pytest.MonkeyPatch.context() as patch:
            leave_out_rewrite(patch, "fuse_products")
            graph = trace(model, 64)
        yield graph
    model.close()


@pytest.mark.parametrize("network", ["vgg16", "inception_v3", "resnet50"])
def test_training_takes_half_and_inference_a_quarter_as_the_paper_says(network):
    """Of what is no parameter, input or state of an optimizer."""
    for graph, ratio in zip(graphs(network), (2, 4), strict=True):
        state = sum(graph.tensors[t].nbytes for t in graph.persistent)
        plans = [policy(graph) for policy in (keep_all(), mxnet(), share())]
        validate(graph, plans[1])
        inside = [plan.peak_bytes - state for plan in plans]
        assert inside[0] >= ratio * inside[1]
        assert inside[1] >= inside[2]


@pytest.mark.parametrize("network", ["resnet18", "inception_v3"])
def test_in_place_and_co_sharing_both_take_bytes_away(network):
    for graph in graphs(network):
        request = Request.of(graph, "part of it", None)
        whole = mxnet()(graph).peak_bytes
        sharer = mxnet().make
        apart = replace(sharer, ranges=(0,))(request)
        not_in_place = sharer(replace(request, in_place=False))
        for plan in (apart, not_in_place):
            validate(graph, plan)
            assert plan.peak_bytes > whole


# -- colors ----------------------------------------------------------------------------


def lanes(count: int, depth: int) -> Graph:
    """Branches of ops with scratch that could run side by side, between two ops."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    ends = []
    for k in range(count):
        sketch.op(f"fork{k}", "forward", [x], [h := sketch.tensor(f"h{k}", 640, A)])
        for i in range(depth):
            y = sketch.tensor(f"h{k}.{i}", 640, A)
            sketch.op(f"f{k}.{i}", "forward", [h], [y], scratch_bytes=64)
            h = y
        ends.append(h)
    sketch.op("join", "forward", ends, [y := sketch.tensor("y", 64, "output")])
    return sketch.graph("lanes", [y])


def concurrent_sharing(graph: Graph, plan) -> list[tuple[int, int]]:
    """Pairs of ops that could run side by side and write the same bytes.

    Inputs and state have bytes of their own; what takes the place of an input is
    written by an op that waits for it.
    """
    above = reachable(
        [
            [p for t in op.inputs if (p := graph.producer[t]) is not None]
            for op in graph.ops
        ]
    )
    place: dict[int, int] = {}
    writes: list[tuple[int, int, int]] = []  # op, first byte, end
    for action in plan.actions:
        match action:
            case Alloc(tensor, offset):
                place[tensor] = offset
            case Alias(output, source):
                place[output] = place[source]
            case Compute(op, _, scratch):
                spans = [
                    (place[t], graph.tensors[t].nbytes) for t in graph.ops[op].outputs
                ]
                if scratch is not None:
                    spans.append((scratch, graph.ops[op].scratch_bytes))
                writes += [(op, at, at + n) for at, n in spans if n]
    return [
        (a, b)
        for (a, begin, end), (b, low, high) in combinations(writes, 2)
        if begin < high
        and low < end
        and a != b
        and a not in above[b]
        and b not in above[a]
    ]


def test_branches_keep_their_own_buffers():
    graph = lanes(4, 5)
    plans = [mxnet(colors=colors)(graph) for colors in (1, 2, 4, 9, None)]
    for plan in plans:
        validate(graph, plan)
    assert concurrent_sharing(graph, plans[0])
    assert concurrent_sharing(graph, plans[1])
    for plan in plans[2:]:
        assert not concurrent_sharing(graph, plan)
    peaks = [plan.peak_bytes for plan in plans]
    assert peaks == sorted(peaks)
    # A branch alone turns between two buffers; then the paths that join it add theirs.
    assert peaks[-1] <= 64 + 4 * (2 * 640 + 64) + 4 * 640 + 64


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 16))
def test_what_could_run_side_by_side_never_shares_when_each_path_has_a_color(seed, ops):
    graph, _ = with_updates_in_time(random_step(seed, ops))
    plan = mxnet(colors=None)(graph)
    validate(graph, plan)
    assert not concurrent_sharing(graph, plan)


def test_branches_of_an_inception_net_keep_their_own_buffers():
    graph = next(graphs("googlenet"))
    plain, colored = mxnet()(graph), mxnet(colors=None)(graph)
    validate(graph, colored)
    assert concurrent_sharing(graph, plain)
    assert not concurrent_sharing(graph, colored)
    assert plain.peak_bytes < colored.peak_bytes < keep_all()(graph).peak_bytes


def test_colors_are_part_of_the_value():
    assert mxnet() == mxnet(colors=1) != mxnet(colors=2) == mxnet(colors=2)
    assert hash(mxnet(colors=2)) == hash(mxnet(colors=2))
    assert (mxnet().name, mxnet(colors=None).name) == ("mxnet", "mxnet(colors=None)")
    with pytest.raises(ValueError, match="colors must be positive, not 0"):
        mxnet(colors=0)
    with pytest.raises(TypeError, match="colors must be an integer or None, not '2'"):
        mxnet(colors="2")

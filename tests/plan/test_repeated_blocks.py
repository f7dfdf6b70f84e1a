"""Plans of chains of blocks that repeat."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import Sketch, chain, random_step

from memcfg import models, nn
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    Compute,
    auto,
    exact,
    look_ahead,
    lower_bound,
    repeated_blocks,
    share,
    validate,
)

if TYPE_CHECKING:
    from memcfg.graph import Graph


def repeated_step(seed: int, blocks: int) -> Graph:
    """A chain of one to three random blocks, each several times in a row."""
    chance = random.Random(seed)
    sketch = Sketch()
    kinds = [_random_block(chance) for _ in range(chance.randint(1, 3))]
    x = sketch.tensor("x", 64 * chance.randint(1, 8), "input")
    backward = []
    for i in range(blocks):
        x, saved = _forward(sketch, i, kinds[i * len(kinds) // blocks], x)
        backward.append(saved)
    gradient = sketch.tensor("g", sketch.tensors[x].nbytes, "activation_gradient")
    sketch.op("loss", "backward", [x], [gradient], seconds=1.0)
    for i, ops in reversed([*enumerate(backward)]):
        for j, (read, made, seconds) in reversed([*enumerate(ops)]):
            size = sketch.tensors[read].nbytes
            below = sketch.tensor(f"d{i}.{j}", size, "activation_gradient")
            inputs = [read, gradient, *([made] if j % 2 else [])]
            pairs = ((gradient, below),) if j % 2 else ()
            sketch.op(
                f"b{i}.{j}",
                "backward",
                inputs,
                [below],
                seconds=2 * seconds,
                scratch_bytes=64 * (j % 3),
                in_place=pairs,
            )
            gradient = below
    return sketch.graph(f"repeated {seed}", keep=[gradient])


def _random_block(chance: random.Random) -> list[tuple[int, float]]:
    """The bytes and seconds of each op, one after the other."""
    return [
        (64 * chance.randint(1, 16), chance.choice([0.1, 1.0, 5.0]))
        for _ in range(chance.randint(1, 4))
    ]


def _forward(sketch: Sketch, number: int, kind, x: int):
    """Append a block that ends with the sum of its input and its last op."""
    start, saved = x, []
    for j, (nbytes, seconds) in enumerate(kind):
        y = sketch.tensor(f"t{number}.{j}", nbytes, "activation")
        sketch.op(f"f{number}.{j}", "forward", [x], [y], seconds=seconds)
        saved.append((x, y, seconds))
        x = y
    end = sketch.tensor(f"e{number}", sketch.tensors[start].nbytes, "activation")
    sketch.op(f"s{number}", "forward", [start, x], [end], seconds=0.1)
    saved.append((x, end, 0.1))
    return end, saved


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 24), part=st.floats(0, 1))
def test_plans_are_right_and_within_the_limit(seed, blocks, part):
    graph = repeated_step(seed, blocks)
    most = share()(graph).peak_bytes
    least = repeated_blocks()(graph)
    validate(graph, least)
    assert lower_bound(graph) <= least.peak_bytes <= most
    limit = least.peak_bytes + round((most - least.peak_bytes) * part)
    plan = repeated_blocks()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    computed = {a.op for a in plan.actions if isinstance(a, Compute)}
    assert computed == set(range(len(graph.ops)))


@pytest.mark.parametrize("seed", range(10))
def test_graphs_that_are_no_chains_are_planned_right(seed):
    graph = random_step(seed, 12)
    least = repeated_blocks()(graph)
    validate(graph, least)
    with pytest.raises(InfeasiblePlanError) as refusal:
        repeated_blocks()(graph, max(1, lower_bound(graph) - 64))
    assert refusal.value.smallest_limit_bytes == least.peak_bytes


@pytest.mark.parametrize("policy", [repeated_blocks(), auto()])
def test_a_block_may_compute_any_number_of_ops_again_for_one(policy):
    """One tensor is read by the backward phase, and takes all ops before it."""
    sketch = Sketch()
    start = sketch.tensor("start", 64, "input")
    x = first = sketch.tensor("first", 64, "activation")
    sketch.op("first", "forward", [start], [x], seconds=1.0)
    for i in range(1200):  # more than calls can be nested
        x, below = sketch.tensor(f"x{i}", 64, "activation"), x
        sketch.op(f"f{i}", "forward", [below], [x], seconds=1.0)
    y, z = (sketch.tensor(name, 64, "activation") for name in "yz")
    sketch.op("y", "forward", [x, first], [y], seconds=1.0)
    sketch.op("z", "forward", [y], [z], seconds=1.0)
    gradients = [sketch.tensor(f"d{i}", 64, "activation_gradient") for i in range(3)]
    sketch.op("loss", "backward", [z], [gradients[0]], seconds=1.0)
    sketch.op("bz", "backward", [gradients[0], y, x], [gradients[1]], seconds=1.0)
    sketch.op("by", "backward", [gradients[1], first], [gradients[2]], seconds=1.0)
    graph = sketch.graph("one long block", keep=[gradients[2]])
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, 64)
    plan = policy(graph, refusal.value.smallest_limit_bytes)
    validate(graph, plan)


def test_on_short_chains_it_is_near_the_optimum():
    """Of any schedule; it never takes less, and mostly no more."""
    worse = tried = 0
    for layers in range(3, 8):
        graph = chain(layers, reads="both")
        for values in range(4, layers + 3):
            tried += 1
            try:
                plan = repeated_blocks()(graph, 64 * values)
            except InfeasiblePlanError:
                worse += 1
                continue
            best = exact()(graph, 64 * values)
            assert best.predicted.optimality_gap == 0
            assert plan.predicted.seconds >= best.predicted.seconds
            worse += plan.predicted.seconds > best.predicted.seconds
    assert worse <= tried // 3


@pytest.mark.parametrize("layers", [40, 80])
def test_on_long_chains_it_takes_no_more_than_the_search(layers):
    graph = chain(layers, reads="both")
    most = share()(graph).peak_bytes
    for tenths in (8, 5, 3):
        plan = repeated_blocks()(graph, most * tenths // 10)
        validate(graph, plan)
        searched = look_ahead()(graph, most * tenths // 10)
        assert plan.predicted.seconds <= 1.01 * searched.predicted.seconds


def resnet(depth: int, version: int, side: int = 16) -> Graph:
    model = models.resnet(depth, (side, side, 3), version=version)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    return model.graph(8)


@pytest.mark.parametrize(
    ("depth", "version"),
    [
        *((8, 1), (11, 2)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((20, 1), (29, 2))),
    ],
)
def test_residual_networks_take_little_more_than_by_the_search(depth, version):
    graph = resnet(depth, version)
    most = share()(graph).peak_bytes
    least = repeated_blocks()(graph).peak_bytes
    for tenths in (8, 5):
        limit = least + (most - least) * tenths // 10
        plan = repeated_blocks()(graph, limit)
        validate(graph, plan)
        searched = look_ahead()(graph, limit).predicted.seconds
        assert plan.predicted.seconds <= 1.05 * searched
        assert auto()(graph, limit).predicted.seconds <= plan.predicted.seconds


def test_a_deep_network_is_planned_by_its_blocks():
    """2,000 ops and more: `auto` takes the plan of this method."""
    graph = resnet(218, 2)
    most = share()(graph).peak_bytes
    plan = auto()(graph, most // 2)
    validate(graph, plan)
    assert len(graph.ops) > 2000
    assert plan.method == "repeated_blocks"
    assert plan.peak_bytes <= most // 2


@pytest.mark.slow
def test_the_plan_of_a_thousand_layers_is_near_its_bound():
    graph = resnet(1001, 2, 32)
    most = share()(graph).peak_bytes
    for percent in (50, 15):
        plan = auto()(graph, most * percent // 100)
        assert plan.peak_bytes <= most * percent // 100
        assert 0 < plan.gap <= 0.03


# -- the program, by itself ---------------------------------------------------------

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import NETWORKS
from training_graphs import random_step, typed_step
from zoo_table import make_small

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    Compute,
    Plan,
    share,
    superneurons_cost,
    superneurons_memory,
    superneurons_speed,
    validate,
)
from memcfg.plan.methods._superneurons import Layer, chain_model

METHODS = (superneurons_speed(), superneurons_memory(), superneurons_cost())
by_name = pytest.mark.parametrize("policy", METHODS, ids=lambda p: p.name)


def layers(*segments, working: int = 8) -> list[Layer]:
    """Convolutions with cheap layers of these outputs behind each."""
    chain = []
    for segment in segments:
        chain.append(Layer(1, working, checkpoint=True))
        chain += [Layer(output, working, checkpoint=False) for output in segment]
    return chain


def test_alexnet_has_the_published_counts():
    """14 layers again for speed, 23 for memory, 17 where one segment is too large."""
    chain = layers((4, 4, 1), (2, 2, 1), (1,), (1,), (1, 1), (1, 1), (1, 1), ())
    assert chain_model(chain, segment_bytes=None).again == 14
    assert chain_model(chain, segment_bytes=-1).again == 23
    assert chain_model(chain, segment_bytes=8).again == 17


def test_a_bottleneck_adds_the_published_counts():
    """ResNet-101 has 17 blocks more than ResNet-50: 85 and 119 layers."""
    for mode, more in ((None, 169 - 84), (-1, 237 - 118)):
        small, large = (
            chain_model(layers(*[(1, 1), (1, 1), (1,)] * blocks), segment_bytes=mode)
            for blocks in (16, 33)
        )
        assert large.again - small.again == more


@given(
    segments=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6),
    working=st.integers(0, 30),
)
def test_cost_has_the_peak_of_memory_and_work_between_the_two(segments, working):
    chain = layers(*segments, working=working)
    peak = max((layer.working for layer in chain), default=0)
    speed = chain_model(chain, segment_bytes=None)
    memory = chain_model(chain, segment_bytes=-1)
    cost = chain_model(chain, segment_bytes=peak)
    assert cost.peak == memory.peak == peak <= speed.peak
    assert speed.again == sum(map(len, segments))
    assert memory.again == sum(len(s) * (len(s) + 1) // 2 for s in segments)
    assert speed.again <= cost.again <= memory.again
    if all(sum(segment) <= peak for segment in segments):
        assert cost == speed._replace(peak=peak)


@by_name
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 24))
def test_plans_of_random_steps_are_valid(policy, seed, ops):
    graph = random_step(seed, ops)
    plan = policy(graph)
    validate(graph, plan)
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, plan.peak_bytes - 1)
    assert refusal.value.smallest_limit_bytes == plan.peak_bytes


def products(*lengths: int):
    """Products with so many cheap ops behind each, and what is cheap of them."""
    builder = mc.graph.Builder("segments")
    x = builder.tensor("x", (1024, 256), role="input")
    y = builder.tensor("y", (1024,), "int32", role="input")
    weights = [
        builder.tensor(f"w{k}", (256, 256), role="parameter")
        for k in range(len(lengths))
    ]
    for weight, length in zip(weights, lengths, strict=True):
        (x,) = builder.apply("dense", (x, weight))
        for _ in range(length):
            (x,) = builder.apply("softplus", (x,))
    loss, *_ = builder.apply("softmax_cross_entropy", (x, y), name="loss")
    found = mc.graph.gradients(builder, loss, weights)
    return builder.build(keep=[loss, *found.values()])


def again(graph, plan) -> int:
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    found = {op for op in ops if ops.count(op) > 1}
    assert {graph.ops[op].type for op in found} <= {"softplus"}
    return len(ops) - len(graph.ops)


def test_one_large_segment_is_computed_for_each_layer_the_others_once():
    graph = products(2, 6, 2, 0)
    speed, memory, cost = (policy(graph) for policy in METHODS)
    for plan in (speed, memory, cost):
        validate(graph, plan)
        assert plan.peak_bytes < share()(graph).peak_bytes
    assert memory.peak_bytes == cost.peak_bytes < speed.peak_bytes
    counts = [again(graph, plan) for plan in (speed, cost, memory)]
    assert counts == sorted(counts)
    assert counts[0] == 2 + 6 + 2
    assert counts[1] < counts[2]


def test_without_a_large_segment_cost_is_speed():
    graph = products(2, 2, 2, 0)
    speed, _, cost = (policy(graph) for policy in METHODS)
    assert cost.actions == speed.actions
    assert again(graph, speed) == 6


def trained(model, batch_size):
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mc.nn.SGD(0.1), loss)
    return model.graph(batch_size)


def recomputed(graph, plan) -> int:
    return sum(isinstance(a, Compute) for a in plan.actions) - len(graph.ops)


def assert_ranked(graph) -> tuple[Plan, Plan, Plan]:
    """The peaks and the work of the three modes compare as they are said to."""
    kept = share()(graph)
    speed, memory, cost = plans = tuple(policy(graph) for policy in METHODS)
    validate(graph, memory)
    validate(graph, cost)
    assert memory.peak_bytes == cost.peak_bytes
    assert cost.peak_bytes <= min(speed.peak_bytes, kept.peak_bytes)
    for other in (kept, speed, memory):
        if other.peak_bytes == cost.peak_bytes:
            most = other.predicted.recompute_seconds
            assert cost.predicted.recompute_seconds <= most
    return plans


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 16))
@example(seed=27, ops=7)
@example(seed=119, ops=15)
def test_memory_and_cost_have_the_lowest_peak(seed, ops):
    assert_ranked(typed_step(seed, ops))


@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_products_with_segments_of_any_length_keep_the_ranking(lengths):
    assert_ranked(products(*lengths))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_small_networks_keep_the_ranking(name):
    assert_ranked(NETWORKS[name]())


@pytest.mark.parametrize("name", ["bert_encoder", "lenet5", "lstm_lm", "segnet"])
def test_the_zoo_keeps_the_ranking(name, monkeypatch):
    assert_ranked(trained(make_small(name, monkeypatch), 2))


def test_segments_of_normalisation_and_dropout_take_less_layer_by_layer():
    """The peak is below those of speed and share since more is computed again."""
    graph = NETWORKS["noisy"]()
    speed, _, cost = assert_ranked(graph)
    assert cost.peak_bytes < speed.peak_bytes < share()(graph).peak_bytes
    assert 0 < recomputed(graph, speed) < recomputed(graph, cost)


@pytest.mark.parametrize("make", [mc.models.alexnet, mc.models.vgg16])
def test_networks_of_the_paper_take_less_by_memory_and_cost_than_by_speed(make):
    """A convolution that is kept cannot be overwritten by its ReLU."""
    graph = trained(make(), 8)
    speed, _, cost = assert_ranked(graph)
    assert cost.peak_bytes < speed.peak_bytes
    assert recomputed(graph, cost) == 0 < recomputed(graph, speed)

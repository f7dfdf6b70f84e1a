"""Cheap ops are computed twice; convolutions and matrix products never are."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from family_cases import all_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracle import check
from recomputing import apart
from training_graphs import CHEAP, DEAR, Sketch, is_cheap, random_step, typed_step

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Op, memory_seconds
from memcfg.ops import Spec, op_type, op_types
from memcfg.plan import (
    Compute,
    auto,
    look_ahead,
    replay_elementwise,
    share,
    simulate,
    sqrt_checkpoint,
    validate,
)

nn, models = mc.nn, mc.models
PRODUCTS = (
    "conv2d",
    "conv3d",
    "dense",
    "matmul",
    "scaled_dot",
    "lstm",
    "gru",
    "simple_rnn",
    *("cholesky", "solve", "matrix_inverse", "determinant", "cofactors", "slogdet"),
    *("lu_factor", "qr", "eigh", "svd", "pseudo_inverse", "fourier", "ctc_"),
)
SEEDS = st.integers(0, 2**32 - 1)


def computed(plan) -> list[int]:
    return [action.op for action in plan.actions if isinstance(action, Compute)]


def again(plan) -> set[int]:
    return {op for op, count in Counter(computed(plan)).items() if count > 1}


# -- which ops --------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, ops=st.integers(1, 16), share_of=st.floats(0, 1))
def test_none_butcheap_ops_are_computed_twice_and_none_three_times(seed, ops, share_of):
    graph = typed_step(seed, ops)
    free, most = replay_elementwise()(graph), share()(graph).peak_bytes
    limit = free.peak_bytes + round((most - free.peak_bytes) * share_of)
    for plan in (free, replay_elementwise()(graph, max(1, limit))):
        validate(graph, plan)
        assert max(Counter(computed(plan)).values()) <= 2
        assert all(is_cheap(graph, op) for op in again(plan))
        assert simulate(graph, plan).peak_bytes == plan.peak_bytes
        assert plan.peak_bytes <= max(limit, free.peak_bytes) <= most
    if limit == most:
        assert not again(plan)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_plans_run_right_byte_for_byte(seed):
    graph = typed_step(seed, 5)
    check(graph, replay_elementwise()(graph))


def test_every_cheap_type_is_computed_twice_somewhere_and_no_dear_one():
    found: Counter[str] = Counter()
    for seed in range(300):
        graph = typed_step(seed, 12)
        found.update(graph.ops[op].type for op in again(replay_elementwise()(graph)))
    assert set(found) == set(CHEAP)
    assert found.total() > 150
    for name in DEAR[:-1]:
        assert op_type(name).contraction


def test_contractions_are_the_products_and_the_others_are_bound_by_memory():
    for kind in op_types():
        parts = kind.composite.parts if kind.composite else ()
        names = [part.type for part in parts] or [kind.name]
        product = any(name.startswith(PRODUCTS) for name in names)
        assert any(op_type(name).contraction for name in names) == product, kind.name
    for case in chain.from_iterable(all_cases().values()):
        kind = op_type(case.op_type)
        inputs = [Spec(x.shape, x.dtype.name) for x in case.inputs]
        outputs = [Spec(*output) for output in case.outputs]
        sizes = [array.nbytes for array in (*case.inputs, *case.reference())]
        flops = kind.flops(inputs, outputs, case.attributes)
        assert kind.contraction or flops <= 10 * sum(sizes), case.op_type


def test_types_that_are_not_registered_are_kept():
    graph = random_step(3, 40)
    plan = replay_elementwise()(graph)
    assert not again(plan)
    assert plan.peak_bytes == share()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError, match=r"sqrt_checkpoint\(\)") as refusal:
        replay_elementwise()(graph, plan.peak_bytes - 1)
    assert refusal.value.smallest_limit_bytes == plan.peak_bytes


# -- how good the choice is ---------------------------------------------------------


def small(seed: int) -> tuple[Graph, list[int]]:
    graph = apart(typed_step(seed, 9))
    keep = set(graph.keep)
    cheap = [op for op in range(len(graph.ops)) if is_cheap(graph, op)]
    return graph, [op for op in cheap if keep.isdisjoint(graph.ops[op].outputs)]


# -- chains of replays ----------------------------------------------------------------


def stack(depth: int) -> Graph:
    """A convolution, then `depth` cheap ops in a chain; backward reads all values."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    values = [sketch.tensor("conv", 4096, "activation")]
    sketch.op("conv2d", "forward", [x], values[:1])
    for i in range(depth):
        values.append(sketch.tensor(f"y{i}", 4096, "activation"))
        kind = CHEAP[i % len(CHEAP)]
        sketch.ops.append(
            Op(f"{kind}{i}", kind, "forward", (values[-2],), (values[-1],))
        )
    last = sketch.tensor("last", 64, "activation")
    sketch.op("conv2d", "forward", values[-1:], [last])
    wide = sketch.tensor("wide", 4096 * depth, "activation_gradient")
    gradient = sketch.tensor("g", 64, "activation_gradient")
    sketch.op("wide", "backward", [last], [wide])
    sketch.op("narrow", "backward", [wide], [gradient])
    for i, value in reversed(list(enumerate(values))):
        below = sketch.tensor(f"g{i}", 64, "activation_gradient")
        sketch.op(f"b{i}", "backward", [value, gradient], [below])
        gradient = below
    return sketch.graph(f"stack of {depth}", [gradient])


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_a_chain_is_replayed_from_the_convolution_that_is_kept(depth):
    graph = stack(depth)
    plan = replay_elementwise()(graph)
    validate(graph, plan)
    chained = set(range(1, depth + 1))
    assert again(plan) == chained
    order = computed(plan)
    first = order.index(next(i for i, op in enumerate(graph.ops) if op.name == "wide"))
    replays = [op for op in order[first:] if op in chained]
    assert replays == sorted(chained)
    # the convolution's output and one more while it replays, or while `wide` is there
    assert plan.peak_bytes <= 64 * 4 + 4096 * (depth + 2)
    assert share()(graph).peak_bytes >= 4096 * (2 * depth + 1)


def batch_normalized(width: int = 8) -> nn.Model:
    """Convolutions of all kinds, batch normalisation, concatenation, pooling."""
    x = h = nn.Input((16, 16, 3))
    branches = []
    for _ in range(3):
        h = nn.Conv2D(width, 3, padding="same", use_bias=False)(h)
        h = nn.ReLU()(nn.BatchNormalization()(h))
        branches.append(h)
    h = nn.DepthwiseConv2D(3, padding="same")(nn.Concatenate()(branches))
    h = nn.Dropout(0.1)(nn.MaxPool2D()(nn.ReLU()(h)))
    h = nn.Conv2DTranspose(width, 2, strides=2)(h)
    h = nn.Activation("gelu")(nn.LayerNormalization()(h))
    return nn.Model(x, nn.Dense(5)(nn.GlobalAveragePooling2D()(h)))


def compiled(model, batch: int) -> Graph:
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss)
    return model.graph(batch)


def test_moments_are_taken_once_and_their_averages_moved_once():
    graph = compiled(batch_normalized(), 32)
    plan = replay_elementwise()(graph)
    validate(graph, plan)
    order = computed(plan)
    updates = [i for i, op in enumerate(graph.ops) if op.type == "moving_average"]
    assert len(updates) == 6
    replayed = {graph.ops[op].type for op in again(plan)}
    assert "batch_normalization_relu" in replayed
    for update in updates:
        assert order.count(update) == 1
        (moments,) = {graph.producer[t] for t in graph.ops[update].inputs} - {None}
        assert graph.ops[moments].type == "batch_moments"
        assert order.count(moments) == 1


@pytest.mark.parametrize("policy", [replay_elementwise, sqrt_checkpoint, auto])
def test_a_replayed_normalisation_reads_its_array_once(policy):
    graph = compiled(batch_normalized(), 32)
    least = policy()(graph).peak_bytes if policy is not auto else None
    plan = policy()(graph, least or sqrt_checkpoint()(graph).peak_bytes)
    validate(graph, plan)
    replays = (Counter(computed(plan)) - Counter(range(len(graph.ops)))).elements()
    found = [graph.ops[op] for op in replays]
    normalizations = [op for op in found if op.type.startswith("batch_normalization")]
    assert normalizations
    assert "batch_moments" not in {op.type for op in found}
    for op in normalizations:
        (wide,) = {t for t in op.inputs if len(graph.tensors[t].shape) > 1}
        both = graph.tensors[wide].nbytes + graph.tensors[op.outputs[0]].nbytes
        small = sum(graph.tensors[t].nbytes for t in op.inputs if t != wide)
        assert op.seconds == memory_seconds(both + small)


def test_a_graph_from_a_file_gets_the_same_plan():
    graph = compiled(batch_normalized(), 32)
    plan = replay_elementwise()(graph)
    assert again(plan)
    assert replay_elementwise()(Graph.from_json(graph.to_json())) == plan


@pytest.mark.parametrize(
    ("make", "batch", "part", "time"),
    [
        (models.resnet50, 16, 0.65, 0.05),
        pytest.param(models.densenet121, 16, 0.44, 0.1, marks=pytest.mark.slow),
        pytest.param(models.inception_v3, 16, 0.59, 0.05, marks=pytest.mark.slow),
        (models.mobilenet, 16, 0.60, 0.1),
    ],
)
def test_networks_with_batch_normalisation_take_far_less_memory(
    make, batch, part, time
):
    graph = compiled(make(), batch)
    plan = replay_elementwise()(graph)
    validate(graph, plan)
    assert plan.peak_bytes <= part * share()(graph).peak_bytes
    once = plan.predicted.seconds - plan.predicted.recompute_seconds
    assert plan.predicted.recompute_seconds <= time * once
    for op in again(plan):
        assert not graph.ops[op].type.startswith(PRODUCTS)


# -- beside other policies -----------------------------------------------------------


@pytest.mark.strength(1)
@pytest.mark.parametrize("make", [models.resnet18, models.mobilenet])
@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_auto_is_as_fast_as_the_fastest_that_recomputes(make, quarter):
    graph = compiled(make(), 8)
    least, most = replay_elementwise()(graph).peak_bytes, share()(graph).peak_bytes
    limit = least + (most - least) * quarter // 4
    policies = auto(), sqrt_checkpoint(), replay_elementwise(), look_ahead()
    chosen, *others = (policy(graph, limit) for policy in policies)
    validate(graph, chosen)
    best = min(other.predicted.seconds for other in others)
    assert chosen.predicted.seconds == best
    assert chosen.summary.chosen_by == "auto"

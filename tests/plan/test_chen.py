from __future__ import annotations

import math

import pytest
from training_graphs import Sketch, chain

import memcfg as mc
from memcfg.plan import (
    Compute,
    chen_budget,
    chen_mirror,
    chen_recursive,
    chen_sqrt,
    share,
    validate,
)
from memcfg.plan.search import Request, cuts, even_segments

METHODS = (chen_sqrt(), chen_mirror(), chen_budget(), chen_recursive())
by_name = pytest.mark.parametrize("policy", METHODS, ids=lambda p: p.name)
LENGTHS = (16, 64, 256, 1024)


def computed(graph, plan) -> list[int]:
    """The forward ops that a plan runs."""
    ops = [action.op for action in plan.actions if isinstance(action, Compute)]
    return [op for op in ops if graph.ops[op].phase == "forward"]


def exponent(peaks) -> float:
    """The slope of log(peak) over log(n), by least squares."""
    x = [math.log(n) for n in LENGTHS]
    y = [math.log(peak) for peak in peaks]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    pairs = list(zip(x, y, strict=True))
    return sum((a - mean_x) * (b - mean_y) for a, b in pairs) / sum(
        (a - mean_x) ** 2 for a in x
    )


def test_even_segments_grow_with_the_root_in_one_more_forward_pass():
    graphs = [chain(n, reads="both") for n in LENGTHS]
    plans = [chen_sqrt()(graph) for graph in graphs]
    assert 0.45 <= exponent([plan.peak_bytes for plan in plans]) <= 0.6
    assert 0.9 <= exponent([share()(g).peak_bytes for g in graphs]) <= 1.1
    for n, graph, plan in zip(LENGTHS, graphs, plans, strict=True):
        root = round(math.sqrt(n))
        assert plan.peak_bytes <= 64 * (2 * root + 2)
        # What crosses is kept, and the last segment is not computed again.
        assert len(computed(graph, plan)) == n + (n - root) - (root - 1)


def test_recursion_needs_a_logarithm_of_memory_and_of_passes():
    for n in LENGTHS:
        graph = chain(n, reads="both")
        plan = chen_recursive()(graph)
        assert plan.peak_bytes <= 64 * (math.log2(n) + 4)
        assert len(computed(graph, plan)) <= n * math.log2(n) + n


def test_more_memory_takes_less_work_by_recursion():
    graph = chain(128, reads="both")
    least = chen_recursive()(graph).peak_bytes
    most = share()(graph).peak_bytes
    costs = [
        chen_recursive()(graph, limit).predicted.recompute_seconds
        for limit in range(least, most + 1, 1024)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == 3 * 128 > 128 > costs[-1]


def test_segments_are_even():
    assert even_segments(10, 3) == [3, 6]
    assert even_segments(4, 1) == []
    assert even_segments(3, 3) == [1, 2]


def test_a_graph_is_cut_where_one_tensor_crosses_and_where_it_likes():
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    a, b, c, d, e, zero = (
        sketch.tensor(name, 64, "activation") for name in ("a", "b", "c", "d", "e", "0")
    )
    last = sketch.tensor("last", 64, "activation_gradient")
    sketch.op("zero", "forward", [], [zero])
    sketch.op("a", "forward", [x], [a])
    sketch.op("b", "forward", [a], [b])
    sketch.op("c", "forward", [a], [c])
    sketch.op("d", "forward", [b, c], [d])
    sketch.op("e", "forward", [d, zero], [e])
    sketch.op("last", "backward", [e, a, b, c, d], [last])
    graph = sketch.graph("branches", [last])
    points, anywhere = cuts(Request.of(graph, "", None))
    assert points == [[0, 1], [2, 3, 4], [5]]
    assert anywhere == [[op] for op in range(6)]
    for policy in METHODS:
        validate(graph, policy(graph))


def test_mirrors_are_what_is_cheap_and_nothing_else():
    builder = mc.graph.Builder("mirror")
    x = builder.tensor("x", (1024, 256), role="input")
    y = builder.tensor("y", (1024,), "int32", role="input")
    weights = [builder.tensor(f"w{k}", (256, 256), role="parameter") for k in range(4)]
    for weight in weights:
        (x,) = builder.apply("dense", (x, weight))
        (x,) = builder.apply("tanh", (x,))
        (x,) = builder.apply("softplus", (x,))
    loss, *_ = builder.apply("softmax_cross_entropy", (x, y), name="loss")
    found = mc.graph.gradients(builder, loss, weights)
    graph = builder.build(keep=[loss, *found.values()])
    plan = chen_mirror()(graph)
    validate(graph, plan)
    ops = computed(graph, plan)
    again = {graph.ops[op].type for op in ops if ops.count(op) > 1}
    assert again == {"tanh", "softplus"}
    assert all(ops.count(op) == 1 for op in ops if graph.ops[op].type not in again)
    assert plan.peak_bytes < share()(graph).peak_bytes


@pytest.mark.parametrize("moved", [False, True])
def test_an_update_waits_for_the_last_reader_of_its_weight(moved):
    """The first stage is computed again; its weight is updated behind that."""
    sketch = Sketch()
    values = [sketch.tensor("x", 64, "input")]
    weights = [sketch.tensor(f"w{k}", 64, "parameter") for k in range(9)]
    for k, weight in enumerate(weights):
        values.append(sketch.tensor(f"h{k}", 256, "activation"))
        sketch.op("f", "forward", [values[-2], weight], values[-1:], seconds=1.0)
    gradient = sketch.tensor("g", 256, "activation_gradient")
    sketch.op("loss", "backward", values[-1:], [gradient])
    pending = []
    for k, weight in reversed([*enumerate(weights)]):
        below = sketch.tensor(f"g{k}", 256, "activation_gradient")
        slope = sketch.tensor(f"d{k}", 64, "gradient")
        new = sketch.tensor(f"w{k}'", 64, "parameter")
        reads = [values[k], values[k + 1], weight, gradient]
        sketch.op("b", "backward", reads, [below, slope])
        update = ("u", "update", [weight, slope], [new])
        pending.append((update, ((weight, new),)))
        if not moved:
            for each, pairs in pending:
                sketch.op(*each, in_place=pairs, replayable=False)
            pending = []
        gradient = below
    for each, pairs in pending:
        sketch.op(*each, in_place=pairs, replayable=False)
    graph = sketch.graph("updates", [gradient])
    for policy in (chen_sqrt(), chen_recursive()):
        plan = policy(graph)
        validate(graph, plan)
        ops = [action.op for action in plan.actions if isinstance(action, Compute)]
        assert len(ops) > len(graph.ops)
        updates = [place for place, op in enumerate(ops) if graph.ops[op].type == "u"]
        slopes = [place for place, op in enumerate(ops) if graph.ops[op].type == "b"]
        assert updates == [place + 1 for place in slopes]

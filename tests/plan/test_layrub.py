"""Layrub's reuse within a layer and between layers, and where it is not legal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracle import WrongPlanError, check
from training_graphs import Sketch, random_step

import memcfg as mc
from memcfg.errors import PlanError
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Free,
    Plan,
    keep_all,
    layrub,
    validate,
)

if TYPE_CHECKING:
    from memcfg.graph import Graph

WIDE = 4096


def layer(*, reads_data: bool = False, pair: bool = False, late: bool = False) -> Graph:
    """One wide layer between small ones; the gradient of its data stands first."""
    sketch = Sketch()
    tensor = sketch.tensor
    x, w = tensor("x", 64, "input"), tensor("w", 128, "parameter")
    data, y = tensor("data", WIDE, "activation"), tensor("y", 64, "activation")
    dy = tensor("dy", 64, "activation_gradient")
    gradient = tensor("gradient", WIDE, "activation_gradient")
    dw, dx = tensor("dw", 128, "gradient"), tensor("dx", 64, "output")
    sketch.op("widen", "forward", [x], [data])
    sketch.op("layer", "forward", [data, w], [y])
    sketch.op("loss", "backward", [y], [dy])
    more = [data] if reads_data else []
    pairs = ((data, gradient),) if pair else ()
    sketch.op("dX", "backward", [dy, w, *more], [gradient], in_place=pairs)
    reads = [data, dy, gradient] if late else [data, dy]
    sketch.op("dW", "backward", reads, [dw])
    sketch.op("narrow", "backward", [gradient], [dx])
    return sketch.graph("a layer", [dx, dw])


def offsets(graph: Graph, plan: Plan) -> dict[str, int]:
    found: dict[int, int] = {}
    for action in plan.actions:
        match action:
            case Alloc(tensor, offset):
                found[tensor] = offset
            case Alias(output, source):
                found[output] = found[source]
    return {graph.tensors[t].name: offset for t, offset in found.items()}


def names(graph: Graph, plan: Plan) -> list[str]:
    return [graph.ops[a.op].name for a in plan.actions if isinstance(a, Compute)]


# -- within a layer --------------------------------------------------------------------


def test_the_gradient_of_a_wide_layer_takes_the_bytes_of_its_data():
    graph = layer()
    plan = layrub()(graph)
    validate(graph, plan)
    check(graph, plan)
    assert names(graph, plan).index("dW") < names(graph, plan).index("dX")
    where = offsets(graph, plan)
    assert where["gradient"] == where["data"]
    both = [(where[name], where[name] + WIDE) for name in ("data", "gradient")]
    taken = max(end for _, end in both) - min(begin for begin, _ in both)
    assert taken / (2 * WIDE) == 0.5  # of data and gradient apart
    assert keep_all()(graph).peak_bytes - plan.peak_bytes >= WIDE


@pytest.mark.parametrize("why", ["reads_data", "late"])
def test_a_gradient_that_would_overwrite_what_is_still_read_lies_elsewhere(why):
    """Its op reads the data, or the weight's gradient cannot come before it."""
    graph = layer(**{why: True})
    plan = layrub()(graph)
    validate(graph, plan)
    check(graph, plan)
    where = offsets(graph, plan)
    assert abs(where["gradient"] - where["data"]) >= WIDE


def test_a_declared_pair_is_taken_though_the_op_reads_the_data():
    graph = layer(reads_data=True, pair=True)
    plan = layrub()(graph)
    validate(graph, plan)
    check(graph, plan)
    where = offsets(graph, plan)
    assert where["gradient"] == where["data"]


def test_the_other_order_of_the_two_gradients_is_an_error():
    """With the data's gradient first, the weight's would read it overwritten."""
    graph = layer()
    plan = layrub()(graph)
    action = {
        graph.ops[a.op].name: i
        for i, a in enumerate(plan.actions)
        if isinstance(a, Compute)
    }
    first, second = action["dW"], action["dX"]
    steps = list(plan.actions)
    steps[first], steps[second] = steps[second], steps[first]
    swapped = replace(plan, actions=tuple(steps))
    with pytest.raises(PlanError, match="gradient"):
        validate(graph, swapped)
    # Nor does it help to free the data and to give the gradient its bytes before.
    alloc = next(
        a
        for a in steps
        if isinstance(a, Alloc) and graph.tensors[a.tensor].name == "gradient"
    )
    steps.remove(alloc)
    steps.insert(first, alloc)
    with pytest.raises(PlanError, match=r"'gradient'\) at .* overlaps .*'data'"):
        validate(graph, replace(plan, actions=tuple(steps)))
    data = next(t for t, each in enumerate(graph.tensors) if each.name == "data")
    steps.remove(Free(data))
    steps.insert(first, Free(data))
    wrong = replace(plan, actions=tuple(steps))
    with pytest.raises(PlanError, match=r"reads .*'data'\), which is not resident"):
        validate(graph, wrong)
    with pytest.raises(WrongPlanError):
        check(graph, wrong)


def pooled_wide_layer() -> mc.nn.Model:
    nn = mc.nn
    wide = nn.MaxPooling2D(2)(nn.Conv2D(64, 1)(x := nn.Input((32, 32, 3))))
    return nn.Model(x, nn.Dense(4)(nn.Flatten()(nn.Conv2D(2, 1, name="wide")(wide))))


def test_a_convolution_of_pooled_images_works_in_their_bytes(cpu):
    """Pooling keeps which element was taken, so that its result is read no more."""
    model = pooled_wide_layer()
    model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    graph = model.graph(8)
    plan = layrub()(graph)
    validate(graph, plan)
    where = offsets(graph, plan)
    (data,) = (
        name
        for name in where
        if "max_pool" in name and ":" not in name and "gradient" not in name
    )
    (gradient,) = (name for name in where if "wide" in name and "gradient_in" in name)
    assert where[data] == where[gradient]
    model.close()


# -- between layers --------------------------------------------------------------------


# -- all graphs ------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20))
def test_plans_of_random_steps_give_the_same_bytes(seed, ops):
    graph = random_step(seed, ops)
    plan = layrub()(graph)
    validate(graph, plan)
    check(graph, plan)
    assert sorted(names(graph, plan)) == sorted(op.name for op in graph.ops)

from __future__ import annotations

import pytest
from training_graphs import Sketch, chain, random_step

from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Alias,
    Compute,
    Free,
    auto,
    exact,
    keep_all,
    look_ahead,
    share,
    simulate,
    sqrt_checkpoint,
    validate,
)


def convolutions(n: int) -> Graph:
    """n convolutions and ReLUs, separate ops, with gradients and updates."""
    sketch = Sketch()
    size, weight = 4096, 64
    x = sketch.tensor("x", size, "input")
    layers = []
    for i in range(n):
        w = sketch.tensor(f"w{i}", weight, "parameter")
        c = sketch.tensor(f"c{i}", size, "activation")
        r = sketch.tensor(f"r{i}", size, "activation")
        sketch.op(f"conv{i}", "forward", [x, w], [c])
        sketch.op(f"relu{i}", "forward", [c], [r], in_place=((c, r),))
        layers.append((x, w, r))
        x = r
    gradient = sketch.tensor("dy", size, "activation_gradient")
    sketch.op("loss", "backward", [x], [gradient])
    for i, (x, w, r) in reversed(list(enumerate(layers))):
        dc = sketch.tensor(f"dc{i}", size, "activation_gradient")
        dx = sketch.tensor(f"dx{i}", size, "activation_gradient")
        dw = sketch.tensor(f"dw{i}", weight, "gradient")
        new = sketch.tensor(f"w{i}'", weight, "parameter")
        pairs = ((gradient, dc), (r, dc))
        sketch.op(f"drelu{i}", "backward", [r, gradient], [dc], in_place=pairs)
        sketch.op(f"dw{i}", "backward", [x, dc], [dw])
        sketch.op(f"dx{i}", "backward", [w, dc], [dx])
        sketch.op(f"sgd{i}", "update", [w, dw], [new], in_place=((w, new),))
        gradient = dx
    return sketch.graph(f"{n} convolutions")


def test_twenty_convolutions_need_a_third_of_keep_all():
    graph = convolutions(20)
    plan = share()(graph)
    validate(graph, plan)
    assert plan.peak_bytes <= 0.35 * keep_all()(graph).peak_bytes


def test_the_peak_is_the_live_bytes_where_packing_is_easy():
    for graph in (chain(50), chain(50, in_place=True), convolutions(20)):
        plan = share()(graph)
        live = max(live for _, live in simulate(graph, plan).timeline)
        assert plan.peak_bytes == live


def test_every_room_ends_with_its_last_reader():
    for seed in range(30):
        graph = random_step(seed)
        plan = share()(graph)
        step = -1
        ends, places = {}, {}
        for action in plan.actions:
            if isinstance(action, Compute):
                step += 1
                places[action.op] = step
            if isinstance(action, Free):
                ends[action.tensor] = step
        state = set(graph.persistent) | _updated(graph, plan)
        for tensor in set(range(len(graph.tensors))) - state - set(graph.keep):
            readers = graph.consumers[tensor]
            made = graph.producer[tensor]
            last = -1 if made is None else places[made]
            assert ends[tensor] == max([last, *(places[op] for op in readers)])


def _updated(graph, plan):
    state = set(graph.persistent)
    for action in plan.actions:
        if isinstance(action, Alias) and action.input in state:
            state.add(action.output)
    return state


def in_place(sizes=(64, 64), *, keep=(), again=False, phase="forward", role="input"):
    """f: t0 -> t1 with the pair declared; `again`: something reads t0 later."""
    tensors = [Tensor("t0", sizes[0], role), Tensor("t1", sizes[1], "activation")]
    ops = [Op("f", "f", phase, (0,), (1,), in_place=((0, 1),))]
    if again:
        tensors.append(Tensor("t2", 64, "activation"))
        ops.append(Op("g", "g", "forward", (0, 1), (2,)))
    return Graph("pair", tuple(tensors), tuple(ops), tuple(keep))


@pytest.mark.parametrize(
    ("graph", "granted"),
    [
        (in_place(), True),
        (in_place(keep=(1,)), True),
        (in_place((100, 128)), True),
        (in_place((4096, 64), keep=(1,)), True),
        (in_place((64, 65)), False),
        (in_place(keep=(0,)), False),
        (in_place(again=True), False),
        (in_place(role="parameter"), False),
        (in_place(role="parameter", phase="update"), True),
    ],
)
def test_in_place_is_granted_exactly_where_it_is_legal(graph, granted):
    plan = share()(graph)
    validate(graph, plan)
    assert any(isinstance(action, Alias) for action in plan.actions) == granted


@pytest.mark.parametrize(
    "fields", [{"keep": (0,)}, {"again": True}, {"sizes": (1, 65)}]
)
@pytest.mark.parametrize("policy", [keep_all(), share(), sqrt_checkpoint(), auto()])
def test_a_state_that_its_update_cannot_overwrite_has_no_plan(fields, policy):
    graph = in_place(role="parameter", phase="update", **fields)
    with pytest.raises(GraphError, match="op '"):
        policy(graph)


def test_updates_that_stand_too_early_are_moved():
    """u1 overwrites w before the forward phase ends, u2 before v's last reader."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    w, v = (sketch.tensor(name, 64, "parameter") for name in "wv")
    new = [sketch.tensor(f"{name}'", 64, "parameter") for name in "wv"]
    y = sketch.tensor("y", 64, "output")
    d = sketch.tensor("d", 64, "gradient")
    update = {"replayable": False}
    sketch.op("u1", "update", [w], [new[0]], in_place=((w, new[0]),), **update)
    sketch.op("f", "forward", [x], [y])
    sketch.op("u2", "update", [v], [new[1]], in_place=((v, new[1]),), **update)
    sketch.op("b", "backward", [y, v], [d])
    graph = sketch.graph("early", [y])
    for policy in (keep_all(), share(), sqrt_checkpoint(), auto()):
        plan = policy(graph)
        validate(graph, plan)
        ops = [a.op for a in plan.actions if isinstance(a, Compute)]
        assert ops == [1, 0, 3, 2]


def test_a_room_is_taken_over_once():
    tensors = tuple(Tensor(f"t{i}", 64, "activation") for i in range(3))
    op = Op("f", "f", "forward", (0,), (1, 2), in_place=((0, 1), (0, 2)))
    graph = Graph("split", tensors, (op,), (1, 2))
    plan = share()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == 128


def test_scratch_lives_while_its_op_runs():
    tensors = tuple(Tensor(f"t{i}", 64, "activation") for i in range(4))
    ops = (
        Op("f", "f", "forward", (0,), (1,), scratch_bytes=64),
        Op("g", "g", "forward", (1,), (2,)),
        Op("h", "h", "forward", (2,), (3,), scratch_bytes=64),
    )
    graph = Graph("scratch", tensors, ops, (3,))
    plan = share()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == 192


def test_a_state_is_overwritten_where_another_input_could_be_too():
    """The pair of the gradient stands first, and both have the size of the result."""
    tensors = (
        Tensor("state", 64, "optimizer_state"),
        Tensor("x", 64, "input"),
        Tensor("gradient", 64, "gradient"),
        Tensor("new", 64, "optimizer_state"),
    )
    pairs = ((2, 3), (0, 3))
    ops = (
        Op("make", "f", "backward", (0, 1), (2,)),
        Op("update", "f", "update", (2, 0), (3,), in_place=pairs),
    )
    graph = Graph("update", tensors, ops, (3,))
    for policy in (share(), auto(), exact(), look_ahead()):
        validate(graph, policy(graph))


def test_a_graph_without_a_forward_phase_is_planned():
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("a", 640, "activation"),
        Tensor("b", 64, "output"),
        Tensor("c", 640, "output"),
    )
    ops = (
        Op("one", "f", "backward", (0,), (1,), seconds=1.0),
        Op("two", "f", "backward", (1,), (2,), seconds=1.0),
        Op("three", "f", "backward", (0, 2), (3,), seconds=1.0),
    )
    graph = Graph("backward", tensors, ops, (1, 2, 3))
    with pytest.raises(InfeasiblePlanError):
        auto()(graph, 64 * 20)
    validate(graph, auto()(graph, 64 * 22))

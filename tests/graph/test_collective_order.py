"""Collectives have one order, but those that gather state, which plans may repeat."""

import itertools

import pytest

import memcfg as mc
from memcfg.graph import Builder, chain_collectives, gather_late, hoist_updates
from memcfg.ops.collectives import COLLECTIVES

OF = {"group": "none", "ranks": 2, "work_bytes": 0}


def step(layers):
    """A chain of products with weights that are gathered first, in reverse order.

    Each part is updated by its own element-wise op, which overwrites what the gathers
    of both phases read.
    """
    builder = Builder("step")
    x = builder.tensor("x", (4, 4), role="input")
    rate = builder.tensor("learning_rate", (), role="input")
    parts = [builder.tensor(f"w{i}", (8,), role="parameter") for i in range(layers)]
    zero = {"shape": (1,), "value": 0.0, "dtype": "float32"}
    (token,) = builder.apply("fill", (), zero)
    wholes = {}
    for part in reversed(parts):
        given = OF | {"shape": (4, 4)}
        wholes[part] = builder.apply("all_gather", (token, part), given)[1]
    values = [x]
    for part in parts:
        pair = (values[-1], wholes[part])
        values += builder.apply("matmul", pair)
    (dy,) = builder.apply("multiply", (values[-1], values[-1]), phase="backward")
    kept = []
    for part, value in zip(reversed(parts), reversed(values[:-1]), strict=True):
        (slope,) = builder.apply("matmul", (value, dy), phase="backward")
        (_, own) = builder.apply("reduce_scatter", (token, slope), OF, phase="update")
        kept += builder.apply("sgd", (part, own, rate), {}, phase="update")
        (dy,) = builder.apply("matmul", (dy, wholes[part]), phase="backward")
    return builder.build(keep=[*kept, dy]), len(parts)


def names(ops):
    return [op.name for op in ops if op.type in COLLECTIVES]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_each_gathers_just_before_its_first_reader(layers):
    graph, count = step(layers)
    late = gather_late(graph)
    assert sorted(op.name for op in late.ops) == sorted(op.name for op in graph.ops)
    gathers = [i for i, op in enumerate(late.ops) if op.type == "all_gather"]
    assert len(gathers) == count
    for index in gathers:
        whole = late.ops[index].outputs[1]
        assert late.consumers[whole][0] == index + 1


def chain(ops):
    return [op for op in ops if op.type in COLLECTIVES and op.type != "all_gather"]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_all_plans_have_the_order_of_the_graph(layers):
    graph, _ = step(layers)
    chained = chain_collectives(hoist_updates(gather_late(graph)))
    wanted = names(chain(chained.ops))
    assert names(chain(hoist_updates(gather_late(graph)).ops)) == wanted
    for before, op in itertools.pairwise(chain(chained.ops)):
        assert op.inputs[0] == before.outputs[0]
        assert (op.inputs[0], op.outputs[0]) in op.in_place
    for policy in [mc.plan.auto(), mc.plan.share(), mc.plan.sqrt_checkpoint()]:
        plan = policy(chained)
        run = [chained.ops[each.op] for each in plan.actions if hasattr(each, "op")]
        assert names(chain(run)) == wanted


def test_a_plan_keeps_gathered_state_where_it_fits_and_else_gathers_it_again():
    graph, count = step(5)
    chained = chain_collectives(hoist_updates(gather_late(graph)))
    most = mc.plan.auto()(chained)
    lowest = mc.plan.look_ahead()(chained)
    for plan, times in [(most, 1), (lowest, 2)]:
        mc.plan.validate(chained, plan)
        gathers = [
            each.op
            for each in plan.actions
            if isinstance(each, mc.plan.Compute)
            if chained.ops[each.op].type == "all_gather"
        ]
        assert len(gathers) > (times - 1) * count
        assert (len(gathers) == count) == (times == 1)
    assert lowest.peak_bytes < most.peak_bytes


def test_a_part_of_a_weight_is_copied_just_before_its_update():
    builder = Builder("step")
    x = builder.tensor("x", (4, 4), role="input")
    rate = builder.tensor("learning_rate", (), role="input")
    weights = [builder.tensor(f"w{i}", (4, 4), role="parameter") for i in range(3)]
    zero = {"shape": (1,), "value": 0.0, "dtype": "float32"}
    (token,) = builder.apply("fill", (), zero)
    values = [x]
    for weight in weights:
        values += builder.apply("matmul", (values[-1], weight))
    dy, kept = values[-1], []
    place = {"rank": 0, "ranks": 2}
    parts = [
        builder.apply("part", (weight,), place, phase="update")[0] for weight in weights
    ]
    for i in reversed(range(3)):
        (slope,) = builder.apply("matmul", (values[i], dy), phase="backward")
        (_, own) = builder.apply("reduce_scatter", (token, slope), OF, phase="update")
        (new,) = builder.apply("sgd", (parts[i], own, rate), {}, phase="update")
        given = OF | {"shape": (4, 4)}
        gathered = builder.apply(
            "all_gather", (token, new, weights[i]), given, phase="update"
        )
        kept.append(gathered[1])
        (dy,) = builder.apply("matmul", (dy, weights[i]), phase="backward")
    graph = hoist_updates(builder.build(keep=[*kept, dy]))
    kinds = [op.type for op in graph.ops]
    for index in (i for i, kind in enumerate(kinds) if kind == "part"):
        assert kinds[index - 1 : index + 2] == ["reduce_scatter", "part", "sgd"]
    assert kinds.count("part") == 3

"""The graph's invariants, its builder, the hoisting of updates, the format."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from networks import NETWORKS

from memcfg import ops
from memcfg.errors import FormatError, GraphError
from memcfg.graph import (
    Algorithm,
    Builder,
    Graph,
    Op,
    Tensor,
    gradients,
    hoist_updates,
)
from memcfg.ops import op_types
from memcfg.plan import Plan, share

TWICE = (Algorithm("direct", 1.0, 64), Algorithm("direct", 2.0, 0))


def tiny(**changes) -> Graph:
    fields = {
        "name": "tiny",
        "tensors": (
            Tensor("x", 8, "input"),
            Tensor("w", 8, "parameter"),
            Tensor("y", 8, "activation"),
        ),
        "ops": (Op("f", "f", "forward", (0, 1), (2,), in_place=((0, 2),)),),
        "keep": (2,),
    }
    return Graph(**{**fields, **changes})


def test_the_check_of_an_op_looks_at_each_id_a_few_times():
    """Outputs and in-place pairs are looked up, not searched for one in the other."""
    compared = 0

    class Id(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return int(self) == other

    count = 300
    ids = [Id(i) for i in range(2 * count)]
    tensors = tuple(Tensor(f"t{i}", 8, "input") for i in ids)
    pairs = tuple(
        zip(map(Id, range(count)), map(Id, range(count, 2 * count)), strict=True)
    )
    op = Op("f", "f", "update", tuple(ids[:count]), tuple(ids[count:]), in_place=pairs)
    Graph("g", tensors, (op,))
    assert compared <= 20 * count


def test_producers_consumers_and_state():
    graph = tiny()
    assert graph.producer == (None, None, 0)
    assert graph.consumers == ((0,), (0,), ())
    assert graph.persistent == (1,)
    assert graph.find("y") == 2
    with pytest.raises(KeyError):
        graph.find("z")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keep": (3,)}, "keep"),
        ({"ops": (Op("f", "f", "sideways", (0,), (2,)),)}, "phase"),
        ({"ops": (Op("f", "f", "forward", (5,), (2,)),)}, "no tensor 5"),
        ({"ops": (Op("f", "f", "forward", (2,), (2,)),)}, "before it is computed"),
        ({"ops": (Op("f", "f", "forward", (0,), (2, 2)),)}, "two producers"),
        ({"ops": (Op("f", "f", "forward", (0,), (2,), seconds=-1.0),)}, "cost"),
        (
            {"ops": (Op("f", "f", "forward", (0,), (2,), in_place=((1, 2),)),)},
            "in-place",
        ),
        ({"tensors": (Tensor("x", -1, "input"),), "ops": (), "keep": ()}, "size -1"),
        ({"tensors": (Tensor("x", 2**63, "input"),), "ops": (), "keep": ()}, "size"),
        ({"tensors": (Tensor("x", 8, "input", (-1, 5)),)}, r"negative .*\(-1, 5\)"),
        ({"tensors": (Tensor("x", 8, "input", None, "foo"),)}, "unknown dtype 'foo'"),
        ({"ops": (Op("f", "f", "forward", (0,), (2,), scratch_bytes=-1),)}, "scratch"),
        (
            {"ops": (Op("f", "f", "forward", (0,), (2,), algorithms=TWICE),)},
            "duplicate",
        ),
        ({"ops": (Op("f", "f", "forward", (0,), (2,), seconds=1e308),)}, "overflows"),
        ({"tensors": (Tensor("x", 1, "guest"),), "ops": (), "keep": ()}, "role"),
    ],
)
def test_a_malformed_graph_is_refused(change, words):
    with pytest.raises(GraphError, match=words):
        tiny(**change)


def test_times_that_sum_to_what_a_number_can_hold_are_accepted():
    ops = (Op("f", "f", "forward", (0,), (2,), seconds=8e307),)
    plan = share()(tiny(ops=ops))
    assert Plan.from_json(plan.to_json()).predicted.seconds == 8e307
    slow = (Algorithm("slow", 1e308, 0),)
    with pytest.raises(GraphError, match="overflows"):
        tiny(ops=(Op("f", "f", "forward", (0,), (2,), algorithms=slow),))


def test_more_bytes_than_shape_and_dtype_say_are_accepted():
    padded = tiny().tensors[1:]
    tensors = (Tensor("x", 4096, "input", (2, 3), "bfloat16"), *padded)
    graph = tiny(tensors=tensors)
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("network", NETWORKS)
def test_json_round_trip_keeps_everything_but_attributes(network):
    graph = NETWORKS[network]()
    choice = (Algorithm("direct", 0.5, 64),)
    graph = replace(
        graph, ops=(replace(graph.ops[0], algorithms=choice), *graph.ops[1:])
    )
    again = Graph.from_json(graph.to_json())
    assert again.tensors == graph.tensors
    assert again.keep == graph.keep
    assert again.ops == tuple(replace(op, attributes={}) for op in graph.ops)
    assert again.to_json() == graph.to_json()


def test_the_minimal_document_is_read():
    text = (
        '{"format": "memcfg.graph/1", "name": "n", "tensors": [{"name": "x", '
        '"bytes": 4, "role": "input"}, {"name": "y", "bytes": 4, "role": '
        '"activation"}], "ops": [{"name": "f", "type": "f", "phase": "forward", '
        '"inputs": [0], "outputs": [1]}], "keep": [1]}'
    )
    graph = Graph.from_json(text)
    assert graph.ops[0].replayable
    assert graph.tensors[0].shape is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "memcfg.graph/2", "memcfg.graph/2"),
        (("extra",), 1, "unknown key 'extra'"),
        (("tensors", 0, "size"), 1, "unknown key 'size'"),
        (("tensors", 0, "bytes"), "8", "whole number"),
        (("tensors", 0, "bytes"), True, "whole number"),
        (("ops", 0, "colour"), 1, "unknown key 'colour'"),
        (("ops", 0, "replayable"), 1, "true or false"),
        (("ops", 0, "in_place"), [[1, 2, 3]], "pair"),
        (("ops", 0, "seconds"), "1", "number"),
        (("ops", 0, "inputs"), 3, "list"),
        (("name",), None, "string"),
        (("name",), "\ud800", "'name' is not Unicode text"),
        (("tensors", 0, "bytes"), -1, "whole number >= 0"),
        (("tensors", 0, "bytes"), 2**63, r"below 2\*\*63"),
        (("tensors", 0, "shape"), [-1, 5], r"'shape'\[0\] should be .* not -1"),
        (("tensors", 0, "role"), {"a": ["b"] * 9999}, "string, not .{,120}$"),
        (("ops", 0, "seconds"), 10**400, "finite number"),
        (("ops", 0, "seconds"), -1, "number >= 0"),
        (("ops", 0, "seconds"), float("nan"), "NaN is not a number of JSON"),
        (("ops", 0, "seconds"), float("-inf"), "-Infinity is not a number of JSON"),
    ],
)
def test_departures_from_the_format_are_named(path, value, words):
    document = json.loads(tiny().to_json())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(FormatError, match=words):
        Graph.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON: .*line 1 column 1"),
        ("{", "not JSON"),
        ("[]", "no 'format' key"),
        ("{}", "no 'format' key"),
        ('{"format": "memcfg.plan/1"}', "'memcfg.plan/1'; .* reads 'memcfg.graph/1'"),
        ("[" * 100_000, "not a graph: nested too deeply"),
        ('{"a":' * 100_000, "not a graph: nested too deeply"),
        (tiny().to_json().replace("8", "9" * 5000, 1), "too many digits"),
        (
            tiny().to_json().replace('"keep"', '"keep": [], "keep"'),
            "duplicate key 'keep'",
        ),
        (
            tiny().to_json().replace('"role"', '"role": 1, "role"'),
            "duplicate key 'role'",
        ),
        (tiny().to_json().replace("0.0", "1e999"), "finite number"),
    ],
)
def test_what_is_no_graph_is_refused(text, words):
    with pytest.raises(FormatError, match=words):
        Graph.from_json(text)


def test_missing_keys_are_named():
    document = json.loads(tiny().to_json())
    del document["ops"][0]["phase"]
    with pytest.raises(FormatError, match="'phase' is missing"):
        Graph.from_json(json.dumps(document))


def test_the_builder_names_things_once():
    b = Builder("names")
    x = b.tensor("x", (1, 2), role="input")
    with pytest.raises(GraphError, match="already"):
        b.tensor("x", (1,))
    with pytest.raises(GraphError, match="'y': unknown role 'guest'"):
        b.tensor("y", (1,), role="guest")
    with pytest.raises(GraphError, match="'names' has no tensor 1"):
        b.apply("relu", (1,))
    with pytest.raises(GraphError, match="keep names tensor 7"):
        b.build([7])
    (first,) = b.apply("relu", (x,), name="act")
    (second,) = b.apply("relu", (first,), name="act")
    graph = b.build([second])
    assert [t.name for t in graph.tensors] == ["x", "act", "act_1"]
    assert graph.tensors[second].role == "output"


@pytest.mark.parametrize(
    ("type_", "shapes", "attributes"),
    [
        ("relu", [(2,), (2,)], {}),
        ("add", [(2, 3), (3, 2)], {}),
        ("bias", [(2, 3), (2,)], {}),
        ("dense", [(2, 3), (4, 5)], {}),
        ("unheard", [(2,)], {}),
        (
            "conv2d",
            [(1, 4, 4, 3), (3, 3, 2, 4)],
            {
                "strides": (1, 1),
                "padding": ((0, 0), (0, 0)),
                "dilation": (1, 1),
                "groups": 1,
            },
        ),
        (
            "conv2d",
            [(1, 2, 2, 2), (3, 3, 2, 4)],
            {
                "strides": (1, 1),
                "padding": ((0, 0), (0, 0)),
                "dilation": (1, 1),
                "groups": 1,
            },
        ),
        (
            "max_pool2d",
            [(1, 4, 4, 3)],
            {"pool_size": (17, 17), "strides": (1, 1), "padding": ((9, 9), (9, 9))},
        ),
        ("reshape", [(2, 3)], {"shape": (4, 2)}),
        ("softmax_cross_entropy", [(2, 3), (2,)], {}),
    ],
)
def test_operands_that_do_not_fit_are_refused(type_, shapes, attributes):
    b = Builder("bad")
    inputs = [b.tensor(f"t{i}", s, role="input") for i, s in enumerate(shapes)]
    with pytest.raises(GraphError):
        b.apply(type_, inputs, attributes)
    assert b.ops == ()


@pytest.mark.parametrize("network", NETWORKS)
def test_updates_stand_as_early_as_is_legal(network):
    graph = NETWORKS[network]()
    last_forward = max(i for i, op in enumerate(graph.ops) if op.phase == "forward")
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        state = op.inputs[0]
        readers = [i for i in graph.consumers[state] if i != index]
        made = [graph.producer[t] for t in op.inputs if graph.producer[t] is not None]
        assert index > max([last_forward, *readers, *made])
        before = graph.ops[index - 1]
        blocked = (
            index - 1 in readers
            or index - 1 in made
            or index - 1 == last_forward
            or before.phase == "update"
        )
        assert blocked, f"{op.name} could stand before {before.name}"
    assert sorted(op.name for op in hoist_updates(graph).ops) == sorted(
        op.name for op in graph.ops
    )


def updating(*ops) -> Graph:
    """One tensor a name: w and v are state, w1, w2 and v1 their new values."""
    names = ["x", "w", "v", "w1", "w2", "v1", "y"]
    roles = {"x": "input", "y": "activation"}
    tensors = tuple(Tensor(name, 4, roles.get(name, "parameter")) for name in names)
    return Graph(
        "updating",
        tensors,
        tuple(
            Op(
                label,
                label,
                phase,
                tuple(map(names.index, inputs)),
                tuple(map(names.index, outputs)),
                in_place=tuple((names.index(a), names.index(b)) for a, b in pairs),
            )
            for label, phase, inputs, outputs, pairs in ops
        ),
    )


def test_an_update_stands_behind_updates_that_read_its_state():
    graph = updating(
        ("f", "forward", ["x"], ["y"], []),
        ("u", "update", ["w", "y"], ["w1"], [("w", "w1")]),
        ("average", "update", ["v", "w"], ["v1"], [("v", "v1")]),
    )
    assert [op.name for op in hoist_updates(graph).ops] == ["f", "average", "u"]


def test_reserved_names_are_left_to_tensors():
    b = Builder("names", reserved=["y"])
    x = b.tensor("x", (2,), role="input")
    (first,) = b.apply("relu", (x,), name="y")
    y = b.tensor("y", (2,), role="input")
    names = [tensor.name for tensor in b.build([first, y]).tensors]
    assert names == ["x", "y_1", "y"]


def test_what_is_differentiated_is_the_loss():
    b = Builder("two")
    w = b.tensor("w", (3, 4), role="parameter")
    x = b.tensor("x", (2, 3), role="input")
    labels = b.tensor("labels", (2,), "int32", role="input")
    (logits,) = b.apply("dense", (x, w), name="loss")
    cost, _ = b.apply("softmax_cross_entropy", (logits, labels), name="cost")
    assert b.build([cost]).losses == ()
    gradients(b, cost, [w])
    graph = hoist_updates(b.build([cost]))
    assert graph.losses == (cost,)
    assert Graph.from_json(graph.to_json()).losses == ()


@pytest.mark.parametrize("loss", [-1, 0, 2, 7])
def test_a_loss_is_made_by_the_forward_phase(loss):
    tensors = tuple(Tensor(f"t{i}", 4, "activation") for i in range(3))
    ops = (Op("f", "f", "forward", (0,), (1,)), Op("b", "b", "backward", (1,), (2,)))
    assert Graph("g", tensors, ops, (), (1,)).losses == (1,)
    with pytest.raises(GraphError, match=f"produces loss {loss}"):
        Graph("g", tensors, ops, (), (loss,))


@pytest.mark.parametrize(
    "ops",
    [
        [  # both overwrite w
            ("u", "update", ["w"], ["w1"], [("w", "w1")]),
            ("again", "update", ["w"], ["w2"], [("w", "w2")]),
        ],
        [  # beside its new value
            ("u", "update", ["w"], ["w1"], [("w", "w1")]),
            ("difference", "backward", ["w", "w1"], ["y"], []),
        ],
        [  # in the forward phase
            ("u", "update", ["w"], ["w1"], [("w", "w1")]),
            ("f", "forward", ["w1"], ["y"], []),
        ],
    ],
)
def test_updates_that_have_no_place_are_refused(ops):
    with pytest.raises(GraphError, match="cannot be ordered"):
        hoist_updates(updating(*ops))


def test_many_updates_of_one_state_are_refused_in_linear_memory():
    """Each would have been noted to follow all others."""
    count = 1000
    names = ["w", *(f"w{i}" for i in range(count))]
    tensors = tuple(Tensor(name, 4, "parameter") for name in names)
    ops = (
        Op(f"u{i}", "u", "update", (0,), (i,), in_place=((0, i),))
        for i in range(1, count + 1)
    )
    graph = Graph("g", tensors, tuple(ops))
    tracemalloc.start()
    try:
        with pytest.raises(GraphError, match="cannot be ordered"):
            hoist_updates(graph)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_every_op_type_is_used_by_a_network_or_tested_alone():
    used = {op.type for make in NETWORKS.values() for op in make().ops}
    alone = {
        kind.name
        for kind in op_types()
        if kind.formula is None and kind.composite is None  # as test_fused.py has them
    }
    unused = alone - used
    tests = Path(__file__).parents[1]
    texts = [
        path.read_text()
        for room in ("ops", "devices", "nn")
        for path in (tests / room).rglob("*.py")
    ]
    names = {name.removesuffix("_gradient") for name in unused}
    assert not {name for name in names if not any(f'"{name}"' in t for t in texts)}


def test_ops_of_one_name_never_share_a_tensors_name():
    """Also where no output has the op's own name, and where a tensor has one."""

    def infer(inputs, _):
        return [inputs[0]._replace(suffix=suffix) for suffix in ("low", "high")]

    ops.register(ops.OpType("halves", 1, infer, lambda *_: None))
    try:
        builder = Builder("twice")
        x = builder.tensor("x", (4, 2), role="input")
        builder.tensor("n_1:low", (4,), role="input")
        ids = [builder.apply("halves", (x,), name="n")[0] for _ in range(3)]
        names = [tensor.name for tensor in builder.build(keep=ids).tensors]
    finally:
        ops.unregister("halves")
    assert len(set(names)) == len(names)
    assert [op.name for op in builder.ops] == ["n", "n_2", "n_3"]

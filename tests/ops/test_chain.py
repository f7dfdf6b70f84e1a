"""Chains of element-wise ops against the ops that they join, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Case, check, execute, f32, normal

from memcfg import ops
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, MissingDependencyError
from memcfg.graph import Builder, fuse_ops
from memcfg.ops.chain import Link, join_elementwise

ONE = ("relu", "sigmoid", "tanh", "silu", "softplus", "gelu", "leaky_relu", "elu")
TWO = ("add", "subtract", "multiply", "maximum", "relu_gradient", "silu_gradient")
ATTRIBUTES = {"leaky_relu": {"negative_slope": 0.3}, "elu": {"alpha": 0.7}}


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


@st.composite
def chains(draw):
    """Links of ops that each reads the last one's result, and inputs or others'."""
    links, inputs = [], 1
    for number in range(draw(st.integers(2, 6))):
        last = -number if number else 0  # -1 - k of the link before; the first input
        if draw(st.booleans()):
            name = draw(st.sampled_from(ONE))
            links.append(Link(name, ATTRIBUTES.get(name, {}), (last,)))
            continue
        other = draw(st.integers(-number, inputs))
        inputs = max(inputs, other + 1)
        pair = (last, other) if draw(st.booleans()) else (other, last)
        links.append(Link(draw(st.sampled_from(TWO)), {}, pair))
    return links, inputs


def chain_case(links, arrays, scalars=None):
    text = join_elementwise(links, scalars or [False] * len(arrays))
    return Case("chain", arrays, [f32(arrays[0].shape)], {"expression": text})


def one_by_one(table, links, arrays):
    made = []
    for link in links:
        inputs = [arrays[i] if i >= 0 else made[-1 - i] for i in link.inputs]
        shape = next(x.shape for x in inputs if x.shape)
        each = Case(link.type, inputs, [f32(shape)], link.attributes)
        each.attributes = dict(link.attributes)
        (result,) = execute(table, each, 0xFF, 64)
        made.append(np.frombuffer(result, np.float32).reshape(shape))
    return made[-1].tobytes()


@given(drawn=chains(), size=st.sampled_from([1, 7, 1025, 20_000]))
@settings(max_examples=40, deadline=None)
def test_a_chain_is_its_ops(table, drawn, size):
    links, count = drawn
    arrays = [normal(size, seed=i) for i in range(count)]
    made = chain_case(links, arrays)
    wanted = one_by_one(table, links, arrays)
    assert bytes(execute(table, made, 0xFF, 64)[0]) == wanted
    for place in range(count):  # in the place of any operand
        made.pairs = {0: place}
        assert bytes(execute(table, made, 0x5A, 0)[0]) == wanted


def test_numbers_and_attributes_are_joined(table):
    by = np.float32(2.5).reshape(())
    links = [Link("scale", {}, (0, 1)), Link("affine", {"factor": 3, "term": 1}, (-1,))]
    made = chain_case(links, [normal(50), by], [False, True])
    check(table, made)
    x = made.inputs[0].astype(np.float64)
    np.testing.assert_allclose(made.reference()[0], 7.5 * x + 1)


def test_what_is_too_long_is_no_chain():
    links = [Link("gelu", {}, (0,)), *[Link("gelu", {}, (-i,)) for i in range(1, 60)]]
    assert join_elementwise(links, [False]) is None
    links = [Link("add", {}, (0, 1))]
    links += [Link("add", {}, (1 - i, i)) for i in range(2, 40)]
    assert join_elementwise(links, [False] * 40) is None


def test_operands_that_do_not_fit_are_refused():
    kind = ops.op_type("chain")
    made = chain_case([Link("add", {}, (0, 1))], [normal(4), normal(4)])
    a, b = ops.Spec((4,), "float32"), ops.Spec((5,), "float32")
    assert kind.infer([a, a], made.attributes)[0].shape == (4,)
    with pytest.raises(GraphError, match=r"shapes .* differ"):
        kind.infer([a, b], made.attributes)
    with pytest.raises(GraphError, match="needs the attribute 'expression'"):
        kind.infer([a, a], {})
    with pytest.raises(GraphError, match="needs an array"):
        kind.infer([ops.Spec((), "float32")], made.attributes)


def chain_graph(*, kept=(), between=False, twice=False):
    builder = Builder("chain")
    x, y = (builder.tensor(n, (6, 5), role="input") for n in ("x", "y"))
    (a,) = builder.apply("add", (x, y), name="a")
    if between:
        builder.apply("softmax", (y,), {"axis": -1}, name="other")
    (b,) = builder.apply("tanh", (a,), name="b")
    (c,) = builder.apply("multiply", (b, x), name="c")
    outputs = [c]
    if twice:
        outputs += builder.apply("softmax", (b,), {"axis": -1}, name="again")
    return builder.build([*outputs, *[{"a": a, "b": b}[each] for each in kept]])


def test_neighbours_become_a_chain():
    graph = chain_graph()
    (op,) = fuse_ops(graph).ops
    fused = fuse_ops(graph)
    assert (op.type, op.name, op.group) == ("chain", "c", "c")
    assert [fused.tensors[i].name for i in op.inputs] == ["x", "y"]
    assert [tensor.name for tensor in fused.tensors] == ["x", "y", "c"]
    assert len(op.in_place) == 2
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 5))
    found = np.zeros((6, 5))
    ops.op_type("chain").numpy(op.attributes, [x, y], [found])
    np.testing.assert_allclose(found, np.tanh(x + y) * x)


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({"kept": ["b"]}, ["chain", "multiply"]),
        ({"kept": ["a"]}, ["add", "chain"]),
        ({"between": True}, ["add", "softmax", "chain"]),  # x + y would be kept longer
        ({"twice": True}, ["chain", "multiply", "softmax"]),
    ],
)
def test_what_is_read_elsewhere_or_made_elsewhere_ends_a_chain(options, types):
    assert [op.type for op in fuse_ops(chain_graph(**options)).ops] == types

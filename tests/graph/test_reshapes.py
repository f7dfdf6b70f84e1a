"""Elements wait for backward in one shape, and copies of weights do not wait."""

from __future__ import annotations

import numpy as np
import pytest
from internals import leave_out_rewrite

import memcfg as mc
from memcfg.graph import Builder, gradients, keep_one_shape

nn = mc.nn
BATCH, STEPS, HEADS, WIDTH = 4, 16, 2, 32


def attention():
    nn.set_random_seed(3)
    x = nn.Input((STEPS, WIDTH))
    y = x
    for _ in range(2):
        y = nn.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y)
    return nn.Model(x, nn.Dense(3)(nn.Flatten()(y)))


def batch():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)
    return x, rng.standard_normal((BATCH, 3)).astype(np.float32)


def trained(policy):
    model = attention()
    model.compile(nn.SGD(0.1), "mse", memory=policy)
    losses = [model.train_on_batch(*batch()) for _ in range(3)]
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    graph = model.graph(BATCH)
    weights = [each.tobytes() for each in model.get_weights()]
    model.close()
    return losses, weights, graph


def waiting(graph):
    """What is made by reshapes and casts of the forward phase, and read behind it."""
    found = []
    for op in graph.ops:
        if op.phase == "forward" and op.type in ("reshape", "flatten", "cast"):
            for tensor in (*op.inputs, *op.outputs):
                readers = graph.consumers[tensor]
                if graph.producer[tensor] is not None and any(
                    graph.ops[i].phase != "forward" for i in readers
                ):
                    found.append(tensor)
    return found


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_attention_keeps_each_shape_and_weight_once(dtype, monkeypatch):
    mc.config.set_dtype_policy(dtype)
    found = trained("share")
    for policy in ("keep_all", "sqrt_checkpoint", "auto"):
        assert trained(policy)[:2] == found[:2]
    graph = found[2]
    again = [op for op in graph.ops if op.name.endswith("/again")]
    size = BATCH * STEPS * WIDTH * (4 if dtype == "float32" else 2)
    made = [op for op in again if graph.tensors[op.outputs[0]].nbytes == size]
    assert len(made) == 2  # what an attention made, for its own gradient
    assert all(op.in_place for op in made)
    kept = waiting(graph)
    for op in graph.ops:  # nothing in two shapes
        if op.phase == "forward" and op.type in ("reshape", "flatten"):
            assert not {op.inputs[0], op.outputs[0]}.issubset(kept)
    weights = {t for t in graph.persistent if graph.tensors[t].role == "parameter"}
    copies = {
        op.outputs[0]
        for op in graph.ops
        if op.phase == "forward"
        and op.type in ("reshape", "cast")
        and weights.intersection(op.inputs)
    }
    assert copies
    assert copies.isdisjoint(kept)
    leave_out_rewrite(monkeypatch, "keep_one_shape")
    other = trained("share")
    assert other[:2] == found[:2]  # the same bits
    peaks = [mc.plan.share()(each).peak_bytes for each in (other[2], graph)]
    assert peaks[0] > peaks[1]


def chain(early):
    """Squares of x and of x reshaped, whose gradients read both."""
    builder = Builder("two shapes")
    x = builder.tensor("x", (4, 6), role="input")
    w = builder.tensor("w", (4, 6), role="parameter")
    (y,) = builder.apply("multiply", (x, w), name="y")
    if early:
        (y,) = builder.apply("tanh", (y,), name="t")
    (flat,) = builder.apply("reshape", (y,), {"shape": (24,)}, name="flat")
    (z,) = builder.apply("tanh", (flat,), name="z")
    (z,) = builder.apply("multiply", (z, flat), name="product")
    (loss,) = builder.apply("reduce_sum", (z,), {"axes": (0,), "keepdims": False})
    found = gradients(builder, loss, [w])
    return builder.build([loss, found[w]]), flat


def test_the_other_shape_is_made_of_what_backward_reads_first():
    graph, flat = chain(early=True)
    found = keep_one_shape(graph)
    (op,) = [op for op in found.ops if op.name.endswith("/again")]
    assert op.inputs == (flat,)
    assert op.phase == "backward"
    assert op.in_place == ((flat, op.outputs[0]),)
    assert [op.type for op in found.ops].index("reshape") < found.ops.index(op)
    (reader,) = found.consumers[op.outputs[0]]
    assert found.ops[reader].type == "tanh_gradient"
    assert found.ops.index(op) > max(
        i for i in found.consumers[flat] if i != found.ops.index(op)
    )
    assert keep_one_shape(found) is found


def test_one_shape_alone_stays():
    graph, _ = chain(early=False)  # nobody reads y behind the forward phase
    assert keep_one_shape(graph) is graph


def test_what_is_kept_or_given_stays():
    builder = Builder("kept")
    x = builder.tensor("x", (4, 6), role="input")
    w = builder.tensor("w", (4, 6), role="parameter")
    (y,) = builder.apply("tanh", (w,), name="y")
    (flat,) = builder.apply("reshape", (y,), {"shape": (24,)}, name="flat")
    (z,) = builder.apply("tanh", (flat,), name="z")
    (loss,) = builder.apply("reduce_sum", (z,), {"axes": (0,), "keepdims": False})
    (row,) = builder.apply("reshape", (x,), {"shape": (24,)}, name="row")
    (own,) = builder.apply("multiply", (row, flat), name="own")
    (other,) = builder.apply("reduce_sum", (own,), {"axes": (0,), "keepdims": False})
    (loss,) = builder.apply("add", (loss, other), name="loss")
    found = gradients(builder, loss, [w])
    for kept in (y, flat):
        graph = builder.build([loss, found[w], kept])
        assert keep_one_shape(graph) is graph

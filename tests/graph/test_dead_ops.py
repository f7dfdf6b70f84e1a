"""Ops whose results nobody reads are left out."""

from __future__ import annotations

from memcfg.graph import Builder, drop_dead_ops


def traced(keep):
    builder = Builder("dead")
    x, unread = (builder.tensor(n, (2, 3), role="input") for n in ("x", "unread"))
    (a,) = builder.apply("relu", (x,), name="a")
    (b,) = builder.apply("relu", (a,), name="b")
    (c,) = builder.apply("add", (a, b), name="c")
    builder.apply("add", (c, unread), name="d")
    return builder.build([{"a": a, "b": b, "c": c}[name] for name in keep])


def test_only_what_is_needed_stays():
    for keep, names in (("b", "ab"), ("a", "a"), ("c", "abc"), ("", "")):
        graph = drop_dead_ops(traced(keep))
        assert [op.name for op in graph.ops] == list(names)
        assert [tensor.name for tensor in graph.tensors] == ["x", "unread", *names]
        assert [graph.tensors[i].name for i in graph.keep] == list(keep)
        for op in graph.ops:
            assert [graph.tensors[i].name for i in op.outputs] == [op.name]
        assert graph.ops == drop_dead_ops(graph).ops


def test_a_graph_without_dead_ops_is_itself():
    graph = drop_dead_ops(traced("c"))
    assert drop_dead_ops(graph) is graph

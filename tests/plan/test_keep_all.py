from __future__ import annotations

from training_graphs import chain, random_step

from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import Alias, Alloc, Compute, Free, keep_all, validate


def rounded(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


def test_the_peak_is_the_sum_of_all_sizes():
    graph = chain(20, nbytes=100, in_place=True)
    plan = keep_all()(graph)
    assert plan.peak_bytes == 128 * len(graph.tensors)
    assert not any(isinstance(action, Free | Alias) for action in plan.actions)


def test_one_scratch_room_is_as_large_as_the_largest():
    tensors = tuple(Tensor(f"t{i}", 64, "activation") for i in range(3))
    ops = (
        Op("f", "f", "forward", (0,), (1,), scratch_bytes=100),
        Op("g", "g", "forward", (1,), (2,), scratch_bytes=300),
    )
    graph = Graph("scratch", tensors, ops)
    plan = keep_all()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == 3 * 64 + 320
    offsets = {a.scratch_offset for a in plan.actions if isinstance(a, Compute)}
    assert offsets == {192}


def test_only_updates_of_the_state_are_in_place():
    for seed in range(30):
        graph = random_step(seed)
        plan = keep_all()(graph)
        state = set(graph.persistent)
        aliases = [a for a in plan.actions if isinstance(a, Alias)]
        assert all(a.input in state for a in aliases)
        updates = [op for op in graph.ops if op.phase == "update"]
        late = {t for t in state if graph.ops[graph.consumers[t][-1]] not in updates}
        assert {a.input for a in aliases} == state - late
        buffers = {a.tensor for a in plan.actions if isinstance(a, Alloc)}
        assert buffers | {a.output for a in aliases} == set(range(len(graph.tensors)))
        scratch = max((rounded(op.scratch_bytes) for op in graph.ops), default=0)
        sizes = sum(rounded(graph.tensors[t].nbytes) for t in buffers)
        assert plan.peak_bytes == sizes + scratch


def test_chains_of_updates_stay_in_the_buffer():
    w, v, u = (Tensor(name, 64, "parameter") for name in ("w", "v", "u"))
    ops = (
        Op("first", "sgd", "update", (0,), (1,), in_place=((0, 1),), replayable=False),
        Op("second", "sgd", "update", (1,), (2,), in_place=((1, 2),), replayable=False),
    )
    graph = Graph("twice", (w, v, u), ops, (2,))
    plan = keep_all()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == 64

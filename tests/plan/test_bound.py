"""The bound against the true optimum of tiny graphs, found by brute force."""

from __future__ import annotations

import heapq
import random

from training_graphs import random_step

from memcfg.errors import GraphError
from memcfg.graph import Algorithm, Graph, Op, Tensor
from memcfg.plan import lower_bound, share


def rounded(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


def tiny(seed: int) -> Graph:
    """Up to three ops over up to six tensors."""
    chance = random.Random(seed)
    roles = ["input", "parameter", "activation"]
    tensors = [
        Tensor(f"s{i}", chance.choice([1, 64, 130, 300]), chance.choice(roles))
        for i in range(chance.randint(1, 3))
    ]
    ops = []
    for i in range(chance.randint(1, 3)):
        inputs = chance.sample(
            range(len(tensors)), chance.randint(1, min(2, len(tensors)))
        )
        made = range(len(tensors), len(tensors) + chance.randint(1, 2))
        tensors += [
            Tensor(f"t{k}", chance.choice([64, 130]), "activation") for k in made
        ]
        pairs = tuple((a, b) for a in inputs for b in made if chance.random() < 0.4)
        phase = chance.choice(["forward", "update"])
        ops.append(
            Op(
                f"f{i}",
                "f",
                phase,
                tuple(inputs),
                tuple(made),
                in_place=pairs,
                scratch_bytes=chance.choice([0, 0, 100]),
            )
        )
    keep = chance.sample(range(len(tensors)), chance.randint(0, 2))
    return Graph(f"tiny {seed}", tuple(tensors), tuple(ops), tuple(keep))


def optimum(graph: Graph) -> int:
    """The least peak of live bytes when values can leave and return at will.

    A state is what has been made and what is resident; a value that was made may be
    brought back at any time, as if every op were replayable and every copy free. An
    update may end the old value's buffer, which the new one takes.
    """
    sizes = [rounded(t.nbytes) for t in graph.tensors]
    state = frozenset(graph.persistent)
    start = frozenset(t for t, maker in enumerate(graph.producer) if maker is None)
    total = sum(sizes[t] for t in start)
    queue = [(total, 0, frozenset(), start)]
    best = {}
    count = 0
    while queue:
        peak, _, done, made = heapq.heappop(queue)
        if (done, made) in best:
            continue
        best[done, made] = peak
        if len(done) == len(graph.ops):
            outside = set(graph.keep) - _in_state(graph, state)
            end = sum(sizes[t] for t in state) + sum(sizes[t] for t in outside)
            return max(peak, end)
        for index, op in enumerate(graph.ops):
            if index in done or not made.issuperset(op.inputs):
                continue
            need = max(peak, _working(graph, op, sizes, state))
            count += 1
            heapq.heappush(queue, (need, count, done | {index}, made | set(op.outputs)))
    raise AssertionError("no order")


def _in_state(graph: Graph, state) -> set[int]:
    inside = set(state)
    for op in graph.ops:
        inside |= {o for i, o in op.in_place if i in inside}
    return inside


def _working(graph: Graph, op: Op, sizes, state) -> int:
    """Every way to grant the pairs, one by one."""

    def most(pairs) -> int:
        if not pairs:
            return 0
        (i, o), *rest = pairs
        without = most(rest)
        if sizes[o] > sizes[i]:
            return without
        return max(
            without, sizes[o] + most([p for p in rest if p[0] != i and p[1] != o])
        )

    outside = set(op.inputs) - _in_state(graph, state)
    inputs = sum(sizes[t] for t in state | outside)
    outputs = sum(sizes[t] for t in op.outputs)
    return inputs + outputs - most(list(op.in_place)) + rounded(op.scratch_bytes)


def test_it_is_the_optimum_when_copies_are_free():
    for seed in range(2000):
        graph = tiny(seed)
        assert lower_bound(graph) == optimum(graph)


def test_no_plan_is_below():
    planned = 0
    for seed in range(1000):
        graph = tiny(seed)
        try:
            plan = share()(graph)
        except GraphError:  # an update that cannot overwrite its state
            continue
        planned += 1
        assert lower_bound(graph) <= plan.peak_bytes
    assert planned > 700


def test_it_counts_what_is_there_from_the_start():
    tensors = (Tensor("a", 100, "input"), Tensor("b", 1, "input"))
    assert lower_bound(Graph("start", tensors, ())) == 192


def test_it_counts_what_is_kept():
    x, *rest = (Tensor(f"t{i}", 64, "input") for i in range(4))
    ops = tuple(Op(f"f{i}", "f", "forward", (0,), (i,)) for i in (1, 2, 3))
    assert lower_bound(Graph("end", (x, *rest), ops, (1, 2, 3))) == 192
    assert lower_bound(Graph("end", (x, *rest), ops, (1,))) == 128


def test_it_takes_the_most_frugal_algorithm():
    tensors = (Tensor("x", 64, "input"), Tensor("y", 64, "output"))
    choices = (Algorithm("fast", 1.0, 6400), Algorithm("small", 2.0, 64))
    op = Op("f", "f", "forward", (0,), (1,), scratch_bytes=6400, algorithms=choices)
    assert lower_bound(Graph("choice", tensors, (op,), (1,))) == 192


def test_it_is_a_multiple_of_64():
    assert all(lower_bound(random_step(seed)) % 64 == 0 for seed in range(50))

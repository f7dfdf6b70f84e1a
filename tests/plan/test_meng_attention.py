"""Memory-efficient attention: what grows with the square of the steps is made again."""

from __future__ import annotations

import numpy as np
from layer_chains import weights_after
from networks import NETWORKS

import memcfg as mc
from memcfg.plan import Compute, meng_attention, share, validate

nn = mc.nn
BATCH, UNITS = 8, 64


def decoder(steps):
    """Additive attention to all keys, query by query."""
    nn.set_random_seed(1)
    keys, queries = (nn.Input((steps, UNITS), name=name) for name in ("keys", "query"))
    attend = nn.AdditiveAttention()
    found = [attend([queries[:, step : step + 1], keys]) for step in range(steps)]
    y = nn.GlobalAveragePooling1D()(nn.Concatenate(axis=1)(found))
    return nn.Model([keys, queries], nn.Dense(3)(y))


def step(steps):
    model = decoder(steps)
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    graph = model.graph(BATCH)
    model.close()
    return graph


def activations(graph, plan):
    return plan.peak_bytes - sum(graph.tensors[t].nbytes for t in graph.persistent)


def test_activations_grow_with_the_steps_not_with_their_square():
    kept, again = [], []
    for steps in (32, 64):
        graph = step(steps)
        kept.append(activations(graph, share()(graph)))
        plan = meng_attention()(graph)
        validate(graph, plan)
        again.append(activations(graph, plan))
    assert kept[1] >= 3.6 * kept[0]
    assert again[1] <= 2.2 * again[0]


def test_sums_of_keys_and_queries_are_made_twice_and_products_once():
    graph = step(8)
    plan = meng_attention()(graph)
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    again = {op for op in ops if ops.count(op) > 1}
    assert max(map(ops.count, ops)) == 2
    wide = BATCH * 8 * UNITS * 4
    made = {op: graph.ops[op].outputs for op in again}
    assert all(graph.tensors[t].nbytes == wide for ts in made.values() for t in ts)
    types = [graph.ops[op].type for op in again]
    assert types.count("broadcast_to") == 8  # of a query over the keys
    assert "dense" not in types
    # Each is made again a few ops before a reader; the order of the lowest peak
    # depends on scratch, which depends on threads.
    places = {op: [i for i, o in enumerate(ops) if o == op][1] for op in again}
    for op, place in places.items():
        reader = min(
            i
            for i, other in enumerate(ops)
            if i > place and {*graph.ops[other].inputs} & {*made[op]}
        )
        assert reader - place <= 8


def test_only_what_is_larger_than_all_that_is_read_is_spread():
    for name in ("chain", "residual", "noisy"):  # convolutions, pooling, activations
        graph = NETWORKS[name]()
        plan = meng_attention()(graph)
        assert sum(isinstance(a, Compute) for a in plan.actions) == len(graph.ops)


def test_weights_have_the_bits_of_share():
    chance = np.random.default_rng(0)
    arrays = [
        chance.standard_normal((8, 12, UNITS)).astype(np.float32) for _ in range(2)
    ]
    found = [
        weights_after(lambda: decoder(12), policy, *arrays)
        for policy in (meng_attention(), share())
    ]
    assert found[0] == found[1]

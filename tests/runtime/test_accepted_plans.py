"""What the judge accepts is loaded and trains to the bits of `keep_all`."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import random_values
from networks import chain, noisy, residual, starts_flat, starts_in_place
from placed import placed
from plan_mutations import Mutator

import memcfg as mc
from memcfg import plan as planning
from memcfg.runtime import Executor

POLICIES = (
    *(planning.keep_all(), planning.share()),
    *(planning.replay_elementwise(), planning.sqrt_checkpoint()),
    planning.look_ahead(),
)
CARRIED_OUT = (planning.Alloc, planning.Alias, planning.Free, planning.Compute)
GRAPHS = {
    "chain": lambda: chain(2, 1, 4, 2),
    "residual": lambda: residual(2, 1, 4, 2),
    "noisy": lambda: noisy(2, 1, 4, 2),
    "flat": starts_flat,
    "in place": starts_in_place,
}
SEEDS = st.integers(0, 2**32 - 1)


def trained(graph, policy):
    """The planned graph; loss and state after each step, of which the last stops."""
    values = random_values(graph)
    executor = Executor(mc.config.logical_device(), name="model")
    executor.load({"train": graph}, policy, values)
    names = [graph.tensors[i].name for i in graph.persistent]
    inputs = [
        graph.tensors[i].name
        for i, maker in enumerate(graph.producer)
        if maker is None and graph.tensors[i].role == "input"
    ]
    found = []
    for scale, bind in ((1, True), (0.5, False), (-1, True), (np.nan, False)):
        fed = {name: values[name] for name in inputs}
        fed["x"] = placed(np.float32(scale) * values["x"])
        before = fed["x"].tobytes()
        for name in inputs:
            if not (bind and name == "x" and executor.bind("train", name, fed[name])):
                executor.feed("train", name)[...] = fed[name]
        assert executor.run("train", guard=True) == np.isfinite(scale)
        assert fed["x"].tobytes() == before
        executor.finish("train")
        found.append(executor.fetch("train", "loss").tobytes())
        found += [executor.read_state(name).tobytes() for name in names]
    annotated = executor.graphs["train"]
    executor.close()
    return annotated, found


@cache
def truth(network):
    return trained(GRAPHS[network](), planning.keep_all())


def accepted(graph, chance):
    """A plan that a mutation left right, and that the runtime can carry out."""
    plan = chance.choice(POLICIES)(graph)
    for _ in range(100):
        found = Mutator(graph, plan, chance).mutate()
        known = all(isinstance(action, CARRIED_OUT) for action in found.actions)
        if known and not planning.violations(graph, found):
            return found
    return plan


def run(seed):
    chance = random.Random(seed)
    network = chance.choice(list(GRAPHS))
    graph, expected = truth(network)
    plan = accepted(graph, chance)
    _, found = trained(graph, lambda graph, limit_bytes=None: plan)
    assert found == expected


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_an_accepted_plan_trains_to_the_same_bits(seed):
    run(seed)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(seed=SEEDS)
def test_an_accepted_plan_trains_to_the_same_bits_at_length(seed):
    run(seed)

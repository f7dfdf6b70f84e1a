"""Plans of a user's policy that would train wrongly are refused before a load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from interpreter import random_values
from networks import NETWORKS, chain

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import GraphError, PlanError
from memcfg.graph import Builder, gradients, hoist_updates
from memcfg.plan import Alias, Alloc, Compute, Free
from memcfg.runtime import OWN_BUFFERS, Executor
from memcfg.units import align_up

MODES = {"planned": {}, "own buffers": {"train": OWN_BUFFERS}}


@pytest.fixture
def device():
    return mc.config.logical_device()


def altered(alter):
    """A policy: the actions of `keep_all`, altered; the claims are made to fit."""

    def plan(graph, limit_bytes=None):
        found = planning.keep_all()(graph)
        actions, fields = alter(graph, found, list(found.actions))
        found = replace(found, actions=tuple(actions), **fields)
        plain = [
            replace(a, algorithm=None) if isinstance(a, Compute) else a for a in actions
        ]
        peak = planning.simulate(graph, replace(found, actions=tuple(plain))).peak_bytes
        predicted = planning.Predicted(peak_bytes=peak)
        return replace(found, predicted=predicted, limit_bytes=limit_bytes)

    return plan


def updates_apart(graph, plan, actions):
    """Every new value has bytes of its own."""
    end = plan.peak_bytes
    for k, action in enumerate(actions):
        if isinstance(action, Alias):
            actions[k] = Alloc(action.output, end)
            end += align_up(graph.tensors[action.output].nbytes)
    return actions, {}


def updates_freed(graph, plan, actions):
    actions, _ = updates_apart(graph, plan, actions)
    made = [a.output for a in plan.actions if isinstance(a, Alias)]
    return [*actions, *map(Free, made)], {}


def state_last(graph, plan, actions):
    """All else first; the state behind."""
    state = {*graph.persistent}
    front = sum(align_up(graph.tensors[t].nbytes) for t in state)
    back = plan.peak_bytes - front
    for k, action in enumerate(actions):
        if isinstance(action, Alloc):
            ahead = back if action.tensor in state else -front
            actions[k] = replace(action, offset=action.offset + ahead)
        if isinstance(action, Compute) and action.scratch_offset is not None:
            place = action.scratch_offset - front
            actions[k] = replace(action, scratch_offset=place)
    return actions, {}


def statistics_first(graph, plan, actions):
    """The moving averages as soon as their batch's numbers are there."""
    for index, op in enumerate(graph.ops):
        if op.type == "moving_average":
            k = actions.index(Compute(index))
            update = [actions.pop(k - 1), actions.pop(k - 1)]
            maker = graph.producer[op.inputs[1]]
            made = [getattr(a, "op", None) for a in actions].index(maker)
            actions[made + 1 : made + 1] = update
    return actions, {}


def promised_early(graph, plan, actions):
    """An alias before anything."""
    k = next(k for k, a in enumerate(actions) if isinstance(a, Alias))
    return [actions.pop(k), *actions], {}


def unaligned(graph, plan, actions):
    return actions, {"alignment": 1}


def other_algorithm(graph, plan, actions):
    k = next(k for k, a in enumerate(actions) if isinstance(a, Compute))
    actions[k] = replace(actions[k], algorithm="winograd")
    return actions, {}


def moved_loss(graph, plan, actions):
    """The loss is computed again, elsewhere."""
    (loss,) = graph.losses
    index = graph.producer[loss]
    op = graph.ops[index]
    end = align_up(plan.peak_bytes)
    again = [Free(t) for t in op.outputs]
    for t in op.outputs:
        again.append(Alloc(t, end))
        end += align_up(graph.tensors[t].nbytes)
    compute = next(a for a in actions if getattr(a, "op", None) == index)
    return [*actions, *again, compute], {}


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (updates_apart, "does not take over its buffer"),
        (updates_freed, "does not take over its buffer"),
        (state_last, "state lies first"),
        (statistics_first, "before the forward phase has ended"),
        (promised_early, "input or state not allocated"),
        (unaligned, "not a positive multiple of 64"),
        (other_algorithm, "no algorithm 'winograd'"),
        (moved_loss, "is a loss and is recomputed"),
    ],
)
def test_a_plan_that_would_train_wrongly_is_refused(alter, words, device):
    graph = NETWORKS["noisy"]()
    executor = Executor(device, name="model")
    with pytest.raises(PlanError, match=words):
        executor.load({"train": graph}, altered(alter), random_values(graph))
    assert device.pool.stats().current_bytes == 0


def test_the_algorithm_that_runs_may_be_named(device):
    def named(graph, plan, actions):
        for k, action in enumerate(actions):
            if isinstance(action, Compute):
                choice = graph.ops[action.op].algorithms[0]
                actions[k] = replace(action, algorithm=choice.name)
        return actions, {}

    graph = chain()
    executor = Executor(device, name="model")
    executor.load({"train": graph}, altered(named), random_values(graph))
    executor.close()


def test_what_is_no_plan_is_refused(device):
    graph = chain()
    executor = Executor(device, name="model")
    with pytest.raises(TypeError, match="a policy must return a Plan, not NoneType"):
        executor.load(
            {"train": graph},
            lambda graph, limit_bytes=None: None,
            random_values(graph),
        )
    assert device.pool.stats().current_bytes == 0


def test_a_plan_without_places_is_refused(device):
    """As those for PyTorch's allocator are; a model has one arena."""
    graph = chain()
    executor = Executor(device, name="model")
    with pytest.raises(PlanError, match="the plan has no"):
        executor.load(
            {"train": graph},
            altered(lambda graph, plan, actions: (actions, {"places": False})),
            random_values(graph),
        )
    assert device.pool.stats().current_bytes == 0


def test_a_plan_above_the_budget_is_refused(device):
    graph = chain()
    peak = planning.keep_all()(graph).peak_bytes
    mc.config.set_memory_limit(device.name, peak - 64)
    executor = Executor(device, name="model")
    with pytest.raises(PlanError, match=f"and {peak - 64} B are left"):
        executor.load(
            {"train": graph},
            lambda graph, limit_bytes: planning.keep_all()(graph),
            random_values(graph),
        )
    assert device.pool.stats().current_bytes == 0


def test_wider_lines_are_measured_as_they_are_planned(device):
    """State of 128 bytes each may lie in lines of 128."""
    b = Builder("wide")
    w = b.tensor("w", (8, 4), role="parameter")
    x = b.tensor("x", (2, 8), role="input")
    labels = b.tensor("labels", (2,), "int32", role="input")
    (logits,) = b.apply("dense", (x, w))
    loss, _ = b.apply("softmax_cross_entropy", (logits, labels))
    graph = b.build([loss])

    def wide(graph, plan, actions):
        for k, action in enumerate(actions):
            if isinstance(action, Alloc):
                actions[k] = replace(action, offset=2 * action.offset)
            elif isinstance(action, Compute) and action.scratch_offset is not None:
                place = 2 * action.scratch_offset
                actions[k] = replace(action, scratch_offset=place)
        actions[0] = replace(actions[0], offset=0)
        return actions, {"alignment": 128}

    executor = Executor(device, name="model")
    executor.load({"train": graph}, altered(wide), random_values(graph))
    for verify in (False, True):
        report = executor.memory_report("train", verify=verify)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.predicted_peak_bytes == executor.plans["train"].peak_bytes
    executor.close()


def test_a_tensor_of_fewer_bytes_than_its_shape_takes_is_refused(device):
    graph = chain()
    small = [replace(t, nbytes=4) if t.name == "x" else t for t in graph.tensors]
    graph = replace(graph, tensors=tuple(small))
    executor = Executor(device, name="model")
    with pytest.raises(GraphError, match="'x' has 4 B"):
        executor.load({"train": graph}, planning.share(), random_values(graph))


# -- the guard ----------------------------------------------------------------------


def misnamed():
    """An op beside the loss is named `loss`, and the loss is not."""
    b = Builder("misnamed")
    w = b.tensor("w", (3, 4), role="parameter")
    x = b.tensor("x", (2, 3), role="input")
    aside = b.tensor("aside", (2, 3), role="input")
    labels = b.tensor("labels", (2,), "int32", role="input")
    rate = b.tensor("learning_rate", (), role="input")
    (other,) = b.apply("relu", (aside,), name="loss")
    (logits,) = b.apply("dense", (x, w))
    cost, _ = b.apply("softmax_cross_entropy", (logits, labels), name="cost")
    (gradient,) = gradients(b, cost, [w]).values()
    b.apply("sgd", (w, gradient, rate), name="update", phase="update")
    return hoist_updates(b.build([cost, other]))


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_the_guard_looks_at_the_loss_and_at_nothing_else(modes, device):
    graph = misnamed()
    values = random_values(graph)
    executor = Executor(device, name="model")
    executor.load({"train": graph}, planning.share(), values, modes)

    def runs(**changes):
        for name in ("x", "aside", "labels", "learning_rate"):
            executor.feed("train", name)[...] = changes.get(name, values[name])
        return executor.run("train", guard=True)

    before = executor.read_state("w")
    assert not runs(x=np.nan)
    assert np.isnan(executor.fetch("train", "cost"))
    executor.finish("train")
    assert np.array_equal(executor.read_state("w"), before)
    assert runs(aside=np.inf)
    assert not np.array_equal(executor.read_state("w"), before)
    executor.finish("train")
    executor.close()


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_updates_that_stand_before_the_loss_run_after_it(modes, device):
    graph = misnamed()
    update = next(op for op in graph.ops if op.phase == "update")
    late = [op for op in graph.ops if op.name == "loss"]
    others = [op for op in graph.ops if op not in late and op is not update]
    graph = replace(graph, ops=(*others, update, *late))
    values = random_values(graph)
    executor = Executor(device, name="model")
    executor.load({"train": graph}, planning.share(), values, modes)
    for name in ("x", "aside", "labels", "learning_rate"):
        executor.feed("train", name)[...] = values[name]
    assert executor.run("train", guard=True)
    assert not np.array_equal(executor.read_state("w"), values["w"])
    executor.finish("train")
    executor.close()

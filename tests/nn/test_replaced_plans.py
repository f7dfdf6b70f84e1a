"""Plans judged again after their first steps, and replaced where others are faster."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from calling import CallingKernels
from internals import (
    TIMED_STEPS,
    ModelArena,
    forget_warnings,
    measure_nothing_in_steps,
    refuse_contenders,
    set_step_seconds,
)
from training_graphs import chain

import memcfg as mc
from memcfg.devices.cpu import CpuDevice
from memcfg.errors import ResourceExhaustedError
from memcfg.plan import (
    Compute,
    auto,
    look_ahead,
    reconsidered,
    share,
    validate,
)
from memcfg.runtime import Executor

nn = mc.nn
WIDTH, BATCH = 16, 64
X = np.random.default_rng(0).standard_normal((BATCH, WIDTH)).astype(np.float32)
Y = np.arange(BATCH) % 3
LONG = 0.004  # seconds that the slow ops sleep
MOST = TIMED_STEPS * 8 + 1  # steps that compare plans, and the next


class MisjudgedKernels(CallingKernels):
    """Ops of one type sleep, and are said to be fast; those of another are said not."""

    slow, maligned = "tanh", "sigmoid"

    def make(self, op_type, *rest):
        made = super().make(op_type, *rest)
        if op_type == self.slow:
            return replace(made, before=lambda: time.sleep(LONG))
        return made

    def measure(self, op_type, *rest):
        rows = self._table.algorithms(op_type, *rest)
        said = 1.0 if op_type == self.maligned else 1e-3
        return [(name, size, said) for name, size, _ in rows]


@pytest.fixture(autouse=True)
def misjudged(monkeypatch, tmp_path):
    forget_warnings(monkeypatch)
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(tmp_path / "seconds"))
    monkeypatch.setattr(CpuDevice, "kernels", MisjudgedKernels())
    monkeypatch.setattr(CpuDevice, "copy_rate", lambda self, tier: 0.0)  # nominal


def compiled(times="measured", optimizer="sgd", depth=3, **options):
    nn.set_random_seed(0)
    layers = []
    for kind in ("tanh", "sigmoid") * depth:
        layers += [nn.Dense(WIDTH), nn.Activation(kind)]
    model = nn.Sequential([nn.Input((WIDTH,)), *layers, nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, times=times, **options)
    return model


@pytest.fixture
def limit():
    """So much less than `share` needs that some ops run twice."""
    model = compiled("nominal", memory=share())
    nbytes = model.plan(BATCH).peak_bytes
    model.close()
    mc.config.set_memory_limit("CPU:0", nbytes - 2 * 4 * BATCH * WIDTH)
    return nbytes - 2 * 4 * BATCH * WIDTH


def again(model, kind):
    """Count the ops of a type that run, above those that run once."""
    graph, plan = model.graph(BATCH), model.memory_plan
    computed = [graph.ops[a.op] for a in plan.actions if isinstance(a, Compute)]
    return sum(op.type == kind for op in computed) - sum(
        op.type == kind for op in graph.ops
    )


def settle(model):
    """Train until a plan has been chosen by steps; returns the losses."""
    losses = [model.train_on_batch(X, Y)]
    while model.memory_plan.summary.recosted is None:
        assert len(losses) < MOST
        losses.append(model.train_on_batch(X, Y))
    return losses


def pretend(monkeypatch, seconds):
    """Have steps take so long by the method of their plan, and 1 second by others."""
    set_step_seconds(monkeypatch, lambda plan: seconds.get(plan.method, 1.0))


def in_use():
    return mc.config.get_memory_info("CPU:0")["current"]


def test_a_slow_plan_is_replaced_and_nothing_else_changes(limit):
    model = compiled()
    losses = [model.train_on_batch(X, Y)]
    first = model.memory_plan
    assert again(model, "tanh") > 0 == again(model, "sigmoid")
    while len(losses) < TIMED_STEPS:
        losses.append(model.train_on_batch(X, Y))
    assert model.memory_plan is first  # it is not replaced before the next step begins
    losses += settle(model)
    plan = model.memory_plan
    assert plan is not first
    assert again(model, "sigmoid") > 0 == again(model, "tanh")
    told = plan.summary.recosted
    assert told.replaced == first.method
    assert told.believed_seconds == first.predicted.seconds
    assert told.replaced_seconds > plan.predicted.seconds
    assert f"by {first.method}; expected:" in str(plan)
    validate(model.graph(BATCH), plan)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    assert report.arena_bytes == plan.peak_bytes == in_use()
    weights = model.get_weights()
    model.close()

    nominal = compiled("nominal")
    expected = [nominal.train_on_batch(X, Y) for _ in losses]
    assert nominal.memory_plan.summary.recosted is None
    np.testing.assert_equal(losses, expected)
    np.testing.assert_equal(weights, nominal.get_weights())


def test_steps_decide_which_plan_is_the_fastest(monkeypatch):
    """Whatever their ops are said to take, which is the same for all here."""
    monkeypatch.setattr(MisjudgedKernels, "slow", "")
    monkeypatch.setattr(MisjudgedKernels, "maligned", "")
    measure_nothing_in_steps(monkeypatch)
    model = compiled("nominal", memory=share(), depth=6)
    limit = model.plan(BATCH).peak_bytes - 4 * 4 * BATCH * WIDTH
    model.close()
    mc.config.set_memory_limit("CPU:0", limit)
    model = compiled(depth=6)
    settle(model)
    tried = [method for method, _ in model.memory_plan.summary.recosted.tried]
    model.close()
    assert len(set(tried)) == len(tried) > 1
    for best in tried:
        with monkeypatch.context() as patch:
            pretend(patch, {best: 0.5})
            model = compiled(depth=6)
            losses = settle(model)
        plan = model.memory_plan
        told = plan.summary.recosted
        assert [method for method, _ in told.tried] == tried
        assert dict(told.tried)[best] == 0.5
        assert plan.method == best
        assert told.replaced == ("" if best == tried[0] else tried[0])
        assert f"by {best}" in str(plan)
        validate(model.graph(BATCH), plan)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
        assert report.arena_bytes == plan.peak_bytes == in_use()
        assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
        assert len(losses) == TIMED_STEPS * len(tried) + 1
        losses += [model.train_on_batch(X, Y) for _ in range(2)]
        weights = model.get_weights()
        model.close()
        expected = compiled("nominal", depth=6)
        assert losses == [expected.train_on_batch(X, Y) for _ in losses]
        np.testing.assert_equal(weights, expected.get_weights())
        expected.close()


def test_the_first_plan_stays_where_its_steps_are_the_fastest(limit, monkeypatch):
    first = compiled()
    first.train_on_batch(X, Y)
    method = first.memory_plan.method
    actions = first.memory_plan.actions
    first.close()
    pretend(monkeypatch, {method: 0.5})
    model = compiled()
    settle(model)
    plan = model.memory_plan
    told = plan.summary.recosted
    if plan.actions == actions:
        assert not told.replaced
    assert plan.method == method
    assert told.tried[0] == (method, 0.5)
    assert "a step took" in str(plan)


def test_an_interrupt_between_plans_loses_nothing(limit, monkeypatch):
    """At each place where one takes another's; the limit and all bits hold."""
    expected = compiled("nominal")
    steps = MOST + TIMED_STEPS
    wanted = [expected.train_on_batch(X, Y) for _ in range(steps)]
    expected.close()
    replace_ = Executor._replace
    for which in range(1, 5):
        calls = 0

        def interrupted(self, *args, which=which):
            nonlocal calls
            calls += 1
            if calls == 2 * which:
                signal.raise_signal(signal.SIGINT)
            replace_(self, *args)
            if calls == 2 * which + 1:
                signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Executor, "_replace", interrupted)
            model = compiled()
            losses = []
            while len(losses) < steps:
                try:
                    losses.append(model.train_on_batch(X, Y))
                except KeyboardInterrupt:
                    assert in_use() <= limit
        assert losses == wanted
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
        model.close()
        assert in_use() == 0


def test_it_happens_once(limit, monkeypatch):
    model = compiled()
    settle(model)
    plan = model.memory_plan
    refuse_contenders(monkeypatch)
    for _ in range(2 * TIMED_STEPS + 2):
        model.train_on_batch(X, Y)
    assert model.memory_plan is plan


def test_plans_that_come_later_go_by_the_steps_too(limit):
    model = compiled()
    settle(model)
    graph = model.graph(BATCH)
    for op in graph.ops:
        assert op.seconds == op.algorithms[0].seconds
        assert op.seconds < 0.5  # what was said of sigmoid has been forgotten
        assert op.type != "tanh" or op.seconds >= LONG
    assert model.plan(BATCH).predicted.seconds == pytest.approx(
        model.memory_plan.predicted.seconds
    )


def test_programs_share_one_arena_all_the_time(limit):
    model = compiled()
    most = 0
    for _ in range(MOST):
        model.train_on_batch(X, Y)
        model.predict_on_batch(X[:7])
        model.test_on_batch(X, Y)
        most = max(most, in_use())
    executor = model._session.executor
    assert len(executor.plans) == 3
    assert most <= limit
    largest = max(plan.peak_bytes for plan in executor.plans.values())
    assert in_use() == executor.nbytes == largest
    assert len(model.memory_plan.summary.recosted.tried) > 1  # another plan ran, too
    info = mc.config.get_memory_info("CPU:0")
    assert info["peak"] <= limit


def test_where_the_plan_is_chosen_by_the_user_it_stays(limit):
    model = compiled(memory=look_ahead())
    model.train_on_batch(X, Y)
    plan = model.memory_plan
    for _ in range(TIMED_STEPS + 2):
        model.train_on_batch(X, Y)
    assert model.memory_plan is plan
    assert plan.summary.recosted is None


def test_a_plan_that_computes_each_op_once_stays():
    model = compiled()
    model.train_on_batch(X, Y)
    plan = model.memory_plan
    for _ in range(TIMED_STEPS + 2):
        model.train_on_batch(X, Y)
    assert plan.method == "share"
    assert model.memory_plan is plan


def test_it_waits_for_the_end_of_a_window(limit):
    steps = TIMED_STEPS + 2

    def fitted(times):
        model = compiled(times, nn.SGD(0.1, gradient_accumulation_steps=steps))
        plans = []
        for _ in range(4 * steps):
            model.train_on_batch(X, Y)
            plans.append(model.memory_plan)
        weights = model.get_weights()
        model.close()
        return weights, [n for n, (a, b) in enumerate(pairwise(plans), 1) if a is not b]

    weights, replaced = fitted("measured")
    assert replaced
    assert all(step % steps == 0 for step in replaced)
    expected, never = fitted("nominal")
    assert not never
    np.testing.assert_equal(weights, expected)


def test_evaluation_waits_for_the_end_of_a_window_too():
    """Its program computes a wide layer again, which is kept over a wider one."""
    steps = TIMED_STEPS + 2

    def wide():
        nn.set_random_seed(0)
        x = nn.Input((WIDTH,))
        kept = nn.Dense(256, activation="tanh")(x)
        inner = nn.Activation("sigmoid")(nn.Dense(WIDTH)(kept))
        inner = nn.Dense(256)(nn.Dense(1024)(inner))
        model = nn.Model(x, nn.Dense(3)(nn.Add()([kept, inner])))
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = nn.SGD(0.1, gradient_accumulation_steps=steps)
        model.compile(optimizer, loss, times="measured")
        return model

    many, labels = np.tile(X, (32, 1)), np.tile(Y, 32)
    model = wide()
    model.test_on_batch(many, labels)
    nbytes = model.memory_plan.peak_bytes
    model.close()
    mc.config.set_memory_limit("CPU:0", nbytes - 4 * len(many) * 64)
    model = wide()
    judged = []
    for step in range(2 * steps):
        model.train_on_batch(X[:2], Y[:2])
        for _ in range(TIMED_STEPS + 1 if step == 0 else 1):
            model.test_on_batch(many, labels)
            (plan,) = (
                plan
                for name, plan in model._session.executor.plans.items()
                if name.startswith("evaluate")
            )
            judged.append(plan.summary.recosted is not None)
    assert judged[: TIMED_STEPS + steps - 1] == [False] * (TIMED_STEPS + steps - 1)
    assert all(judged[TIMED_STEPS + steps - 1 :])


def test_where_others_have_taken_the_memory_the_plan_stays(limit, monkeypatch):
    model = compiled()
    for _ in range(TIMED_STEPS):
        model.train_on_batch(X, Y)
    first = model.memory_plan

    def refuse(*args):
        raise ResourceExhaustedError("taken by others")

    with monkeypatch.context() as patch:
        for how in ("grow", "replace"):
            patch.setattr(ModelArena, how, refuse)
        loss = model.train_on_batch(X, Y)
    losses = [loss, *(model.train_on_batch(X, Y) for _ in range(TIMED_STEPS + 2))]
    plan = model.memory_plan
    assert plan.actions == first.actions
    told = plan.summary.recosted  # by the steps, in which tanh sleeps
    assert told.believed_seconds == first.predicted.seconds
    assert not told.replaced
    assert plan.predicted.seconds != first.predicted.seconds
    assert plan.predicted.recompute_seconds > LONG
    words = f"first steps; no memory was left to try a plan by {told.refused} "
    assert told.refused
    assert words in " ".join(str(plan).split())
    model.close()
    expected = compiled("nominal")
    for _ in range(TIMED_STEPS):
        expected.train_on_batch(X, Y)
    assert losses == [expected.train_on_batch(X, Y) for _ in losses]


def test_an_interrupt_while_it_is_planned_leaves_all_as_it_was(limit, monkeypatch):
    model = compiled()
    losses = [model.train_on_batch(X, Y) for _ in range(TIMED_STEPS)]
    first = model.memory_plan

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("memcfg.plan.reconsidered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.train_on_batch(X, Y)
    assert model.memory_plan is first
    losses += settle(model)
    assert model.memory_plan.summary.recosted.replaced  # then it was
    model.close()
    expected = compiled("nominal")
    assert losses == [expected.train_on_batch(X, Y) for _ in losses]


def test_a_right_plan_is_costed_anew_and_stays(limit, monkeypatch):
    """By the seconds of a first model a second one is right from the start."""
    model = compiled()
    settle(model)
    graph, plan = model.graph(BATCH), model.memory_plan
    slower = replace(
        graph, ops=tuple(replace(op, seconds=3 * op.seconds) for op in graph.ops)
    )
    found = reconsidered(auto(), slower, plan, plan.limit_bytes)
    assert found.actions == plan.actions
    assert found.predicted.seconds == pytest.approx(3 * plan.predicted.seconds)
    assert found.summary.recosted.believed_seconds == plan.predicted.seconds
    assert not found.summary.recosted.replaced
    assert "expected before the first steps" in " ".join(str(found).split())


def test_what_was_proven_by_other_seconds_is_proven_no_more():
    graph = chain(6)
    limit = share()(graph).peak_bytes - 128
    plan = auto()(graph, limit)
    assert plan.gap == 0
    again = [a.op for a in plan.actions if isinstance(a, Compute)]
    costly = {op for op in again if again.count(op) > 1}
    assert costly
    ops = (
        replace(op, seconds=100.0) if index in costly else op
        for index, op in enumerate(graph.ops)
    )
    slower = replace(graph, ops=tuple(ops))
    best = auto()(slower, limit)
    found = reconsidered(auto(), slower, plan, limit)
    assert found.actions == best.actions != plan.actions
    assert found.summary.recosted.replaced == plan.method
    stays = reconsidered(
        look_ahead(), slower, replace(plan, summary=share()(graph).summary), limit
    )
    assert stays.actions == plan.actions
    assert stays.gap > 0

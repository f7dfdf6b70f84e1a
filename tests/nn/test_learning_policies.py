"""Capuchin in a model: a passive first step, plans by what it took, and feedback.

What steps take is told by a virtual clock, so that nothing depends on the machine: the
simulator's, with seconds of ops and a bandwidth that the planner does not know. Copies
beside ops are half as fast as those of the first step, for which ops wait.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import (
    ROUNDS,
    TIMED_STEPS,
    ModelArena,
    adaptation,
    follow_steps,
    forget_warnings,
    set_kernel_seconds,
    set_rounds,
)

import memcfg as mc
from memcfg.devices.cpu import CpuDevice
from memcfg.errors import InfeasiblePlanError, PlanError, ResourceExhaustedError
from memcfg.plan import (
    Compute,
    SwapIn,
    SwapOut,
    Wait,
    capuchin,
    capuchin_feedback,
    share,
    simulate,
    validate,
)
from memcfg.runtime import Executor

nn = mc.nn
WIDTH, LARGE, BATCH = 16, 256, 64
X = np.random.default_rng(0).standard_normal((BATCH, WIDTH)).astype(np.float32)
Y = np.arange(BATCH) % 3
MOST = 2 + TIMED_STEPS * (ROUNDS + 1)  # steps until a plan stays


class VirtualClock:
    """Tells programs what their steps took; lists plans with what each step did."""

    def __init__(self, rate, seconds=lambda op: 0.3):
        self.rate = rate  # bytes a second of copies beside ops
        self.seconds = seconds
        self.longer = lambda program: 1.0  # times the seconds of a step
        self.programs = []  # that were timed: spec, simulation

    def simulate(self, spec):
        ops = (
            replace(op, seconds=self.seconds(op), algorithms=())
            for op in spec.graph.ops
        )
        graph = replace(spec.graph, ops=tuple(ops))
        rate = (2 if spec.passive else 1) * self.rate
        return simulate(graph, spec.plan, {"host": rate})

    def note(self, program):
        found = self.simulate(program.spec)
        if not self.programs or self.programs[-1][0] is not program.spec:
            self.programs.append((program.spec, found))
        return found.elapsed_seconds * self.longer(program)

    def least(self, program):
        told = [0.0] * len(program._loop)
        for each in self.simulate(program.spec).schedule:
            told[program.instructions[each.action]] = each.end - each.begin
        return told

    @property
    def stalls(self):
        """Seconds that a step waited, by each guided plan, each once."""
        rows = [f for spec, f in self.programs if not spec.passive]
        return [f.elapsed_seconds - f.seconds for f in rows]


def follow(patch, clock):
    """Have programs told by a clock what their steps took."""
    follow_steps(patch, clock.note, clock.least)


of_onednns_plans = pytest.mark.skipif(
    os.environ.get("MEMCFG_KERNELS") == "reference",
    reason="what is late there is not so in plans with the scratch of NumPy's kernels",
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    forget_warnings(monkeypatch)
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(tmp_path / "seconds"))
    monkeypatch.setattr(
        CpuDevice, "copy_rate", lambda self, tier: 0.0
    )  # not this one's


@pytest.fixture
def clock(monkeypatch):
    """Copies of a large activation take 22 s; the next one is needed after 12 s."""
    found = VirtualClock(3000.0)
    # What first plans are made from, or they would depend on the machine.
    set_kernel_seconds(monkeypatch, lambda kernel: 1e-6)
    follow(monkeypatch, found)
    return found


def compiled(policy, times="measured", **options):
    nn.set_random_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Dense(LARGE, activation="tanh"), nn.Dense(WIDTH)]
        layers += [nn.Activation("sigmoid") for _ in range(20)]
    model = nn.Sequential([nn.Input((WIDTH,)), *layers, nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1), loss, memory=policy, times=times, **options)
    return model


def limited(nbytes, spill="host", **options):
    """Have a device with such a limit, and a tier below it."""
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    device = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{nbytes}B", spill_to=spill, **options
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    mc.config.threading.set_intra_op_parallelism_threads(2)  # plans depend on it
    return nbytes


def unlimited():
    """Have a device without a limit; bits and plans depend on the number of threads."""
    mc.config.reset()
    mc.config.threading.set_intra_op_parallelism_threads(2)


def peak():
    """The bytes that `share` needs."""
    unlimited()
    model = compiled(share(), "nominal")
    nbytes = model.plan(BATCH).peak_bytes
    model.close()
    return nbytes


@pytest.fixture
def limit():
    """Room for one of three large activations less."""
    yield limited(peak() - 4 * BATCH * LARGE // 2)
    mc.config.reset()


def reference(steps):
    """The losses and weights of training where nothing is evicted."""
    unlimited()
    model = compiled(share(), "nominal")
    losses = [model.train_on_batch(X, Y) for _ in range(steps)]
    weights = [w.tobytes() for w in model.get_weights()]
    model.close()
    return losses, weights


def settle(model):
    """Train until a plan stays: losses, and each plan that there was."""
    losses, plans = [], []
    while not plans or plans[-1].summary.recosted is None:
        assert len(losses) < MOST
        losses.append(model.train_on_batch(X, Y))
        if not plans or model.memory_plan is not plans[-1]:
            plans.append(model.memory_plan)
    return losses, plans


def is_passive(plan):
    """Whether each copy is waited for at once: no op runs beside one."""
    waits = {a.action: n for n, a in enumerate(plan.actions) if isinstance(a, Wait)}
    copies = [n for n, a in enumerate(plan.actions) if isinstance(a, SwapOut | SwapIn)]
    return bool(copies) and not any(
        isinstance(action, Compute)
        for number in copies
        for action in plan.actions[number : waits[number]]
    )


# -- one step, then plans ----------------------------------------------------------


@of_onednns_plans
def test_the_first_step_is_passive_and_feedback_hides_what_is_late(limit, clock):
    """By a clock of which copies beside ops take twice what the first step showed."""
    model = compiled(capuchin())
    first = model.train_on_batch(X, Y)
    passive = model.memory_plan
    assert is_passive(passive)
    losses, plans = settle(model)
    losses = [first, *losses]
    assert not any(map(is_passive, plans))
    (spec, step), *guided = clock.programs
    assert spec.plan is passive
    assert all(found.elapsed_seconds < step.elapsed_seconds for _, found in guided)
    stalls = list(dict.fromkeys(round(each, 6) for each in clock.stalls))
    assert len(stalls) > 5
    falls = [later < earlier for earlier, later in pairwise(stalls)]
    assert sum(falls) >= 0.8 * len(falls)  # all of them with the scratch of AVX-512
    assert stalls[-1] == min(stalls) <= 0.05 * stalls[0]
    told = model.memory_plan.summary.recosted
    assert told.replaced == "capuchin"
    assert not told.refused
    assert [how for how, _ in told.tried] == [
        "capuchin, passive",
        *["capuchin, guided"] * len(guided),
    ]
    assert [took for _, took in told.tried] == [
        found.elapsed_seconds for _, found in clock.programs
    ]
    best = min(took for _, took in told.tried)
    assert told.tried[-1][1] == best  # the last is the fastest
    assert f"by capuchin, guided, {len(guided)} plans" in str(model.memory_plan)
    losses += [model.train_on_batch(X, Y) for _ in range(5)]
    assert model.memory_plan is plans[-1]  # and nothing more is tried
    weights = [w.tobytes() for w in model.get_weights()]
    model.close()
    assert (losses, weights) == reference(len(losses))


def test_each_iteration_has_the_bytes_that_were_said(limit, clock):
    """Measured as each plan comes; programs of all kinds run between the steps."""
    model = compiled(capuchin())
    plans = []
    while not plans or plans[-1].summary.recosted is None:
        model.train_on_batch(X, Y)
        model.test_on_batch(X, Y)
        model.predict_on_batch(X[:7])
        if not plans or model.memory_plan is not plans[-1]:
            plans.append(model.memory_plan)
            report = model.memory_report(verify=True)
            assert report.predicted_peak_bytes == plans[-1].peak_bytes
            assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
            validate(model._session.executor.graphs["train, batch 64"], plans[-1])
    assert [is_passive(plan) for plan in plans[:3]] == [True, False, False]
    info = mc.config.get_memory_info("CPU:0")
    assert info["peak"] <= limit
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


@of_onednns_plans
@pytest.mark.parametrize(("slow", "fast"), [("tanh", "sigmoid"), ("sigmoid", "tanh")])
def test_what_is_computed_again_is_fast_in_steps(limit, clock, slow, fast):
    """Over a lane that is too slow to swap."""
    clock.rate = 1.0
    clock.seconds = lambda op: 100.0 if op.type == slow else 0.3
    model = compiled(capuchin())
    losses, plans = settle(model)
    graph = model.graph(BATCH)
    assert {op.seconds for op in graph.ops if op.type == slow} == {100.0}
    computed = [graph.ops[a.op].type for a in plans[-1].actions if type(a) is Compute]
    once = [op.type for op in graph.ops]
    assert computed.count(fast) > once.count(fast)
    assert computed.count(slow) == once.count(slow)
    assert plans[-1].predicted.moved_bytes <= plans[0].predicted.moved_bytes / 100
    validate(graph, plans[-1])
    model.close()
    assert losses == reference(len(losses))[0]


def test_where_nothing_is_late_one_plan_is_enough(limit, clock):
    clock.rate = 1e9
    model = compiled(capuchin())
    _, plans = settle(model)
    assert [spec.passive for spec, _ in clock.programs] == [True, False]
    assert plans[-1].predicted.moved_bytes
    assert plans[-1].actions == clock.programs[-1][0].plan.actions
    model.close()


def test_the_first_step_stays_where_guided_ones_are_slower(limit, clock):
    clock.longer = lambda program: 1.0 if program.spec.passive else 10.0
    model = compiled(capuchin())
    losses, plans = settle(model)
    assert len(clock.programs) == 2
    assert is_passive(plans[-1])
    assert plans[-1].actions == plans[0].actions
    told = plans[-1].summary.recosted
    assert not told.replaced
    assert len(told.tried) == 2
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    model.close()
    assert losses == reference(len(losses))[0]


def test_feedback_ends_with_the_first_plan_that_is_slower(limit, clock):
    clock.longer = lambda program: 1.0 + 0.5 * (len(clock.programs) == 4)
    model = compiled(capuchin())
    _, plans = settle(model)
    assert len(clock.programs) == 4
    tried = [took for _, took in plans[-1].summary.recosted.tried]
    best = tried.index(min(tried))
    assert best < 3  # the fourth was slower
    assert plans[-1].actions == clock.programs[best][0].plan.actions
    model.close()


def test_feedback_ends_after_so_many_plans(limit, clock, monkeypatch):
    set_rounds(monkeypatch, 4)
    model = compiled(capuchin())
    settle(model)
    assert 1 < len(clock.programs) <= 1 + 4
    assert clock.stalls[-1] > 0
    model.close()


# -- where it cannot be ------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ResourceExhaustedError("taken by others"), OSError(errno.ENOSPC, "full")]
)
def test_a_plan_that_finds_no_memory_or_disk_is_not_tried(
    limit, clock, monkeypatch, error
):
    model = compiled(capuchin())
    losses = [model.train_on_batch(X, Y)]
    first = model.memory_plan

    def refuse(*args):
        raise error

    with monkeypatch.context() as patch:
        for how in ("grow", "replace"):
            patch.setattr(ModelArena, how, refuse)
        losses.append(model.train_on_batch(X, Y))
    plan = model.memory_plan
    assert plan.actions == first.actions
    assert plan.summary.recosted.refused == "capuchin"
    assert "no memory was left to try a plan by capuchin" in " ".join(str(plan).split())
    losses += [model.train_on_batch(X, Y) for _ in range(3)]
    assert model.memory_plan is plan
    assert len(clock.programs) == 1
    model.close()
    assert losses == reference(len(losses))[0]


def test_plans_fit_what_others_leave(limit, clock):
    """Who comes behind the first step takes all that it leaves."""
    model = compiled(capuchin())
    losses = [model.train_on_batch(X, Y)]
    left = limit - mc.config.get_memory_info("CPU:0")["current"]
    others = mc.config.logical_device().pool.arena(tag="others")
    others.grow(left)
    more, plans = settle(model)
    losses += more
    assert all(plan.peak_bytes <= limit - left for plan in plans)
    assert len(plans) > 1
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    model.close()
    others.free()
    assert losses == reference(len(losses))[0]


def test_a_limit_within_which_nothing_can_be_planned_keeps_the_first(
    limit, clock, monkeypatch
):
    model = compiled(capuchin())
    losses = [model.train_on_batch(X, Y)]
    first = model.memory_plan

    def refuse(*args):
        raise InfeasiblePlanError("less", smallest_limit_bytes=1, lower_bound_bytes=1)

    with monkeypatch.context() as patch:
        patch.setattr(type(capuchin().make), "__call__", refuse)
        losses.append(model.train_on_batch(X, Y))
    assert model.memory_plan.actions == first.actions
    assert model.memory_plan.summary.recosted is not None
    losses += [model.train_on_batch(X, Y) for _ in range(3)]
    assert len(clock.programs) == 1
    model.close()
    assert losses == reference(len(losses))[0]


@pytest.mark.parametrize(
    "error",
    [
        InfeasiblePlanError("less", smallest_limit_bytes=1, lower_bound_bytes=1),
        PlanError("full"),
    ],
)
def test_what_cannot_be_passive_is_guided_from_the_first_step(
    limit, clock, monkeypatch, error
):
    def refuse(*args):
        raise error

    passive = type(capuchin(passive=True).make)
    monkeypatch.setattr(passive, "__call__", refuse)
    model = compiled(capuchin())
    losses, plans = settle(model)
    assert not any(spec.passive for spec, _ in clock.programs)
    assert not is_passive(plans[0])
    assert len(clock.programs) > 1  # what copies take beside ops is known at once
    assert clock.stalls[-1] < clock.stalls[0]
    model.close()
    assert losses == reference(len(losses))[0]


@of_onednns_plans
def test_a_tier_that_is_too_small_for_the_first_step(clock):
    """A guided one has fewer bytes there."""
    nbytes = peak() - 4 * BATCH * LARGE // 2
    limited(nbytes, spill_limit="40KiB")
    model = compiled(capuchin(passive=True))
    with pytest.raises(InfeasiblePlanError, match="whose limit is"):
        model.plan(BATCH)
    model.close()
    model = compiled(capuchin())
    losses, plans = settle(model)
    assert not any(spec.passive for spec, _ in clock.programs)
    assert all(plan.predicted.host_peak_bytes <= 40 << 10 for plan in plans)
    model.close()
    assert losses == reference(len(losses))[0]
    mc.config.reset()


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        (capuchin(), "nominal"),
        (capuchin(passive=True), "nominal"),
        (capuchin(passive=True), "measured"),
    ],
)
def test_what_is_not_asked_for_does_not_happen(limit, clock, policy, times):
    """By nominal times a plan is the same everywhere; a passive policy is passive."""
    model = compiled(policy, times)
    model.train_on_batch(X, Y)
    first = model.memory_plan
    assert is_passive(first) == (policy != capuchin())
    for _ in range(TIMED_STEPS + 2):
        model.train_on_batch(X, Y)
    assert model.memory_plan is first
    assert first.summary.recosted is None
    assert not clock.programs
    model.close()


def test_what_fits_is_not_timed(clock):
    limited(peak())
    model = compiled(capuchin())
    for _ in range(3):
        model.train_on_batch(X, Y)
    assert model.memory_plan.predicted.moved_bytes == 0
    assert model.memory_plan.summary.recosted is None
    assert not clock.programs
    model.close()
    mc.config.reset()


def test_a_plan_that_is_asked_for_is_guided(limit, clock):
    model = compiled(capuchin())
    before = model.plan(BATCH)
    assert not is_passive(before)
    assert before.actions == capuchin()(model.graph(BATCH), limit).actions
    model.train_on_batch(X, Y)
    assert is_passive(model.memory_plan)
    model.train_on_batch(X, Y)
    assert not is_passive(model.plan(BATCH))
    model.close()


@pytest.mark.strength(1)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        *((adaptation, "replanned", call) for call in (1, 2)),
        *((Executor, "_replace", call) for call in (2, 3)),  # the first one loads
    ],
)
def test_an_interrupt_loses_nothing(
    limit, clock, monkeypatch, owner, name, call, before
):
    """While it is planned, and before and behind a plan takes another's place."""
    set_rounds(monkeypatch, 3)
    made, calls = getattr(owner, name), 0

    def interrupted(*args):
        nonlocal calls
        calls += 1
        if before and calls == call:
            signal.raise_signal(signal.SIGINT)
        found = made(*args)
        if not before and calls == call:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, interrupted)
    model = compiled(capuchin())
    losses, interrupts = [], 0
    while len(losses) < 14:
        try:
            losses.append(model.train_on_batch(X, Y))
        except KeyboardInterrupt:
            interrupts += 1
            assert mc.config.get_memory_info("CPU:0")["current"] <= limit
    assert interrupts == 1
    assert model.memory_plan.summary.recosted is not None
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    assert losses == reference(len(losses))[0]


# -- what is measured --------------------------------------------------------------


def test_a_step_tells_what_copies_took():
    """In earnest, over a lane that is so slow that each access waits for its copy."""
    limited(peak() - 4 * BATCH * LARGE // 2, lane_bandwidth="1MB")
    model = compiled(capuchin())
    model.train_on_batch(X, Y)
    program = model._session.executor.prepare("train, batch 64")
    assert program.due
    assert 0 < program.rates()["host"] <= 1e6
    plan, happened = program.spec.plan, program.happened()
    waits = [e for e in happened.schedule if isinstance(plan.actions[e.action], Wait)]
    assert waits
    assert all(each.end > each.begin for each in waits)
    for queue in ("compute", "host out", "host in"):
        rows = [each for each in happened.schedule if each.queue == queue]
        assert all(a.end <= b.begin for a, b in pairwise(rows))
    other = capuchin_feedback(capuchin(), program.graph, plan, happened)
    assert other != capuchin()  # every copy back was waited for
    model.close()
    mc.config.reset()


def noisy(policy, times):
    nn.set_random_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Dense(LARGE, activation="tanh"), nn.Dense(WIDTH)]
        layers += [nn.BatchNormalization(), nn.Dropout(0.3)]
    model = nn.Sequential([nn.Input((WIDTH,)), *layers, nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1), loss, memory=policy, times=times)
    return model


def noisy_limit(share_):
    """Limit the device to a part of what there is beside the state, if that will do."""
    unlimited()
    model = noisy(share(), "nominal")
    graph = model.graph(BATCH)
    model.close()
    state = sum(graph.tensors[t].nbytes for t in graph.persistent)
    least = share()(graph).peak_bytes
    limit = limited(int(state + share_ * (least - state)))
    model = noisy(capuchin(), "nominal")
    try:
        model.plan(BATCH)
    except InfeasiblePlanError as refusal:
        limit = limited(refusal.smallest_limit_bytes)
    return limit


@given(
    seed=st.integers(0, 10_000),
    power=st.floats(1, 6),
    longer=st.lists(st.floats(0.5, 2), min_size=30, max_size=30),
    share_=st.sampled_from([0.5, 0.7, 0.9]),
)
@settings(max_examples=8, deadline=None)
def test_whatever_steps_take_bits_and_limits_hold(seed, power, longer, share_):
    took = np.random.default_rng(seed).uniform(0.1, 5.0, 64)
    clock = VirtualClock(10**power, lambda op: took[len(op.type)])
    clock.longer = lambda program: longer[len(clock.programs) % 30]
    limit = noisy_limit(share_)
    with pytest.MonkeyPatch.context() as patch:
        follow(patch, clock)
        model = noisy(capuchin(), "measured")
        losses, plans = settle(model)
    assert all(plan.peak_bytes <= limit for plan in plans)
    for spec, _ in clock.programs:
        validate(spec.graph, spec.plan)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    model.close()
    unlimited()
    model = noisy(share(), "nominal")
    assert losses == [model.train_on_batch(X, Y) for _ in losses]
    model.close()

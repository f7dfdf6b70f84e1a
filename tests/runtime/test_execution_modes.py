"""Programs without a plan: the same bits, and every byte known to the pool."""

from __future__ import annotations

import gc
import signal
import weakref
from dataclasses import replace

import numpy as np
import pytest
from calling import CallingKernels
from interpreter import random_values
from machine import Counter
from networks import NETWORKS, chain

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError, KernelError, ResourceExhaustedError
from memcfg.graph import Builder
from memcfg.runtime import (
    OWN_BUFFERS,
    Executor,
    Schedule,
    graph_order,
    updates_last,
)
from memcfg.units import align_up

MODES = {"train": OWN_BUFFERS}


@pytest.fixture
def device():
    return mc.config.logical_device()


def feeds(graph, values):
    return {
        t.name: values[t.name]
        for i, t in enumerate(graph.tensors)
        if t.role == "input" and graph.producer[i] is None
    }


def loaded(device, graph, values, modes=MODES):
    executor = Executor(device, name="model")
    executor.load({"train": graph}, planning.share(), values, modes)
    return executor


def step(executor, graph, values, *, guard=False, counter=None):
    for key, value in feeds(graph, values).items():
        executor.feed("train", key)[...] = value
    return executor.run("train", guard=guard, counter=counter)


def state(executor, graph):
    names = [graph.tensors[i].name for i in graph.persistent]
    return {name: executor.read_state(name).tobytes() for name in names}


@pytest.fixture
def chained(device):
    """A chain that has run once: executor, graph, values."""
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    assert step(executor, graph, values)
    executor.finish("train")
    yield executor, graph, values
    executor.close()
    assert device.pool.stats().current_bytes == 0


@pytest.mark.parametrize("network", NETWORKS)
def test_twenty_steps_give_the_bits_of_the_compiled_program(network, device):
    graph = NETWORKS[network]()
    values = random_values(graph)
    found = []
    for modes in ({}, MODES):
        executor = loaded(device, graph, values, modes)
        losses = []
        for number in range(20):
            feed = values | ({"step": np.int64(number)} if "step" in values else {})
            assert step(executor, graph, feed)
            losses.append(float(executor.fetch("train", "loss")))
            executor.finish("train")
        found.append((losses, state(executor, graph)))
        executor.close()
    assert found[0] == found[1]
    assert len(set(found[0][0])) > 1


@pytest.mark.parametrize("network", NETWORKS)
def test_the_peak_is_that_of_the_live_tensors_to_the_byte(network, device):
    graph = NETWORKS[network]()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    device.pool.reset_peak()
    step(executor, graph, values)
    peak = device.pool.stats().peak_bytes
    executor.finish("train")
    before = state(executor, graph)
    for verify in (False, True):
        report = executor.memory_report("train", verify=verify)
        assert report.predicted_peak_bytes == report.measured_peak_bytes == peak
        assert report.mode == "none"
        assert report.verified == verify
        assert max(entry.live_bytes for entry in report.timeline) == peak
        assert all(entry.live_bytes == entry.top_bytes for entry in report.timeline)
        assert sum(report.by_role.values()) == peak
        assert "workspace mode 'none'" in str(report)
    assert state(executor, graph) == before
    executor.close()
    assert device.pool.stats().current_bytes == 0


def test_only_the_state_stays_between_steps(chained, device):
    executor, graph, values = chained
    nbytes = sum(align_up(graph.tensors[i].nbytes) for i in graph.persistent)
    assert executor.nbytes == device.pool.stats().current_bytes == nbytes
    step(executor, graph, values)
    kept = [graph.tensors[i] for i in graph.keep if graph.tensors[i].role == "output"]
    kept = sum(align_up(tensor.nbytes) for tensor in kept)
    assert device.pool.stats().current_bytes == nbytes + kept
    executor.finish("train")
    executor.finish("train")
    assert device.pool.stats().current_bytes == nbytes


def test_every_tensor_is_an_allocation_of_its_own(chained, device):
    executor, graph, values = chained
    before = device.pool.stats().allocation_count
    step(executor, graph, values)
    updated = planning.state_updates(executor.graphs["train"])
    made = sum(len(op.outputs) for op in graph.ops) - len(updated)
    scratch = sum(op.scratch_bytes > 0 for op in executor.graphs["train"].ops)
    fed = len(feeds(graph, values))
    assert device.pool.stats().allocation_count - before == made + fed + scratch


def test_a_view_keeps_its_bytes(chained, device):
    executor, graph, values = chained
    step(executor, graph, values)
    loss = executor.fetch("train", "loss")
    value, held = float(loss), device.pool.stats().current_bytes
    executor.finish("train")
    assert device.pool.stats().current_bytes == held
    step(executor, graph, values)
    assert float(executor.fetch("train", "loss")) != value
    assert float(loss) == value
    executor.finish("train")
    assert device.pool.stats().current_bytes == held
    del loss
    assert device.pool.stats().current_bytes < held


def test_a_new_step_begins_where_the_last_one_was_not_finished(chained, device):
    executor, graph, values = chained
    held = device.pool.stats().current_bytes
    step(executor, graph, values)
    executor.feed("train", "x")[...] = values["x"]
    with pytest.raises(KeyError, match="not resident at the end"):
        executor.fetch("train", "loss")
    x = align_up(values["x"].nbytes)
    assert device.pool.stats().current_bytes == held + x
    executor.finish("train")


def test_views_of_what_is_not_there(chained):
    executor, _, _ = chained
    for name in ("unheard", "loss", "conv2d"):
        with pytest.raises(KeyError):
            executor.feed("train", name)
        with pytest.raises(KeyError):
            executor.fetch("train", name)
    assert np.array_equal(
        executor.feed("train", "c0/bias"), executor.read_state("c0/bias")
    )


def test_the_guard_stops_before_any_state_changes(chained):
    executor, graph, values = chained
    before = state(executor, graph)
    bad = {**values, "x": np.full_like(values["x"], np.nan)}
    assert not step(executor, graph, bad, guard=True)
    assert np.isnan(executor.fetch("train", "loss"))
    executor.finish("train")
    assert state(executor, graph) == before
    assert step(executor, graph, bad, guard=False)
    assert state(executor, graph) != before


def test_the_limit_is_known_before_the_first_step(device):
    graph = chain()
    values = random_values(graph)
    peak = loaded_peak(device, graph, values)
    mc.config.set_memory_limit(device.name, peak - 64)
    executor = Executor(device, name="model")
    with pytest.raises(InfeasiblePlanError, match="workspace mode 'enabled'") as caught:
        executor.load({"train": graph}, planning.share(), values, MODES)
    assert caught.value.requested_bytes == peak
    assert device.pool.stats().current_bytes == 0
    mc.config.set_memory_limit(device.name, caught.value.smallest_limit_bytes)
    executor.load({"train": graph}, planning.share(), values, MODES)
    for _ in range(3):
        assert step(executor, graph, values)
    executor.close()


def loaded_peak(device, graph, values):
    executor = loaded(device, graph, values)
    peak = executor.memory_report("train", verify=True).measured_peak_bytes
    executor.close()
    return peak


def test_planned_programs_make_room_for_those_that_are_not_planned(device):
    """Both are counted: the arena, and what a step takes beside it."""
    big, small = chain(batch=16), chain(batch=2)
    values = random_values(big)
    executor = Executor(device, name="model")
    graphs = {"train": small, "big": big}
    executor.load(graphs, planning.share(), values, MODES)
    arena = executor.nbytes
    assert list(executor.plans) == ["big"]
    assert arena == executor.plans["big"].peak_bytes
    beside = executor.memory_report("train", verify=True)
    beside = beside.measured_peak_bytes - sum(
        align_up(small.tensors[i].nbytes) for i in small.persistent
    )
    executor.close()
    mc.config.set_memory_limit(device.name, arena + beside - 64)
    with pytest.raises(InfeasiblePlanError) as caught:
        executor.load(graphs, planning.share(), values, MODES)
    assert device.pool.stats().current_bytes == 0
    mc.config.set_memory_limit(device.name, caught.value.smallest_limit_bytes)
    executor.load(graphs, planning.share(), values, MODES)
    assert step(executor, small, random_values(small))
    executor.close()


def allocations(program):
    """The instructions of a program that allocate, by what they do when they fail."""
    found = []
    for index in range(len(program._loop)):
        program._loop.fail_at(index)
        try:
            program.run(guard=False)
        except ResourceExhaustedError:
            found.append(index)
        except KernelError:
            pass
    program._loop.fail_at(None)
    return found


def test_whichever_allocation_fails_the_state_is_as_before(chained, device):
    executor, graph, values = chained
    before, held = state(executor, graph), device.pool.stats().current_bytes
    step(executor, graph, values)
    executor.finish("train")
    expected = state(executor, graph)
    program = executor._programs["train"]
    found = allocations(program)
    scratch = sum(op.scratch_bytes > 0 for op in executor.graphs["train"].ops)
    assert len(found) > 20 + scratch
    write(executor, before)
    for index in found:
        program._loop.fail_at(index)
        with pytest.raises(ResourceExhaustedError, match="as before the step") as error:
            step(executor, graph, values)
        assert "no memory for op" in str(error.value)
        assert state(executor, graph) == before
        assert device.pool.stats().current_bytes == held
    program._loop.fail_at(None)
    for count in range(len(feeds(graph, values))):
        limit = device.pool.set_limit(None)
        with pytest.raises(ResourceExhaustedError, match="a step with input"):  # noqa: PT012
            for number, (key, value) in enumerate(feeds(graph, values).items()):
                if number == count:
                    device.pool.set_limit(device.pool.stats().current_bytes)
                executor.feed("train", key)[...] = value
        device.pool.set_limit(limit)
        assert device.pool.stats().current_bytes == held
    assert step(executor, graph, values)
    executor.finish("train")
    assert state(executor, graph) == expected


def write(executor, values):
    for name, value in values.items():
        shape = executor.read_state(name).shape
        executor.write_state(name, np.frombuffer(value, "f4").reshape(shape))


def test_a_kernel_that_fails_is_named_and_gives_its_buffers_back(chained, device):
    executor, graph, values = chained
    held = device.pool.stats().current_bytes
    program = executor._programs["train"]
    program._loop.fail_at(program._op_instructions[3])
    with pytest.raises(KernelError, match=f"op '{graph.ops[3].name}' failed: .*fault"):
        step(executor, graph, values)
    assert device.pool.stats().current_bytes == held
    program._loop.fail_at(None)
    assert step(executor, graph, values)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_an_interrupt_comes_before_all_updates_or_after_them(
    device, monkeypatch, number
):
    """At each op: the state is as before the step, or as after it."""
    left = [0]

    def interrupt():
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(number)

    monkeypatch.setattr(type(device), "kernels", CallingKernels(before=interrupt))
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    expected = loaded(device, graph, values, {})
    before = state(executor, graph)
    step(expected, graph, values)
    after = state(expected, graph)
    assert before != after

    def handler(number, frame):
        raise KeyboardInterrupt

    counter, found = Counter(), []
    old = signal.signal(number, handler)
    try:
        for place in range(len(graph.ops)):
            write(executor, before)
            steps, left[0] = counter.value, place + 1
            with pytest.raises(KeyboardInterrupt):
                step(executor, graph, values, counter=counter)
            found.append(state(executor, graph))
            assert found[-1] == (before if counter.value == steps else after)
    finally:
        signal.signal(number, old)
    assert before in found
    assert after in found
    expected.close()
    executor.close()


def test_an_error_that_is_kept_does_not_hold_the_arena(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    program = executor.prepare("train")
    program._loop.fail_at(allocations(program)[8])
    with pytest.raises(ResourceExhaustedError) as caught:
        step(executor, graph, values)
    executor.close()
    assert device.pool.stats().current_bytes == 0
    assert caught.value.__traceback__ is not None


def test_nothing_of_a_program_waits_for_the_garbage_collector(device):
    graph = chain()
    values = random_values(graph)
    gc.collect()
    gc.disable()
    try:
        executor = loaded(device, graph, values)
        step(executor, graph, values)
        program = weakref.ref(executor._programs["train"])
        executor.close()
        assert program() is None
        assert device.pool.stats().current_bytes == 0
    finally:
        gc.enable()


def test_updates_come_last_and_nothing_is_allocated_after_the_first(device):
    graph = NETWORKS["noisy"]()
    order = updates_last(graph)
    assert sorted(order) == list(graph_order(graph))
    phases = [graph.ops[i].phase for i in order]
    first = phases.index("update")
    assert set(phases[first:]) == {"update"}
    executor = loaded(device, graph, random_values(graph))
    schedule = Schedule.of(executor.graphs["train"], order)
    for each in schedule.ops[first:]:
        assert each.makes == ()
        assert schedule.scratch(each) == 0
    executor.close()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_schedule_ends_each_tensor_once_after_its_last_reader(network):
    graph = NETWORKS[network]()
    for order in (graph_order(graph), updates_last(graph)):
        schedule = Schedule.of(graph, order)
        planning.validate(graph, schedule.plan("in order"))
        alive = set(schedule.fed) | set(graph.persistent)
        for each in schedule.ops:
            op = graph.ops[each.op]
            alive |= set(op.outputs)
            assert {*op.inputs, *op.outputs} <= alive
            alive -= set(each.ends)
        updated = set(planning.state_updates(graph))
        assert alive == {*graph.keep, *graph.persistent, *updated}


def test_a_program_without_inputs_begins_its_steps_too(device):
    builder = Builder("of state alone")
    weight = builder.tensor("weight", (32,), role="parameter")
    (found,) = builder.apply("relu", (weight,))
    graph = builder.build(keep=(found,))
    kept = replace(OWN_BUFFERS, name="kept", layout=lambda s: _kept(s))
    for mode in (OWN_BUFFERS, kept):
        executor = Executor(device, name="model")
        values = {"weight": np.arange(-16, 16, dtype=np.float32)}
        executor.load({"run": graph}, planning.share(), values, {"run": mode})
        results = []
        for _ in range(2):  # without `finish` between them
            assert executor.run("run")
            results.append(executor.fetch("run", graph.tensors[found].name))
            executor.write_state("weight", -values["weight"])
        first, second = (each.copy() for each in results)
        assert np.array_equal(first - second, values["weight"])
        results.clear()
        executor.close()
    assert device.pool.stats().current_bytes == 0


def _kept(schedule):
    found = OWN_BUFFERS.layout(schedule)
    buffers = tuple(replace(each, kept=True) for each in found.buffers)
    return replace(found, buffers=buffers)


@pytest.mark.parametrize("network", NETWORKS)
def test_nothing_is_allocated_behind_the_first_update(network, device):
    graph = NETWORKS[network]()
    executor = loaded(device, graph, random_values(graph))
    program = executor.prepare("train")
    phases = [graph.ops[i].phase for i in updates_last(graph)]
    first = program._op_instructions[phases.index("update")]
    assert max(allocations(program)) < first
    executor.close()

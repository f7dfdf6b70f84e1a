"""Programs against the interpreter, peaks against bytes, policies alike."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from interpreter import interpret, random_values
from networks import NETWORKS, chain

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError, PlanError, ResourceExhaustedError
from memcfg.runtime import Executor
from memcfg.units import align_up

POLICIES = {
    "keep_all": planning.keep_all(),
    "share": planning.share(),
    "replay_elementwise": planning.replay_elementwise(),
    "sqrt_checkpoint": planning.sqrt_checkpoint(),
    "look_ahead": planning.look_ahead(),
}


@pytest.fixture
def device():
    return mc.config.logical_device()


def feeds(graph, values):
    return {
        t.name: values[t.name]
        for i, t in enumerate(graph.tensors)
        if t.role == "input" and graph.producer[i] is None
    }


def loaded(device, graph, policy, values, name="train"):
    executor = Executor(device, name="model")
    executor.load({name: graph}, policy, values)
    return executor


def step(executor, graph, values, *, guard=False, name="train"):
    for key, value in feeds(graph, values).items():
        executor.feed(name, key)[...] = value
    return executor.run(name, guard=guard)


def state(executor, graph):
    names = [graph.tensors[i].name for i in graph.persistent]
    return {name: executor.read_state(name) for name in names}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_step_agrees_with_the_interpreter(network, policy, device):
    graph = NETWORKS[network]()
    values = random_values(graph)
    executor = loaded(device, graph, POLICIES[policy], values)
    assert step(executor, graph, values)
    truth = interpret(graph, values)
    assert executor.fetch("train", "loss") == pytest.approx(truth["loss"], rel=1e-4)
    for op in graph.ops:
        if op.phase == "update":
            for source, target in op.in_place:
                got = executor.read_state(graph.tensors[source].name)
                want = truth[graph.tensors[target].name]
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    executor.close()


@pytest.mark.parametrize("network", NETWORKS)
def test_twenty_steps_give_the_same_bits_under_every_policy(network, device):
    graph = NETWORKS[network]()
    values = random_values(graph)
    results = {}
    for policy, make in POLICIES.items():
        executor = loaded(device, graph, make, values)
        for number in range(20):
            feed = dict(values)
            if "step" in feed:
                feed["step"] = np.int64(number)
            step(executor, graph, feed)
        results[policy] = state(executor, graph)
        executor.close()
    first, *others = results.values()
    assert any(np.any(v != values[k]) for k, v in first.items())
    for other in others:
        for key, value in first.items():
            assert value.tobytes() == other[key].tobytes(), key


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_measured_peak_is_the_predicted_peak_to_the_byte(network, policy, device):
    graph = NETWORKS[network]()
    values = random_values(graph)
    executor = loaded(device, graph, POLICIES[policy], values)
    step(executor, graph, values)
    before = state(executor, graph)
    report = executor.memory_report("train", verify=True)
    assert report.verified
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert report.changed_peak_bytes is not None
    scratch = max(op.scratch_bytes for op in executor.graphs["train"].ops)
    untouched = report.measured_peak_bytes - report.changed_peak_bytes
    assert 0 <= untouched <= scratch
    assert report.predicted_peak_bytes == executor.plans["train"].peak_bytes
    assert report.arena_bytes == report.predicted_peak_bytes
    assert device.pool.stats().current_bytes == report.predicted_peak_bytes
    after = state(executor, graph)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)
    assert max(e.top_bytes for e in report.timeline) == report.predicted_peak_bytes
    assert "measured peak" in str(report)
    executor.close()


def test_a_plan_that_lies_about_its_peak_is_caught(device):
    graph = chain()

    def liar(graph, limit_bytes=None):
        plan = planning.share()(graph, limit_bytes)
        predicted = replace(plan.predicted, peak_bytes=plan.peak_bytes - 64)
        return replace(plan, predicted=predicted)

    executor = Executor(device, name="model")
    with pytest.raises(PlanError):
        executor.load({"train": graph}, liar, random_values(graph))
    assert device.pool.stats().current_bytes == 0


def test_the_limit_is_real(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    peak = executor.plans["train"].peak_bytes
    executor.close()

    mc.config.set_memory_limit(device.name, peak - 1)
    executor = Executor(device, name="model")
    with pytest.raises(InfeasiblePlanError) as caught:
        executor.load({"train": graph}, planning.share(), values)
    assert caught.value.smallest_limit_bytes == peak
    assert device.pool.stats().current_bytes == 0
    mc.config.set_memory_limit(device.name, peak)
    executor.load({"train": graph}, planning.share(), values)
    assert step(executor, graph, values)
    with pytest.raises(ResourceExhaustedError):
        device.pool.allocate(1)
    executor.close()


def test_another_owner_counts_against_the_budget(device):
    graph = chain()
    values = random_values(graph)
    with device.pool.allocate(4096, tag="neighbour"):
        executor = loaded(device, graph, planning.share(), values)
        peak = executor.plans["train"].peak_bytes
        executor.close()
        mc.config.set_memory_limit(device.name, peak)
        with pytest.raises(InfeasiblePlanError, match="neighbour") as caught:
            executor.load({"train": graph}, planning.share(), values)
        assert caught.value.smallest_limit_bytes == peak + 4096


def test_the_guard_stops_before_any_state_changes(device):
    graph = NETWORKS["noisy"]()
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    before = state(executor, graph)
    bad = {**values, "x": np.full_like(values["x"], np.nan)}
    assert not step(executor, graph, bad, guard=True)
    after = state(executor, graph)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)
    assert step(executor, graph, bad, guard=False)
    assert np.isnan(executor.fetch("train", "loss"))
    executor.close()


def test_programs_share_one_arena_and_one_state(device):
    big, small = chain(batch=8), chain(batch=3)
    values = random_values(big)
    executor = Executor(device, name="model")
    executor.load({"big": big, "small": small}, planning.share(), values)
    peaks = [plan.peak_bytes for plan in executor.plans.values()]
    assert executor.nbytes == max(peaks)
    assert step(executor, small, random_values(small), name="small")
    one = executor.read_state("c0/kernel")
    assert np.any(one != values["c0/kernel"])
    assert step(executor, big, values, name="big")
    assert np.any(executor.read_state("c0/kernel") != one)
    executor.load({"small": small}, planning.share(), {})
    assert executor.nbytes == min(peaks)
    assert device.pool.stats().current_bytes == min(peaks)
    executor.close()
    assert device.pool.stats().current_bytes == 0


def test_a_failed_load_leaves_the_programs_as_they_were(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    step(executor, graph, values)
    before = state(executor, graph)
    mc.config.set_memory_limit(device.name, executor.nbytes)
    with pytest.raises(InfeasiblePlanError):
        executor.load({"more": chain(batch=64)}, planning.share(), {})
    after = state(executor, graph)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)
    assert list(executor.plans) == ["train"]
    assert step(executor, graph, values)
    executor.close()


def test_state_must_agree_and_have_a_value(device):
    executor = Executor(device, name="model")
    with pytest.raises(ValueError, match="same state"):
        executor.load({"a": chain(depth=2), "b": chain(depth=3)}, planning.share(), {})
    with pytest.raises(ValueError, match="no value"):
        executor.load({"a": chain(depth=2)}, planning.share(), {})
    with pytest.raises(ValueError, match="nothing"):
        executor.load({}, planning.share(), {})
    assert device.pool.stats().current_bytes == 0


def test_writing_state_checks_the_shape(device):
    graph = chain()
    executor = loaded(device, graph, planning.share(), random_values(graph))
    with pytest.raises(ValueError, match="shape"):
        executor.write_state("c0/bias", np.zeros(3, "f4"))
    with pytest.raises(KeyError):
        executor.write_state("unheard", np.zeros(3, "f4"))
    with pytest.raises(KeyError):
        executor.fetch("train", "x")
    executor.close()


def test_loading_again_plans_only_what_is_new(device):
    small, big = chain(batch=3), chain(batch=8)
    values = random_values(big)
    planned = []

    def counting(graph, limit_bytes=None):
        planned.append(graph.name)
        return planning.share()(graph, limit_bytes)

    executor = Executor(device, name="model")
    executor.load({"small": small}, counting, values)
    executor.load({"small": small, "big": big}, counting, values)
    assert len(planned) == 2
    mc.config.set_memory_limit(device.name, "1GiB")  # another budget: plan anew
    executor.load({"small": small, "big": big}, counting, values)
    assert len(planned) == 4
    executor.close()


def test_values_are_asked_for_after_the_memory_is_there(device):
    graph = chain()
    values = random_values(graph)
    asked = []

    class Drawn:
        def __init__(self, name):
            self.name, self.draws_in_place = name, len(name) % 2 == 0

        def first_value(self):
            array = np.empty_like(values[self.name])
            self.draw_into(array)
            return array

        def draw_into(self, array):
            asked.append((self.name, device.pool.stats().current_bytes))
            array[...] = values[self.name]

    state_names = [graph.tensors[i].name for i in graph.persistent]
    initial = {name: Drawn(name) for name in state_names}
    peak = planning.share()(graph).peak_bytes
    mc.config.set_memory_limit(device.name, "1KiB")
    executor = Executor(device, name="model")
    with pytest.raises(InfeasiblePlanError):
        executor.load({"train": graph}, planning.share(), initial)
    assert asked == []
    mc.config.set_memory_limit(device.name, None)
    executor.load({"train": graph}, planning.share(), initial)
    assert sorted(name for name, _ in asked) == sorted(state_names)
    assert min(held for _, held in asked) >= peak
    executor.close()


@pytest.mark.parametrize("batch", [2, 16], ids=["shrinking", "growing"])
def test_a_value_that_fails_leaves_everything_as_it_was(batch, device):
    graph = chain(depth=2)
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    step(executor, graph, values)
    before, nbytes = state(executor, graph), executor.nbytes
    other = chain(batch=batch, depth=3)

    class Failing:
        draws_in_place = True

        def first_value(self):
            raise AssertionError

        def draw_into(self, array):
            array[:1] = 1
            raise MemoryError

    initial = {k: v for k, v in random_values(other).items() if k in before}
    initial |= {other.tensors[i].name: Failing() for i in other.persistent}
    with pytest.raises(MemoryError):
        executor.load({"other": other}, planning.share(), initial)
    assert executor.nbytes == nbytes
    after = state(executor, graph)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)
    assert step(executor, graph, values)
    executor.close()


def test_an_action_that_cannot_be_carried_out_changes_nothing(device):
    graph = chain(batch=8)
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    before = state(executor, graph)

    def swapping(graph, limit_bytes=None):
        plan = planning.share()(graph, limit_bytes)
        x = graph.find("x")
        place = next(
            i for i, a in enumerate(plan.actions) if isinstance(a, planning.Compute)
        )
        extra = (planning.SwapOut(x, "tape"), planning.Wait(place))
        actions = plan.actions[:place] + extra + plan.actions[place:]
        nbytes = graph.tensors[x].nbytes
        moved = replace(plan.predicted, moved_bytes=align_up(nbytes))
        return replace(plan, actions=actions, predicted=moved)

    with pytest.raises(PlanError, match="no tier 'tape'"):
        executor.load({"small": chain(batch=2)}, swapping, {})
    after = state(executor, graph)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)
    assert step(executor, graph, values)
    executor.close()


def test_state_keeps_its_values_when_its_place_changes(device):
    small, wide = chain(depth=2), chain(depth=3)
    values = random_values(wide)
    executor = loaded(device, small, planning.share(), values)
    step(executor, small, values)
    before = state(executor, small)
    executor.load({"train": wide}, planning.share(), values)
    after = state(executor, wide)
    assert after["c2/kernel"].tobytes() == values["c2/kernel"].tobytes()
    for name, value in before.items():
        if value.shape == after[name].shape:
            assert after[name].tobytes() == value.tobytes(), name
    executor.close()


def test_threads_take_turns(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, planning.share(), values)
    losses = []

    def work():
        for _ in range(20):
            with executor.lock.turn():
                assert step(executor, graph, values)
                losses.append(float(executor.fetch("train", "loss")))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = loaded(device, graph, planning.share(), values)
    expected = []
    for _ in range(60):
        step(alone, graph, values)
        expected.append(float(alone.fetch("train", "loss")))
    assert losses == expected
    executor.close()
    alone.close()


def test_ends_of_pages_are_no_reason_to_refuse(device):
    """A plan that takes its budget to the last byte is made anew with a little less."""
    graph = chain(depth=8, size=16)
    values = random_values(graph)
    peak = planning.share()(graph).peak_bytes
    others = [device.pool.allocate(3 * 4096 + 64) for _ in range(3)]
    limit = device.pool.stats().current_bytes + loaded_peak(device, graph, values)
    mc.config.set_memory_limit(device.name, limit)
    executor = loaded(device, graph, planning.auto(), values)
    assert executor.plans["train"].peak_bytes <= peak
    assert step(executor, graph, values)
    executor.close()
    for other in others:
        other.free()


def loaded_peak(device, graph, values):
    """Return the peak of the plan that is made where memory is plenty."""
    executor = loaded(device, graph, planning.auto(), values)
    peak = executor.plans["train"].peak_bytes
    executor.close()
    return peak

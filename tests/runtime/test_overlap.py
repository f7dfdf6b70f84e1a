"""Collectives that run beside compute: bits, bytes, errors and times of real steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from data_parallel import LINK, Overlapping, data_parallel, on_ranks
from interpreter import random_values
from networks import chain, noisy, residual
from swapping import Swapping

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import CommunicationError, KernelError
from memcfg.graph import Link
from memcfg.plan.search import Lessons, Method
from memcfg.runtime import Executor


class Learning(Method):
    """A method that swaps, and learns."""

    @property
    def base(self):
        return self.make


NETWORKS = {
    "chain": lambda: chain(3, 1, 4, 2),
    "noisy": lambda: noisy(2, 1, 4, 2),
    "residual": lambda: residual(2, 1, 4, 2),
}
POLICIES = {
    "share": Overlapping(),
    "swapping": Overlapping(Swapping()),
    "recomputing": Overlapping(planning.sqrt_checkpoint()),
    "auto": planning.auto(),
}


def loaded(network, name, policy, ranks=2, link=LINK, **settings):
    base = getattr(policy, "base", None)
    hoisted = not isinstance(base, Swapping)
    graph = data_parallel(NETWORKS[network](), name, ranks, link, hoisted=hoisted)
    executor = Executor(mc.config.logical_device(), name=name, **settings)
    executor.load({"train": graph}, policy, random_values(graph))
    return executor, graph


def step(executor, graph, rank, number):
    values = random_values(graph, seed=10 * number + rank)
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None:
            value = number if tensor.name == "step" else values[tensor.name]
            executor.feed("train", tensor.name)[...] = value
    assert executor.run("train", guard=True)
    loss = executor.fetch("train", "loss").tobytes()
    executor.finish("train")
    return loss


def state(executor):
    return {name: executor.read_state(name).tobytes() for name in executor.state}


def trained(network, policy, seed=0, ranks=2, steps=3):
    """By rank: losses and state after some steps, and starts and collectives."""

    def work(communicator, name):
        executor, graph = loaded(network, name, policy, ranks)
        losses = [step(executor, graph, communicator.rank, n) for n in range(steps)]
        actions = executor.plans["train"].actions
        starts = sum(isinstance(each, planning.Start) for each in actions)
        found = state(executor)
        executor.close()
        return losses, found, starts, communicator.calls

    return on_ranks(work, ranks, seed)


def _shared(found):
    """What all ranks have: statistics are of each rank's own batches."""
    return sorted(item for item in found.items() if "moving" not in item[0])


@cache
def inline(network, ranks):
    return trained(network, planning.share(), ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_steps_have_the_bits_of_collectives_in_between(network, policy, ranks):
    beside = trained(network, POLICIES[policy], seed=1, ranks=ranks)
    for one, other in zip(inline(network, ranks), beside, strict=True):
        assert one[:2] == other[:2]
        assert one[2] == 0
        if (network, policy) != ("noisy", "swapping"):  # none with AVX2 only
            assert other[2] > 0
        assert one[3] == other[3] == ["all_reduce"] * len(one[3])
    assert len({tuple(_shared(found)) for _, found, _, _ in beside}) == 1
    assert beside[0][0] != beside[1][0]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_measured_peak_is_the_predicted_one(policy):
    def work(communicator, name):
        executor, graph = loaded("residual", name, POLICIES[policy])
        losses = [step(executor, graph, communicator.rank, 0)]
        report = executor.memory_report("train", verify=True)
        plan = executor.plans["train"]
        losses.append(step(executor, graph, communicator.rank, 0))
        executor.close()
        return plan, report, losses

    for plan, report, (first, second) in on_ranks(work):
        assert any(isinstance(action, planning.Start) for action in plan.actions)
        peak = plan.peak_bytes
        assert report.measured_peak_bytes == report.predicted_peak_bytes == peak
        computed = sum(isinstance(a, planning.Compute) for a in plan.actions)
        assert len(report.timeline) == computed
        names = {entry.op for entry in report.timeline if entry.seconds > 0}
        assert any("all_reduce" in name for name in names)
        assert first != second  # of other weights


@pytest.mark.parametrize("policy", [planning.share(), Overlapping()], ids=str)
def test_what_a_rank_raises_comes_out_and_loses_nothing(policy):
    """On any call: the exception itself there, an error on the other rank."""

    def work(communicator, name):
        executor, graph = loaded("noisy", name, policy)
        before = state(executor)
        total = sum(op.type == "all_reduce" for op in graph.ops)
        communicator.failing = 1 if communicator.rank == 1 else None
        expected = ValueError if communicator.rank == 1 else CommunicationError
        with pytest.raises(expected) as error:
            step(executor, graph, communicator.rank, 0)
        if communicator.rank == 1:
            assert error.value is communicator.error
            assert error.value.__cause__ is None
        else:
            assert error.value.ranks == (1,)
        assert state(executor) == before
        executor.close()
        return total

    assert min(on_ranks(work)) > 2


@pytest.mark.parametrize("call", range(4))
def test_weights_come_back_whichever_collective_fails(call):
    def work(communicator, name):
        executor, graph = loaded("chain", name, Overlapping())
        step(executor, graph, communicator.rank, 0)
        before = state(executor)
        communicator.failing = call
        with pytest.raises((ValueError, CommunicationError)):
            step(executor, graph, communicator.rank, 1)
        assert state(executor) == before
        with pytest.raises((ValueError, CommunicationError)):
            step(executor, graph, communicator.rank, 1)
        assert state(executor) == before
        executor.close()

    on_ranks(work)


def test_a_collective_that_hangs_is_an_error_of_the_lane():
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(spill_to="host", lane_timeout=0.5)
    mc.config.set_logical_device_configuration(cpu, [wanted])

    def work(communicator, name):
        executor, graph = loaded("chain", name, Overlapping(), ranks=1)
        before = state(executor)
        communicator.hangs = 1.5
        with pytest.raises(KernelError, match=r"has not got on for 0\.5 s"):
            step(executor, graph, 0, 0)
        communicator.hangs = 0.0
        assert state(executor) == before
        told = []
        while True:  # until what hung has ended
            try:
                return step(executor, graph, 0, 0), told
            except KernelError as error:
                told.append(str(error))

    ((loss, told),) = on_ranks(work, ranks=1)
    assert told
    assert all("step that failed" in each for each in told)
    assert loss == trained("chain", Overlapping(), ranks=1)[0][0][0]


def test_the_error_of_a_failed_collective_names_its_op():
    def work(communicator, name):
        executor, graph = loaded("chain", name, Overlapping(), ranks=1)
        communicator.error = KernelError("the wire is cut")
        communicator.failing = 0
        with pytest.raises(KernelError, match=r"op 'all_reduce .*' failed: the wire"):
            step(executor, graph, 0, 0)

    on_ranks(work, ranks=1)


def test_measured_steps_are_told_as_a_simulation():
    def work(communicator, name):
        communicator.hangs = 0.003
        first = Overlapping(Swapping())
        learns = Lessons(first, lambda policy, graph, plan, measured: policy)
        learning = Learning("learning", first.base, swaps=True, learns=learns)
        executor, graph = loaded(
            "residual", name, learning, 1, Link(0.01, 0.0), times="measured"
        )
        for number in range(3):
            step(executor, graph, 0, number)
        program = executor.prepare("train")  # the first steps of such are timed
        assert program.due
        return executor.plans["train"], program.happened(), program.took()

    ((plan, measured, took),) = on_ranks(work, ranks=1)
    assert not any("all_reduce" in str(key) for key in took)
    assert any(isinstance(action, planning.SwapIn) for action in plan.actions)
    by_action = {each.action: each for each in measured.schedule}
    starts = [k for k, a in enumerate(plan.actions) if isinstance(a, planning.Start)]
    assert starts
    ends = 0.0
    graph = data_parallel(NETWORKS["residual"](), "", 1, hoisted=False)
    for index, action in enumerate(plan.actions):
        if isinstance(action, planning.Compute):
            meets = graph.ops[action.op].type == "all_reduce"
            assert (by_action[index].queue == "network") is meets
            if meets:
                assert by_action[index].end - by_action[index].begin >= 0.003
                assert by_action[index].begin >= ends
                ends = by_action[index].end


def test_ranks_of_one_device_do_not_wait_for_each_others_programs():
    """Each rank has two programs of one arena, and both ranks one device."""

    def work(communicator, name):
        device = mc.config.logical_device()
        graph = data_parallel(NETWORKS["chain"](), name, 2)
        executor = Executor(device, name=name)
        programs = {"train": graph, "last": replace(graph, name="last")}
        executor.load(programs, Overlapping(), random_values(graph))
        for program in ("train", "last", "train"):
            for i, tensor in enumerate(graph.tensors):
                if tensor.role == "input" and graph.producer[i] is None:
                    executor.feed(program, tensor.name)[...] = 1
            executor.run(program)
            executor.finish(program)
        found = state(executor)
        executor.close()
        return found

    first, second = on_ranks(work)
    assert first == second
    assert all(np.isfinite(np.frombuffer(v, np.float32)).all() for v in first.values())

"""What every device promises: the CPU, and those whose memory is their own."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import gpus
import numpy as np
import pytest
from artificial import ArtificialDevice
from calling import CallingKernels
from internals import Limited, set_step_seconds
from interpreter import random_values
from machine import Counter, lossless_codecs
from networks import NETWORKS, chain
from swapping import Swapping

import memcfg as mc
import memcfg.workspaces  # before `logical_device`, which it imports, is replaced
from memcfg import plan as planning
from memcfg.devices import CpuDevice, OperandSpec
from memcfg.errors import (
    InfeasiblePlanError,
    KernelError,
    PlanError,
    ResourceExhaustedError,
)
from memcfg.runtime import OWN_BUFFERS, Executor

DEVICES = {
    "cpu": lambda **limit: CpuDevice("/device:CPU:0", **limit),
    "artificial": lambda **limit: ArtificialDevice(**limit),
    "late": lambda **limit: ArtificialDevice(late=0.002, seed=3, **limit),
    "stand-in": lambda **limit: gpus.made(gpus.stand_in(), **limit),
    "stand-in's blocks": lambda **limit: gpus.made(gpus.stand_in(False), **limit),
    "gpu": lambda **limit: gpus.made(gpus.real(), **limit),
    "gpu's blocks": lambda **limit: gpus.made(gpus.real(False), **limit),
}
VECTOR = OperandSpec((16,), "float32")  # one line of 64 bytes


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.gpu if name.startswith("gpu") else ())
        for name in DEVICES
    ]
)
def make(request):
    return DEVICES[request.param]


@pytest.fixture
def device(make):
    return make()


@pytest.fixture
def arena(device):
    found = device.pool.arena(1 << 20, tag="test")
    found.grow(4096)
    return found


def read(device, arena, offset=0, count=16, dtype="float32"):
    found = np.empty(count, dtype)
    device.read(arena, offset, found)
    return found


def ones(value=1.0):
    return np.full(16, value, np.float32)


def has_bits_of_cpu(device):
    """Whether its kernels are the CPU's."""
    return device.kernels.name != "cuda"


def assert_close(found, expected):
    """To the bit where kernels are the same, else nearly; of bytes of float32."""
    if found == expected:
        return
    for one, other in zip(found, expected, strict=True):
        arrays = [np.frombuffer(each, np.float32) for each in (one, other)]
        np.testing.assert_allclose(*arrays, rtol=1e-5, atol=1e-5)


def add(device, program, arena, a, b, c, *queue):
    """Append c = a + b, of vectors."""
    kernel = device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR])
    places = [a, b, c]
    bound = kernel.instruction()
    return program.compute(bound, places, [64] * 3, None, *queue)


def lanes(device, arena, *tiers):
    return device.program(
        arena, {tier: device.tier_memory(tier, 4096, tag="test") for tier in tiers}
    )


# -- memory ------------------------------------------------------------


def test_what_is_written_is_read(device, arena):
    rng = np.random.default_rng(0)
    for offset, dtype, shape in (
        (0, "float32", (3, 5)),
        (64, "int64", ()),
        (128, "u1", (7,)),
    ):
        value = rng.integers(0, 100, shape).astype(dtype)
        device.write(arena, offset, value)
        found = np.empty(shape, dtype)
        device.read(arena, offset, found)
        np.testing.assert_array_equal(found, value)
    device.zero(arena, 0, 8)
    assert read(device, arena, 0, 2).tolist() == [0, 0]
    assert read(device, arena, 64, 1, "int64") != 0
    device.synchronize()


def test_memory_is_zero_when_it_comes(device, arena):
    assert not read(device, arena, 0, 1024).any()
    device.write(arena, 0, ones())
    arena.grow(8192)
    assert not read(device, arena, 4096, 1024).any()
    assert read(device, arena).all()


def test_staged_values_arrive_when_they_are_written(device, arena):
    staged = device.staging(arena, 64, (4, 4), "float32")
    staged[...] = 3
    device.write(arena, 64, staged)
    assert read(device, arena, 64).tolist() == [3] * 16
    device.write(arena, 64, ones(5))
    device.read(arena, 64, staged)
    assert staged.shape == (4, 4)
    assert (staged == 5).all()


def test_only_the_host_has_its_bytes_at_hand(device, arena):
    if device.space == "host":
        assert len(memoryview(arena)) == 4096
    else:
        with pytest.raises(BufferError):
            memoryview(arena)


def test_the_limit_holds(make):
    limit = max(4096, make().page_bytes)
    device = make(limit_bytes=limit)
    arena = device.pool.arena(tag="test")
    with pytest.raises(ResourceExhaustedError):
        arena.grow(limit + 64)
    arena.grow(limit)
    assert device.pool.stats().current_bytes == limit


def test_tiers_lie_beside_the_limit(make):
    device = make(limit_bytes=4096)
    for tier in device.tiers:
        assert device.tier_memory(tier, 1 << 16, tag="test").nbytes >= 1 << 16
    assert device.pool.stats().current_bytes == 0


# -- kernels ------------------------------------------------------------


def test_every_algorithm_that_is_listed_runs(device, arena):
    x, w, y = (OperandSpec(shape, "float32") for shape in ((4, 8), (8, 4), (4, 4)))
    op = ("dense", {}, [x, w], [y])
    names = [name for name, _, _ in device.kernels.algorithms(*op)]
    assert device.kernels.make(*op).algorithm == names[0]
    assert len(set(names)) == len(names)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 8)), rng.standard_normal((8, 4))
    device.write(arena, 0, a.astype(np.float32))
    device.write(arena, 128, b.astype(np.float32))
    for name, scratch, seconds in device.kernels.algorithms(*op):
        kernel = device.kernels.make(*op, name)
        assert (kernel.algorithm, kernel.scratch_bytes) == (name, scratch)
        assert seconds >= 0
        program = device.program(arena, {})
        bound = kernel.instruction()
        program.compute(bound, [0, 128, 256], [128, 128, 64], 1024)
        device.zero(arena, 256, 64)
        assert program.run() == -1
        np.testing.assert_allclose(
            read(device, arena, 256), (a @ b).ravel(), rtol=1e-5, atol=1e-5
        )


def test_an_algorithm_that_there_is_not_is_refused(device):
    with pytest.raises(KernelError, match="no algorithm 'winograd'"):
        device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR], "winograd")


# -- programs ------------------------------------------------------------


def test_kernels_run_in_order(device, arena):
    program = device.program(arena, {})
    device.write(arena, 0, ones())
    assert add(device, program, arena, 0, 0, 64) == 0
    assert add(device, program, arena, 64, 0, 128) == 1
    assert program.run() == -1
    assert read(device, arena, 128).tolist() == [3] * 16
    assert len(program) == 2


def test_places_are_checked(device, arena):
    program = lanes(device, arena, "host")
    for a, b, c in ((4096, 0, 64), (0, 4, 64), (0, 0, 4064)):
        with pytest.raises(ValueError, match=r"leave the|multiple of 64"):
            add(device, program, arena, a, b, c)
    kernel = device.kernels.make("add", {}, [VECTOR, VECTOR], [VECTOR])
    bound = kernel.instruction()
    with pytest.raises(ValueError, match="needs 64"):
        program.compute(bound, [0, 64, 128], [64, 64, 32], None)
    with pytest.raises(ValueError, match="3 operands"):
        program.compute(bound, [0, 64], [64, 64], None)
    for queue, source, target in (
        *((5, (0, 0), (1, 0)), (1, (7, 0), (1, 0)), (1, (0, 0), (1, 4096))),
        *((1, (0, 0), (1, 4)), (1, (0, 0), (0, 32)), (1, (0, 64), (0, 64))),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  (each says something else)
            program.copy(queue, source, target, 64)
    with pytest.raises(ValueError, match="no codec"):
        program.encode("zip", 0, 64, 128, 128)
    with pytest.raises(ValueError, match="no event"):
        program.wait(0, 3)
    with pytest.raises(ValueError, match="another space"):
        program.protect(64, (0, 64))
    with pytest.raises(ValueError, match=r"leave the|multiple of 64"):
        program.guard(4096)
    assert len(program) == 0
    assert program.record(1) is None


@pytest.mark.parametrize("tier", ["host", "file"])
def test_what_goes_to_a_tier_comes_back(device, arena, tier):
    program = lanes(device, arena, tier)
    device.write(arena, 0, ones(2))
    program.copy(1, (0, 0), (1, 128), 64)
    program.wait(0, program.record(1))
    add(device, program, arena, 64, 64, 0)  # others' bytes by now
    back = program.copy(2, (1, 128), (0, 192), 64)
    program.wait(0, back)
    add(device, program, arena, 192, 192, 256)
    assert program.queue_of(back) == 2
    for _ in range(2):
        device.write(arena, 0, ones(2))
        assert program.run() == -1
        assert read(device, arena, 256).tolist() == [4] * 16


def test_kernels_on_the_network_run_in_order_beside_others(device, arena):
    tiers = {"host": device.tier_memory("host", 4096, tag="test")}
    program = device.program(arena, tiers, network=True)
    program.set_jitter(3, 2000)
    first = add(device, program, arena, 0, 0, 64, 3)
    second = add(device, program, arena, 64, 0, 128, 3)
    beside = add(device, program, arena, 0, 0, 192)
    program.wait(0, second)
    add(device, program, arena, 128, 192, 256)
    add(device, program, arena, 256, 256, 0, 3)  # over what was read: waits are derived
    add(device, program, arena, 0, 0, 320)
    assert [program.queue_of(each) for each in (first, second, beside)] == [3, 3, 0]
    with pytest.raises(ValueError, match="no queue 4"):
        add(device, program, arena, 0, 0, 64, 4)
    for _ in range(2):
        device.write(arena, 0, ones())
        assert program.run() == -1
        assert read(device, arena, 256).tolist() == [5] * 16
        assert read(device, arena, 320).tolist() == [20] * 16
    program.fail_at(second)
    with pytest.raises(KernelError):
        program.run()


def test_encodings_come_back(device, arena):
    for codec in {*device.codecs} & {*lossless_codecs()}:
        program = device.program(arena, {})
        value = np.where(np.arange(64) % 3, 0, np.arange(64)).astype(np.float32)
        device.write(arena, 0, value)
        program.encode(codec, 0, 256, 512, 320)
        program.decode(codec, 512, 320, 1024, 256)
        assert program.run() == -1
        np.testing.assert_array_equal(read(device, arena, 1024, 64), value)


def test_codecs_that_a_device_has_not_are_refused(device, arena):
    def other(codec, graph, limit_bytes=None):
        plan = Swapping(("zvc",))(graph)
        actions = [
            replace(a, codec=codec) if isinstance(a, planning.Encode) else a
            for a in plan.actions
        ]
        return replace(plan, actions=tuple(actions))

    assert "zvc" in device.codecs
    for codec in {*lossless_codecs(), "zip"} - {*device.codecs}:
        with pytest.raises(PlanError, match=rf"has no codec '{codec}'; it has .*zvc"):
            trained(device, chain(depth=4), partial(other, codec))
        with pytest.raises(ValueError, match="no codec"):
            device.program(arena, {}).encode(codec, 0, 64, 128, 128)


def test_what_a_device_cannot_do_with_codes_is_refused(device):
    plans = {
        "takes_overflow": Swapping(("zvc",), planned=0.5),
        "coded_tiers": Swapping(("host",), lane="zvc"),
    }
    told = {
        "takes_overflow": "cannot move tensors that exceed .* maximum size of 'zvc'",
        "coded_tiers": "cannot encode copies to tier 'host'; .* none",
    }
    for ability, policy in plans.items():
        if getattr(device, ability):
            trained(device, chain(depth=4), policy)
            continue
        with pytest.raises(PlanError, match=told[ability]):
            trained(device, chain(depth=4), policy)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_queued_gives_the_bytes_of_one_queue(device, arena, seed):
    """No wait is written: those that are missing are derived."""
    chance = random.Random(seed)
    program = lanes(device, arena, "host", "file")
    arrays = {(space, n): ones(0) for space in range(3) for n in range(8)}
    for n in range(8):
        arrays[0, n] = ones(n)
        device.write(arena, 64 * n, ones(n))
    for _ in range(40):
        a, b, c = (chance.randrange(8) for _ in range(3))
        tier = chance.choice([1, 2])
        match chance.choice(["add", "out", "out", "in", "in"]):
            case "add":
                add(device, program, arena, 64 * a, 64 * b, 64 * c)
                arrays[0, c] = arrays[0, a] + arrays[0, b]
            case "out":
                program.copy(2 * tier - 1, (0, 64 * a), (tier, 64 * b), 64)
                arrays[tier, b] = arrays[0, a]
            case "in":
                if any(arrays[tier, a]):  # written in this run
                    program.copy(2 * tier, (tier, 64 * a), (0, 64 * b), 64)
                    arrays[0, b] = arrays[tier, a]
    program.set_jitter(seed, 500)
    assert program.run() == -1
    for n in range(8):
        np.testing.assert_array_equal(read(device, arena, 64 * n), arrays[0, n])


def test_a_guard_stops_what_follows(device, arena):
    program = device.program(arena, {})
    add(device, program, arena, 0, 0, 64)
    guard = program.guard(64)
    add(device, program, arena, 0, 0, 128)
    device.write(arena, 0, ones(np.inf))
    assert program.run() == guard
    assert not read(device, arena, 128).any()
    assert program.run(guard=False) == -1
    assert read(device, arena, 128).all()


def test_a_run_to_the_end_is_counted(device, arena):
    program, counter = device.program(arena, {}), Counter(3)
    add(device, program, arena, 0, 0, 64)
    program.guard(64)
    program.run(True, counter)
    assert counter.value == 4
    device.write(arena, 0, ones(np.nan))
    program.run(True, counter)
    assert counter.value == 4


def test_a_fault_in_any_instruction_leaves_what_is_protected(device, arena):
    program = lanes(device, arena, "host", "file")
    program.copy(3, (0, 0), (2, 0), 64)
    program.protect(128, (1, 1024))
    add(device, program, arena, 0, 0, 0)
    program.copy(1, (0, 0), (1, 64), 64)
    add(device, program, arena, 64, 64, 64)
    back = program.copy(2, (1, 64), (0, 256), 64)
    program.wait(0, back)
    program.guard(64)
    program.encode("zvc", 256, 64, 512, 128)
    program.decode("zvc", 512, 128, 320, 64)
    for index in range(len(program)):
        program.fail_at(index)
        for run in (program.run, program.run_timed):
            device.write(arena, 0, ones(2))
            device.write(arena, 64, ones(3))
            with pytest.raises(KernelError, match=f"instruction {index} failed"):
                run()
            assert read(device, arena, 0).tolist() == [2] * 16
            assert read(device, arena, 64).tolist() == [3] * 16
    program.fail_at(None)
    assert program.run() == -1
    assert read(device, arena, 0).tolist() == [4] * 16
    assert read(device, arena, 320).tolist() == [4] * 16


def test_traces_and_times(device, arena):
    program = lanes(device, arena, "host")
    add(device, program, arena, 0, 0, 64)
    out = program.copy(1, (0, 64), (1, 0), 64)
    wait = program.wait(0, out)
    second = program.copy(1, (0, 64), (1, 64), 64)
    trace = program.run_traced()
    assert [queue for queue, _, _ in trace] == [0, 1, 0, 1]
    assert all(begin <= end for _, begin, end in trace)
    assert trace[0][2] <= trace[out][1]
    assert trace[wait][2] >= trace[out][2]
    assert trace[second][1] >= trace[out][2]
    assert len(program.run_timed()) == len(program)
    counter = Counter()
    assert program.run(False, counter, timed=True) == -1
    assert len(program.least_seconds()) == len(program)
    assert all(each >= 0 for each in program.least_seconds())
    assert counter.value == 1


# -- training ------------------------------------------------------------

POLICIES = {
    "keep_all": planning.keep_all(),
    "share": planning.share(),
    "sqrt_checkpoint": planning.sqrt_checkpoint(),
    "swapping": Swapping(("host", "file", "zvc"), early=3),
}


def input_names(graph):
    return [
        tensor.name
        for i, tensor in enumerate(graph.tensors)
        if tensor.role == "input" and graph.producer[i] is None
    ]


def trained(device, graph, policy, steps=3):
    """Loss and state after each step, and the executor."""
    values = random_values(graph)
    executor = Executor(device, name="model")
    executor.load({"train": graph}, policy, values)
    found = []
    for number in range(steps):
        found += one_step(executor, graph, values, number)
    return found, executor


def one_step(executor, graph, values, number):
    """Loss and state after a step."""
    for name in input_names(graph):
        value = number if name == "step" else values[name]
        executor.feed("train", name)[...] = value
    assert executor.run("train", guard=True)
    loss = executor.fetch("train", "loss").tobytes()
    state = [executor.read_state(name).tobytes() for name in executor.state]
    executor.finish("train")
    return [loss, *state]


def is_long(its):
    """The kernels of the stand-in are slow; it has all policies on other networks."""
    return "stand-in" in its["make"] and its["network"] in ("chain", "residual")


@pytest.mark.strength(2, unless=is_long)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_gives_the_bits_of_the_cpu(device, network, policy):
    graph = NETWORKS[network]()
    expected, other = trained(CpuDevice("/device:CPU:1"), graph, planning.keep_all())
    other.close()
    found, executor = trained(device, graph, POLICIES[policy])
    if has_bits_of_cpu(device):
        assert found == expected
    assert_close(found, expected)
    report = executor.memory_report("train", verify=True)
    peak = executor.plans["train"].peak_bytes
    assert report.measured_peak_bytes == report.predicted_peak_bytes == peak
    assert device.pool.stats().current_bytes == peak
    executor.close()
    assert device.pool.stats().current_bytes == 0


class Mistaken:
    """Chooses a plan that computes much twice, and thinks better of it later."""

    def __init__(self):
        self.calls = 0

    def __call__(self, graph, limit_bytes=None):
        self.calls += 1
        method = planning.sqrt_checkpoint() if self.calls == 1 else planning.share()
        plan = method(graph, limit_bytes)
        return replace(plan, summary=replace(plan.summary, chosen_by="mistaken"))


def test_a_plan_is_replaced_amid_training(device, monkeypatch):
    """The arena grows, and nothing else is another than without it."""
    set_step_seconds(
        monkeypatch, lambda plan: {"share": 1.0}.get(plan.method, 2.0), margin=0.0
    )
    graph = NETWORKS["branches"]()
    values = random_values(graph)
    expected, other = trained(device, graph, planning.share(), steps=8)
    other.close()
    executor = Executor(device, name="model", times="measured")
    executor.load({"train": graph}, Mistaken(), values)
    first = executor.plans["train"]
    found = []
    for number in range(8):
        program = executor.prepare("train")
        assert program.due == (number in (3, 6))
        if program.due:
            assert (executor.plans["train"] is first) == (number == 3)
            executor.reconsider("train")
        found += one_step(executor, graph, values, number)
    assert found == expected
    plan = executor.plans["train"]
    assert (first.method, plan.method) == ("sqrt_checkpoint", "share")
    told = plan.summary.recosted
    assert told.replaced == "sqrt_checkpoint"
    assert told.replaced_seconds > plan.predicted.seconds > 0
    assert plan.peak_bytes > first.peak_bytes
    report = executor.memory_report("train", verify=True)
    assert report.measured_peak_bytes == plan.peak_bytes
    assert device.pool.stats().current_bytes == plan.peak_bytes
    executor.close()
    assert device.pool.stats().current_bytes == 0


def test_capuchin_learns_from_its_steps(device):
    """A passive step, and plans by what it took, to the bits of one that keeps all."""
    graph = NETWORKS["noisy"]()
    values = random_values(graph)
    executor = Executor(device, name="model", times="measured")
    annotated = executor.annotate(graph)
    with pytest.raises(InfeasiblePlanError) as refused:
        planning.capuchin(passive=True)(annotated, 64)
    peak = planning.share()(annotated).peak_bytes
    limit = (refused.value.smallest_limit_bytes + peak) // 2
    policy = Limited.of(planning.capuchin(), limit)
    executor.load({"train": graph}, policy, values)
    specs, found = [], []
    while executor.plans["train"].summary.recosted is None:
        assert len(specs) <= 2 + 3 * 21
        program = executor.prepare("train")
        specs.append(program.spec)
        assert program.spec.plan.peak_bytes <= limit
        found += one_step(executor, graph, values, len(specs) - 1)
        if program.due:
            assert program.rates()["host"] > 0
            del program
            executor.reconsider("train")
    assert [spec.passive for spec in specs[:4]] == [True, False, False, False]
    tried = executor.plans["train"].summary.recosted.tried
    assert tried[0][0] == "capuchin, passive"
    assert len(specs) == 1 + 3 * (len(tried) - 1)
    cpu = CpuDevice("/device:CPU:1")
    expected, other = trained(cpu, graph, planning.keep_all(), steps=len(specs))
    other.close()
    if has_bits_of_cpu(device):
        assert found == expected
    assert_close(found, expected)
    report = executor.memory_report("train", verify=True)
    peak = executor.plans["train"].peak_bytes
    assert report.measured_peak_bytes == peak <= limit
    assert device.pool.stats().current_bytes == peak
    executor.close()
    assert device.pool.stats().current_bytes == 0


def first_update(executor):
    plan, graph = executor.plans["train"], executor.graphs["train"]
    action = next(
        k
        for k, a in enumerate(plan.actions)
        if isinstance(a, planning.Compute) and graph.ops[a.op].phase == "update"
    )
    return executor._programs["train"].instructions[action]


@pytest.mark.parametrize("policy", ["share", "swapping"])
def test_a_fault_in_any_instruction_leaves_the_state(device, policy):
    graph = chain(depth=2)
    _, executor = trained(device, graph, POLICIES[policy], 1)
    before = {name: executor.read_state(name).tobytes() for name in executor.state}
    program = executor._programs["train"]._loop
    count = len(program)
    if not device.fallible and policy != "swapping":  # its updates cannot fail
        count = first_update(executor)
    for index in range(0, count, 5):
        program.fail_at(index)
        with pytest.raises(KernelError, match=f"instruction {index} failed"):
            executor.run("train")
        for name, value in before.items():
            assert executor.read_state(name).tobytes() == value
    program.fail_at(None)
    del program
    executor.close()


def test_an_update_in_python_that_raises_leaves_the_state(monkeypatch):
    left = [10_000]  # kernels until one fails

    def fail():
        left[0] -= 1
        if left[0] == 0:
            raise ZeroDivisionError

    monkeypatch.setattr(CpuDevice, "kernels", CallingKernels(behind=fail))
    graph = chain(depth=2)
    _, executor = trained(DEVICES["cpu"](), graph, planning.keep_all(), 1)
    before = {name: executor.read_state(name).tobytes() for name in executor.state}
    updates = [i for i, op in enumerate(graph.ops) if op.phase == "update"]
    left[0] = updates[0] + 1  # when the first weights have changed
    with pytest.raises(ZeroDivisionError):
        executor.run("train")
    for name, value in before.items():
        assert executor.read_state(name).tobytes() == value
    assert left[0] == 0
    executor.close()


def test_a_plan_chooses_the_algorithm(device):
    if not has_bits_of_cpu(device):
        pytest.skip("it has one algorithm for each op")
    graph = chain(depth=2)
    taken = []

    def named(name):
        def plan(graph, limit_bytes=None):
            found = planning.keep_all()(graph)
            actions = [
                planning.Compute(a.op, name, a.scratch_offset)
                if isinstance(a, planning.Compute)
                and graph.ops[a.op].type in ("conv2d", "dense")
                else a
                for a in found.actions
            ]
            taken.extend(a for a in actions if getattr(a, "algorithm", None) == name)
            predicted = planning.Predicted(found.peak_bytes)
            return planning.Plan(
                found.graph, "named", None, 64, predicted, tuple(actions)
            )

        return plan

    expected, executor = trained(device, graph, planning.keep_all(), 1)
    executor.close()
    again, executor = trained(device, graph, named("reference"), 1)
    executor.close()
    assert taken
    losses = [np.frombuffer(found[0], np.float32) for found in (again, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    if mc.config.logical_device().kernels.name != "reference":
        assert again != expected  # NumPy adds up in another order
    with pytest.raises(PlanError, match="no algorithm 'winograd'"):
        Executor(device, name="model").load(
            {"train": graph}, named("winograd"), random_values(graph)
        )


def test_the_limit_of_a_model_is_the_devices(make):
    graph = chain()
    peak = planning.share()(graph).peak_bytes
    device = make(limit_bytes=peak // 2)
    with pytest.raises(InfeasiblePlanError):
        trained(device, graph, planning.share())
    assert device.pool.stats().current_bytes == 0


def test_op_by_op_needs_memory_of_the_host(device):
    graph = chain(depth=2)
    executor = Executor(device, name="model")
    ways = {"train": OWN_BUFFERS}
    if device.space == "host":
        executor.load({"train": graph}, planning.share(), random_values(graph), ways)
        executor.close()
    else:
        with pytest.raises(RuntimeError, match="workspace mode 'enabled'"):
            executor.load(
                {"train": graph}, planning.share(), random_values(graph), ways
            )


def test_the_digits_are_learnt_to_the_same_bits(make, monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    x = (digits.images[:320, ..., None] / 16).astype(np.float32)
    y = digits.target[:320]

    def learn():
        mc.nn.set_random_seed(0)
        model = mc.nn.Sequential(
            [
                mc.nn.Conv2D(8, 3, padding="same", activation="relu"),
                mc.nn.MaxPooling2D(2),
                mc.nn.Dropout(0.2),
                mc.nn.Flatten(),
                mc.nn.Dense(10),
            ]
        )
        model.compile(
            optimizer=mc.nn.Adam(),
            loss=mc.nn.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        history = model.fit(
            x[:256], y[:256], batch_size=64, epochs=2, verbose=0
        ).history
        found = [history, model.evaluate(x[256:], y[256:], batch_size=32, verbose=0)]
        found.append(model.predict(x[256:], batch_size=32, verbose=0).tobytes())
        found.append([weight.tobytes() for weight in model.get_weights()])
        model.close()
        return found

    expected = learn()
    device = make()
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    found = learn()
    if has_bits_of_cpu(device):
        assert found == expected
    for key, losses in expected[0].items():
        np.testing.assert_allclose(found[0][key], losses, rtol=1e-4)
    assert_close(found[3], expected[3])
    assert device.pool.stats().peak_bytes > 0
    assert device.pool.stats().current_bytes == 0

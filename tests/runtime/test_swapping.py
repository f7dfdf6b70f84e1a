"""Plans that swap and encode train to the bits of `keep_all`, in the bytes they say."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from interpreter import random_values
from machine import decode_bytes
from networks import (
    NETWORKS,
    Tracer,
    chain,
    conv_shapes,
    dense_shapes,
    with_velocity,
)
from swapping import Swapping

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import KernelError, PlanError
from memcfg.runtime import Executor

POLICIES = {
    "host": Swapping(),
    "file": Swapping(("file",)),
    "both": Swapping(("host", "file"), early=1, late=3),
    "codec": Swapping(("zvc",)),
    "codecs": Swapping(("csr", "rle", "planes_zstd")),
    "all": Swapping(("host", "zvc", "file"), early=4),
    "unplaced": Swapping(("host", "file"), placed=False),
    "overflow": Swapping(("zvc", "host", "csr"), planned=0.3),
    "overflow to a file": Swapping(("csr", "rle"), planned=0.0, overflow="file"),
    "coded": Swapping(lane="zvc"),
    "coded, unplaced": Swapping(("host",), placed=False, lane="csr", late=4, early=5),
}
STEPS = 5


@pytest.fixture
def device():
    return mc.config.logical_device()


def load(device, graph, policy):
    executor = Executor(device, name="model")
    executor.load({"train": graph}, policy, random_values(graph))
    return executor


def feed(executor, graph, number):
    values = random_values(graph)
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None:
            value = number if tensor.name == "step" else values[tensor.name]
            executor.feed("train", tensor.name)[...] = value


def state(executor):
    return {name: executor.read_state(name).tobytes() for name in executor.state}


def trained(executor, graph, steps=STEPS):
    """Loss and state after each step."""
    found = []
    for number in range(steps):
        feed(executor, graph, number)
        assert executor.run("train", guard=True)
        found.append(executor.fetch("train", "loss").tobytes())
        executor.finish("train")
    return found, state(executor)


def truth(device, network):
    graph = NETWORKS[network]()
    executor = load(device, graph, planning.keep_all())
    found = trained(executor, graph)
    executor.close()
    return found


@pytest.mark.strength(1)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_it_trains_to_the_same_bits_in_the_bytes_it_says(network, policy, device):
    graph = NETWORKS[network]()
    executor = load(device, graph, POLICIES[policy])
    plan = executor.plans["train"]
    kinds = {type(action) for action in plan.actions}
    assert kinds & {planning.SwapOut, planning.Encode}
    assert trained(executor, graph) == truth(device, network)
    report = executor.memory_report("train", verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes == plan.peak_bytes
    assert device.pool.stats().current_bytes == plan.peak_bytes
    assert trained(executor, graph, 1) != trained(executor, graph, 1)
    executor.close()
    assert device.pool.stats().current_bytes == 0


def test_swapping_needs_fewer_bytes():
    graph = chain(depth=8)
    assert Swapping()(graph).peak_bytes < 0.7 * planning.share()(graph).peak_bytes


@pytest.mark.parametrize("policy", ["both", "overflow", "coded, unplaced"])
@pytest.mark.parametrize("seed", range(4))
def test_late_copies_change_nothing(seed, policy, device):
    graph = NETWORKS["noisy"]()
    executor = load(device, graph, POLICIES[policy])
    executor._programs["train"]._loop.set_jitter(seed, 3000)
    assert trained(executor, graph) == truth(device, "noisy")
    executor.close()


def hung(executor, seconds):
    """Have the first copy of each lane begin that late; gives the loop."""
    loop = executor._programs["train"]._loop
    most = int(1e6 * seconds)
    drawn = ((seed * 1664525 % 2**32 >> 8) % (most + 1) for seed in range(3000))
    loop.set_jitter(next(n for n, each in enumerate(drawn) if each > 0.8 * most), most)
    return loop


def impatient(where, seconds):
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(
        spill_to=str(where), lane_timeout=seconds
    )
    mc.config.set_logical_device_configuration(cpu, [wanted])
    return mc.config.logical_device()


def feed_and_run(executor, graph):
    feed(executor, graph, 0)
    executor.run("train")


def refused_until_it_ends(executor, graph):
    """What steps say until one may run again."""
    told = []
    while True:
        with pytest.raises(KernelError) as error:
            feed_and_run(executor, graph)
        told.append(str(error.value))
        if "has ended since" in told[-1]:
            return told
        assert "has not ended" in told[-1]
        time.sleep(0.05)


@pytest.mark.parametrize(
    "policy", [Swapping(("file",)), Swapping(("zvc", "file"), early=4)], ids=str
)
def test_a_copy_that_hangs_is_an_error_and_loses_nothing(policy, tmp_path):
    graph = NETWORKS["noisy"]()
    device = impatient(tmp_path, 0.5)
    executor = load(device, graph, policy)
    loop = hung(executor, 3.0)
    before = state(executor)
    feed(executor, graph, 0)
    with pytest.raises(KernelError, match=r"has not got on for 0\.5 s"):
        executor.run("train")
    loop.set_jitter(0, 0)
    del loop
    assert state(executor) == before
    with pytest.raises(KernelError, match="has not ended"):  # state might move there
        executor.load({"train": graph}, planning.keep_all(), {})
    assert state(executor) == before
    assert len(refused_until_it_ends(executor, graph)) > 1
    assert state(executor) == before
    assert trained(executor, graph) == truth(device, "noisy")
    executor.close()
    assert device.pool.stats().current_bytes == 0


def test_what_a_copy_that_hangs_may_write_to_is_kept_until_it_ends(tmp_path):
    graph = NETWORKS["noisy"]()
    device = impatient(tmp_path, 0.5)
    executor = load(device, graph, Swapping(("file",)))
    hung(executor, 3.0)
    before = state(executor)
    feed(executor, graph, 0)
    with pytest.raises(KernelError, match="has not got on"):
        executor.run("train")
    with pytest.raises(BufferError, match="cannot be freed"):
        executor.close()
    assert state(executor) == before
    while True:
        try:
            executor.close()
            break
        except BufferError:
            time.sleep(0.05)
    assert device.pool.stats().current_bytes == 0
    executor = load(device, graph, Swapping(("file",)))
    assert trained(executor, graph) == truth(device, "noisy")
    executor.close()


def test_what_is_dropped_while_a_copy_hangs_is_given_back_once_it_ends(tmp_path):
    graph = NETWORKS["noisy"]()
    device = impatient(tmp_path, 0.5)
    executor = load(device, graph, Swapping(("file",)))
    hung(executor, 2.0)
    feed(executor, graph, 0)
    with pytest.raises(KernelError, match="has not got on"):
        executor.run("train")
    with suppress(BufferError):
        executor.close()
    del executor
    gc.collect()
    pool = device.pool
    assert pool.stats().current_bytes > 0  # the copy may still write there
    del device
    deadline = time.monotonic() + 60
    while pool.stats().current_bytes and time.monotonic() < deadline:
        time.sleep(0.05)
        with suppress(RuntimeError):  # in use until then
            mc.config.reset()
    assert pool.stats().current_bytes == 0


PROGRAM = """
import sys
sys.path[:0] = {path!r}
from test_swapping import *
device = impatient({folder!r}, 0.5)
graph = NETWORKS["noisy"]()
executor = load(device, graph, Swapping(("file",)))
hung(executor, 16.5)
feed(executor, graph, 0)
try:
    executor.run("train")
except KernelError as error:
    print(error, flush=True)
"""


def test_a_process_with_a_copy_that_hangs_ends(tmp_path):
    """It does not wait for the copy, which begins 13 seconds later or more."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    program = PROGRAM.format(path=folders, folder=str(tmp_path))
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    with started:
        assert "has not got on" in started.stdout.readline()
        assert started.wait(timeout=10) == 0


def test_copies_within_memory_have_no_timeout():
    graph = NETWORKS["noisy"]()
    device = impatient("host", 0.02)
    executor = load(device, graph, Swapping())
    hung(executor, 0.3)
    expected = truth(device, "noisy")
    assert trained(executor, graph, 1)[0] == expected[0][:1]
    executor.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_state_is_saved_where_a_disk_or_a_code_may_fail(policy, device):
    graph = NETWORKS["noisy"]()
    executor = load(device, graph, POLICIES[policy])
    state = sum(-(-graph.tensors[t].nbytes // 64) * 64 for t in graph.persistent)
    saved = executor._programs["train"].spec.saved_bytes
    python = device.kernels.name == "reference"  # whose kernels may fail, too
    assert saved == (0 if policy == "host" and not python else state)
    executor.close()


@pytest.mark.parametrize("policy", ["both", "codec", "overflow", "coded"])
def test_a_fault_in_any_instruction_leaves_the_state(policy, device):
    graph = NETWORKS["noisy"]()
    executor = load(device, graph, POLICIES[policy])
    loop = executor._programs["train"]._loop
    feed(executor, graph, 0)
    assert executor.run("train")
    before = state(executor)
    for index in range(len(loop)):
        loop.fail_at(index)
        feed(executor, graph, 1)
        with pytest.raises(KernelError, match=f"instruction {index} failed"):
            executor.run("train")
        assert state(executor) == before
    loop.fail_at(None)
    del loop  # it keeps the arena
    feed(executor, graph, 1)
    assert executor.run("train")
    assert state(executor) != before
    executor.close()


def test_the_guard_stops_before_any_state_changes(device):
    graph = NETWORKS["noisy"]()
    executor = load(device, graph, POLICIES["both"])
    before = state(executor)
    feed(executor, graph, 0)
    executor.feed("train", "x")[...] = np.nan
    assert not executor.run("train", guard=True)
    assert state(executor) == before
    executor.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_clock_and_the_program_agree_on_the_order(policy, device):
    """What follows something else by the simulated clock does so in the program."""
    graph = chain()
    executor = load(device, graph, POLICIES[policy])
    plan, annotated = executor.plans["train"], executor.graphs["train"]
    ops = tuple(replace(op, seconds=1.0) for op in annotated.ops)
    timed = replace(annotated, ops=ops)
    clock = planning.simulate(timed, plan, {"host": 1e4, "file": 3e3}).schedule
    program = executor._programs["train"]
    feed(executor, graph, 0)
    program._loop.set_jitter(1, 2000)
    spans = dict(enumerate(program._loop.run_traced()))
    instruction = program.instructions  # by action
    events = []
    for each in clock:
        queue, begin, end = spans[instruction[each.action]]
        assert (queue == 0) == (each.queue == "compute")
        events.append((each, begin, end))
    copies = {e.action: (e, b, end) for e, b, end in events if e.queue != "compute"}
    for k, (one, _, end) in enumerate(events):
        for other, begin, _ in events[k + 1 :]:
            if one.queue in (other.queue, "compute"):  # a lane starts behind computes
                assert end <= begin
        action = plan.actions[one.action]
        if isinstance(action, planning.Wait):
            assert end >= copies[action.action][2]
            assert one.end >= copies[action.action][0].end
    executor.close()


def coded(device, graph, policy):
    """The encodings of a step, by the report."""
    executor = load(device, graph, policy)
    trained(executor, graph, 1)
    report = executor.memory_report("train")
    plan = executor.plans["train"]
    executor.close()
    return plan, report


def test_what_does_not_fit_is_counted_and_loses_nothing(device):
    """Nothing fits 64 bytes; the rest of each tensor has a place on the host."""
    graph = NETWORKS["chain"]()
    policy = Swapping(("zvc",), planned=0.0)
    plan, report = coded(device, graph, policy)
    assert report.codings
    for each in report.codings:
        assert (each.codec, each.planned_bytes, each.runs) == ("zvc", 64, 1)
        assert each.raw == 1
        assert each.used_bytes == each.tensor_bytes
    assert plan.predicted.host_peak_bytes > 0
    assert report.tier_bytes["host"] >= plan.predicted.host_peak_bytes
    told = f"{len(report.codings)} of {len(report.codings)} stayed as they are"
    assert told in " ".join(str(report).split())
    roomy = Swapping(("zvc",), planned=1.0)
    plan, report = coded(device, graph, roomy)
    assert plan.predicted.host_peak_bytes == 0
    assert not any(each.raw for each in report.codings)
    assert any(each.used_bytes < each.tensor_bytes for each in report.codings)


def zvc_bytes(bits):
    """Rhu et al. 2018: 32 words have a mask of 4 bytes; with a header of 64."""
    masks = 4 * -(-bits.size // 32)
    packed = masks + 4 * int(np.count_nonzero(bits))
    return 64 + min(packed, bits.nbytes)


@pytest.mark.parametrize("policy", [Swapping(lane="zvc"), Swapping(("zvc",))])
def test_codes_have_the_bytes_of_the_formula(policy, device):
    graph = NETWORKS["chain"]()
    _, report = coded(device, graph, policy)
    tensors = {tensor.name: i for i, tensor in enumerate(graph.tensors)}
    more = tuple(tensors[each.tensor] for each in report.codings)
    kept = replace(graph, keep=(*graph.keep, *more))
    executor = load(device, kept, planning.keep_all())
    trained(executor, kept, 1)
    assert len(report.codings) > 3
    for each in report.codings:
        value = executor.fetch("train", each.tensor).copy()
        assert each.used_bytes == zvc_bytes(value.view(np.uint32))
    executor.close()


def rectified(batch=16, size=16, width=4, classes=3):
    """A ReLU of the input, which alone decides its density, and two convolutions."""
    shapes = conv_shapes("c0", width, width) | conv_shapes("c1", width, width)
    shapes |= dense_shapes("head", width, classes)
    trace = Tracer("rectified", batch, with_velocity(shapes))
    x = trace.builder.tensor("x", (batch, size, size, width), role="input")
    labels = trace.builder.tensor("labels", (batch,), "int32", role="input")
    x = trace.conv(trace.conv(trace.op("relu", x), "c0"), "c1")
    x = trace.op("global_average_pool2d", x)
    x = trace.op("dense", x, trace.state["head/kernel"])
    return trace.finish(trace.op("bias", x, trace.state["head/bias"]), labels)


@pytest.mark.parametrize("eighths", range(9))
def test_a_lane_writes_the_fraction_of_its_bytes_that_is_not_zero(eighths, device):
    """Rhu et al. 2018: 128 d + 4 of 128 bytes at a density d, in a real step.

    What it wrote is seen in the host's memory, beside two canaries: so many bytes,
    which are the tensor, and what a store of a vector has beyond them. The code has a
    header of 64 bytes. Where no zeros are it copies the bytes as they are.
    """
    graph = rectified()
    executor = Executor(device, name="model")
    executor.load({"train": graph}, planning.cdma(), random_values(graph))
    copies = [
        action
        for action in executor.plans["train"].actions
        if isinstance(action, planning.SwapOut) and action.codec
    ]
    assert len(copies) == 1
    (copy,) = copies
    tensor = graph.tensors[copy.tensor]
    words = tensor.nbytes // 4
    positive = words * eighths // 8
    values = np.full(words, -1.5, np.float32)
    values[:positive] = np.random.default_rng(0).uniform(1, 2, positive)
    values = np.random.default_rng(1).permutation(values)
    written = np.zeros(tensor.nbytes + 64, bool)
    for canary in (0x00, 0xFF):
        feed(executor, graph, 0)
        executor.feed("train", "x")[...] = values.reshape(tensor.shape)
        space = np.frombuffer(executor._tiers.spaces["host"], np.uint8)
        space = space[copy.offset : copy.offset + written.size]
        space[...] = canary
        assert executor.run("train")
        written |= space != canary
        code = space.tobytes()
        del space
    (entry,) = executor.memory_report("train").codings
    ratio = Fraction(16 * eighths + 4, 128) if eighths < 8 else 1
    expected = int(tensor.nbytes * ratio) + 64 * (eighths < 8)
    assert (entry.used_bytes, entry.raw) == (expected, 2 * (eighths == 8))
    assert written[:expected].all()
    assert not written[expected + 64 :].any()
    found = np.frombuffer(code, np.float32)[:words].copy()
    if eighths < 8:
        decode_bytes("zvc", code[:expected], found)
    assert found.tobytes() == np.maximum(values, 0).tobytes()
    executor.close()


def test_lanes_encode_to_tiers_that_can_be_touched_alone(device):
    with pytest.raises(PlanError, match=r"encode copies to tier 'file'; .* host"):
        load(device, chain(), Swapping(("file",), lane="zvc"))


def test_version_one_runs_too(device):
    graph = NETWORKS["chain"]()

    def sent(graph, limit_bytes=None):
        text = Swapping(placed=False)(graph).to_json()
        assert "memcfg.plan/1" in text
        return planning.Plan.from_json(text)

    executor = load(device, graph, sent)
    assert trained(executor, graph) == truth(device, "chain")
    executor.close()


def test_version_two_travels(device):
    graph = NETWORKS["chain"]()

    def sent(graph, limit_bytes=None):
        plan = Swapping()(graph)
        text = plan.to_json()
        assert "memcfg.plan/2" in text
        assert planning.Plan.from_json(text) == plan
        return planning.Plan.from_json(text)

    executor = load(device, graph, sent)
    assert trained(executor, graph) == truth(device, "chain")
    executor.close()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("host", "moon", "no tier 'moon' to swap to; it has host, file")],
)
def test_tiers_that_there_are_not_are_refused(old, new, words, device):
    graph = chain()

    def elsewhere(graph, limit_bytes=None):
        plan = Swapping((old,))(graph)
        actions = [
            replace(a, tier=new)
            if isinstance(a, planning.SwapOut | planning.SwapIn)
            else a
            for a in plan.actions
        ]
        return replace(plan, actions=tuple(actions))

    with pytest.raises(PlanError, match=words):
        load(device, graph, elsewhere)
    assert device.pool.stats().current_bytes == 0


def test_codecs_that_there_are_not_are_refused(device):
    def unknown(graph, limit_bytes=None):
        plan = Swapping(("zvc",))(graph)
        actions = [
            replace(a, codec="jpeg") if isinstance(a, planning.Encode) else a
            for a in plan.actions
        ]
        return replace(plan, actions=tuple(actions))

    with pytest.raises(PlanError, match=r"has no codec 'jpeg'; it has .*zvc"):
        load(device, chain(), unknown)


def test_a_mask_is_all_that_the_gradient_of_a_relu_reads(device):
    """Of a ReLU before pooling, which remembers where its maxima were."""
    graph = NETWORKS["chain"]()
    policy = Swapping(("mask",), only=("relu_3",))
    executor = load(device, graph, policy)
    encodings = [
        a for a in executor.plans["train"].actions if isinstance(a, planning.Encode)
    ]
    assert len(encodings) == 1
    encoded = graph.tensors[encodings[0].tensor]
    assert (encoded.name, encoded.nbytes) == ("relu_3", 32 * encodings[0].nbytes)
    assert trained(executor, graph) == truth(device, "chain")
    executor.close()


@pytest.mark.parametrize(
    ("codec", "tolerance"),
    [("fp16", 0.001), ("fp10", 0.04), ("fp8", 0.1), ("group8", 0.25), ("group4", 1)],
)
def test_lossy_codecs_change_no_more_than_the_gradients(codec, tolerance, device):
    """Values are encoded behind their forward uses: the first loss has its bits."""
    graph = NETWORKS["chain"]()
    executor = load(device, graph, Swapping((codec,)))
    losses, after = trained(executor, graph, 1)
    executor.close()
    plain = load(device, graph, planning.keep_all())
    before = state(plain)
    true_losses, true = trained(plain, graph, 1)
    plain.close()
    assert losses == true_losses
    assert after != true
    for name, bytes_before in before.items():
        first, exact, found = (
            np.frombuffer(each, np.float32)
            for each in (bytes_before, true[name], after[name])
        )
        moved = np.abs(exact - first).max()
        assert np.abs(found - exact).max() <= tolerance * moved


def test_lossy_codecs_are_refused_unless_a_plan_lists_them(device):
    def silent(graph, limit_bytes=None):
        return replace(Swapping(("fp8",))(graph), lossy=())

    with pytest.raises(PlanError, match="'fp8', which is lossy and not among"):
        load(device, chain(), silent)
    assert device.pool.stats().current_bytes == 0


def test_a_folder_that_is_missing_changes_nothing(device, monkeypatch, tmp_path):
    graph = chain(batch=8)
    executor = load(device, graph, planning.share())
    trained(executor, graph)
    before = state(executor)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        executor.load({"train": chain(batch=2)}, Swapping(("file",)), {})
    assert state(executor) == before
    assert executor.plans["train"].method == "share"
    executor.close()


def test_programs_share_the_tiers(device):
    small, large = chain(batch=2), chain(batch=8)
    executor = Executor(device, name="model")
    policy = Swapping(("host", "file"))
    values = random_values(small)
    executor.load({"train": small}, policy, values)
    executor.load({"train": large, "small": small}, policy, {})
    feed(executor, large, 0)
    assert executor.run("train")
    executor.load({"train": small}, planning.share(), {})
    if device.kernels.name != "reference":  # which saves the state there
        assert executor._tiers.spaces == {}
    trained(executor, small)
    executor.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_parent_and_child_train_apart(device):
    """Each has lanes and a file of its own."""
    graph = chain()
    expected = truth(device, "chain")
    executor = load(device, graph, POLICIES["both"])
    executor._programs["train"]._loop.set_jitter(1, 500)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if trained(executor, graph) == expected else 1)
        finally:
            os._exit(2)
    assert trained(executor, graph) == expected
    assert os.waitpid(child, 0)[1] == 0
    executor.close()

"""Plans by the bandwidth that lanes have on the device: measured, kept, told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from internals import TIMED_STEPS, forget_warnings, replace_least

import memcfg as mc
from memcfg.cli import main
from memcfg.devices.cpu import CpuDevice
from memcfg.graph import NOMINAL_COPY, Tier
from memcfg.plan import (
    SwapIn,
    SwapOut,
    auto,
    cdma,
    meng_swap,
    share,
    simulate,
    validate,
    vdnn_all,
)

nn = mc.nn
BATCH = 16
X = np.random.default_rng(0).standard_normal((BATCH, 8, 8, 3)).astype(np.float32)
Y = np.arange(BATCH) % 5
RATE = 3e9  # bytes a second
TIMED = TIMED_STEPS * 8 + 1  # steps that compare plans, and the next


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Nothing is known yet."""
    forget_warnings(monkeypatch)
    found = tmp_path / "seconds"
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(found))
    return found


@pytest.fixture
def rate(monkeypatch):
    """Have lanes copy so many bytes a second; list what is measured."""
    asked = []

    def told(self, tier):
        asked.append(tier)
        return RATE

    monkeypatch.setattr(CpuDevice, "copy_rate", told)
    return asked


def configured(**options):
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(**options)
    mc.config.set_logical_device_configuration(cpu, [wanted])
    return mc.config.logical_device()


def compiled(memory="auto", times="measured", activation="tanh"):
    nn.set_random_seed(0)
    layers = [nn.Conv2D(8, 3, padding="same", activation=activation) for _ in range(6)]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((8, 8, 3)), *layers, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=memory, times=times)
    return model


# -- what policies are given ------------------------------------------------------


def test_policies_are_given_what_was_measured(rate):
    configured(spill_to="host", spill_limit="1GiB")
    (tier,) = compiled().graph(BATCH).tiers
    assert tier == Tier("host", RATE, 2**30, is_stated=True, is_measured=True)
    assert set(rate) == {"host"}


def test_a_stated_bandwidth_is_an_upper_bound(rate):
    configured(spill_to="host", lane_bandwidth="1GB")
    (tier,) = compiled().graph(BATCH).tiers
    assert (tier.bytes_per_second, tier.is_measured) == (1e9, False)
    configured(spill_to="host", lane_bandwidth="9GB")
    (tier,) = compiled().graph(BATCH).tiers
    assert (tier.bytes_per_second, tier.is_measured) == (RATE, True)


def test_of_a_device_that_was_told_nothing_it_is_the_tier_that_plans_swap_to(rate):
    host, file = compiled().graph(BATCH).tiers
    assert (host.name, host.bytes_per_second, host.is_stated) == ("host", RATE, False)
    assert (file.bytes_per_second, file.is_measured) == (NOMINAL_COPY["file"], False)
    assert set(rate) == {"host"}


def test_nothing_is_measured_unless_that_is_asked_for(rate):
    configured(spill_to="host")
    (tier,) = compiled(times="nominal").graph(BATCH).tiers
    assert (tier.bytes_per_second, tier.is_measured) == (NOMINAL_COPY["host"], False)
    assert not rate


def test_what_could_not_be_measured_is_nominal(monkeypatch, tmp_path):
    monkeypatch.setattr(CpuDevice, "copy_rate", lambda self, tier: 0.0)
    for where, name in (("host", "host"), (str(tmp_path), "file")):
        configured(spill_to=where)
        (tier,) = compiled().graph(BATCH).tiers
        assert (tier.bytes_per_second, tier.is_measured) == (NOMINAL_COPY[name], False)


def test_waits_are_those_of_the_measured_lane(rate):
    configured(spill_to="host")
    model = compiled(meng_swap())
    graph = model.graph(BATCH)
    limit = share()(graph).peak_bytes * 3 // 4
    plan = meng_swap()(graph, limit)
    validate(graph, plan)
    assert plan.predicted.moved_bytes
    found = simulate(graph, plan, {"host": RATE})
    assert plan.elapsed_seconds == pytest.approx(found.elapsed_seconds)
    assert plan.summary.copies_per_second == RATE
    assert "3 GB/s measured, per lane and direction" in " ".join(str(plan).split())
    assert share()(graph).summary.copies_per_second == 0  # it copies nothing
    assert "GB/s" not in str(share()(graph))


# -- how it is measured -----------------------------------------------------------


def test_a_full_disk_leaves_it_unknown(monkeypatch, tmp_path):
    def full(self, tier, nbytes, *, tag):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(CpuDevice, "tier_memory", full)
    device = configured(spill_to=str(tmp_path))
    assert device.copy_rate("file") == 0.0
    assert device.pool.stats().current_bytes == 0


def test_in_earnest(tmp_path):
    for where in ("host", str(tmp_path)):
        device = configured(spill_to=where)
        (name,) = device.tiers
        assert device.copy_rate(name) > 0
        assert device.pool.stats().current_bytes == 0


# -- what steps say ---------------------------------------------------------------


@pytest.fixture
def slower(monkeypatch):
    """Copies take a nanosecond a byte out, four in, and are thought to take nothing."""
    monkeypatch.setattr(CpuDevice, "copy_rate", lambda self, tier: 1e12)

    def least(program, seconds):
        for index, action in enumerate(program.spec.plan.actions):
            if isinstance(action, SwapOut | SwapIn):
                each = 1e-9 if isinstance(action, SwapOut) else 4e-9
                nbytes = program.graph.tensors[action.tensor].nbytes
                seconds[program.instructions[index]] = each * nbytes
        return seconds

    replace_least(monkeypatch, least)
    return 0.25e9  # bytes a second of the slower direction


def test_what_copies_took_in_steps_counts_more(slower):
    configured(spill_to="host")
    limit = compiled(share()).plan(BATCH).peak_bytes * 3 // 4
    configured(spill_to="host", memory_limit=f"{limit}B")
    model = compiled(auto())
    losses = [model.train_on_batch(X, Y)]
    first = model.memory_plan
    assert first.summary.copies_per_second == 1e12
    assert first.predicted.moved_bytes
    while model.memory_plan.summary.recosted is None:
        assert len(losses) < TIMED
        losses.append(model.train_on_batch(X, Y))
    graph, plan = model.graph(BATCH), model.memory_plan
    assert graph.tiers[0].bytes_per_second == pytest.approx(slower)
    assert graph.tiers[0].is_measured
    found = simulate(graph, first, {"host": slower}).elapsed_seconds
    assert found > simulate(graph, first, {"host": 1e12}).elapsed_seconds
    told = plan.summary.recosted
    known = told.replaced_seconds if told.replaced else plan.elapsed_seconds
    assert known == pytest.approx(found)
    wanted = slower if plan.predicted.moved_bytes else 0
    assert plan.summary.copies_per_second == pytest.approx(wanted)
    weights = model.get_weights()
    model.close()
    configured()
    nominal = compiled(share(), "nominal")
    assert losses == [nominal.train_on_batch(X, Y) for _ in losses]
    np.testing.assert_equal(weights, nominal.get_weights())


def test_encoded_copies_do_not_tell_a_bandwidth(slower, monkeypatch):
    """Which bytes they were is not known of them."""
    configured(spill_to="host")
    model = compiled(cdma(vdnn_all(), density=0.1), activation="relu")
    model.train_on_batch(X, Y)
    (program,) = model._session.executor._programs.values()
    moves = [
        action
        for action in program.spec.plan.actions
        if isinstance(action, SwapOut | SwapIn)
    ]
    coded = {a.tensor for a in moves if isinstance(a, SwapOut) and a.codec is not None}
    plain = [a for a in moves if isinstance(a, SwapOut) and a.tensor not in coded]
    assert coded
    assert plain
    took = [1e-3] * len(program._loop)
    monkeypatch.setattr(program, "least_of_instructions", lambda: took)
    nbytes = sum(program.graph.tensors[a.tensor].nbytes for a in plain)
    assert program._copied() == pytest.approx({("host",): 1e-3 * len(plain) / nbytes})


# -- where it is told -------------------------------------------------------------


def test_commands_tell_it(rate, capsys, tmp_path):
    words = ["plan", "lenet_300_100", "--batch", "4", "--method", "share", "--run"]
    assert main([*words, "--times", "measured"]) == 0
    assert "  copies            3 GB/s, each way, measured\n" in capsys.readouterr().out
    path = tmp_path / "found.json"
    words = ["compare", "--methods", "share", "--networks", "lenet_300_100"]
    words += ["--output", str(path), "--output", str(tmp_path / "found.md")]
    assert main([*words, "--times", "measured"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "A lane to the host copies 3 GB/s here, each way." in told
    assert json.loads(path.read_text())["networks"][0]["copies_per_second"] == RATE
    assert "copies 3 GB/s, each way" in (tmp_path / "found.md").read_text()
    assert main(words) == 0
    assert "A lane" not in capsys.readouterr().out
    assert json.loads(path.read_text())["networks"][0]["copies_per_second"] is None

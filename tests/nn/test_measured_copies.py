"""Plans by the bandwidth that lanes have on the device: measured, kept, told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from internals import forget_warnings

import memcfg as mc
from memcfg.cli import main
from memcfg.devices import _copy_times
from memcfg.devices.cpu import CpuDevice, _device
from memcfg.errors import KernelError
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
from memcfg.runtime._kernels import Copied
from memcfg.runtime._program import _TIMED_STEPS, Program

nn = mc.nn
BATCH = 16
X = np.random.default_rng(0).standard_normal((BATCH, 8, 8, 3)).astype(np.float32)
Y = np.arange(BATCH) % 5
RATE = 3e9  # bytes a second
TIMED = _TIMED_STEPS * 8 + 1  # steps that compare plans, and the next


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
    assert "copies 3 GB/s measured, of a lane each way" in " ".join(str(plan).split())
    assert share()(graph).summary.copies_per_second == 0  # it copies nothing
    assert "GB/s" not in str(share()(graph))


# -- how it is measured -----------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Have copies out take a nanosecond a byte, and copies in two; list the bytes."""
    sizes = []
    real = _copy_times._Copies._seconds

    def noted(self, pool, nbytes):
        sizes.append(nbytes)
        taken = iter([1e-9 * nbytes, 2e-9 * nbytes])

        def shortest(run):
            run()
            return next(taken)

        monkeypatch.setattr(_copy_times, "_shortest", shortest)
        return real(self, pool, nbytes)

    monkeypatch.setattr(_copy_times._Copies, "_seconds", noted)
    return sizes


def test_the_slower_direction_counts(clock):
    device = configured(spill_to="host")
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock == [64 << 20]
    assert device.pool.stats().current_bytes == 0


@pytest.mark.parametrize(
    ("options", "nbytes"),
    [
        ({"memory_limit": "20MiB"}, 16 << 20),
        ({"memory_limit": "1.5MiB"}, 1 << 20),
        ({"spill_limit": "8MiB"}, 8 << 20),
        ({"spill_limit": "9MiB", "memory_limit": "5MiB"}, 4 << 20),
    ],
)
def test_as_many_bytes_are_copied_as_there_is_room_for(clock, options, nbytes):
    device = configured(spill_to="host", **options)
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock[-1] == nbytes
    assert device.pool.stats().current_bytes == 0


def test_bytes_of_a_tier_that_others_have_reserved_are_not_taken(clock):
    class Other:
        """Another program's owner."""

    device, other = configured(spill_to="host", spill_limit="16MiB"), Other()
    device.tier_limit.reserve(other, {"host": 9 << 20})
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock == [16 << 20, 8 << 20, 4 << 20]
    device.tier_limit.reserve(other, {"host": 16 << 20})  # nothing else is left there


def test_without_room_nothing_is_known_and_nothing_kept(clock, folder):
    device = configured(spill_to="host", memory_limit="512KiB")
    assert device.copy_rate("host") == 0.0
    assert not folder.exists()
    mc.config.set_memory_limit("CPU:0", "4MiB")
    assert device.copy_rate("host") == pytest.approx(0.5e9)


def test_a_full_disk_leaves_it_unknown(monkeypatch, tmp_path):
    def full(self, tier, nbytes, *, tag):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(CpuDevice, "tier_memory", full)
    device = configured(spill_to=str(tmp_path))
    assert device.copy_rate("file") == 0.0
    assert device.pool.stats().current_bytes == 0


def test_a_lane_is_measured_once_on_a_machine(clock, monkeypatch, tmp_path):
    for _ in range(2):  # the second device reads it from the disk
        device = configured(spill_to="host", lane_bandwidth="1GB")
        assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert len(clock) == 1
    for name in ("one", "two"):  # folders of one file system
        (tmp_path / name).mkdir()
        device = configured(spill_to=str(tmp_path / name))
        assert device.copy_rate("file") == pytest.approx(0.5e9)
    assert len(clock) == 2
    monkeypatch.setattr(_device, "filesystem_of", lambda folder: "another disk")
    assert configured(spill_to=str(tmp_path)).copy_rate("file") > 0
    assert len(clock) == 3


def test_a_stated_bandwidth_does_not_slow_the_measurement(clock):
    """Copies of a lane of 1 KB a second would take a day."""
    device = configured(spill_to="host", lane_bandwidth="1KB")
    assert device.copy_rate("host") == pytest.approx(0.5e9)


def test_in_earnest(tmp_path):
    for where in ("host", str(tmp_path)):
        device = configured(spill_to=where)
        (name,) = device.tiers
        assert device.copy_rate(name) > 0
        assert device.pool.stats().current_bytes == 0


MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /tmp rw - tmpfs tmpfs rw
24 23 8:1 / /tmp/a\040disk rw - xfs /dev/sda1 rw
odd
"""


@pytest.mark.parametrize(
    ("folder_of", "told"),
    [
        ("/home/me", "/ ext4 /dev/vda"),
        ("/tmp", "/tmp tmpfs tmpfs"),
        ("/tmpfiles", "/ ext4 /dev/vda"),
        ("/tmp/a disk/b", "/tmp/a disk xfs /dev/sda1"),
    ],
)
def test_a_file_system_is_that_of_the_innermost_mount(
    monkeypatch, tmp_path, folder_of, told
):
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    monkeypatch.setattr(_copy_times, "_MOUNTS", path)
    assert _copy_times.filesystem_of(folder_of) == told
    monkeypatch.setattr(_copy_times, "_MOUNTS", tmp_path / "none")
    assert _copy_times.filesystem_of(folder_of) == ""


# -- what steps say ---------------------------------------------------------------


@pytest.fixture
def slower(monkeypatch):
    """Copies take a nanosecond a byte out, four in, and are thought to take nothing."""
    monkeypatch.setattr(CpuDevice, "copy_rate", lambda self, tier: 1e12)
    real = Program.least_of_instructions

    def least(self):
        seconds = real(self)
        for index, action in enumerate(self.spec.plan.actions):
            if isinstance(action, SwapOut | SwapIn):
                each = 1e-9 if isinstance(action, SwapOut) else 4e-9
                nbytes = self.graph.tensors[action.tensor].nbytes
                seconds[self.instructions[index]] = each * nbytes
        return seconds

    monkeypatch.setattr(Program, "least_of_instructions", least)
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
    assert program._copied() == pytest.approx(
        {Copied("host"): 1e-3 * len(plain) / nbytes}
    )


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


def test_lanes_that_are_measured_do_not_wait_for_ever(tmp_path, monkeypatch):
    """A disk that hangs is asked first when lanes are measured."""
    made = []

    class Stalled:
        def __init__(self, arena, spaces, lanes):
            made.append(lanes)

        def copy(self, *_):
            pass

        def run(self):
            raise KernelError("a copy has not got on for 5 s")

    monkeypatch.setattr("memcfg.devices.cpu._device.Program", Stalled)
    monkeypatch.setattr(
        "memcfg.devices.cpu._device.Lane", lambda rate, timeout: (rate, timeout)
    )
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(
        spill_to=str(tmp_path), lane_timeout=5
    )
    mc.config.set_logical_device_configuration(cpu, [wanted])
    assert mc.config.logical_device().copy_rate("file") == 0.0
    assert made == [[(None, 5.0)] * 2]  # once, not for smaller sizes again

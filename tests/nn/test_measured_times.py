"""Plans by the seconds that ops take on the device: measured, kept, told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from internals import (
    cheap_ops,
    forget_warnings,
    replace_writing,
    set_seconds_by_sizes,
)

import memcfg as mc
from memcfg.cli import main
from memcfg.devices.cpu import CpuDevice
from memcfg.errors import GraphError
from memcfg.graph import Graph
from memcfg.plan import Compute, auto, share, simulate, validate

nn = mc.nn
CACHE = "MEMCFG_ALGORITHM_CACHE"
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
Y = np.arange(4) % 3


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Nothing is known yet."""
    forget_warnings(monkeypatch)
    found = tmp_path / "seconds"
    monkeypatch.setenv(CACHE, str(found))
    monkeypatch.setattr(CpuDevice, "copy_rate", lambda self, tier: 0.0)
    return found


@pytest.fixture
def clock(monkeypatch):
    """Have a run take a microsecond a byte of its operands; list what has run."""
    calls = []

    def seconds_of(sizes):
        calls.append(tuple(sizes))
        return 1e-6 * sum(calls[-1])

    set_seconds_by_sizes(monkeypatch, seconds_of)
    return calls


def compiled(times="measured", **options):
    nn.set_random_seed(0)
    layers = [nn.Dense(16, activation="relu") for _ in range(5)]
    model = nn.Sequential([nn.Input((16,)), *layers, nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, times=times, **options)
    return model


def operand_bytes(graph, op):
    return sum(graph.tensors[t].nbytes for t in (*op.inputs, *op.outputs))


def test_policies_are_given_what_was_measured(clock):
    model = compiled()
    graph = model.graph(4)
    assert graph.times == "measured"
    for op in graph.ops:
        assert op.seconds == pytest.approx(1e-6 * operand_bytes(graph, op))
        assert op.seconds == op.algorithms[0].seconds
        for other in op.algorithms[1:]:  # it is not known to be faster
            assert other.seconds >= op.seconds
    plan = model.plan(4)
    computed = [a.op for a in plan.actions if isinstance(a, Compute)]
    whole = sum(graph.ops[op].seconds for op in computed)
    assert plan.predicted.seconds == pytest.approx(whole)
    assert "measured time" in str(plan)
    assert "nominal" not in str(plan)
    validate(graph, plan)


def test_nothing_is_measured_unless_that_is_asked_for(clock, folder):
    model = compiled("nominal")
    model.train_on_batch(X, Y)
    assert model.graph(4).times == "nominal"
    assert "nominal time" in str(model.memory_plan)
    assert not clock
    assert not folder.exists()


def test_an_op_is_measured_once(clock):
    compiled().plan(4)
    shapes = len(clock)
    assert shapes
    assert compiled().plan(4).summary.times == "measured"
    mc.config.reset()  # and so it is on a new device: the disk knows
    compiled().plan(4)
    assert len(clock) == shapes
    compiled().plan(8)
    assert len(clock) > shapes


def test_without_the_disk_it_is_once_a_process(clock, monkeypatch, folder):
    monkeypatch.setenv(CACHE, "none")
    compiled().plan(4)
    shapes = len(clock)
    compiled().plan(4)
    assert len(clock) == shapes
    assert not folder.exists()


def test_damaged_files_are_told_of_once_and_measured_anew(clock, folder):
    compiled().plan(4)
    shapes = len(clock)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    mc.config.reset()
    with pytest.warns(RuntimeWarning, match="is damaged") as told:
        compiled().plan(4)
    assert len(told) == 1
    assert len(clock) == 2 * shapes
    mc.config.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled().plan(4)
    assert len(clock) == 2 * shapes


def test_a_full_disk_is_told_of_once_and_plans_go_on(clock, monkeypatch):
    def full(path, parts, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    replace_writing(monkeypatch, full)
    with pytest.warns(RuntimeWarning, match="No space left") as told:
        plan = compiled().plan(4)
    assert len(told) == 1
    assert plan.summary.times == "measured"
    assert clock


PROGRAM = """
import memcfg as mc
nn = mc.nn
model = nn.Sequential([nn.Input((16,)), nn.Dense(8, activation="relu"), nn.Dense(3)])
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, times="measured")
print([op.seconds for op in model.graph(4).ops])
"""


def test_several_processes_measure_at_once(folder):
    """In earnest; who comes later reads what one of them has written."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM]
    if os.environ.get("MEMCFG_KERNELS", "auto") == "auto":
        command = [sys.executable, "-c", PROGRAM]  # perhaps there is no oneDNN
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert all(float(each) > 0 for each in out.decode().strip("[]\n").split(","))
    later = [subprocess.check_output(command, timeout=60) for _ in range(2)]
    assert later[0] == later[1]
    assert all(path.suffix == ".algorithms" for path in folder.iterdir())


def test_results_are_the_same_bits():
    found = []
    for times in ("nominal", "measured"):
        model = compiled(times, memory=share())
        nbytes = model.plan(4).peak_bytes
        model.close()
        mc.config.set_memory_limit("CPU:0", nbytes - 64)  # some is computed again
        model = compiled(times)
        losses = [model.train_on_batch(X, Y) for _ in range(3)]
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes < nbytes
        found.append((losses, model.get_weights()))
        model.close()
        mc.config.set_memory_limit("CPU:0", None)
    np.testing.assert_equal(found[0], found[1])


def test_what_the_pool_has_no_room_for_is_scaled(clock, monkeypatch):
    """The nominal seconds, as many times slower as the ops that were measured."""
    nominal = compiled("nominal").graph(4)
    sizes = [operand_bytes(nominal, op) for op in nominal.ops]
    largest = max(sizes)
    set_seconds_by_sizes(monkeypatch, lambda given: _unless(largest, given))
    measured = compiled().graph(4)
    pairs = list(zip(nominal.ops, measured.ops, sizes, strict=True))
    known = [(a.seconds, b.seconds) for a, b, size in pairs if size < largest]
    factor = sum(b for _, b in known) / sum(a for a, _ in known)
    for a, b, size in pairs:
        if size == largest:
            assert b.seconds == pytest.approx(factor * a.seconds)


def _unless(largest, sizes):
    total = sum(sizes)
    return 0.0 if total == largest else 1e-6 * total


def test_what_is_cheap_does_not_depend_on_it(clock):
    measured, nominal = compiled().graph(4), compiled("nominal").graph(4)
    assert cheap_ops(measured) == cheap_ops(nominal)
    assert cheap_ops(nominal)


@pytest.mark.parametrize("times", ["real", "Measured", None, 1])
def test_other_times_are_refused(times):
    model = compiled("measured")
    with pytest.raises((TypeError, ValueError), match="times"):
        compiled(times)
    with pytest.raises(GraphError, match="times must be one of nominal, measured"):
        Graph("none", (), (), times="real")
    assert model.plan(4).summary.times == "measured"


def test_where_nothing_is_planned_it_is_refused():
    with pytest.raises(ValueError, match="'measured' has nothing to plan"):
        compiled(training_workspace_mode="none", inference_workspace_mode="none")


def test_a_simulated_device_has_no_times(monkeypatch):
    monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", "TPU:1:1GiB")
    with mc.device("TPU:0"):
        model = compiled()
    with pytest.raises(RuntimeError, match=r"is simulated.*times='nominal'"):
        model.plan(4)


def test_a_saved_model_keeps_it(clock, tmp_path):
    model = compiled()
    model.train_on_batch(X, Y)
    model.save(tmp_path / "m.memcfg")
    loaded = nn.models.load_model(tmp_path / "m.memcfg")
    assert loaded.plan(4).summary.times == "measured"
    assert loaded.train_on_batch(X, Y) == model.train_on_batch(X, Y)


def test_a_plan_of_another_policy_is_told_apart(clock):
    graph = compiled().graph(4)
    for policy in (auto(), share()):
        plan = policy(graph, None)
        assert plan.summary.times == "measured"
        assert simulate(graph, plan).seconds == pytest.approx(plan.predicted.seconds)
    assert Graph.from_json(graph.to_json()).times == "nominal"  # it says nothing of it


def test_the_command_plans_by_them(capsys, clock):
    words = ["plan", "lenet_300_100", "--batch", "4", "--method", "share"]
    assert main([*words, "--times", "measured"]) == 0
    assert "measured time" in capsys.readouterr().out
    assert clock
    assert main(words) == 0
    assert "nominal time" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--graph", "g.json", "--times", "measured"])
    assert "--times, --ladder and --run need a network" in capsys.readouterr().err

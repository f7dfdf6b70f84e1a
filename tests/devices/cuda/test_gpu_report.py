"""The report on a GPU, at a small size, on the driver's stand-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cudnn_stand_in
import gpu_checks
import gpu_networks
import gpu_profile
import gpus
import numpy as np
import pytest
from internals import residual_network
from scripts import script

from memcfg import ops

gpu_report = script("gpu_report")
ABI = Path(__file__).parents[3] / "_native/include/memcfg/cuda_abi.h"


@pytest.fixture
def gpu(monkeypatch):
    gpus.find_stand_in(monkeypatch)
    monkeypatch.setattr(gpu_checks, "SMALL", True)
    monkeypatch.setattr(gpu_checks, "SLACK", 0)  # there is nothing but pools


# What it has not: pycuda, and tests for a GPU. PyTorch with CUDA may be missing.
ALONE = [name for name in gpu_checks.CHECKS if name not in ("one_context", "tests")]


@pytest.mark.parametrize("name", ALONE)
def test_a_check_holds_what_is_not_time(gpu, name):
    found = gpu_report.run_here(name)
    assert json.loads(json.dumps(found)) == found
    assert found["goals"]
    for goal in found["goals"]:
        assert goal["held"] or goal["of_time"] or goal["why"], goal
    report = {"machine": gpu_report.machine(), "checks": {name: {"ok": True, **found}}}
    assert gpu_report.is_right(report)
    assert len(gpu_report.table(report).splitlines()) >= 6 + len(found["goals"])


def test_a_leak_is_found(gpu, monkeypatch):
    pool, held = gpu_checks.device().pool, []
    close = gpu_checks.nn.Model.close

    def leak(model):
        held.append(pool.allocate(64))
        close(model)

    monkeypatch.setattr(gpu_checks.nn.Model, "close", leak)
    goals = {g["what"]: g for g in gpu_report.run_here("endurance")["goals"]}
    lost = goals.pop("more in the pool after 2 models made and closed")
    assert (lost["value"], lost["held"]) == (2 * 64, False)
    assert all(goal["held"] for goal in goals.values())
    held.clear()


def test_plans_with_and_without_a_bias_are_compared(gpu, monkeypatch):
    where = gpus.made(gpus.fresh(load_convolutions=cudnn_stand_in.StandIn().load))
    monkeypatch.setattr(gpu_checks, "device", lambda: where)
    found = gpu_report.run_here("biases")
    assert all(goal["value"] > 0 and goal["of_time"] for goal in found["goals"])
    for times in found["notes"].values():
        assert {name.endswith("+bias") for name in times} == {True, False}


def test_a_limit_that_does_not_hold_is_found(gpu, monkeypatch):
    limit_to = gpu_checks.limit_to
    monkeypatch.setattr(gpu_checks, "limit_to", lambda mib: limit_to(4 * mib))
    goals = gpu_report.run_here("limit")["goals"]
    assert [goal["held"] for goal in goals] == [True, False, True, True]


class TestTable:
    def report(self, **checks):
        return {"machine": {"gpu": "A card", "date": "2030-01-01"}, "checks": checks}

    def test_each_goal_has_a_row(self):
        goals = [
            gpu_checks.Goal("ratio", 0.95, ">=", 1.0, "x", of_time=True),
            gpu_checks.Goal("bytes", 65.0, "<=", 64, "B"),
            gpu_checks.Goal("peak", 0.5, "<=", 0.8),
            gpu_checks.Goal("pairs", None, "<=", 1.0, why="no | PyTorch"),
        ]
        rows = [{**vars(goal), "held": goal.held} for goal in goals]
        steps = {"demo": {"batch": 2, "ms": 1234567.0}, "VGG-like": {"batch": 4}}
        report = self.report(
            steps={"ok": True, "goals": rows, "notes": {"steps": steps}},
            limit={"ok": False, "why": "first\nlast | line", "seconds": 1.0},
        )
        assert gpu_report.table(report).splitlines()[4:] == [
            "| check | goal | measured | wanted | |",
            "| --- | --- | ---: | ---: | --- |",
            "| steps | ratio | 0.95 x | ≥ 1 x | **lost** |",
            "| steps | bytes | 65 B | ≤ 64 B | **FAILED** |",
            "| steps | peak | 0.5 | ≤ 0.8 | held |",
            "| steps | pairs |  | ≤ 1 | not measured: no / PyTorch |",
            "| limit | | | | **FAILED**: last / line |",
            "",
            "| steps | batch | ms |",
            "| --- | ---: | ---: |",
            "| demo | 2 | 1,234,567 |",
            "| VGG-like | 4 |  |",
        ]

    @pytest.mark.parametrize(
        ("checks", "right"),
        [
            ({"ok": True, "goals": [{"held": None, "of_time": False}]}, True),
            ({"ok": True, "goals": [{"held": False, "of_time": True}]}, True),
            ({"ok": True, "goals": [{"held": False, "of_time": False}]}, False),
            ({"ok": False, "why": "it broke"}, False),
        ],
    )
    def test_only_time_may_be_lost(self, checks, right):
        assert gpu_report.is_right(self.report(one=checks)) is right

    def test_it_is_written_after_each_check(self, gpu, tmp_path, monkeypatch, capsys):
        passed = {"ok": True, "goals": [], "notes": {}, "seconds": 1.0}
        failed = {"ok": False, "why": "it broke", "seconds": 2.0}
        written = []

        def run(name, _):
            if name == "machine":
                return {"ok": True, **gpu_report.machine(), "seconds": 1.0}
            written.append(len(list(tmp_path.iterdir())))
            return failed if name == "copies" else passed

        monkeypatch.setattr(gpu_report, "run_apart", run)
        chosen = ["--only", "limit", "copies", "--output", str(tmp_path)]
        assert gpu_report.main(chosen) == 1
        assert written == [0, 2]
        shown = capsys.readouterr().out
        assert "| copies | | | | **FAILED**: it broke |" in shown
        paths = sorted(tmp_path.iterdir())
        assert [path.suffix for path in paths] == [".json", ".md"]
        assert paths[0].name.startswith("cuda-gpu-of-a-test-")
        report = json.loads(paths[0].read_text())
        assert list(report["checks"]) == ["limit", "copies"]
        assert paths[1].read_text() in shown


def test_a_check_that_takes_too_long_ends_with_what_it_has_started(tmp_path):
    script, word = tmp_path / "check.py", tmp_path / "word"
    late = f"import time; time.sleep(3); open({str(word)!r}, 'w')"
    script.write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {late!r}], capture_output=True)\n"
    )
    found = gpu_report.run_apart("tests", 1, script)
    assert found == {"ok": False, "why": "more than 1 s", "seconds": 1}
    time.sleep(4)
    assert not word.exists()


def test_a_hanging_check_leaves_time_to_others():
    assert gpu_report.limit_of(480) == 240
    assert gpu_report.limit_of(90) == 60
    assert gpu_report.limit_of(20) == 20
    assert gpu_report.limit_of(-3) == 1


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os; os.abort()", "it ended with -6"),
        ("print('no JSON')", "it ended with 0"),
        ("raise SystemExit('no card')", "no card\nit ended with 1"),
    ],
)
def test_a_check_that_breaks_says_how(tmp_path, source, why):
    script = tmp_path / "check.py"
    script.write_text(source)
    found = gpu_report.run_apart("limit", 60, script)
    assert not found["ok"]
    assert found["why"].endswith(why)


def test_a_driver_that_breaks_still_gives_a_report(tmp_path):
    """What loads it is another process: the report is written, and says so."""
    driver = tmp_path / "libcuda.so"
    source = 'extern "C" int cuInit(unsigned) { __builtin_abort(); }\n'
    source += "".join(
        f'extern "C" int {name}() {{ return 999; }}\n'
        for name in re.findall(
            r"FUNCTION\((\w+)", ABI.read_text(encoding="utf-8").split("#define", 1)[1]
        )
        if name not in ("cuInit", "name")
    )
    command = ["g++", "-x", "c++", "-shared", "-fPIC", "-", "-o", str(driver)]
    subprocess.run(command, input=source, text=True, check=True)
    done = subprocess.run(
        [sys.executable, gpu_report.__file__, "--only", "limit", "--output", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MEMCFG_CUDA_LIBRARY": str(driver)},
    )
    assert done.returncode == 1, done.stderr
    (path,) = tmp_path.glob("cuda-unknown-gpu-*.json")
    report = json.loads(path.read_text())
    assert "-6" in report["machine"]["why"]
    assert not report["checks"]["limit"]["ok"]


def test_what_pytest_says_is_read():
    said = "FAILED tests/a.py::test_b - assert 0\nSKIPPED [3] tests/a.py:1: needs x\n"
    done = subprocess.CompletedProcess
    last = "2 failed, 1 error, 37 passed, 3 skipped in 9.97s"
    found = gpu_checks.read_tests(done([], 1, said + last, ""))
    assert [goal.value for goal in found.goals] == [3, 37]
    assert [goal.held for goal in found.goals] == [False, True]
    assert found.notes["failed"] == ["tests/a.py::test_b"]
    assert found.notes["skipped"] == ["[3] tests/a.py:1: needs x"]
    none = gpu_checks.read_tests(done([], 4, "", "ERROR: usage"))
    assert [goal.held for goal in none.goals] == [None, False]
    assert "usage" in none.goals[0].why


class TestNetworks:
    def test_the_demo_s_is_the_demo_s(self):
        shapes = [
            [w.shape for w in model.get_weights()]
            for model in (
                residual_network(),
                gpu_networks.ours(gpu_networks.RECIPES["demo"]),
            )
        ]
        assert shapes[0] == shapes[1]

    @pytest.mark.parametrize("name", gpu_networks.RECIPES)
    def test_it_trains(self, name):
        recipe = gpu_networks.tiny(gpu_networks.RECIPES[name])
        model = gpu_networks.ours(recipe)
        loss = gpu_checks.nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        assert np.isfinite(model.train_on_batch(*gpu_networks.data(recipe)))


def test_without_a_gpu_it_says_so_and_ends():
    script = Path(gpu_report.__file__)
    environment = {k: v for k, v in os.environ.items() if k != "MEMCFG_CUDA_LIBRARY"}
    done = subprocess.run(
        [sys.executable, str(script), "--only", "digits"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "There is no GPU" in done.stdout or "| check |" in done.stdout


class TestProfile:
    def test_time_is_told_by_what_kernels_do_and_once_where_they_overlap(self):
        kernels = [
            ("memcfg_batch_moments_12ab", 0.0, 1.0),
            ("sm80_xmma_wgrad_implicit_gemm_f32", 0.5, 2.0),
            ("cudnn::nchwToNhwcKernel", 3.0, 3.5),
            ("memcfg_batch_moments_12ab", 4.0, 4.5),
            ("void unheard_of()", 4.5, 4.75),
        ]
        told = gpu_profile.table_of(kernels, 5.0, 2)
        assert told["families"] == {
            "normalisation": 750.0,
            "convolutions": 750.0,
            "turning images": 250.0,
            "other": 125.0,
        }
        assert (told["milliseconds"], told["busy"], told["gaps"]) == (2500, 1625, 875)
        assert told["launches"] == 2.5
        assert told["kernels"][0] == ["memcfg_batch_moments_12ab", 1.0, 750.0]
        table = gpu_report.profile_table("net", {"memcfg": told, "torch": told})
        assert "| normalisation | 750 | 750 |" in table
        assert "| gaps | 875 | 875 |" in table

    def test_windows_are_those_of_the_network(self):
        recipe = gpu_networks.RECIPES["ResNet-like"]._replace(batch=2)
        windows = gpu_checks.windows_of(recipe)
        model = gpu_networks.ours(recipe)
        kernels = [w.shape for w in model.trainable_weights if len(w.shape) == 4]
        found = [
            (3, 3, x[3], y[3])
            for (kind, x, y), count in windows.items()
            if kind == "conv2d"
            for _ in range(count)
        ]
        assert sorted(found) == sorted(map(tuple, kernels))
        for of in windows:
            op, attributes, inputs, outputs = gpu_checks.convolution_of(*of)
            specs = [ops.Spec(each.shape, each.dtype) for each in inputs]
            made = ops.op_type(op).infer(specs, attributes)
            assert [tuple(made[0].shape)] == [tuple(each.shape) for each in outputs]

"""The gate runs its steps in order, and holds them to their processor seconds."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / ".ci" / "gate.py"


@pytest.fixture
def gate():
    spec = importlib.util.spec_from_file_location("gate", GATE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gate"]


@pytest.fixture
def run(gate, tmp_path, monkeypatch, capfd):
    def run(steps):
        path = tmp_path / "gate.toml"
        path.write_text(f"calibration_seconds = 60\nslots = 2\n{steps}")
        monkeypatch.setattr(gate, "calibrate", lambda: 60.0)
        return gate.main(str(path)), capfd.readouterr().out

    return run


def test_steps_run_after_those_that_they_wait_for(run, tmp_path):
    status, out = run(
        f"""
        [steps.first]
        budget = 60
        run = "sleep 0.1; echo one >> {tmp_path}/order"
        [steps.second]
        after = ["first"]
        budget = 60
        slots = 2
        run = "echo two >> {tmp_path}/order"
        """
    )
    assert status == 0
    assert (tmp_path / "order").read_text() == "one\ntwo\n"
    assert "== first" in out


def test_a_failed_step_fails_the_gate_and_stops_what_waits_for_it(run):
    status, out = run(
        """
        [steps.broken]
        budget = 60
        run = "echo the reason; false; echo never"
        [steps.behind]
        after = ["broken"]
        budget = 60
        run = "true"
        [steps.apart]
        budget = 60
        run = "echo ran"
        """
    )
    assert status == 1
    assert "the reason" in out
    assert "never" not in out
    assert "broken failed with exit status 1" in out
    assert "behind did not run" in out


def test_a_step_over_its_budget_fails_the_gate(run):
    loop = "for i in range(10**6): pass"
    status, out = run(
        f"""
        [steps.slow]
        budget = 0.001
        run = '{sys.executable} -c "{loop}"'
        """
    )
    assert status == 1
    assert "over its budget" in out


def test_budgets_grow_with_the_calibration(gate, capsys):
    steps = [gate.Step("one", "true", budget=10)]
    costs = {"one": gate.Cost(0, 15.0, 15.0)}
    assert gate.report(steps, costs, scale=1.0) == [
        "one took 15 processor seconds, 5 over its budget"
    ]
    assert gate.report(steps, costs, scale=2.0) == []
    assert capsys.readouterr().out.count("one") == 2


def test_each_step_waits_for_steps_that_stand_before_it():
    steps = tomllib.loads((ROOT / ".ci" / "gate.toml").read_text())["steps"]
    names = list(steps)
    for name, step in steps.items():
        assert {*step.get("after", ())} <= {*names[: names.index(name)]}


@pytest.mark.parametrize("where", ["in the gate", "elsewhere"])
def test_ranks_without_a_launcher_fail_in_the_gate_and_are_skipped_elsewhere(
    where, pytester, monkeypatch
):
    cpu = tomllib.loads((ROOT / ".ci" / "gate.toml").read_text())["steps"]["cpu"]
    assert "REQUIRE_MPI=1" in cpu["run"]
    assert "REQUIRE_MPI\n" in (ROOT / "tox.ini").read_text()
    monkeypatch.setattr("mpi_runs.LAUNCHER", Path("/nowhere/mpiexec"))
    if where == "in the gate":
        monkeypatch.setenv("REQUIRE_MPI", "1")
    else:
        monkeypatch.delenv("REQUIRE_MPI", raising=False)
    pytester.makepyfile(
        """
        from mpi_runs import MpiRun, needs_launcher

        pytestmark = needs_launcher()

        def test_of_ranks(tmp_path):
            with MpiRun(2, "", tmp_path) as run:
                run.wait()
        """
    )
    result = pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    if where == "in the gate":
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*no /nowhere/mpiexec, and REQUIRE_MPI*"])
    else:
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(
            ['*no /nowhere/mpiexec: pip install "memcfg[[]mpi]*']
        )

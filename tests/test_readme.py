"""The README's commands and programs are the ones that are run."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_ci_runs_the_two_commands_of_the_readme():
    """The first with the wheel, of the sdist of this directory, in place of `.`."""
    first, second = blocks("bash")[0].strip().splitlines()
    assert first == 'pip install ".[demo]" && memcfg demo'
    assert second == "pip install tox && tox run -e cpu"
    commands = [line.strip() for line in CI.splitlines() if not line.startswith("#")]
    assert 'pip install "$wheel[demo]" && memcfg demo' in commands
    assert second in commands


def test_ci_runs_every_promise():
    environments = set(re.findall(r"tox run.* -e ([\w,]+)", CI))
    assert {"cpu", "reference", "lint", "types", "native", "parity"} <= {
        name for names in environments for name in names.split(",")
    }


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_program_of_the_readme_runs(tmp_path, number):
    program = blocks("python")[number]
    script = tmp_path / "program.py"
    script.write_text(program)
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert bool(run.stdout) == ("print" in program)
    for expected in re.findall(r"print\(.*\)  # (True .*)", program):
        assert expected in run.stdout


def commands() -> list[str]:
    lines = "\n".join(blocks("bash")[1:]).splitlines()
    return [line for line in lines if line.startswith("memcfg ")]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_is_one_that_exists(command):
    words = shlex.split(command, comments=True)
    run = subprocess.run(
        [sys.executable, "-m", "memcfg", words[1], "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in run.stdout


def test_the_tables_are_those_of_the_committed_results():
    module = runpy.run_path(str(ROOT / "benchmarks" / "readme_tables.py"))
    assert len(module["MARKED"].findall(README)) == README.count("<!-- table: ") > 4
    assert module["with_tables"](README) == README

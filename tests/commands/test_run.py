"""A script under a limit."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from memcfg.cli import main

COMMAND = "import sys; from memcfg.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script with ``memcfg run``."""

    def run_script(text, *arguments, limit="8MiB"):
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", COMMAND, "run", "--limit", limit]
        return subprocess.run(
            [*command, str(path), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=tmp_path,
        )

    return run_script


def test_the_script_is_the_main_program_with_its_arguments(run, tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    text = "import sys, beside; print(__name__, sys.argv[1:], beside.NAME)"
    done = run(text, "--lr", "-5", "--help", "--limit", "x")
    assert done.stdout == "__main__ ['--lr', '-5', '--help', '--limit', 'x'] beside\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_it_runs_within_the_limit(run):
    text = "import memcfg as mc; print(mc.config.get_memory_limit('CPU:0'))"
    assert run(text).stdout == f"{8 << 20}\n"


def test_the_limit_holds_until_the_process_ends(run):
    done = run(
        """
import atexit, threading
import numpy as np
import memcfg as mc

def late():
    threading.main_thread().join()
    show()

def show():
    print(mc.config.get_memory_limit("CPU:0"))

def at_exit():
    try:
        np.ones(2**23)
    except MemoryError:
        show()

threading.Thread(target=late).start()
atexit.register(at_exit)
"""
    )
    assert done.stdout == f"{8 << 20}\n" * 2
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("limit", "words"), [("64", "64 is 64 bytes"), ("90TiB", "limits nothing")]
)
def test_a_doubtful_limit_is_one_warning(run, limit, words):
    done = run("print('ran')", limit=limit)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.count(words) == 1
    assert done.stderr.count("64 bytes") + done.stderr.count("nothing") == 1


def test_what_does_not_fit_is_our_error_where_it_came_up(run):
    done = run("import numpy as np\nprint(np.ones(2**19).sum())\nnp.ones(2**23)\n")
    assert done.stdout == "524288.0\n"
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'script.py", line 3' in lines[1]
    assert "memcfg.errors.ResourceExhaustedError: A request does not fit" in done.stderr
    assert "limit 8388608 B" in done.stderr
    assert "runpy" not in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("open('nowhere')", 1, "FileNotFoundError"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('told')", 1, "told"),
        ("1 +", 1, "SyntaxError"),
        ("import memcfg as mc; mc.config.logical_device('CPU:9')", 1, "ValueError"),
    ],
)
def test_the_status_is_the_scripts(run, text, status, said):
    done = run(text)
    assert done.returncode == status
    assert said in done.stderr


def test_an_interrupt_ends_it_as_a_shell_reports(run):
    done = run("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert done.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("limit", ["much", "0", "-1"])
def test_a_wrong_limit_is_one_line(run, limit):
    done = run("pass", limit=limit)
    assert done.returncode == 2
    assert done.stderr.startswith("memcfg: error: argument --limit: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["script.py", "--limit", "8MiB"], "--limit SIZE is required, before SCRIPT: "),
        (["script.py"], "--limit SIZE is required, before SCRIPT: "),
        (["--limt", "8MiB", "script.py"], "unknown option '--limt': did you mean"),
    ],
)
def test_a_limit_that_is_not_where_it_belongs_is_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"memcfg: error: {said}")
    assert error.count("\n") == 1


def test_a_script_that_is_not_there_is_one_line(run, tmp_path):
    command = [sys.executable, "-c", COMMAND, "run", "--limit=1GiB", "nowhere.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "memcfg: error: nowhere.py: No such file or directory\n"

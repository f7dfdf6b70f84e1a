"""The gate runs those sanitizer tests that a change can affect."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


COMPILER = """#!/bin/sh
[ "$1" != --version ] || exec echo 'g++ 12.2.0'
for word; do
  case $last in -o) output=$word ;; esac
  last=$word
done
%s
printf '#!/bin/sh\\necho 1 passed, 0 failed\\n' >"$output" && chmod +x "$output"
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the sources, and a compiler whose programs pass all tests."""
    for folder in ("_native", "tests/native"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "tests/native/passed.json").unlink(missing_ok=True)
    monkeypatch.setenv("CXX", str(compiler(tmp_path)))
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    return tmp_path


def compiler(tree, does=""):
    path = tree / "g++"
    path.write_text(COMPILER % does, encoding="utf-8")
    path.chmod(0o755)
    return path


def keep(tree, *names):
    """Leave no other tests."""
    for path in (tree / "tests" / "native").glob("test_*.cpp"):
        if path.name not in names:
            path.unlink()


def run(tree, *words):
    command = ["bash", tree / "tests" / "native" / "run.sh", *words]
    return subprocess.run(command, capture_output=True, text=True)


def select(tree, *words):
    script = tree / "tests" / "native" / "select_tests.py"
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def record(tree):
    text = " ".join(select(tree, "digests"))
    (tree / "tests/native/passed.json").write_text(text, encoding="utf-8")


def change(path):
    path.write_text(path.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")


def test_a_change_selects_the_tests_that_depend_on_it(tree):
    everything = select(tree, "all")
    core = {path for path in everything if path.startswith("_native/")}
    assert core == {
        path.relative_to(tree).as_posix()
        for path in (tree / "_native" / "src").rglob("*.cpp")
    }
    record(tree)
    assert select(tree, "changed") == []

    change(tree / "_native/src/kernels/softmax.cpp")
    changed = select(tree, "changed")
    assert "tests/native/test_kernels.cpp" in changed
    assert "_native/src/kernels/softmax.cpp" in changed
    assert "tests/native/test_pool.cpp" not in changed

    change(tree / "_native/src/heap.cpp")
    changed = select(tree, "changed")
    assert {"tests/native/test_pool.cpp", "_native/src/pool.cpp"} <= {*changed}
    assert "tests/native/test_packing.cpp" not in changed


@pytest.mark.parametrize("what", ["version", "command", "flags"])
def test_another_compiler_selects_all_tests(tree, monkeypatch, what):
    keep(tree, "test_packing.cpp", "test_pool.cpp")
    record(tree)
    assert select(tree, "changed") == []
    path = tree / "g++"
    if what == "version":
        path.write_text(path.read_text().replace("12.2.0", "12.2.1"))
    elif what == "command":
        monkeypatch.setenv("CXX", f"{os.environ['CXX']} -m32")
        path.write_text(path.read_text().replace('"$1" != --', '"$2" != --'))
    else:
        monkeypatch.setenv("CXXFLAGS", "-O2")
    assert select(tree, "changed") == select(tree, "all")


def test_what_changes_while_the_tests_run_has_not_passed(tree):
    keep(tree, "test_leaves.cpp", "test_packing.cpp")
    source = tree / "tests" / "native" / "test_packing.cpp"
    compiler(tree, f"grep -q edited {source} || echo '// edited' >>{source}")
    done = run(tree, "record")
    assert done.stdout.endswith("2 passed, 0 failed\n"), done
    changed = select(tree, "changed")
    assert [path for path in changed if path.startswith("tests/")] == [
        "tests/native/test_packing.cpp"
    ]
    assert run(tree, "record").returncode == 0
    assert run(tree, "changed").stdout.splitlines()[-1] == "0 passed, 0 failed"


def test_a_test_that_cannot_be_linked_fails_and_leaves_no_record(tree):
    keep(tree, "test_leaves.cpp", "test_packing.cpp")
    compiler(
        tree, "case $output in */test_packing) echo no such symbol; exit 1 ;; esac"
    )
    done = run(tree, "record")
    assert done.returncode != 0
    assert "no such symbol" in done.stdout
    assert done.stdout.endswith("1 passed, 1 failed\n")
    assert not (tree / "tests" / "native" / "passed.json").exists()


def test_a_test_without_threads_is_not_run_under_another_sanitizer(tree):
    done = run(tree, "tsan", "test_packing.cpp")
    assert done.stdout.splitlines() == [
        "test_packing.cpp has no threads: not run under the thread sanitizer",
        "0 passed, 0 failed",
    ]
    done = run(tree, "asan", "test_packing.cpp")
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"

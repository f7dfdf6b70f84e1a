"""The gate runs those sanitizer tests that a change can affect."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tree(tmp_path):
    for folder in ("_native", "tests/native"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def select(tree, *words):
    script = tree / "tests" / "native" / "select_tests.py"
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def change(path):
    path.write_text(path.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")


def test_a_change_selects_the_tests_that_depend_on_it(tree):
    everything = select(tree, "all")
    core = {path for path in everything if path.startswith("_native/")}
    assert core == {
        path.relative_to(tree).as_posix()
        for path in (tree / "_native" / "src").rglob("*.cpp")
    }
    select(tree, "record")
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

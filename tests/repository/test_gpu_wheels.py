"""What travels to a GPU without a network is installed there, and nothing else."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "gpu_wheels.py"


def write_wheel(folder, name, text="x = 1\n"):
    """A wheel of one module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", text)
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        file.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: a test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"{info}/RECORD", "")


def run(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_missing_is_installed(tmp_path):
    pytest.importorskip("pip")
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    write_wheel(wheels, "memcfg", "word = 'from the wheel'\n")
    write_wheel(wheels, "numpy", "raise ImportError\n")  # there is one
    write_wheel(wheels, "nobody_has_this")
    with gzip.open(wheels / "libdnnl.so.3.gz", "wb") as file:
        file.write(b"a library")
    done = run("install", wheels, target)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name for path in target.glob("*.py")}
    assert made == {"memcfg.py", "nobody_has_this.py"}
    assert (target / "libdnnl.so.3").read_bytes() == b"a library"
    show = "import memcfg; print(memcfg.word)"
    found = subprocess.run(
        [sys.executable, "-c", show],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"},
    )
    assert found.stdout == "from the wheel\n"


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "old.whl").touch()
    done = run("fetch", tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr


def test_what_cannot_be_compiled_leaves_the_rest(tmp_path):
    pytest.importorskip("pip")
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    write_wheel(wheels, "memcfg")
    (wheels / "pycuda-1.0.tar.gz").write_bytes(b"no archive")
    done = run("install", wheels, target)
    assert done.returncode == 1
    assert "not a gzip file" in done.stderr
    assert (target / "memcfg.py").exists()


def test_what_cannot_be_installed_says_why(tmp_path):
    pytest.importorskip("pip")
    (tmp_path / "memcfg-1.0-py3-none-any.whl").write_bytes(b"no archive")
    done = run("install", tmp_path, tmp_path / "target")
    assert done.returncode == 1
    assert "install" in done.stderr
    assert "memcfg-1.0" in done.stderr

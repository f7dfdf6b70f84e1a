"""Programs on disks that are really full or read-only: small ones in memory (tmpfs).

They are mounted in a namespace of the program's own; where the system permits none,
the test is skipped.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

_TIMEOUT = 120  # seconds


def start(
    command: list[str], folder: Path, nbytes: int, program: str
) -> subprocess.CompletedProcess[str]:
    """Run a program on a disk that is mounted over a folder."""
    mount = f'mount -t tmpfs -o size={nbytes} none "$1" && cd "$1" && exec "$2" -c "$3"'
    return subprocess.run(
        [*command, "sh", "-c", mount, "sh", str(folder), sys.executable, program],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )


@functools.cache
def namespace() -> list[str]:
    """What starts a Python that may mount; an empty list where none may."""
    if shutil.which("unshare") and shutil.which("mount"):
        for options in (["-Urm"], ["-m"]):
            command = ["unshare", *options]
            with tempfile.TemporaryDirectory() as folder:
                done = start(command, Path(folder), 2**20, "import memcfg")
            if done.returncode == 0:
                return command
    return []


def run_on_a_disk(folder: Path, nbytes: int, source: str) -> None:
    """Run a program on a disk of its own; the source may be indented."""
    command = namespace()
    if not command:
        pytest.skip("the system permits no mounts of one's own")
    done = start(command, folder, nbytes, textwrap.dedent(source))
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)


def run_in_a_folder(folder: Path, source: str) -> None:
    """Run a program in a folder; the source may be indented."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)

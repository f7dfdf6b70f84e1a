"""Programs of several ranks under the launcher of MPI, and what became of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

__all__ = ["MpiRun", "needs_launcher"]

LAUNCHER = Path(sys.executable).with_name("mpiexec")
SECONDS = 40  # until a run is killed, and its test fails
_MARK = "TESTED_MPI_RUN"


def needs_launcher():
    """The mark of tests of several ranks: a skip without MPI, or failures in the gate.

    .ci/gate.toml sets REQUIRE_MPI, so that no such test is left out there.
    """
    return pytest.mark.skipif(
        not LAUNCHER.exists() and not os.environ.get("REQUIRE_MPI"),
        reason=f'no {LAUNCHER}: pip install "memcfg[mpi]"',
    )


# What each rank has: `rank` and `report`, which writes a line that the test reads.
_BEGIN = """
import json, os, sys, time
import mpi4py
mpi4py.rc.thread_level = {thread_level!r}
import numpy as np
from mpi4py import MPI
from memcfg.errors import CommunicationError
from memcfg.parallel import mpi_communicator

rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

def report(**facts):
    with open(os.path.join({folder!r}, str(rank)), "a") as file:
        file.write(json.dumps(facts) + "\\n")

def caught(call, *words):
    try:
        call(*words)
    except CommunicationError as error:
        report(error=str(error), ranks=error.ranks)

report(pid=os.getpid())
"""


class MpiRun:
    """A program under way on several ranks; as a context it leaves no process."""

    def __init__(self, size, program, folder, *, options=(), thread_level="multiple"):
        assert LAUNCHER.exists(), f"no {LAUNCHER}, and REQUIRE_MPI is set"
        self.folder = folder
        self._end = time.monotonic() + SECONDS
        self._id = uuid.uuid4().hex
        begin = _BEGIN.format(folder=str(folder), thread_level=thread_level)
        text = begin + textwrap.dedent(program)
        support = str(Path(__file__).parent)
        paths = [support, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [LAUNCHER, *options, "-n", str(size), sys.executable, "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, _MARK: self._id, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def wait(self):
        """Return the exit status and the output, when no process is left."""
        output, _ = self.process.communicate(timeout=self._left())
        while left := self.processes():
            assert self._left() > 0, f"left: {left}; {output}"
            time.sleep(0.01)
        return self.process.returncode, output

    def reports(self, rank):
        """Return the facts that a rank has reported; its process is first."""
        path = self.folder / str(rank)
        text = path.read_text() if path.exists() else ""
        return [
            json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line
        ]

    def await_reports(self, rank, count):
        """Wait until a rank has reported so often."""
        while len(found := self.reports(rank)) < count:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert self._left() > 0, found
            time.sleep(0.005)
        return found

    def processes(self):
        """Return the processes of this run, the launcher's included."""
        mark = f"{_MARK}={self._id}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # it has just ended, or is another user's
                continue
        return found

    def _left(self):
        return self._end - time.monotonic()

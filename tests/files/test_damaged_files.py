"""Every reader of a file, given damaged ones under a limit of memory.

It ends in a value or in the errors that it documents.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "damaged_files.py"


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 100), pytest.param(1, 1000, marks=pytest.mark.slow)],
)
def test_damaged_files_end_in_the_errors_that_readers_document(seed, count):
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, str(seed), str(count)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.count(f" of {count} refused") == done.stdout.count("\n") == 18

"""Write the list of tests that an ordinary run leaves out: they are slow from then on.

Runs the suite once, with the lines and branches that each test reaches (coverage.py
has to be installed). Of the tests that take longer than LONG processor seconds those
are listed, the longest first, whose every line and branch another test reaches that is
not listed. Of each test function at least the shortest cell stays, unless that takes
longer than TOO_LONG. Lines and branches that the suite reaches are the same after it.
What runs in other processes is not seen: the mark `always` keeps a test.

``python tests/record_long_tests.py`` is for the suite, and, in the environment of ``tox
run -e parity``, ``python tests/record_long_tests.py tests/peers tests/torch``. Lines of
files that do not run stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent
LISTED = TESTS / "support" / "long_tests.txt"
LONG, TOO_LONG = 0.15, 1.0  # processor seconds, under coverage.py
STAY = "tests/repository/"  # examples, pages and rules


def measure(folders: list[str]) -> list[tuple[str, float, np.ndarray]]:
    """Return the name, the seconds and the arcs of each test."""
    found, numbers = [], {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "reached_lines"]
        command += ["-m", "not slow and not alone and not gpu"]
        command += folders or ["--ignore=tests/peers", "--ignore=tests/torch"]
        place = {**os.environ, "REACHED_LINES": folder}
        place["PYTHONPATH"] = str(TESTS / "support")
        subprocess.run(command, check=True, env=place, cwd=TESTS.parent)
        for path in Path(folder).iterdir():
            with np.load(path) as file:
                names, seconds, counts = (
                    file[each].tolist() for each in ("names", "seconds", "counts")
                )
                reached = file["reached"]
                number = np.array(
                    [numbers.setdefault(arc, len(numbers)) for arc in file["arcs"]]
                )
            parts = np.split(number[reached], np.cumsum(counts)[:-1])
            found += zip(names, seconds, parts, strict=True)
    return found


def choose(tests: list[tuple[str, float, np.ndarray]]) -> list[str]:
    """Return the lines of the list."""
    most = 1 + max((int(arcs.max()) for _, _, arcs in tests if len(arcs)), default=0)
    uses = np.zeros(most, np.int64)
    for _, _, arcs in tests:
        uses[arcs] += 1
    spared = set()
    for name, seconds, arcs in sorted(tests, key=lambda test: -test[1]):
        if seconds < LONG:
            break
        if not name.startswith(STAY) and not (uses[arcs] == 1).any():
            uses[arcs] -= 1
            spared.add(name)
    cells = defaultdict(list)
    for name, seconds, _ in tests:
        cells[name.partition("[")[0]].append((seconds, name))
    for function, own in cells.items():
        names = {name for _, name in own}
        if names <= spared:
            least, shortest = min(own)
            spared -= names if least > TOO_LONG else {shortest}
            if least > TOO_LONG:
                spared.add(function)
    return sorted(spared)


def main() -> None:
    before = LISTED.read_text(encoding="utf-8").splitlines()
    LISTED.write_text("", encoding="utf-8")  # all run
    try:
        tests = measure(sys.argv[1:])
        ran = {name.partition("::")[0] for name, _, _ in tests}
        stay = [line for line in before if line.partition("::")[0] not in ran]
        before = sorted({*choose(tests), *stay})
    finally:
        LISTED.write_text("".join(f"{line}\n" for line in before), encoding="utf-8")
    print(f"{len(before)} lines in {LISTED}")


if __name__ == "__main__":
    main()

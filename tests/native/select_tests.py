"""Name the sanitizer tests that a change can affect, and the sources that they need.

    python tests/native/select_tests.py changed            those not in the record
    python tests/native/select_tests.py all [test_NAME.cpp...]
    python tests/native/select_tests.py digests            what the record would be

Prints a path a line: tests, then sources of the core. A test depends on what it
includes, on the sources whose headers those are, and so on; a source that registers
itself belongs to whoever includes the registry. The record, passed.json,
holds a hash of each test with all that it depends on: files, run.sh, the version of
the compiler (CXX) and CXXFLAGS.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NATIVE = ROOT / "_native"
RECORD = HERE / "passed.json"
FOLDERS = (NATIVE / "include", NATIVE / "src", HERE)
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
REGISTRIES = {"function_kernel.hpp": "kernels", "codec.hpp": "codecs"}
REGISTERS = re.compile(r"^const (KernelType|CodecEntry) ", re.MULTILINE)


@cache
def included(path: Path) -> frozenset[Path]:
    """Return the project's files that a file includes itself."""
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    found = set()
    for name in names:
        places = (path.parent, *FOLDERS)
        found |= {next(f / name for f in places if (f / name).is_file()).resolve()}
    return frozenset(found)


@cache
def sources() -> dict[str, list[Path]]:
    """Return the core's sources by the name that their header would have."""
    named: dict[str, list[Path]] = {}
    for path in sorted(NATIVE.glob("src/**/*.cpp")):
        named.setdefault(path.with_suffix(".hpp").name, []).append(path)
    return named


@cache
def registered(folder: str) -> list[Path]:
    """Return the sources of a folder that register themselves."""
    return [
        path
        for path in sorted((NATIVE / "src" / folder).glob("*.cpp"))
        if REGISTERS.search(path.read_text(encoding="utf-8"))
    ]


def needed(test: Path) -> set[Path]:
    """Return all files that a test depends on, itself among them."""
    found: set[Path] = set()
    waiting = [test]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        waiting += included(path)
        waiting += sources().get(path.name, [])
        if path.name in REGISTRIES:
            waiting += registered(REGISTRIES[path.name])
    return found


@cache
def toolchain() -> bytes:
    """Return the compiler's version and the flags that run.sh does not hold."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    flags = [*command[1:], *shlex.split(os.environ.get("CXXFLAGS", ""))]
    version = subprocess.check_output([*command, "--version"]).partition(b"\n")[0]
    return b"\0".join([version, *map(str.encode, flags)])


def digest(paths: set[Path]) -> str:
    """Return a hash of the names and contents of files, and of what builds them."""
    total = hashlib.sha256(toolchain() + b"\0")
    for path in sorted({*paths, HERE / "run.sh"}):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        total.update(path.read_bytes() + b"\0")
    return total.hexdigest()


def main(choice: str, *names: str) -> None:
    """Print what was asked for."""
    tests = [HERE / name for name in names] or sorted(HERE.glob("test_*.cpp"))
    if choice == "digests":
        hashes = {test.name: digest(needed(test)) for test in tests}
        print(json.dumps(hashes, indent=1))
        return
    if choice == "changed" and RECORD.is_file():
        passed = json.loads(RECORD.read_text(encoding="utf-8"))
        tests = [
            test for test in tests if passed.get(test.name) != digest(needed(test))
        ]
    core = {path for test in tests for path in needed(test) if NATIVE in path.parents}
    for path in [*tests, *sorted(core)]:
        if path.suffix == ".cpp":
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])

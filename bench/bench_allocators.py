"""Compare memcfg's pool with TensorFlow's BFC allocator and with malloc, in one run.

Each allocator is driven by the same C++ templates over the same traces, in a process of
its own; all take turns, repeat after repeat, so that a ratio compares neighbours in
time. BFC is TensorFlow's own, out of its wheel, in three configurations: regions
wherever the system puts them (``bfc``), one after another (``bfc-virtual``), all of the
limit at once (``bfc-fixed``). The mallocs (glibc, mimalloc, jemalloc, tcmalloc) are one
program under LD_PRELOAD. Prints every result, won or lost, and asserts nothing.

What was expected before the first measurement:

* A pair of calls costs BFC a lock and a walk in a tree, about 90 to 250 ns; a cache of
  the thread should cost memcfg 10 to 20 ns up to 64 KiB, and a lock and a tree of free
  chunks 40 to 80 ns above. A malloc without metadata and checks should stay faster
  below 64 KiB (3 to 10 ns), and slower above where it asks the system.
* Two threads should double what one does up to 64 KiB, and gain nothing above, where
  there is one lock. BFC, with one lock for all, should lose.
* The live sets should cost memcfg less than BFC at the median and at the 99th
  percentile; the worst single call is the system's (a page table, an interrupt) and
  says little about either.
* Memory asked for over memory taken: at least 0.95, less what size classes round; BFC
  doubles its regions, so 0.43 to 0.80 depending on where the growth ends.
* At the first failure nearly all of the limit should be in use, as they cost addresses
  instead of memory: the bound is the size of the request that no longer fits.
* Free chunks should not matter, in either pool; a request larger than all those of the
  same power of two should make BFC walk through them all.
* Metadata: one record of 64 bytes a block and a bit a page, so 2 to 3 MiB for 16 GiB in
  blocks of 1 MiB; BFC keeps 8 bytes for 256, 512 MiB.
* After `trim`, resident memory should be where it began, within the metadata.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUN = HERE / "allocators" / "run.sh"
OURS = ("ours",)
BFC = ("bfc", "bfc-virtual", "bfc-fixed")
MALLOC = ("glibc", "mimalloc", "jemalloc", "tcmalloc")
PROGRAM = {
    "ours": "ours",
    **dict.fromkeys(BFC, "bfc"),
    **dict.fromkeys(MALLOC, "malloc"),
}


@dataclass(frozen=True)
class Workload:
    """A workload of the harness: who plays it, and whether time is part of it."""

    name: str
    peers: tuple[str, ...]
    timed: bool = True


EVERYBODY = OURS + BFC + MALLOC
WORKLOADS = (
    Workload("clock", OURS),
    Workload("pair", EVERYBODY),
    Workload("delayed", EVERYBODY),
    Workload("threads", EVERYBODY),
    Workload("larson", EVERYBODY),
    Workload("free_chunks", EVERYBODY),
    Workload("live_set", EVERYBODY),
    Workload("resident_set", EVERYBODY),
    Workload("random_grid", OURS + BFC),
    Workload("release", EVERYBODY),
    Workload("tight", OURS + BFC),
    Workload("growth", OURS + BFC[:2], timed=False),
    Workload("sawtooth", OURS + BFC[:2], timed=False),
    Workload("first_refusal", OURS + BFC, timed=False),
    Workload("promote", OURS + BFC, timed=False),
    Workload("metadata", EVERYBODY, timed=False),
)

Key = tuple[str, str, str]  # workload, case, metric
Found = dict[Key, dict[str, list[float]]]  # peer -> one value a repeat


def settings(folder: Path) -> dict[str, str]:
    """Return the environment of the harness, which is told where TensorFlow lies."""
    given = {"BUILD": str(folder), "PYTHON": sys.executable}
    found = find_spec("tensorflow")
    if found is not None and found.submodule_search_locations:
        given["TENSORFLOW"] = str(found.submodule_search_locations[0])
    return {**given, **os.environ}


def harness(
    words: list[str], where: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(RUN), *words],
        env=where,
        capture_output=True,
        text=True,
        check=False,
    )


def available(wanted: list[str], where: dict[str, str]) -> list[str]:
    """Compile what is needed; say in a line what cannot be had, and leave it out."""
    programs = {}
    for program in dict.fromkeys(PROGRAM[peer] for peer in wanted):
        built = harness(["build", program], where)
        programs[program] = built.returncode == 0
        if built.returncode != 0:
            print(f"{program}: {built.stderr.strip()}", file=sys.stderr)
    found = []
    for peer in wanted:
        if not programs[PROGRAM[peer]]:
            continue
        tried = harness([peer, "clock"], where)
        if tried.returncode == 0:
            found.append(peer)
        else:
            print(f"{peer}: {tried.stderr.strip()}", file=sys.stderr)
    return found


def played(
    workload: Workload, peer: str, seed: int, options: argparse.Namespace
) -> Iterator[tuple[Key, float]]:
    words = [peer, workload.name, "--seed", str(seed)]
    run = harness(words + ["--quick"] * options.quick, options.where)
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()[-1:]
        print(
            f"{peer}, {workload.name}: status {run.returncode}", *said, file=sys.stderr
        )
    for line in run.stdout.splitlines():
        result = json.loads(line)
        yield (workload.name, result["case"], result["metric"]), result["value"]


def measure(peers: list[str], options: argparse.Namespace) -> Found:
    """Play every workload, all peers in turn, another one first each time."""
    found: Found = {}
    for workload in WORKLOADS:
        if options.workload and workload.name not in options.workload:
            continue
        crew = [peer for peer in workload.peers if peer in peers]
        for repeat in range(options.repeats if workload.timed else 1):
            first = repeat % len(crew) if crew else 0
            for peer in crew[first:] + crew[:first]:
                seed = options.seed + repeat
                for key, value in played(workload, peer, seed, options):
                    values = found.setdefault(key, {}).setdefault(peer, [])
                    values.append(float(f"{value:.4g}"))
        print(f"{workload.name} done", file=sys.stderr)
    return found


def version_of(command: list[str]) -> str | None:
    """Return the first line that a command prints, or None where there is none."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.splitlines()[0].strip() if run.stdout.strip() else None


def package(name: str) -> str | None:
    return version_of(["dpkg-query", "--show", "--showformat=${Version}\n", name])


def environment(options: argparse.Namespace) -> dict[str, Any]:
    try:
        tensorflow = version("tensorflow-cpu")
    except PackageNotFoundError:
        tensorflow = None
    return machine.facts() | {
        "memory_gib": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        ),
        "huge_pages": machine.huge_pages(),
        "compiler": version_of([os.environ.get("CXX", "g++"), "--version"]),
        "flags": "-std=c++17 -O2",
        "tensorflow-cpu": tensorflow,
        "mimalloc": package("libmimalloc2.0"),
        "jemalloc": package("libjemalloc2"),
        "tcmalloc": package("libtcmalloc-minimal4"),
        "seed": options.seed,
        "repeats": options.repeats,
        "quick": options.quick,
    }


def document(found: Found, options: argparse.Namespace) -> dict[str, Any]:
    results = [
        {"workload": workload, "case": case, "metric": metric, "values": values}
        for (workload, case, metric), values in found.items()
    ]
    return {"environment": environment(options), "results": results}


def written(results: dict[str, Any]) -> str:
    """Return the document as JSON with a line for each result, for readable diffs."""
    head = json.dumps({"environment": results["environment"]}, indent=1)
    lines = ",\n".join("  " + json.dumps(row) for row in results["results"])
    return head.removesuffix("\n}") + ',\n "results": [\n' + lines + "\n ]\n}\n"


def show(found: Found) -> None:
    """Print every result: median, and the range over the repeats."""
    heading: tuple[str, str] | None = None
    for (workload, case, metric), values in found.items():
        if heading != (workload, case):
            heading = (workload, case)
            print(f"\n{workload}: {case}")
        for peer, turns in values.items():
            spread = f"({min(turns):.4g} to {max(turns):.4g})" if len(turns) > 1 else ""
            middle = statistics.median(turns)
            print(f"  {metric:<26}{peer:<12}{middle:>12.4g}  {spread}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workload", action="append", choices=names, help="only this")
    parser.add_argument("--peer", action="append", choices=EVERYBODY, help="only this")
    parser.add_argument("--repeats", type=int, default=5, help="turns, at least 5")
    parser.add_argument("--seed", type=int, default=1, help="of the first turn")
    parser.add_argument("--quick", action="store_true", help="short turns, for looking")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 5 and not options.quick:
        parser.error("--repeats must be at least 5, or use --quick")
    return options


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        options.where = settings(Path(folder))
        peers = available(options.peer or list(EVERYBODY), options.where)
        print(
            f"seeds from {options.seed}, {options.repeats} repeats, {', '.join(peers)}"
        )
        found = measure(peers, options)
    show(found)
    results = document(found, options)
    table = runpy.run_path(str(ROOT / "bench" / "tables" / "allocator.py"))
    print("\n" + table["table"](results))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(written(results), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Time loops over NumPy's arrays in a workspace and in NumPy's own memory, in one run.

Each case is timed in turns, in which every contender comes once and after another one:
what ran twice in a row would find its arrays in the cache. A ratio compares what a turn
measured (the workspace's seconds over NumPy's: below 1, the workspace is faster). The
runs are in many fresh processes: which pages the system gives to arrays of 1 MiB, that
just fit the cache of a core, decides over a tenth of their time, on either side. Times
are printed, not asserted; a cycle that takes anything from the pool after the first
turns ends the run.

What was expected before the first measurement:

* A fresh array that is filled: up to 24 MiB both use the same memory again and again,
  and both have huge pages: 1.0. What a scope costs, 0.7 µs, is 2 % of the 30 µs that 1
  MiB takes. At 40 and 60 MiB glibc maps the array anew each time and the system clears
  it: a workspace should take 0.6 of the time, as a pool does.
* Expressions of several temporaries, with `reclaim`: a temporary goes back when it
  dies, and the next one is in the same place, still in the processor's cache: as above.
* The same without `reclaim`: each temporary lies behind the one before, so a cycle
  touches more memory. NumPy frees the first and uses it for the third. At 1 MiB it
  keeps all of it in the 2 MiB cache of a core, and a workspace does not: 1.1 to 1.3.
  From 8 MiB on neither does: 1.0.
* Allocations of the pool in a cycle: none from the third cycle on.
* Entering and leaving a workspace sets a context variable twice and enters no C++
  lock: 0.4 µs. With one array of 1 KiB: 0.6 µs, where NumPy alone needs 0.14 µs.

What was found: several temporaries at 1 MiB are not slower without `reclaim`. NumPy is
slower than was thought: from 24 MiB on glibc gives the top of its heap back to the
system in each cycle and takes it again (2,000 page faults with four temporaries). In a
process that has not freed larger arrays before, as these have, it does so at 1 MiB too,
and NumPy takes three times as long there. Two locks are taken after all; at 1 MiB the
scope is the whole difference that is left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from bench_arrays import environment, seconds_of

import memcfg as mc
from memcfg import memory

MIB = 2**20
SIZES = (1, 8, 24, 40, 60)  # MiB of one array
WARM = 5  # cycles before anything is counted, at least
Act = Callable[[], object]  # what one cycle does
Make = Callable[[], Act]  # one for each contender, on the same operands


def filled(mib: int) -> Make:
    def act() -> None:
        np.empty(mib * MIB, np.uint8).fill(1)

    return lambda: act


def short(mib: int) -> Make:
    x = np.ones(mib * MIB // 8)
    return lambda: lambda: x * 2 + 1


def long(mib: int) -> Make:
    x, y = np.ones(mib * MIB // 8), np.full(mib * MIB // 8, 2.0)

    def act() -> None:
        total = x + y
        scaled = total * 0.5
        product = scaled * y
        product - x

    return lambda: act


def kept(mib: int) -> Make:
    x = np.ones(mib * MIB // 8)

    def make() -> Act:
        last: list[np.ndarray] = []

        def act() -> None:
            last[:] = [x * 2]  # outlives its cycle, as a loop variable does

        return act

    return make


CASES = {
    "filled": filled,
    "x * 2 + 1": short,
    "four temporaries": long,
    "result kept": kept,
}


def in_turns(contenders: dict[str, Act], repeats: int) -> dict[str, list[float]]:
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, turn in contenders.items():
            turns[name].append(turn())
    return turns


def plain_loop(act: Act) -> Callable[[int], None]:
    def repeat(count: int) -> None:
        for _ in range(count):
            act()

    return repeat


def loop_in(scope: mc.Workspace, act: Act) -> Callable[[int], None]:
    def repeat(count: int) -> None:
        for _ in range(count):
            with scope:
                act()

    return repeat


def turn_of(repeat: Callable[[int], None], options: argparse.Namespace) -> Act:
    """Return a turn, which gives the seconds of one cycle."""

    def turn() -> float:
        repeat(max(WARM, count // 2))
        return seconds_of(repeat, count)

    repeat(WARM)
    count = max(3, int(options.seconds / seconds_of(repeat, 3)))
    return turn


def time_case(name: str, mib: int, options: argparse.Namespace) -> dict:
    pool = memory.Pool(limit="2GiB", name="workspaces")
    make = CASES[name](mib)
    loops = {"numpy": plain_loop(make())}
    for each, reclaim in (("plain", False), ("reclaim", True)):
        config = mc.WorkspaceConfig(reclaim=reclaim)
        loops[each] = loop_in(mc.Workspace(config, each, resource=pool), make())
    turns = {each: turn_of(loops[each], options) for each in loops}
    in_turns(turns, 1)
    before = pool.stats().allocation_count
    seconds = in_turns(turns, options.repeats)
    taken = pool.stats().allocation_count - before
    del loops, turns
    mc.destroy_all_workspaces()
    if pool.stats().current_bytes:
        raise SystemExit(f"memory is left: {pool.owners()}")
    return {"case": name, "mib": mib, "seconds": seconds, "allocations": taken}


def time_scopes(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return what it costs to enter and to leave, with an array of 1 KiB or without."""
    pool = memory.Pool(limit="64MiB", name="scopes")
    config = mc.WorkspaceConfig(initial_size="64KiB")
    workspace = mc.Workspace(config, "small", resource=pool)
    allocator = memory.numpy_allocator(pool)
    size = 128  # of float64

    def array_alone(count: int) -> None:
        for _ in range(count):
            np.empty(size)

    def scope_alone(count: int) -> None:
        for _ in range(count):
            with workspace:
                pass

    def scope_and_array(count: int) -> None:
        for _ in range(count):
            with workspace:
                np.empty(size)

    def allocator_alone(count: int) -> None:
        for _ in range(count):
            with allocator:
                pass

    acts = {
        "np.empty, 1 KiB, NumPy's own": array_alone,
        "open, close": scope_alone,
        "open, np.empty, 1 KiB, close": scope_and_array,
        "numpy_allocator, entered and left": allocator_alone,
    }
    turns = {
        name: lambda act=act: seconds_of(act, 20_000) for name, act in acts.items()
    }
    in_turns(turns, 1)
    seconds = in_turns(turns, options.repeats)
    mc.destroy_all_workspaces()
    return seconds


def measure(options: argparse.Namespace) -> dict:
    cases = [
        time_case(name, mib, options)
        for name in CASES
        for mib in SIZES
        if not options.only or options.only in f"{name}, {mib} MiB"
    ]
    return {"cases": cases, "scopes": time_scopes(options)}


def in_processes(options: argparse.Namespace) -> Iterator[dict]:
    """Measure in one fresh process after another."""
    words = [sys.executable, __file__, "--processes", "0", "--only", options.only]
    words += ["--repeats", str(options.repeats), "--seconds", str(options.seconds)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part.json")
        for _ in range(options.processes):
            subprocess.run([*words, "--output", str(path)], check=True)
            yield json.loads(path.read_text(encoding="utf-8"))


def joined(parts: list[dict]) -> tuple[list[dict], dict]:
    """Put the turns of all processes together."""
    cases = []
    for rows in zip(*(part["cases"] for part in parts), strict=True):
        turns = {
            each: [s for row in rows for s in row["seconds"][each]]
            for each in rows[0]["seconds"]
        }
        cases.append(
            {
                "case": rows[0]["case"],
                "mib": rows[0]["mib"],
                "seconds": {name: statistics.median(turns[name]) for name in turns},
                "ratios": {
                    name: quartiles(turns[name], turns["numpy"])
                    for name in ("plain", "reclaim")
                },
                "allocations": sum(row["allocations"] for row in rows),
                "seconds_by_turn": turns,
            }
        )
    scopes = {
        name: statistics.median(s for part in parts for s in part["scopes"][name])
        for name in parts[0]["scopes"]
    }
    return cases, scopes


def quartiles(mine: list[float], theirs: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of the ratios."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive")


def show(cases: list[dict], scopes: dict) -> None:
    for row in cases:
        words = [f"{row['case']}, {row['mib']} MiB".ljust(26)]
        words.append(f"NumPy {row['seconds']['numpy'] * 1e6:9.1f} µs")
        for name, (low, middle, high) in row["ratios"].items():
            words.append(f"{name} {middle:.2f} ({low:.2f} to {high:.2f})")
        words.append(f"{row['allocations']} allocations")
        print("  ".join(words))
    for name, seconds in scopes.items():
        print(f"{name:<36} {seconds * 1e9:7.0f} ns")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns, at least 5")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a turn")
    parser.add_argument("--processes", type=int, default=9, help="0: in this one")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error("--repeats must be at least 5")
    return options


def main() -> None:
    options = parse()
    if options.processes == 0:
        document = measure(options)
    else:
        cases, scopes = joined(list(in_processes(options)))
        show(cases, scopes)
        place = environment(options) | {"processes": options.processes}
        document = {"environment": place, "cases": cases, "scopes": scopes}
        if any(row["allocations"] for row in cases):
            raise SystemExit("a cycle took memory from the pool in the steady state")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Time NumPy's arrays in a pool and in NumPy's own memory, in one run.

Each case is timed in turns, one with NumPy's own allocator and one with a pool's, in
one process; a ratio compares two turns that follow one another. Prints ratios (the
pool's seconds over NumPy's: below 1, the pool is faster) and asserts nothing.

What was expected before the first measurement:

* `np.empty` and the end of the array: of 100 ns at 1 KiB malloc and free are 7; a pool
  looks up the context's tag, the thread's cache and the block, 25 to 30 ns: 1.2. At 1
  MiB it takes a lock and searches a tree of free chunks, 80 ns: 1.6, which is too much.
  At 16 MiB NumPy advises huge pages with a system call each time, a pool only when it
  takes the pages: 0.8.
* Filling fresh arrays: below 32 MiB both use memory again and have huge pages behind
  it, 1.0; above, glibc maps it anew each time and the system clears it: a pool should
  take half the time.
* `np.zeros` and filling: both write the memory twice, or the system clears it: 1.0.
  `np.zeros` alone: below 32 MiB both write it, 1.0; above, NumPy takes new pages, and a
  pool that writes zeros would take hundreds of times as long.
* Expressions with temporaries of 8 MiB spend their time in the arithmetic: 1.0.
* Entering and leaving an allocator sets context variables: 0.5 µs.

What was found, and what was done about it: the pair at 1 KiB took 2.0 times as long (a
string was copied for the tag, a context variable that has no value is looked up anew
each time, the interpreter's lock was asked for), the pair at 1 MiB 2.7 times. Now the
tag is read in place and its number remembered, the end of an array takes one look-up
instead of two and no interpreter, and a thread keeps the large block that it freed
last. `np.zeros` of 32 MiB and more gives used pages back instead of writing them; it
began where a huge page was cut in two, which cost 500 page faults and a fifth of the
time, and now begins with one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import machine
import numpy as np

from memcfg import memory

MIB = 2**20
Case = tuple[str, Callable[[int], object]]  # a name, and what to do so many times


def pair(nbytes: int) -> Callable[[int], object]:
    def repeat(count: int) -> None:
        for _ in range(count):
            np.empty(nbytes, np.uint8)

    return repeat


def filled(make, nbytes: int) -> Callable[[int], object]:
    def repeat(count: int) -> None:
        for _ in range(count):
            array = make(nbytes, np.uint8)
            array.fill(1)
            del array

    return repeat


def zeros(nbytes: int) -> Callable[[int], object]:
    def repeat(count: int) -> None:
        for _ in range(count):
            np.zeros(nbytes, np.uint8)

    return repeat


def expression(nbytes: int) -> Callable[[int], object]:
    a, b = np.ones(nbytes // 8), np.full(nbytes // 8, 2.0)

    def repeat(count: int) -> None:
        for _ in range(count):
            (a + b) * a - b

    return repeat


def cases() -> list[Case]:
    sizes = {"1 KiB": 2**10, "64 KiB": 2**16, "1 MiB": MIB, "16 MiB": 16 * MIB}
    rows: list[Case] = [(f"np.empty, {name}", pair(n)) for name, n in sizes.items()]
    for make, name in ((np.empty, "np.empty"), (np.zeros, "np.zeros")):
        rows += [(f"{name} filled, {n} MiB", filled(make, n * MIB)) for n in FILLED]
    rows += [(f"np.zeros, {n} MiB", zeros(n * MIB)) for n in FILLED]
    rows.append(("(a + b) * a - b, 8 MiB", expression(8 * MIB)))
    return rows


FILLED = (24, 32, 40, 60)


def seconds_of(act: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    act(count)
    return (time.perf_counter() - began) / count


def measure(name: str, act, allocator, options: argparse.Namespace) -> dict:
    contenders = {"numpy": nullcontext(), "memcfg": allocator}
    turns: dict[str, list[float]] = {each: [] for each in contenders}
    act(3)
    count = max(3, int(options.seconds / seconds_of(act, 3)))
    for _ in range(options.repeats):
        for each, context in contenders.items():
            with context:
                act(3)
                turns[each].append(seconds_of(act, count))
    ratios = [b / a for a, b in zip(turns["numpy"], turns["memcfg"], strict=True)]
    return {
        "case": name,
        "seconds": {each: statistics.median(turns[each]) for each in turns},
        "seconds_by_turn": turns,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def time_to_enter(pool: memory.Pool, count: int = 100_000) -> float:
    allocator = memory.numpy_allocator(pool)
    began = time.perf_counter()
    for _ in range(count):
        with allocator:
            pass
    return (time.perf_counter() - began) / count


def environment(options: argparse.Namespace) -> dict:
    more = {"huge_pages": machine.huge_pages(), "repeats": options.repeats}
    return machine.facts() | more


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least 5")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a turn")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error("--repeats must be at least 5")
    return options


def main() -> None:
    options = parse()
    pool = memory.Pool(limit="1GiB", name="arrays")
    allocator = memory.numpy_allocator(pool)
    results = []
    for name, act in cases():
        result = measure(name, act, allocator, options)
        results.append(result)
        mine, theirs = result["seconds"]["memcfg"], result["seconds"]["numpy"]
        low, high = result["ratio_range"]
        print(
            f"{name:<24} memcfg {mine * 1e6:10.3f} µs, NumPy {theirs * 1e6:10.3f} µs, "
            f"ratio {result['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )
    entered = time_to_enter(pool)
    print(f"entering and leaving an allocator: {entered * 1e6:.2f} µs")
    if pool.stats().current_bytes:
        raise SystemExit(f"arrays are left: {pool.owners()}")
    if options.output is not None:
        document = {
            "environment": environment(options),
            "results": results,
            "seconds_to_enter_and_leave": entered,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

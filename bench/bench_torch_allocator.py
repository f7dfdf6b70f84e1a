"""Time memcfg's pool beside PyTorch's own CPU allocator, in one process.

Each case is timed in turns, one with the allocator that PyTorch comes with, one with
that of `memcfg.torch.limit_cpu`; a ratio compares two turns that follow one another
(memcfg's seconds over PyTorch's: below 1, the pool is faster). Blocks are those of
`c10::Allocator`, from C++; `torch.empty` and steps of networks are what Python sees.
Asserts nothing.

``chrt -f 50 taskset -c 0 python bench torch_allocator`` for a clean figure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import machine
import numpy as np
import torch
from torch import nn

import memcfg.torch as mt

KIB, MIB, GIB = 2**10, 2**20, 2**30
SOURCE = Path(__file__).with_name("torch_allocator.cpp")
LIMIT = "8GiB"
SIZES = {
    **{f"{n} B": n for n in (64, 256)},
    **{f"{n} KiB": n * KIB for n in (1, 4, 16, 64, 128, 256)},
    **{f"{n} MiB": n * MIB for n in (1, 4, 16, 64, 256)},
}


def load_loops(folder: str) -> ctypes.CDLL:
    home = Path(torch.__file__).parent
    library = Path(folder, "loops.so")
    command = ["c++", "-std=c++20", "-O2", "-w", "-shared", "-fPIC", str(SOURCE)]
    command += [f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10", "-o", library]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    subprocess.run(command, check=True)
    loops = ctypes.CDLL(str(library))
    loops.time_blocks.restype = ctypes.c_double
    return loops


def blocks(loops, sizes, live=1, *, touched=False, threads=1):
    """What times so many blocks, with the allocator that is registered or not."""
    array = (ctypes.c_uint64 * len(sizes))(*map(int, sizes))

    def seconds(registered: bool, count: int) -> float:
        found: float = loops.time_blocks(
            *(ctypes.c_int(registered), array, ctypes.c_uint64(len(sizes))),
            *(ctypes.c_uint64(live), ctypes.c_uint64(count)),
            *(ctypes.c_int(touched), ctypes.c_int(threads)),
        )
        return found

    return seconds


def python(act):
    """What times so many calls, inside the limit or not."""

    def seconds(registered: bool, count: int) -> float:
        mt.limit_cpu(LIMIT if registered else None)
        act()
        began = time.perf_counter()
        for _ in range(count):
            act()
        spent = (time.perf_counter() - began) / count
        mt.limit_cpu(LIMIT)
        return spent

    return seconds


def mixed(low: int, high: int, count: int = 4096) -> list[int]:
    """Sizes whose logarithms are uniform, the same in every run."""
    random = np.random.default_rng(1)
    return [int(2**x) for x in random.uniform(np.log2(low), np.log2(high), count)]


def step_of(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def networks():
    torch.manual_seed(0)
    deep = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(20))
    )
    yield "step, 20 small dense layers", step_of(deep, torch.randn(32, 64))
    layers = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3)]
    layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    yield (
        "step, small convolutions",
        step_of(nn.Sequential(*layers), torch.randn(16, 3, 32, 32)),
    )


def cases(loops):
    for name, size in SIZES.items():
        yield f"allocate + free, {name}", blocks(loops, [size])
    for name in ("1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"):
        yield (
            f"allocate, fill, free, {name}",
            blocks(loops, [SIZES[name]], touched=True),
        )
    for live in (10, 100, 1000):
        yield f"{live} live, 64 B to 64 KiB", blocks(loops, mixed(64, 64 * KIB), live)
    for live in (10, 100):
        yield (
            f"{live} live, 64 KiB to 32 MiB",
            blocks(loops, mixed(64 * KIB, 32 * MIB), live),
        )
    yield (
        "10 live, 64 KiB to 32 MiB, filled",
        blocks(loops, mixed(64 * KIB, 32 * MIB), 10, touched=True),
    )
    for threads in (2,):
        for name in ("1 KiB", "64 KiB", "1 MiB"):
            yield (
                f"{threads} threads, {name}",
                blocks(loops, [SIZES[name]], threads=threads),
            )
    for name in ("1 KiB", "1 MiB", "64 MiB"):
        size = SIZES[name]
        yield (
            f"torch.empty, {name}",
            python(lambda size=size: torch.empty(size, dtype=torch.uint8)),
        )
    yield from ((name, python(act)) for name, act in networks())


def measure(name, seconds, options) -> dict:
    once = max(seconds(True, 3), seconds(False, 3))
    count = max(3, int(options.seconds / max(once, 1e-8)))
    turns: dict[str, list[float]] = {"torch": [], "memcfg": []}
    for _ in range(options.repeats):
        for who in turns:
            turns[who].append(seconds(who == "memcfg", count))
    ratios = [b / a for a, b in zip(turns["torch"], turns["memcfg"], strict=True)]
    return {
        "case": name,
        "seconds": {who: statistics.median(turns[who]) for who in turns},
        "seconds_by_turn": turns,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def environment(options) -> dict:
    return machine.facts() | {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a turn")
    parser.add_argument("--only", default="", help="a part of the cases' names")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    mt.limit_cpu(LIMIT)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        loops = load_loops(folder)
    for name, seconds in cases(loops):
        if options.only not in name:
            continue
        result = measure(name, seconds, options)
        results.append(result)
        mine, theirs = (result["seconds"][who] * 1e9 for who in ("memcfg", "torch"))
        low, high = result["ratio_range"]
        print(
            f"{name:<34} memcfg {mine:12.1f} ns, PyTorch {theirs:12.1f} ns, ratio "
            f"{result['ratio']:.3f} ({low:.3f} to {high:.3f})",
            flush=True,
        )
    if options.output is not None:
        document = {"environment": environment(options), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

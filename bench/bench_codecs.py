"""Time codecs beside a copy of the same bytes, in one run, on one thread.

For each codec, size and density (the share of float32 words that are not zero, at
random places) the array is copied, encoded and decoded in turns, into memory that was
written before. Prints gigabytes (10^9) of the array's bytes a second, and how many
times fewer bytes the code has, beside cDMA's formula for zero-value compression,
128 / (128 d + 4). Asserts no time; that what is decoded has the array's bits it does.

What was expected before the first measurement: `zvc` and `csr` push 16 words together
in an instruction and write what is left, so they should be bound by memory where arrays
are larger than the last cache, and take two or three instructions a word where they are
not: at least 2 GB/s a core. `rle` depends on how zeros lie: at random places its
branches are not predicted. `planes_zstd` is Zstandard's lowest level, some 0.5 GB/s.

What was found: `zvc` takes less than one instruction a word, and is as fast as a copy
for arrays that no cache holds, but where nothing is zero: then it packs until the room
ends, and copies after all, half as fast. `csr` decodes a word at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import machine
import numpy as np

from memcfg._core import codec_bounds, decode_bytes, encode_bytes, lossless_codecs
from memcfg.errors import MissingDependencyError

DENSITIES = (0.05, 0.2, 0.35, 0.5, 0.8, 1.0)
SIZES = {"512 KiB": 2**19, "64 MiB": 2**26}  # of an array: it fits a cache, or none


def array_of(density: float, nbytes: int) -> np.ndarray:
    """Make an array like a layer's output: some zeros, the others normal."""
    random = np.random.default_rng(0)
    values = random.standard_normal(nbytes // 4, np.float32)
    values[random.random(values.size) >= density] = 0
    return values


CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}


def seconds_of(act, options) -> float:
    """Return the seconds of one call, over as many as fill the time."""
    clock = CLOCKS[options.clock]
    act()
    count, began = 0, clock()
    while count == 0 or clock() - began < options.seconds:
        act()
        count += 1
    return (clock() - began) / count


def measure(codec: str, density: float, size: str, options) -> dict:
    """Time one codec on one array."""
    values = array_of(density, SIZES[size])
    code = np.zeros(codec_bounds(values.nbytes)[codec], np.uint8)
    back = np.zeros_like(values)
    used = encode_bytes(codec, values, code)
    acts = {
        "copy": lambda: np.copyto(back, values),
        "encode": lambda: encode_bytes(codec, values, code),
        "decode": lambda: decode_bytes(codec, code[:used], back),
    }
    turns: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(options.repeats):
        for name, act in acts.items():
            turns[name].append(values.nbytes / seconds_of(act, options) / 1e9)
    if codec in lossless_codecs() and back.tobytes() != values.tobytes():
        raise SystemExit(f"{codec} does not give back the bits")
    exact = np.count_nonzero(values) / values.size
    return {
        "codec": codec,
        "lossless": codec in lossless_codecs(),
        "size": size,
        "nbytes": values.nbytes,
        "density": density,
        "gigabytes_per_second": {name: statistics.median(turns[name]) for name in acts},
        "by_turn": turns,
        "ratio": values.nbytes / used,
        "zvc_formula": 128 / (128 * exact + 4),
    }


def environment(options: argparse.Namespace) -> dict:
    return machine.facts() | {"repeats": options.repeats, "clock": options.clock}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="turns, at least 3")
    parser.add_argument("--seconds", type=float, default=0.05, help="length of a turn")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="thread: processor time, for a machine on which others work",
    )
    parser.add_argument("--codecs", nargs="+", default=list(codec_bounds(0)))
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.repeats < 3:
        parser.error("--repeats must be at least 3")
    return options


def main() -> None:
    options = parse()
    results = []
    for codec in options.codecs:
        try:
            encode_bytes(codec, b"", bytearray(64))
        except MissingDependencyError as error:
            print(f"{codec}: left out: {error}")
            continue
        for size in SIZES:
            # The work of the lossy ones does not depend on the values.
            for density in DENSITIES if codec in lossless_codecs() else (0.5,):
                result = measure(codec, density, size, options)
                results.append(result)
                speed = result["gigabytes_per_second"]
                print(
                    f"{codec:<12} {size:>8} d={density:<4} encode "
                    f"{speed['encode']:6.2f} decode {speed['decode']:6.2f} "
                    f"copy {speed['copy']:6.2f} GB/s, "
                    f"ratio {result['ratio']:6.2f}"
                )
    if options.output is not None:
        document = {"environment": environment(options), "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

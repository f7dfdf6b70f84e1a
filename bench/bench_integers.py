"""Products with kernels of 8-bit integers beside those of float32.

One `Dense` layer a row: the time of a batch of predictions, in turns in one process,
and the peak of its plan. Asserts that errors are a few percent, and no time.

What was expected: a quarter of the memory, and times between those of reading a quarter
of the bytes (few rows) and of products at four times the rate (many rows).

What was found: memory as expected, and 1.1 to 2.5 times as fast, on a busy machine. For
few rows oneDNN spends the time on the order of the kernel (0.2 times as fast for 1 x
4096 x 4096), which is why up to four rows have a loop of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import machine
import numpy as np

import memcfg as mc

nn = mc.nn
SIDES = ((784, 300), (2048, 1000), (4096, 4096))
ROWS = (1, 32)


def measure(inputs: int, units: int, rows: int, turns: int) -> dict:
    nn.set_random_seed(0)
    plain = nn.Sequential([nn.Input((inputs,)), nn.Dense(units)])
    models = {
        "float32": plain,
        "int8": mc.compression.quantize(plain, products="int8"),
    }
    x = np.random.default_rng(0).normal(size=(rows, inputs)).astype(np.float32)
    results = {name: each.predict_on_batch(x) for name, each in models.items()}
    error = np.abs(results["int8"] - results["float32"]).max()
    error = float(error / results["float32"].std())
    if error > 0.1:
        raise SystemExit(f"{inputs} x {units}: an error of {error:.3f}")
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(turns):
        for name, each in models.items():
            each.predict_on_batch(x)  # the other's operands have left the caches
            began = time.perf_counter()
            each.predict_on_batch(x)
            seconds[name].append(time.perf_counter() - began)
    row = {
        "inputs": inputs,
        "units": units,
        "rows": rows,
        "error": error,
        "seconds": {name: statistics.median(each) for name, each in seconds.items()},
        "peak_bytes": {
            name: each.plan(rows, program="predict").peak_bytes
            for name, each in models.items()
        },
    }
    for each in models.values():
        each.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    results = [measure(*sides, rows, options.turns) for sides in SIDES for rows in ROWS]
    for row in results:
        fast = row["seconds"]["float32"] / row["seconds"]["int8"]
        small = row["peak_bytes"]["int8"] / row["peak_bytes"]["float32"]
        print(
            f"{row['rows']} x {row['inputs']} x {row['units']}: {fast:.2f} times as "
            f"fast, {small:.2f} of the memory, error {row['error']:.3f}",
            flush=True,
        )
    if options.output is not None:
        document = {"environment": machine.facts(), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Products with kernels of 8- and 4-bit integers beside those of float32.

One `Dense` layer or `Conv2D` a row: the time of a batch of predictions, in turns in one
process, and the peak of its plan. Asserts that errors are a few percent, and no time.
Inputs have both signs, or are positive as behind a ReLU: processors without products of
8 bits that add up in 32 multiply twice for both signs.

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
IMAGES = ((56, 64, 64), (28, 128, 128), (14, 256, 256))  # side, channels, filters
GROUP = 128  # rows with a scale, of 4 bits


def dense(inputs: int, units: int, rows: int, turns: int) -> dict:
    """Measure a layer with kernels of 8 and of 4 bits."""
    plain = nn.Sequential([nn.Input((inputs,)), nn.Dense(units)])
    models = {
        "int8": mc.compression.quantize(plain, products="int8"),
        "int4": mc.compression.quantize(plain, "int4", group=GROUP, products="int8"),
    }
    x = np.random.default_rng(0).normal(size=(rows, inputs)).astype(np.float32)
    return measure(plain, models, x, f"{rows} × {inputs} × {units}", turns)


def convolution(side: int, channels: int, filters: int, turns: int) -> dict:
    """Measure a convolution of 3 x 3 over four images, behind a ReLU."""
    layer = nn.Conv2D(filters, 3, padding="same")
    plain = nn.Sequential([nn.Input((side, side, channels)), layer])
    models = {"int8": mc.compression.quantize(plain, products="int8")}
    x = np.random.default_rng(0).normal(size=(4, side, side, channels))
    name = f"4 × {side}², {channels} to {filters}"
    return measure(plain, models, np.maximum(x, 0).astype(np.float32), name, turns)


def measure(plain, others: dict, x: np.ndarray, name: str, turns: int) -> dict:
    """Measure models of one layer in turns."""
    nn.set_random_seed(0)
    models, rows = {"float32": plain, **others}, len(x)
    wanted = plain.predict_on_batch(x)
    errors = {}
    for kind, each in others.items():
        exact = mc.compression.strip(each)
        error = np.abs(each.predict_on_batch(x) - exact.predict_on_batch(x)).max()
        errors[kind] = float(error / wanted.std())
        exact.close()
        if errors[kind] > 0.1:
            raise SystemExit(f"{name}: an error of {errors[kind]:.3f} with {kind}")
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(turns):
        for name, each in models.items():
            each.predict_on_batch(x)  # the other's operands have left the caches
            began = time.perf_counter()
            each.predict_on_batch(x)
            seconds[name].append(time.perf_counter() - began)
    row = {
        "layer": name,
        "errors": errors,
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
    results = []
    for sides in SIDES:
        results += [dense(*sides, rows, options.turns) for rows in ROWS]
    results += [convolution(*each, options.turns) for each in IMAGES]
    for row in results:
        for kind, error in row["errors"].items():
            fast = row["seconds"]["float32"] / row["seconds"][kind]
            small = row["peak_bytes"][kind] / row["peak_bytes"]["float32"]
            print(
                f"{row['layer']}, {kind}: {fast:.2f} times as fast, {small:.2f} of the "
                f"memory, error {error:.3f}",
                flush=True,
            )
    if options.output is not None:
        document = {"environment": machine.facts(), "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

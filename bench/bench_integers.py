"""Kernels of 8 and 4 bits beside those of float32.

Of a `Dense` layer, and of a network of four convolutions and a `Dense` layer, by batch:
the time of a prediction on one thread, of which the processor time counts, in turns in
one process, and the peak of its plan. Integers of 4 bits have scales for each 64 rows,
and convolutions by them are computed in float32. Asserts that errors are small, and no
time.

What was expected: a quarter and an eighth of the memory, and times between those of
reading fewer bytes (few rows) and of products at four times the rate (many rows).

What was found: the memory of `Dense` layers is as expected, that of the convolutional
network is mostly its activations. Times are in the table of docs/compression.md. For
few rows oneDNN spends the time on the order of the kernel (0.2 times as fast for 1 x
4096 x 4096), which is why up to four rows have a loop of their own; so it does for
convolutions of few pixels (0.8 times as fast for an image), whose windows are gathered.

`ONEDNN_MAX_CPU_ISA=AVX2` measures what a processor does without VNNI.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

import machine
import numpy as np

import memcfg as mc

nn = mc.nn
VARIABLE = "ONEDNN_MAX_CPU_ISA"  # what oneDNN is told to keep to
SIDES = ((784, 300), (2048, 1000))
ROWS, IMAGES = (1, 32), (1, 16)
MOST = {"int8": 0.1, "int4": 0.6}  # errors, in standard deviations of results


def dense(inputs: int, units: int) -> list:
    return [nn.Input((inputs,)), nn.Dense(units)]


def convolutional() -> list:
    layers = [
        nn.Conv2D(filters, 3, strides=strides, padding="same", activation="relu")
        for filters, strides in ((32, 1), (64, 2), (128, 2), (256, 2))
    ]
    pooling = nn.GlobalAveragePooling2D()
    return [nn.Input((32, 32, 3)), *layers, pooling, nn.Dense(10)]


def measure(network: str, layers, rows: int, turns: int) -> dict:
    nn.set_random_seed(0)
    plain = nn.Sequential(layers())
    quantize = mc.compression.quantize
    models = {
        "float32": plain,
        "int8": quantize(plain, "int8", products="int8"),
        "int4": quantize(plain, "int4", group=64, products="int8"),
    }
    shape = (rows, *plain.inputs[0].sample_shape)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    results = {name: each.predict_on_batch(x) for name, each in models.items()}
    exact = results.pop("float32")
    errors = {
        name: float(np.abs(each - exact).max() / exact.std())
        for name, each in results.items()
    }
    for name, error in errors.items():
        if error > MOST[name]:
            raise SystemExit(f"{network}, {name}: an error of {error:.3f}")
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(turns):
        for name, each in models.items():
            each.predict_on_batch(x)  # the others' operands have left the caches
            began = time.thread_time()
            each.predict_on_batch(x)
            seconds[name].append(time.thread_time() - began)
    row = {
        "network": network,
        "rows": rows,
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
    mc.config.threading.set_intra_op_parallelism_threads(1)
    cases = [
        (f"{inputs} × {units}", partial(dense, inputs, units), rows)
        for inputs, units in SIDES
        for rows in ROWS
    ]
    cases += [("convolutional", convolutional, rows) for rows in IMAGES]
    results = []
    for case in cases:
        row = measure(*case, options.turns)
        results.append(row)
        for name, error in row["errors"].items():
            fast = row["seconds"]["float32"] / row["seconds"][name]
            small = row["peak_bytes"][name] / row["peak_bytes"]["float32"]
            print(
                f"{row['network']}, {row['rows']} rows, {name}: {fast:.2f} times as "
                f"fast, {small:.2f} of the memory, error {error:.3f}",
                flush=True,
            )
    if options.output is not None:
        about = {"threads": 1, "clock": "thread", "instructions": os.getenv(VARIABLE)}
        document = {
            "environment": machine.facts() | about,
            "results": results,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

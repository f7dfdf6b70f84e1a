"""What a step takes beside its kernels: feeding, running and fetching of one weight.

A model of one weight trains and predicts one sample, on one thread; the median of many
calls is the time of a step's Python part, and of starting a handful of ops. Asserts
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import memcfg as mc
from memcfg._core import set_num_threads

nn = mc.nn


def median_of(step, count):
    found = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found[count // 10 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    set_num_threads(1)
    x = nn.Input((1,))
    model = nn.Model(x, nn.Dense(1, use_bias=False)(x))
    model.compile(nn.SGD(0.01), "mse")
    data, target = np.zeros((2, 1, 1), np.float32)
    seconds = {
        "train_on_batch": median_of(
            lambda: model.train_on_batch(data, target), options.count
        ),
        "predict_on_batch": median_of(
            lambda: model.predict_on_batch(data), options.count
        ),
    }
    for name, each in seconds.items():
        print(f"{name:18}{each * 1e6:8.1f} µs")
    if options.output is not None:
        from bench_training import environment

        document = {"environment": environment(1), "seconds": seconds}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compare a budget whose division moves with two that are fixed.

A model and a cache of images share a budget in which the fastest plan and the whole
cache do not fit together. `model first` gives the model its fastest plan and the cache
what is left: a memory limit, under which `fit` tries nothing else. `loader first` keeps
all images in a dict of the program, whose bytes the limit of the model is reduced by.
Under `moving`, a budget, `fit` starts with the first division and tries the second one
if the model waits. Where images take long to read the second is the better one,
elsewhere the first. Times are printed, not asserted.

What was expected: a moving division loses the trial, two epochs, to the better of the
fixed ones, and ends with epochs of the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts

import memcfg as mc
from memcfg.data import Dataset

nn = mc.nn
SHAPE, COUNT, BATCH = (32, 32, 3), 256, 32
CACHE = COUNT * (int(np.prod(SHAPE)) * 4 + 64)  # bytes of images and labels
IMAGES = np.random.default_rng(0).random((COUNT, *SHAPE), np.float32)
DIVISIONS = "moving", "model first", "loader first"


def images(seconds: float, is_kept: bool) -> Dataset:
    """Make a dataset of images, each of which takes `seconds` to read."""
    kept = {}

    def read(x: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key = int(number)
        if key not in kept:
            time.sleep(seconds)
            if is_kept:
                kept[key] = None
        return x, number % 4

    data = Dataset.from_tensor_slices((IMAGES, np.arange(COUNT))).map(read)
    return (data if is_kept else data.cache()).batch(BATCH)


def network() -> nn.Model:
    """Build a network with much to compute again."""
    nn.set_random_seed(1)
    layers = [nn.Input(SHAPE)]
    for _ in range(4):
        layers += [nn.Conv2D(8, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(4)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(division: str, seconds: float, fast: int, epochs: int) -> dict[str, Any]:
    """Train under one division; return the seconds of each epoch."""
    limit = fast + CACHE // 2
    ends = [time.perf_counter()]
    note = nn.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter())
    )
    with ExitStack() as stack:
        if division == "moving":  # a sixteenth stays free
            stack.enter_context(mc.budget(limit * 16 // 15))
        else:
            of_images = CACHE if division == "loader first" else 0
            mc.config.set_memory_limit("CPU:0", limit - of_images)
            stack.callback(mc.config.set_memory_limit, "CPU:0", None)
        data = images(seconds, is_kept=division == "loader first")
        model = network()
        model.fit(data, epochs=epochs, verbose=0, callbacks=[note])
        peak = model.memory_report().predicted_peak_bytes
        weights = [weight.tobytes() for weight in model.get_weights()]
        model.close()
    return {
        "epochs": list(np.diff(ends)),
        "weights": weights,
        "peak_bytes": peak,
        "limit_bytes": limit,
    }


def measure(seconds: float, epochs: int) -> dict[str, Any]:
    """Train under each division; return what epochs took, and what the end did."""
    probe = network()
    fast = probe.plan(BATCH).peak_bytes
    probe.close()
    case: dict[str, Any] = {"seconds_an_image": seconds, "fastest_plan_bytes": fast}
    case["cache_bytes"] = CACHE
    weights = []
    for division in DIVISIONS:
        done = train(division, seconds, fast, epochs)
        weights.append(done.pop("weights"))
        done["total_seconds"] = sum(done["epochs"])
        done["last_seconds"] = statistics.median(done["epochs"][-5:])
        case[division] = done
    case["same_bits"] = all(each == weights[0] for each in weights)
    better = min(case[name]["last_seconds"] for name in DIVISIONS[1:])
    case["ratio_of_last_epochs"] = case["moving"]["last_seconds"] / better
    better = min(case[name]["total_seconds"] for name in DIVISIONS[1:])
    case["ratio_of_all"] = case["moving"]["total_seconds"] / better
    return case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write results as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    options = parser.parse_args()
    cases = []
    for seconds in (0.0, 0.006):
        cases.append(measure(seconds, 7 if options.quick else 30))
        print(json.dumps(cases[-1]), flush=True)
    if options.output:
        document = {"environment": facts(), "cases": cases}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

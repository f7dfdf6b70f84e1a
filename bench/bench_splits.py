"""Compare a budget whose division moves with two that are fixed.

A model and a cache of images share a budget in which the fastest plan and the whole
cache do not fit together. `model first` gives the model its fastest plan and the cache
what is left: a memory limit, under which `fit` tries nothing else. `loader first` keeps
all images in a dict of the program, whose bytes the limit of the model is reduced by.
Under `moving`, a budget, `fit` starts with the first division and tries the second one
if the model waits. Where images take long to read the second is the better one,
elsewhere the first. Times are printed, not asserted.

The divisions take turns, each in a process of its own, in another order in each turn:
the seconds of an epoch are the shortest of the last five in all turns. Those of the
processor, of all threads, tell what other programs on the machine do not.

What was expected: a moving division loses the trial, two epochs, to the better of the
fixed ones, and ends with epochs of the same time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
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


def train(division: str, seconds: float, epochs: int) -> dict[str, Any]:
    """Train under one division; return the seconds of each epoch."""
    probe = network()
    fast = probe.plan(BATCH).peak_bytes
    del probe
    limit = fast + CACHE // 2
    ends = []

    def note(epoch: int = 0, logs: object = None) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    with ExitStack() as stack:
        if division == "moving":  # a sixteenth stays free
            stack.enter_context(mc.budget(limit * 16 // 15))
        else:
            of_images = CACHE if division == "loader first" else 0
            mc.config.set_memory_limit("CPU:0", limit - of_images)
            stack.callback(mc.config.set_memory_limit, "CPU:0", None)
        data = images(seconds, is_kept=division == "loader first")
        model = network()
        note()
        model.fit(
            data,
            epochs=epochs,
            verbose=0,
            callbacks=[nn.callbacks.LambdaCallback(on_epoch_end=note)],
        )
        peak = model.memory_report().predicted_peak_bytes
        weights = b"".join(weight.tobytes() for weight in model.get_weights())
        model.close()
    took = np.diff(ends, axis=0).round(6)
    return {
        "epochs": took[:, 0].tolist(),
        "processor_seconds": took[:, 1].tolist(),
        "weights": hashlib.sha256(weights).hexdigest(),
        "peak_bytes": peak,
        "limit_bytes": limit,
        "fastest_plan_bytes": fast,
    }


def train_apart(division: str, seconds: float, epochs: int) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--worker", division]
    command += ["--milliseconds", str(1000 * seconds), "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{division}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(seconds: float, epochs: int, turns: int) -> dict[str, Any]:
    """Train under each division in turns; return what epochs took, at the end too."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in DIVISIONS}
    for turn in range(turns):
        for place in range(len(DIVISIONS)):
            name = DIVISIONS[(turn + place) % len(DIVISIONS)]
            runs[name].append(train_apart(name, seconds, epochs))
    one = runs["moving"][0]
    case: dict[str, Any] = {
        "seconds_an_image": seconds,
        "fastest_plan_bytes": one["fastest_plan_bytes"],
        "limit_bytes": one["limit_bytes"],
        "cache_bytes": CACHE,
    }
    for name, found in runs.items():
        case[name] = {
            "epochs": [run["epochs"] for run in found],
            "peak_bytes": [run["peak_bytes"] for run in found],
            "total_seconds": min(sum(run["epochs"]) for run in found),
            "last_seconds": min(min(run["epochs"][-5:]) for run in found),
            "last_processor_seconds": min(
                min(run["processor_seconds"][-5:]) for run in found
            ),
        }
    digests = {run["weights"] for found in runs.values() for run in found}
    case["same_bits"] = len(digests) == 1
    for key, ratio in (
        ("last_seconds", "ratio_of_last_epochs"),
        ("last_processor_seconds", "ratio_of_last_processor_seconds"),
        ("total_seconds", "ratio_of_all"),
    ):
        better = min(case[name][key] for name in DIVISIONS[1:])
        case[ratio] = case["moving"][key] / better
    return case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write results as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--worker", choices=DIVISIONS, help=argparse.SUPPRESS)
    parser.add_argument("--milliseconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        found = train(options.worker, options.milliseconds / 1000, options.epochs)
        print(json.dumps(found))
        return
    cases = []
    for seconds in (0.0, 0.006):
        epochs, turns = (7, 1) if options.quick else (20, options.turns)
        cases.append(measure(seconds, epochs, turns))
        print(json.dumps(cases[-1]), flush=True)
    if options.output:
        document = {"environment": facts(), "cases": cases}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

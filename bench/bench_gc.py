"""Measure the pauses of Python's garbage collector in a loop of small steps.

A model of a thousand weights is fitted in batches of 16 beside a heap of many objects,
as a program has that holds samples in lists, and a callback leaves reference cycles
behind, as closures and exceptions do. Each setting runs in a fresh process. Python
tells when a collection begins and ends. Times are printed, not asserted.

What was expected: the settings differ in how many collections begin, not in how long
one takes, which depends on its generation and the heap. A window of a second has one in
it; with none, garbage stays until the end, where one collection finds it all.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bench_arrays import environment

import memcfg as mc

SETTINGS: dict[str, float | None] = {"Python's own": None, "100 ms": 100}
SETTINGS |= {"1,000 ms": 1000, "none": 0}
OBJECTS = 1_000_000  # of the heap beside the model, in lists of ten
CYCLES = 200  # that each step leaves behind
STEPS = 3000


class Measure(mc.nn.callbacks.Callback):
    """Leaves cycles behind, and notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        for _ in range(CYCLES):
            cycle: list[object] = []
            cycle.append(cycle)
        self.ends.append(time.perf_counter())


def measure(milliseconds: float | None, objects: int, steps: int) -> dict[str, float]:
    """Fit with a window, and return what collections cost."""
    heap = [[number] * 10 for number in range(objects // 10)]
    gc.collect()
    mc.gc.set_auto_gc_window(milliseconds)
    model = mc.nn.Sequential([mc.nn.Input((16,)), mc.nn.Dense(32), mc.nn.Dense(8)])
    model.compile("sgd", "mse")
    x, y = np.ones((16 * steps, 16), "f4"), np.ones((16 * steps, 8), "f4")
    begins: list[float] = []
    pauses: list[float] = []

    def note(phase: str, _: object) -> None:
        now = time.perf_counter()
        if phase == "start":
            begins.append(now)
        else:
            pauses.append(now - begins[-1])

    model.fit(x[:1600], y[:1600], batch_size=16, verbose=0)  # compiles
    found = Measure()
    gc.callbacks.append(note)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=found)
    gc.callbacks.remove(note)
    inside = [
        pause
        for begin, pause in zip(begins, pauses, strict=True)
        if found.ends[0] <= begin <= found.ends[-1]
    ]
    took = np.diff(found.ends)
    del heap
    return {
        "collections": len(inside),
        "pauses_seconds": sum(inside),
        "longest_pause_seconds": max(inside, default=0.0),
        "loop_seconds": found.ends[-1] - found.ends[0],
        "median_step_seconds": float(np.median(took)),
        "longest_step_seconds": float(took.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write results as JSON")
    parser.add_argument("--quick", action="store_true", help="a tenth of all")
    parser.add_argument("--setting", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    part = 10 if options.quick else 1
    if options.setting:
        found = measure(SETTINGS[options.setting], OBJECTS // part, STEPS // part)
        print(json.dumps(found))
        return
    cases = []
    for setting in SETTINGS:
        command = [sys.executable, __file__, "--setting", setting]
        command += ["--quick"] * options.quick
        cases.append(
            {"setting": setting, **json.loads(subprocess.check_output(command))}
        )
        print(json.dumps(cases[-1]), flush=True)
    if options.output:
        facts = {"objects": OBJECTS // part, "steps": STEPS // part, "cycles": CYCLES}
        options.repeats = 1
        document = {"environment": environment(options) | facts, "cases": cases}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

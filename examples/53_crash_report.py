"""Have a report written when training runs out of memory, and read it."""

import json
import tempfile
from pathlib import Path

import numpy as np

from memcfg import config, crash_report
from memcfg import nn as keras
from memcfg.errors import InfeasiblePlanError

config.set_memory_limit("CPU:0", "256KiB")
layers = [keras.layers.Dense(128, activation="relu") for _ in range(4)]
model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
x, y = np.zeros((1000, 64), "float32"), np.zeros(1000, int)

with tempfile.TemporaryDirectory() as folder:
    # A program that runs unattended: MEMCFG_CRASH_REPORTS=folder does the same.
    config.set_crash_reports(folder)
    try:
        model.fit(x, y, batch_size=500, verbose=0)
    except InfeasiblePlanError as error:
        print(error.__notes__[-1].partition(" in ")[0])  # the traceback says where
    (path,) = Path(folder).iterdir()
    print((path / "report.txt").read_text(encoding="utf-8"))

    report = json.loads((path / "report.json").read_text(encoding="utf-8"))
    error = report["error"]
    print("Refused:", error["program"], "of", error["by"])
    print("Smallest limit:", error["smallest_limit_bytes"], "B")
    top = max(
        report[f"model {error['by']}: refused"]["timeline"],
        key=lambda e: e["live_bytes"],
    )
    print("Most memory without a limit:", top["op"], top["live_bytes"], "B")

    # At any time, without an error:
    config.set_memory_limit("CPU:0", "64MiB")
    model.fit(x, y, batch_size=500, verbose=0)
    path = crash_report(folder=folder)
    report = json.loads((path / "report.json").read_text(encoding="utf-8"))
    print("Loaded now:", *report["model sequential"]["programs"])

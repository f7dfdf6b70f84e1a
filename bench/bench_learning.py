"""Tasks that networks learn: the score beside Keras's, and the bits at half the memory.

Each task of ``bench/learning`` is trained in a process of its own: without a limit,
within half of the peak that its planned step has without one, and, with ``--keras``, by
Keras with PyTorch from the same weights. Where no plan of the whole batch fits into
half, 0.6, 0.7 and so on of the peak are tried, and the row says which;
``limit_of_unmanaged`` is the limit's share of the bytes of a step whose tensors have
buffers of their own. Scores are printed beside those of chance; nothing is asserted.

``python bench learning --keras --output bench/results/learning.json``
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import facts

HERE = Path(__file__).resolve().parent
NOT_TASKS = ("__init__", "outcome")
TASKS = sorted(
    path.stem for path in (HERE / "learning").glob("*.py") if path.stem not in NOT_TASKS
)


def work(task: str, side: str, limit: int | None) -> None:
    """Train a task; print its outcome, or why it does not fit."""
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(f"learning.{task}")
    began = time.perf_counter()
    if side == "keras":
        import keras

        outcome = asdict(module.train(keras, own=False))
    else:
        import memcfg as mc

        mc.config.set_memory_limit("CPU:0", limit)
        warnings.simplefilter("error", mc.errors.FallbackWarning)  # no micro-batches
        try:
            outcome = asdict(module.train(mc.nn, own=True))
        except (mc.errors.ResourceExhaustedError, mc.errors.FallbackWarning) as error:
            outcome = {"refused": str(error)}
    outcome["seconds"] = time.perf_counter() - began
    print(json.dumps(outcome))


def run(task: str, side: str, limit: int | None = None) -> dict[str, Any]:
    """Return what a process of one side prints."""
    command = [sys.executable, __file__, "--worker", side, "--tasks", task]
    command += [] if limit is None else ["--limit", str(limit)]
    place = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=place
    )
    if done.returncode:
        raise SystemExit(f"{task}, {side}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(task: str, keras: bool) -> dict[str, Any]:
    """Train a task on all sides; return what a row needs."""
    free = run(task, "memcfg")
    for tenths in range(5, 11):
        limit = free["peak_bytes"] * tenths // 10
        within = run(task, "memcfg", limit)
        if "refused" not in within:
            break
    module = importlib.import_module(f"learning.{task}")
    return {
        "task": task,
        "chance": module.CHANCE,
        "wanted": module.WANTED,
        "score": free["score"],
        "keras_score": run(task, "keras")["score"] if keras else None,
        "keep_all_bytes": free["keep_all_bytes"],
        "peak_bytes": free["peak_bytes"],
        "limit_bytes": limit,
        "limit_of_peak": tenths / 10,
        "limit_of_unmanaged": round(limit / free["keep_all_bytes"], 3),
        "peak_within_bytes": within["peak_bytes"],
        "same_bits": within["weights"] == free["weights"],
        "seconds": free["seconds"],
        "seconds_within": within["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--keras", action="store_true", help="train by Keras as well")
    parser.add_argument("--quick", action="store_true", help="the first task alone")
    parser.add_argument("--output", type=Path, help="write results as JSON")
    parser.add_argument("--worker", choices=("memcfg", "keras"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.tasks, options.worker, options.limit)
        return
    sys.path.insert(0, str(HERE))
    tasks = options.tasks.split(",")[: 1 if options.quick else None]
    rows = []
    for task in tasks:
        rows.append(measure(task, options.keras))
        print(json.dumps(rows[-1]), flush=True)
    if options.output:
        document = {"environment": facts(), "tasks": rows}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
